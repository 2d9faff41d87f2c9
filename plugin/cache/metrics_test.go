package cache

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// value returns the value of a metric.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	kit.Must(t, m.Write(&out))
	if out.Counter != nil {
		return out.Counter.GetValue()
	}
	return out.Gauge.GetValue()
}

func TestMetrics(t *testing.T) {
	chainOnly(t, "counted", func(t *testing.T) {
		b := newTestCache(t, "cache {\nserve_stale\n}")
		b.byGeneration("k.")
		b.replies("NOERROR; " + a("w.", 300))
		b.query("w. A")
		b.query("w. A")
		b.byGeneration("l.")
		b.replies(denial("NXDOMAIN", 60, 60))
		b.query("v. A")
		b.query("v. A")
		b.query("v. A")
		time.Sleep(300 * time.Second)
		b.fails()
		b.query("w. A")
		time.Sleep(time.Second)
		n := b.counters("")
		for _, c := range []struct {
			name   string
			metric prometheus.Metric
			want   float64
		}{
			{"requests", n.requests, 6},
			{"misses", n.misses, 2},
			{"hits success", n.hits[store.Success], 2},
			{"hits denial", n.hits[store.Denial], 2},
			{"stale", n.stale, 1},
			{"prefetches", n.prefetches, 1},
			{"drops", n.drops, 0},
			{"entries success", n.entries[store.Success], 1},
			{"entries denial", n.entries[store.Denial], 1},
		} {
			if got := value(t, c.metric); got != c.want {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	})
}

// byGeneration stores an address that is valid while a generation is current, as kubernetes does for names that the cache
// does not cover.
func (b *testCache) byGeneration(name string) {
	b.t.Helper()
	b.space.ByGeneration.Store(true)
	r := query(name + " A")
	b.space.PutReply(r, replyTo(b.t, r, "NOERROR; "+a(name, 300)), &store.Properties{
		Validity: validity.Validity{Bounds: [validity.MaxBounds]validity.Bound{{Generation: new(generation)}}},
	})
	if e := b.entry(name + " A"); e == nil || e.Cached {
		b.t.Fatalf("the entry by generation is %+v", e)
	}
}

// answersWith makes the upstream answer each query with an address, and with properties.
func (b *testCache) answersWith(properties func(*store.Properties)) {
	b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		properties(store.PropertiesOf(ctx, r))
		return 0, w.WriteMsg(replyTo(b.t, r, "NOERROR; "+a(r.Question[0].Name, 300)))
	})
}

// entriesAre checks the gauge of entries.
func (b *testCache) entriesAre(after string, success, denial int) {
	b.t.Helper()
	n := b.counters("")
	got := [2]float64{value(b.t, n.entries[store.Success]), value(b.t, n.entries[store.Denial])}
	if want := [2]float64{float64(success), float64(denial)}; got != want {
		b.t.Errorf("after %s, coredns_cache_entries is %v for answers and denials, want %v", after, got, want)
	}
}

// TestEntries checks that the gauge has the number of cached answers after each kind of change.
func TestEntries(t *testing.T) {
	chainOnly(t, "entries", func(t *testing.T) {
		b := newTestCache(t, "cache {\ndisable success cluster.local\nserve_stale off\n}")
		g := new(generation)
		current := func(c *store.Properties) { c.Bounds[0] = validity.Bound{Generation: g, Number: g.n} }
		b.entriesAre("the start", 0, 0)
		b.byGeneration("k.")
		b.entriesAre("an answer by generation alone", 0, 0)
		b.answersWith(func(*store.Properties) {})
		b.query("w. A")
		b.query("v. A")
		b.entriesAre("two answers of an upstream", 2, 0)
		b.answersWith(current)
		b.query("web.shop.svc. A")
		b.entriesAre("an answer of kubernetes behind the cache", 3, 0)
		b.query("web.shop.svc.cluster.local. A")
		if e := b.entry("web.shop.svc.cluster.local. A"); e == nil || e.Cached {
			t.Fatalf("the entry in a disabled zone is %+v", e)
		}
		b.entriesAre("an answer of kubernetes in a disabled zone", 3, 0)
		g.n++
		b.query("web.shop.svc. A")
		b.entriesAre("a change of the cluster, and the same query", 3, 0)
		b.replies(denial("NXDOMAIN", 60, 60))
		time.Sleep(300 * time.Second)
		b.entriesAre("the expiry of all answers", 3, 0)
		b.query("w. A")
		b.entriesAre("a denial in the place of an answer", 2, 1)
		time.Sleep(60 * time.Second)
		b.answersWith(func(c *store.Properties) { current(c); c.Views = byLast{} })
		b.query("w. A")
		b.query("v. A")
		b.entriesAre("answers that depend on the caller in the place of a denial and an answer", 1, 0)
		b.answersWith(func(*store.Properties) {})
		b.query("u. A")
		b.entriesAre("one more answer", 2, 0)
		b.store.SetBudget(1)
		b.entriesAre("a budget of one byte", 0, 0)
		b.store.SetBudget(store.DefaultBudget)
		b.query("u. A")
		b.entriesAre("one answer within the default budget", 1, 0)

		next := newTestCache(t, "cache") // after a reload
		next.zonesLabel, next.store, next.space = b.zonesLabel, b.store, b.store.NewKeyspace()
		next.answersWith(func(*store.Properties) {})
		next.query("w. A")
		next.query("v. A")
		b.entriesAre("two answers in the cache of the next configuration", 3, 0)
		b.space.Drop()
		b.entriesAre("the end of the one before", 2, 0)
		b.query("w. A")
		b.entriesAre("an answer after the end", 2, 0)
	})
}

