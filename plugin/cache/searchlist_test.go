package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// zSOA is a denial of zone z., which lasts for a minute. It is written with 60 seconds left.
const zSOA = "authority; z. 60 IN SOA ns.z. root.z. 1 2 3 4 60"

// alias is the answer to a search list of which the second name has data, with its TTL.
func alias(ttl int) string {
	return fmt.Sprintf("w.ns.z. %d IN CNAME w.z.; w.z. %d IN A 192.0.2.1", ttl, ttl)
}

// list is a search list as queries have it.
const list = " +search:ns.z.,z."

func TestSearch(t *testing.T) {
	const sec = time.Second
	gone := "NXDOMAIN; " + strings.Replace(zSOA, "z. 60 IN", "z. 50 IN", 1)
	for _, c := range []struct {
		name, options string
		steps         []step
	}{
		{"the reply is kept with the option, for who asks with the list", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"", 10 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(50) + "; additional; OPT tried:z.", 1},
			{"NXDOMAIN; " + zSOA, 0, "w.ns.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(50) + "; additional; OPT tried:z.", 2},
			{"NOERROR tried:z.; " + alias(30), 60 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z.", 3},
		}},
		{"each list has its answer", "", []step{
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
		{"a reply without the option is that to the name", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 10 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 50), 1},
			{"", 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 50), 1},
			{"", 0, "W.ns.z. A +search:ns.z.", "NOERROR; " + a("W.ns.z.", 50), 1},
			{"", 0, "w.ns.z. A +do" + list, "NOERROR; " + a("w.ns.z.", 60), 2},
		}},
		{"what is kept for the name is an answer to the list", "", []step{
			{"NXDOMAIN; " + zSOA, 0, "w.ns.z. A", "NXDOMAIN; " + zSOA, 1},
			{"NOERROR tried:z.; " + alias(60), 10 * sec, "w.ns.z. A" + list, gone, 1},
			{"", 50 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 2},
		}},
		{"no name exists, each of them", "", []step{
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
		{"no name exists, of those with more labels", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, `w\.v.x.ns.z. A` + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, `w\.v.x.z. A`, "NXDOMAIN; " + zSOA, 1},
			{"", 0, "v.x.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"a denial that is not kept denies nothing", "", []step{
			{"NXDOMAIN tried; " + strings.Replace(zSOA, "z. 60 IN", "z. 0 IN", 1), 0, "w.ns.z. A" + list,
				"NXDOMAIN; " + strings.Replace(zSOA, "z. 60 IN", "z. 0 IN", 1) + "; additional; OPT tried:", 1},
			{"NXDOMAIN; " + zSOA, 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"denials are not kept of some", "disable denial a.z", []step{
			{"NXDOMAIN tried; " + zSOA, 0, "w.ns.z. A +search:ns.z.,a.z.,z.", "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.a.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"the zone does not deny what is not in it", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, "w.ns.z. A +search:ns.z.,y.,z.", "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.y. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"the first suffix is not the name's", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, `w\.ns.z. A` + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, `w\.z. A`, "NXDOMAIN; " + zSOA, 3},
			{"", 0, "ns.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 4},
			{"", 0, "z. A", "NXDOMAIN; " + zSOA, 5},
			{"", 0, "v.xx.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 6}, // as long as ns
			{"", 0, "v.z. A", "NXDOMAIN; " + zSOA, 7},
		}},
		{"a name would be too long", "", []step{
			{"NXDOMAIN tried; " + zSOA, 0, strings.Repeat("a.", 123) + "y.z. A +search:y.z.,long.z.,z.", "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, strings.Repeat("a.", 123) + "z. A", "NXDOMAIN; " + zSOA, 1},
		}},
		{"a denial with its proof is that of one name", "", []step{
			{"NXDOMAIN tried; " + zSOA + "; a.z. 60 IN NSEC x.z. A", 0, "w.ns.z. A +do" + list, "NXDOMAIN; " + zSOA + "; a.z. 60 IN NSEC x.z. A; additional; OPT tried:", 1},
			{"", 0, "w.z. A +do", "NXDOMAIN; " + zSOA + "; a.z. 60 IN NSEC x.z. A", 2},
		}},
		{"an alias that leads nowhere denies nothing else", "", []step{
			{"NXDOMAIN tried; w.ns.z. 60 IN CNAME y.z.; " + zSOA, 0, "w.ns.z. A" + list, "NXDOMAIN; w.ns.z. 60 IN CNAME y.z.; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.z. A", "NXDOMAIN; w.ns.z. 60 IN CNAME y.z.; " + zSOA, 2},
		}},
		{"the denial of one name denies nothing else", "", []step{
			{"NXDOMAIN tried:z.; " + zSOA, 0, "w.ns.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:z.", 1},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
		}},
		{"a reply that says what can't be is not kept", "", []step{
			{"NOERROR tried:y.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:y.", 1},
			{"NOERROR tried:ns.z.,z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:ns.z.,z.", 2},
			{"NOERROR tried:z. tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z. tried:z.", 3},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z. tried:z.", 4},
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 5},
		}},
		{"an option that nobody has asked for", "", []step{
			{"NOERROR tried:z.; " + a("w.ns.z.", 60), 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 60), 1},
		}},
		{"a query that is no list", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A +search:.", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 0, "w.ns.z. A +search:.", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"", 0, "w.ns.z. A" + list + list, "NOERROR; " + a("w.ns.z.", 60), 2}, // of two it is not said which
			{"", 0, "w.ns.z. A" + list + list, "NOERROR; " + a("w.ns.z.", 60), 3},
		}},
		{"extended errors stand beside the option", "", []step{
			{"NOERROR tried; " + zSOA, 0, "w.ns.z. A" + list, "NOERROR; " + zSOA + "; additional; OPT tried:", 1},
			{"fail", 70 * sec, "w.ns.z. A" + list, "NOERROR; " + strings.Replace(zSOA, "z. 60 IN", "z. 30 IN", 1) + "; additional; OPT tried: 3 (Stale Answer): ()", 2},
		}},
		{"what has expired, when the upstream fails", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"fail", 61 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z. 3 (Stale Answer): ()", 2},
			{"", 0, "w.ns.z. A +edns", "SERVFAIL", 2}, // that is kept for the name
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z. 3 (Stale Answer): ()", 2},
		}},
		{"what has expired for the name, when the upstream fails", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 1},
			{"fail", 61 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 30) + "; additional; OPT 3 (Stale Answer): ()", 2},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 30) + "; additional; OPT 3 (Stale Answer): ()", 2},
			{"NOERROR; " + a("w.ns.z.", 60), 30 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 3},
			{"", 0, "w.ns.z. A +edns", "NOERROR; " + a("w.ns.z.", 60), 3},
		}},
		{"what has expired for the list goes before what has for the name", "", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"NOERROR tried:z.; " + alias(60), 60 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 2},
			{"fail", 61 * sec, "w.ns.z. A" + list, "NOERROR; " + alias(30) + "; additional; OPT tried:z. 3 (Stale Answer): ()", 3},
		}},
		{"what has expired for the name goes before what is of no use for the list", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"NOERROR; " + a("w.ns.z.", 60), time.Hour, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 2},
			{"fail", 2 * time.Minute, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 30) + "; additional; OPT 3 (Stale Answer): ()", 3},
		}},
		{"what is fresh for the name goes before what has expired for the list", "", []step{
			{"NOERROR tried:z.; " + alias(60), 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 1},
			{"NOERROR; " + a("w.ns.z.", 60), 61 * sec, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 2},
			{"fail", 0, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 60), 2},
		}},
		{"expired at once, and asked again with the list", "serve_stale 1h", []step{
			{"NOERROR; " + a("w.ns.z.", 60), 0, "w.ns.z. A", "NOERROR; " + a("w.ns.z.", 60), 1},
			{"NOERROR tried:z.; " + alias(60), 61 * sec, "w.ns.z. A" + list, "NOERROR; " + a("w.ns.z.", 0), 2},
			{"", 0, "w.ns.z. A" + list, "NOERROR; " + alias(60) + "; additional; OPT tried:z.", 2},
		}},
		{"a failure is that of the name", "serve_stale off", []step{
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
		beds(t, c.name, func(t *testing.T) { newBed(t, "cache {\n"+c.options+"\n}").steps(c.steps) })
	}
}

