package cache

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// zSOA is the authority section of a denial in zone z. with a lifetime of 60 seconds.
const zSOA = "authority; z. 60 IN SOA ns.z. root.z. 1 2 3 4 60"

// alias is the answer to a search list whose second candidate has data.
func alias(ttl int) string {
	return fmt.Sprintf("w.ns.z. %d IN CNAME w.z.; w.z. %d IN A 192.0.2.1", ttl, ttl)
}

// list adds a search list to a query.
const list = " +search:ns.z.,z."

func TestSearchList(t *testing.T) {
	const sec = time.Second
	gone := "NXDOMAIN; " + strings.Replace(zSOA, "z. 60 IN", "z. 50 IN", 1)
	for _, c := range []struct {
		name, options string
		steps         []step
	}{
		{"a reply with the option is cached for queries with the list", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"", 10 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(50) + "; additional; OPT tried:z.", 1},
			{"NXDOMAIN; " + zSOA, 0, "w.ns.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(50) + "; additional; OPT tried:z.", 2},
			{"NOERROR tried:z.; " + alias(30), 60 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z.", 3},
		}},
		{"each list has its own answer", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"NOERROR tried:ns.z.; " + a("w.ns.z.", 60), 0, "w.ns.z. A +search:ns.z.", "NOERROR; " + a("w.ns.z.", 60) + "; additional; OPT tried:ns.z.", 2},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 2},
			{"", 0, "w.ns.z. A +search:ns.z.", "NOERROR; " + a("w.ns.z.", 60) + "; additional; OPT tried:ns.z.", 2},
		}},
		{"NODATA with the option", "", []step{
			{"NOERROR tried:z.; " + zSOA, 0, "w.ns.z. AAAA" + list, "NOERROR; " + zSOA + "; additional; OPT tried:z.", 1},
			{"", 0, "w.ns.z. AAAA" + list, "NOERROR; " + zSOA + "; additional; OPT tried:z.", 1},
			{"NOERROR tried; " + zSOA, 0, "v.ns.z. AAAA" + list, "NOERROR; " + zSOA + "; additional; OPT tried:", 2},
			{"", 0, "v.ns.z. AAAA" + list, "NOERROR; " + zSOA + "; additional; OPT tried:", 2},
			{"", 0, "v.ns.z. AAAA", "NOERROR; " + zSOA, 3},
		}},
		{"a reply without the option is for the name", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 10 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 50), 1},
			{"", 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 50), 1},
			{"", 0, "W.ns.z. A +search:ns.z.", "NOERROR; " + a("W.ns.z.", 50), 1},
			{"", 0, "w.ns.z. A +do" + list, "NOERROR; " + a("w.ns.z.", 60), 2},
		}},
		{"an entry for the name answers a query with a list", "", []step{
			{"NXDOMAIN; " + zSOA, 0, "w.ns.z. A", "NXDOMAIN; " + zSOA, 1},
			{"NOERROR tried:z.; " + alias(60), 10 * sec, "w.ns.z. A" + list, gone, 1},
			{"", 50 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 2},
		}},
		{"no candidate exists: each is denied", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, "W.ns.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"fail", 10 * sec, "w.ns.z. A" + list, gone + "; additional; OPT tried:", 1},
			{"", 0, "w.ns.z. A", gone, 1},
			{"", 0, "w.z. A +edns", gone, 1},
			{"", 0, "w.Z. A", gone, 1},
			{"", 0, "w.z. AAAA", "nothing", 2},
			{"", 0, "w.z. A +cd", "nothing", 3},
			{"", 0, "w. A", "nothing", 4},
			{"NXDOMAIN; " + zSOA, 50 * sec, "w.z. A", "NXDOMAIN; " + zSOA, 5},
		}},
		{"no candidate with several labels exists", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, `w\.v.x.ns.z. A` + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, `w\.v.x.z. A`, "NXDOMAIN; " + zSOA, 1},
			{"", 0, "v.x.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"a denial that is not cached denies no candidate", "", []step{
			{"NXDOMAIN tried; " + strings.Replace(zSOA, "z. 60 IN", "z. 0 IN", 1), 0, "w.ns.z. A" + list,
				"NXDOMAIN; " + strings.Replace(zSOA, "z. 60 IN", "z. 0 IN", 1) + "; additional; OPT tried:", 1},
			{"NXDOMAIN; " + zSOA, 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"denials are disabled for a candidate", "disable denial a.z", []step{
			{"NXDOMAIN tried; " + zSOA, 0, "w.ns.z. A +search:ns.z.,a.z.,z.", "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.a.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"the zone denies no candidate of another zone", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, "w.ns.z. A +search:ns.z.,y.,z.", "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.y. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"the name is not below the first suffix", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, `w\.ns.z. A` + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, `w\.z. A`, "NXDOMAIN; " + zSOA, 3},
			{"", 0, "ns.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 4},
			{"", 0, "z. A", "NXDOMAIN; " + zSOA, 5},
			{"", 0, "v.xx.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 6}, // as long as ns
			{"", 0, "v.z. A", "NXDOMAIN; " + zSOA, 7},
		}},
		{"a candidate is too long", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, strings.Repeat("a.", 123) + "y.z. A +search:y.z.,long.z.,z.", "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, strings.Repeat("a.", 123) + "z. A", "NXDOMAIN; " + zSOA, 1},
		}},
		{"a denial with a proof is that of one name", "", []step{
			{"NXDOMAIN tried; " + zSOA + "; a.z. 60 IN NSEC x.z. A", 0, "w.ns.z. A +do" + list, "NXDOMAIN; " + zSOA + "; a.z. 60 IN NSEC x.z. A; additional; OPT tried:", 1},
			{"", 0, "w.z. A +do", "NXDOMAIN; " + zSOA + "; a.z. 60 IN NSEC x.z. A", 2},
		}},
		{"the alias of a nonexistent name denies no candidate", "", []step{
			{"NXDOMAIN tried; w.ns.z. 60 IN CNAME y.z.; " + zSOA, 0, "w.ns.z. A" + list, "NXDOMAIN; w.ns.z. 60 IN CNAME y.z.; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.z. A", "NXDOMAIN; w.ns.z. 60 IN CNAME y.z.; " + zSOA, 2},
		}},
		{"the denial of one candidate denies no other", "", []step{
			{"NXDOMAIN tried:z.; " + zSOA, 0, "w.ns.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:z.", 1},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"a contradictory option is not cached", "", []step{
			{"NOERROR tried:y.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:y.", 1},
			{"NOERROR tried:ns.z.,z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:ns.z.,z.", 2},
			{"NOERROR tried:z. tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z. tried:z.", 3},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z. tried:z.", 4},
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 5},
		}},
		{"an option in the reply only", "", []step{
			{"NOERROR tried:z.; " + a("w.ns.z.", 60), 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 60), 1},
		}},
		{"an invalid list", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A +search:.", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 0, "w.ns.z. A +search:.", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 0, "w.ns.z. A" + list + list, "NOERROR; " + a("w.ns.z.", 60), 2}, // two lists are ambiguous
			{"", 0, "w.ns.z. A" + list + list, "NOERROR; " + a("w.ns.z.", 60), 3},
		}},
		{"extended errors beside the option", "", []step{
			{"NOERROR tried; " + zSOA, 0, "w.ns.z. A" + list, "NOERROR; " + zSOA + "; additional; OPT tried:", 1},
			{"fail", 70 * sec, "w.ns.z. A" + list, "NOERROR; " + strings.Replace(zSOA, "z. 60 IN", "z. 30 IN", 1) + "; additional; OPT tried: 3 (Stale Answer): ()", 2},
		}},
		{"stale, when the upstream fails", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"fail", 61 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z. 3 (Stale Answer): ()", 2},
			{"", 0, "w.ns.z. A +edns", "SERVFAIL", 2}, // cached for the name
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z. 3 (Stale Answer): ()", 2},
		}},
		{"stale for the name, when the upstream fails", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 1},
			{"fail", 61 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 30) + "; additional; OPT 3 (Stale Answer): ()", 2},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 30) + "; additional; OPT 3 (Stale Answer): ()", 2},
			{"NOERROR; " + a("w.ns.z.", 60), 30 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 3},
			{"", 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 60), 3},
		}},
		{"stale for the list before stale for the name", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"NOERROR tried:z.; " + alias(60), 60 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 2},
			{"fail", 61 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z. 3 (Stale Answer): ()", 3},
		}},
		{"stale for the name before unusable for the list", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"NOERROR; " + a("w.ns.z.", 60), time.Hour, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 2},
			{"fail", 2 * time.Minute, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 30) + "; additional; OPT 3 (Stale Answer): ()", 3},
		}},
		{"fresh for the name before stale for the list", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"NOERROR; " + a("w.ns.z.", 60), 61 * sec, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 2},
			{"fail", 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 2},
		}},
		{"stale at once, and fetched with the list", "serve_stale 1h", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"NOERROR tried:z.; " + alias(60), 61 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 0), 2},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 2},
		}},
		{"a failure is cached for the name", "serve_stale off", []step{
			{"fail", 0, "w.ns.z. A" + list, "nothing", 1},
			{"", 0, "w.ns.z. A" + list, "SERVFAIL", 1},
			{"", 0, "w.ns.z. A", "SERVFAIL", 1},
		}},
		{"prefetch", "prefetch 2 1m 50%", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"", 40 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(20) + "; additional; OPT tried:z.", 2},
			{"", 40 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(20) + "; additional; OPT tried:z.", 3},
		}},
	} {
		inBubble(t, c.name, func(t *testing.T) { newTestCache(t, "cache {\n"+c.options+"\n}").steps(c.steps) })
	}
}

