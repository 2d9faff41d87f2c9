package cache

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nearside-dns/nearside/plugin/fastpath/store"
)

// value returns the number that a metric has.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	if out.Counter != nil {
		return out.Counter.GetValue()
	}
	return out.Gauge.GetValue()
}

func TestMetrics(t *testing.T) {
	beds(t, "counted", func(t *testing.T) {
		b := newBed(t, "cache {\nserve_stale\n}")
		b.replies("NOERROR; " + a("w.", 300))
		b.ask("w. A")
		b.ask("w. A")
		b.replies(denial("NXDOMAIN", 60, 60))
		b.ask("v. A")
		b.ask("v. A")
		b.ask("v. A")
		time.Sleep(300 * time.Second)
		b.fails()
		b.ask("w. A")
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

// The counters that the fast path gets are those that the chain counts with.
func TestCounters(t *testing.T) {
	b := newBed(t, "cache")
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

// The fast path is to count as the cache does where the cache is asked, and nowhere else.
func TestCovers(t *testing.T) {
	b := newBed(t, "cache example.org example.com")
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

// The names and labels are those that dashboards have.
func TestMetricNames(t *testing.T) {
	b := newBed(t, "cache")
	b.counters("dns://:53")
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
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