// Names of a search list that the cache is not for are left alone.
func TestSearch_Zones(t *testing.T) {
	beds(t, "zones", func(t *testing.T) {
		b := newBed(t, "cache ns.z")
		b.steps([]step{
			{"NXDOMAIN tried; " + zSOA, 0, "w.ns.z. A" + list, "NXDOMAIN; " + zSOA + "; additional; OPT tried:", 1},
			{"", 0, "w.ns.z. A", "NXDOMAIN; " + zSOA, 1},
			{"NXDOMAIN; " + zSOA, 0, "w.z. A", "NXDOMAIN; " + zSOA, 2},
			{"", 0, "w.z. A", "NXDOMAIN; " + zSOA, 3},
		})
		if e := b.entry("w.z. A"); e != nil {
			t.Errorf("kept is %+v", e)
		}
	})
}

// Where the answer for a name depends on who asks, so does the one to a list that is not tried: nobody waits for
// another's reply.
func TestSearch_Views(t *testing.T) {
	beds(t, "views", func(t *testing.T) {
		p := newPerCaller(t, "cache")
		p.space.ByGeneration.Store(true)
		p.mark = marks(new(generation))["of a view"]
		p.askAs(1, "w. A", answerFor(1, 60))
		a := p.askedFor(query("w. A" + list))
		if e, state := p.lookup(a.key, a.packed, &a.Query, p.now()); e == nil || e.Views == nil || state != unusable {
			t.Errorf("found is %+v", e)
		}
		p.askAs(2, "w. A"+list, answerFor(2, 60))
		p.askAs(1, "w. A"+list, answerFor(1, 60))
	})
}