// TestSearchList_Zones checks that candidates outside of the zones of the cache are not cached.
func TestSearchList_Zones(t *testing.T) {
	inBubble(t, "zones", func(t *testing.T) {
		b := newTestCache(t, "cache ns.z")
		b.steps([]step{
			{"NXDOMAIN tried; " + zSOA, 0, "w.ns.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.ns.z. A", "NXDOMAIN; " + zSOA, 1},
			{"NXDOMAIN; " + zSOA, 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 3},
		})
		if e := b.entry("w.z. A"); e != nil {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// TestSearchList_Views checks that if the answer for the name depends on the caller, so does the one to a list that the
// upstream has not tried.
func TestSearchList_Views(t *testing.T) {
	inBubble(t, "views", func(t *testing.T) {
		p := newPerCaller(t, "cache")
		p.space.ByGeneration.Store(true)
		p.mark = marks(new(generation))["of a view"]
		p.queryAs(1, "w. A", answerFor(1, 60))
		a := p.clientQueryFor(query("w. A" + list))
		if e, state := p.lookup(a.key, a.packed, &a.Query, p.now()); e == nil || e.Views == nil || state != unusable {
			t.Errorf("the lookup returned %+v", e)
		}
		p.queryAs(2, "w. A"+list, answerFor(2, 60))
		p.queryAs(1, "w. A"+list, answerFor(1, 60))
	})
}

// TestSearchList_Generations checks that a denial of a list that depends on generations does not deny the candidates.
func TestSearchList_Generations(t *testing.T) {
	chainOnly(t, "generations", func(t *testing.T) {
		b, g := newTestCache(t, "cache"), new(generation)
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			c := store.PropertiesOf(ctx, r)
			c.Bounds[0] = validity.Bound{Generation: g, Number: g.n}
			text := "NXDOMAIN; " + zSOA
			if searchlist.HasOption(r) {
				text = "NXDOMAIN tried; " + zSOA
				c.Options = searchlist.AppendOption(nil, nil)
			}
			return 0, w.WriteMsg(replyTo(t, r, text))
		})
		b.want("w.ns.z. A"+list, "NXDOMAIN; "+zSOA+"; additional; OPT tried:")
		b.want("w.ns.z. A"+list, "NXDOMAIN; "+zSOA+"; additional; OPT tried:")
		b.wantQueries(1)
		b.want("w.ns.z. A", "NXDOMAIN; "+zSOA)
		b.want("w.z. A", "NXDOMAIN; "+zSOA)
		b.wantQueries(3)
		g.n++
		b.want("w.ns.z. A"+list, "NXDOMAIN; "+zSOA+"; additional; OPT tried:")
		b.wantQueries(4)
	})
}

// TestSearchList_Concurrent checks that only queries with the same list share a reply.
func TestSearchList_Concurrent(t *testing.T) {
	tried := "NOERROR; " + alias(60) + "; additional; OPT tried:z."
	for _, c := range []struct {
		name, reply string
		queries     []timedQuery
		received    int
	}{
		{"the same list", "NOERROR tried:z.; " + alias(60), []timedQuery{
			{query: "w.ns.z. A" + list, reply: tried}, {query: "w.ns.z. A" + list, reply: tried}, {after: time.Second, query: "W.ns.z. A" + list, reply: strings.Replace(tried, "w.ns", "W.ns", 1)},
		}, 1},
		{"the same list, not cached", "NOERROR tried:z.; " + alias(0), []timedQuery{
			{query: "w.ns.z. A" + list, reply: strings.ReplaceAll(tried, " 60 ", " 0 ")}, {query: "w.ns.z. A" + list, reply: strings.ReplaceAll(tried, " 60 ", " 0 ")},
		}, 1},
		{"the same list, not tried", "NOERROR; " + a("w.ns.z.", 60), []timedQuery{
			{query: "w.ns.z. A" + list, reply: "NOERROR; " + a("w.ns.z.", 60)}, {query: "w.ns.z. A" + list, reply: "NOERROR; " + a("w.ns.z.", 60)},
			{after: 5 * time.Second, query: "w.ns.z. A", reply: "NOERROR; " + a("w.ns.z.", 57)},
		}, 1},
		{"other lists", "NOERROR; " + a("w.ns.z.", 60), []timedQuery{
			{query: "w.ns.z. A" + list, reply: "NOERROR; " + a("w.ns.z.", 60)},
			{query: "w.ns.z. A +search:ns.z.", reply: "NOERROR; " + a("w.ns.z.", 60)},
			{query: "w.ns.z. A +edns", reply: "NOERROR; " + a("w.ns.z.", 60)},
		}, 3},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(2 * time.Second)
				m := replyTo(t, r, c.reply)
				return m.Rcode, w.WriteMsg(m)
			})
			b.concurrently(c.queries)
			b.wantQueries(c.received)
		})
	}
}

// TestSearchList_JustFinished has a flight for the name end before the flight for the list starts: the latter has its result.
func TestSearchList_JustFinished(t *testing.T) {
	inBubble(t, "finished", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.replies("NOERROR; " + a("w.ns.z.", 60))
		b.want("w.ns.z. A", "NOERROR; "+a("w.ns.z.", 60))
		r := query("w.ns.z. A" + list)
		a := b.clientQueryFor(r)
		f, leader := b.flights.join(a, b.now())
		if !leader {
			t.Fatal("the query is not the leader")
		}
		out := b.lead(context.Background(), backgroundRecorder(), a, f, false)
		if out.entry == nil || out.reply != nil {
			t.Errorf("got %+v", out)
		}
		b.wantQueries(1)
	})
}

// clientQueryFor returns the clientQuery of a message.
func (b *testCache) clientQueryFor(r *dns.Msg) *clientQuery {
	b.t.Helper()
	a := &clientQuery{msg: r, counters: b.counters("")}
	var ok bool
	if a.packed, ok = store.QueryFromMsg(&a.Query, make([]byte, 0, 512), r); !ok {
		b.t.Fatalf("invalid query %v", r)
	}
	a.key = b.space.Key(nil, a.packed, &a.Query)
	return a
}