// TestEntriesOfTwoServers checks that each server of a block reports all entries of the block.
func TestEntriesOfTwoServers(t *testing.T) {
	b := newTestCache(t, "cache")
	b.answersWith(func(*store.Properties) {})
	b.query("w. A")
	other := b.counters("dns://127.0.0.1:53")
	for _, name := range []string{"v. A", "u. A"} {
		b.query(name)
	}
	b.entriesAre("three queries to one server", 3, 0)
	if got := value(t, other.entries[store.Success]); got != 3 {
		t.Errorf("coredns_cache_entries of the other server is %v, want 3", got)
	}
}

// TestCounters checks that the fast path and the chain use the same counters.
func TestCounters(t *testing.T) {
	b := newTestCache(t, "cache")
	given, own := b.Counters("dns://:53"), b.counters("dns://:53")
	for name, c := range map[string]struct{ given, own prometheus.Counter }{
		"requests": {given.Requests, own.requests},
		"misses":   {given.Misses, own.misses},
		"denials":  {given.Hits[store.Denial], own.hits[store.Denial]},
		"answers":  {given.Hits[store.Success], own.hits[store.Success]},
	} {
		before := value(t, c.own)
		c.given.Inc()
		if got := value(t, c.own); got != before+1 {
			t.Errorf("%s: %v, want %v", name, got, before+1)
		}
	}
}

// TestCovers checks the names for which the fast path counts hits and misses of the cache.
func TestCovers(t *testing.T) {
	b := newTestCache(t, "cache example.org example.com")
	b.bypass = []string{"secret.example.org."}
	for name, want := range map[string]bool{
		"example.org.": true, "www.example.com.": true, "org.": false, ".": false,
		"secret.example.org.": false, "a.secret.example.org.": false,
	} {
		if got := b.Covers(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	borders := b.Borders()
	slices.Sort(borders)
	if want := []string{"example.com.", "example.org.", "secret.example.org."}; !slices.Equal(borders, want) {
		t.Errorf("borders %q, want %q", borders, want)
	}
}

// TestMetricNames checks the names and labels, which dashboards use.
func TestMetricNames(t *testing.T) {
	b := newTestCache(t, "cache")
	b.counters("dns://:53")
	families, err := prometheus.DefaultGatherer.Gather()
	kit.Must(t, err)
	labels := map[string]string{}
	for _, f := range families {
		names := ""
		for _, l := range f.Metric[0].Label {
			names += l.GetName() + " "
		}
		labels[f.GetName()] = names
	}
	for name, want := range map[string]string{
		"coredns_cache_entries":                  "server type view zones ",
		"coredns_cache_hits_total":               "server type view zones ",
		"coredns_cache_evictions_total":          "server type view zones ",
		"coredns_cache_requests_total":           "server view zones ",
		"coredns_cache_misses_total":             "server view zones ",
		"coredns_cache_prefetch_total":           "server view zones ",
		"coredns_cache_drops_total":              "server view zones ",
		"coredns_cache_served_stale_total":       "server view zones ",
		"nearside_cache_coalesced_total":         "server view zones ",
		"nearside_cache_refreshes_skipped_total": "server view zones ",
		"nearside_cache_bytes":                   "",
		"nearside_cache_budget_bytes":            "",
	} {
		if got, ok := labels[name]; !ok || got != want {
			t.Errorf("%s: labels %q, want %q (there: %v)", name, got, want, ok)
		}
	}
}