// What somebody tells the end of says nothing of single names: those are kept by what each hangs on.
func TestSearch_Conditions(t *testing.T) {
	beds(t, "conditions", func(t *testing.T) {
		b, g := newBed(t, "cache"), new(generation)
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			c := answers.PropertiesOf(ctx, r)
			c.Bounds[0] = answers.Bound{Generation: g, Number: g.n}
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

// Queries with a list wait for each other, and for no other.
func TestSearch_AtOnce(t *testing.T) {
	tried := "NOERROR; " + alias(60) + "; additional; OPT tried:z."
	for _, c := range []struct {
		name, reply string
		askers      []asker
		queries     int
	}{
		{"the same list", "NOERROR tried:z.; " + alias(60), []asker{
			{query: "w.ns.z. A" + list, reply: tried}, {query: "w.ns.z. A" + list, reply: tried}, {after: time.Second, query: "W.ns.z. A" + list, reply: strings.Replace(tried, "w.ns", "W.ns", 1)},
		}, 1},
		{"that is not kept", "NOERROR tried:z.; " + alias(0), []asker{
			{query: "w.ns.z. A" + list, reply: strings.ReplaceAll(tried, " 60 ", " 0 ")}, {query: "w.ns.z. A" + list, reply: strings.ReplaceAll(tried, " 60 ", " 0 ")},
		}, 1},
		{"that is not tried", "NOERROR; " + a("w.ns.z.", 60), []asker{
			{query: "w.ns.z. A" + list, reply: "NOERROR; " + a("w.ns.z.", 60)}, {query: "w.ns.z. A" + list, reply: "NOERROR; " + a("w.ns.z.", 60)},
			{after: 5 * time.Second, query: "w.ns.z. A", reply: "NOERROR; " + a("w.ns.z.", 57)},
		}, 1},
		{"another list, and none", "NOERROR; " + a("w.ns.z.", 60), []asker{
			{query: "w.ns.z. A" + list, reply: "NOERROR; " + a("w.ns.z.", 60)},
			{query: "w.ns.z. A +search:ns.z.", reply: "NOERROR; " + a("w.ns.z.", 60)},
			{query: "w.ns.z. A +edns", reply: "NOERROR; " + a("w.ns.z.", 60)},
		}, 3},
	} {
		beds(t, c.name, func(t *testing.T) {
			b := newBed(t, "cache")
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(2 * time.Second)
				m := replyTo(t, r, c.reply)
				return m.Rcode, w.WriteMsg(m)
			})
			b.together(c.askers)
			b.wantQueries(c.queries)
		})
	}
}

// A flight for a list that takes off while another for the name lands gives what that has brought.
func TestSearch_LandedBefore(t *testing.T) {
	beds(t, "landed", func(t *testing.T) {
		b := newBed(t, "cache")
		b.replies("NOERROR; " + a("w.ns.z.", 60))
		b.want("w.ns.z. A", "NOERROR; "+a("w.ns.z.", 60))
		r := query("w.ns.z. A" + list)
		a := b.askedFor(r)
		flying, leader := b.flights.join(a, b.now())
		if !leader {
			t.Fatal("somebody else flies")
		}
		out := b.lead(context.Background(), backgroundRecorder(), a, flying, false)
		if out.entry == nil || out.reply != nil {
			t.Errorf("got %+v", out)
		}
		b.wantQueries(1)
	})
}

// askedFor returns a query as ServeDNS has it.
func (b *bed) askedFor(r *dns.Msg) *clientQuery {
	b.t.Helper()
	a := &clientQuery{msg: r, counters: b.counters("")}
	var ok bool
	if a.packed, ok = a.FromMsg(make([]byte, 0, 512), r); !ok {
		b.t.Fatalf("no query: %v", r)
	}
	a.key = b.space.Key(nil, a.packed, &a.Query)
	return a
}

// outer asks the cache as a plugin in front of it that wants to know what the answer hangs on.
func (b *bed) outer(text string) (string, *answers.Recorded) {
	b.t.Helper()
	w, r := new(client), query(text)
	ctx, recorded := answers.Record(context.Background(), r)
	if _, err := b.ServeDNS(ctx, w, r); err != nil && !errors.Is(err, errUpstream) {
		b.t.Errorf("%s: %v", text, err)
	}
	return brief(w.reply), recorded
}

// What an answer hangs on is told to a plugin in front that asks, be it a hit, a miss or a reply to another.
func TestTells(t *testing.T) {
	g, number := new(generation), &serial{7}
	bound := [answers.MaxBounds]answers.Bound{{Generation: g, Number: 0}}
	known := func(c *answers.Properties, _ *dns.Msg) {
		c.Bounds, c.AnyCase, c.Serial = bound, true, number
	}
	tests := map[string]struct {
		corefile, reply string
		mark            func(c *answers.Properties, r *dns.Msg)
		expires         time.Duration // after it was asked; 0 for never
		known           bool
	}{
		"by TTL":               {"cache", "NOERROR; " + a("w.", 60), nil, time.Minute, false},
		"by TTL, denied":       {"cache", "NXDOMAIN; " + zSOA, nil, time.Minute, false},
		"not kept":             {"cache", "NOERROR; " + a("w.", 0), nil, 0, false},
		"refused":              {"cache", "REFUSED", nil, 0, false},
		"by generation":        {"cache", "NOERROR; " + a("w.", 60), known, time.Minute, true},
		"by generation, alone": {"cache {\ndisable success\n}", "NOERROR; " + a("w.", 60), known, 0, true},
	}
	for name, tt := range tests {
		beds(t, name, func(t *testing.T) {
			b := newBed(t, tt.corefile)
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(time.Second)
				if tt.mark != nil {
					tt.mark(answers.PropertiesOf(ctx, r), r)
				}
				return 0, w.WriteMsg(replyTo(t, r, tt.reply))
			})
			check := func(what string, recorded *answers.Recorded, expires time.Duration) {
				if expires != 0 && tt.expires == 0 {
					expires = 0
				}
				if recorded.Expires != expires {
					t.Errorf("%s: expires %v, want %v", what, recorded.Expires, expires)
				}
				if recorded.ByGeneration() != tt.known || !recorded.ForAll() {
					t.Errorf("%s: known %t, for all %t", what, recorded.ByGeneration(), recorded.ForAll())
				}
				if tt.known && (recorded.Bounds != bound || recorded.Serial != answers.Serial(number) || !recorded.AnyCase) {
					t.Errorf("%s: got %+v", what, recorded.Properties)
				}
			}
			var wg sync.WaitGroup
			for i := range 3 { // the first asks, and the others wait for it if they may
				wg.Go(func() {
					_, recorded := b.outer("w. A")
					if tt.known && tt.expires == 0 {
						check(fmt.Sprint("asked ", i), recorded, 0) // each for itself
						return
					}
					check(fmt.Sprint("asked ", i), recorded, b.now()+tt.expires)
				})
			}
			wg.Wait()
			if tt.expires == 0 {
				return
			}
			kept := b.now()
			time.Sleep(10 * time.Second)
			_, recorded := b.outer("w. A")
			check("hit", recorded, kept+tt.expires)
			r := query("w. A")
			ctx, other := answers.Record(context.Background(), r.Copy())
			if _, err := b.ServeDNS(ctx, new(client), r); err != nil {
				t.Error(err)
			}
			if other.Expires != 0 || other.ByGeneration() {
				t.Errorf("told about another query: %+v", other.Properties)
			}
		})
	}
}

// What is given after its time is not for a plugin in front to keep.
func TestTells_Stale(t *testing.T) {
	beds(t, "stale", func(t *testing.T) {
		b := newBed(t, "cache")
		b.replies("NOERROR; " + a("w.", 60))
		b.want("w. A", "NOERROR; "+a("w.", 60))
		b.fails()
		time.Sleep(61 * time.Second)
		if got, recorded := b.outer("w. A"); got != "NOERROR; "+a("w.", 30) || recorded.Expires > b.now() || recorded.ByGeneration() {
			t.Errorf("got %s, which expires at %v; now is %v", got, recorded.Expires, b.now())
		}
	})
}

// What holds for one caller is told as such.
func TestTells_Views(t *testing.T) {
	for name, mark := range marks(new(generation)) {
		beds(t, name, func(t *testing.T) {
			p := newPerCaller(t, "cache")
			p.mark = mark
			for range 2 {
				got, recorded := p.outer("w. A")
				if got != answerFor(1, 60) || recorded.ForAll() || recorded.Expires != 0 {
					t.Errorf("got %s, for all %t, %+v", got, recorded.ForAll(), recorded.Properties)
				}
			}
		})
	}
}

// A plugin in front that is gone when the reply comes is told nothing: what it reads is its own then.
func TestTells_InBackground(t *testing.T) {
	beds(t, "background", func(t *testing.T) {
		b := newBed(t, "cache {\nserve_stale 1h verify 1s\n}")
		b.replies("NOERROR; " + a("w.", 60))
		b.want("w. A", "NOERROR; "+a("w.", 60))
		time.Sleep(61 * time.Second)
		b.upstream(plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			time.Sleep(2 * time.Second)
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 60)))
		}))
		got, recorded := b.outer("w. A")
		before := recorded.Expires
		if got != "NOERROR; "+a("w.", 0) || before > b.now() {
			t.Errorf("got %s, which expires at %v", got, before)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if recorded.Expires != before {
			t.Errorf("told afterwards: expires at %v", recorded.Expires)
		}
	})
}
