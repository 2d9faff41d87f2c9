package expand

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

// TestParity sends the same queries as messages and in wire form. The replies, counters, stored entries and queries to the
// backend are equal, whether the wire handler answers at once or later, or passes queries to the plugin chain.
func TestParity(t *testing.T) {
	counts := map[string]int{}
	property.Seeds(t, 0, 1500, func(t *testing.T, seed uint64) {
		inBubble(t, func(t *testing.T) {
			want := runParity(t, seed, nil, counts)
			for how := range deliveries + 1 {
				deliver := always(how)
				if how == deliveries {
					deliver = randomly(rand.New(rand.NewPCG(seed, 9)))
				}
				got := runParity(t, seed, deliver, counts)
				for i := range want {
					if got[i] != want[i] {
						t.Fatalf("delivery %d, observation %d: in wire form\n%s\nas messages\n%s", how, i, got[i], want[i])
					}
				}
			}
		})
	})
	t.Log(counts)
	for _, event := range []string{"answered", "passed", "alias", "stored", "extended error", "search list"} {
		if counts[event] < 50 && property.Fixed() {
			t.Errorf("%s: %d times", event, counts[event])
		}
	}
}

// runParity sends a random query several times, in wire form if deliver is set, and returns the observations.
func runParity(t *testing.T, seed uint64, deliver func() delivery, counts map[string]int) (all []string) {
	random := newRandomBackend(seed)
	q := random.question()
	name := q.Base + q.Suffixes[0]
	if len(name) > 254 || random.IntN(5) == 0 {
		name, q.ListID = "carried.in.the.name.test.", 0
	}
	w := random.backend(namesOf(name, q))
	w.withErrors(random.Rand)
	w.authenticated = random.IntN(2) == 0
	if random.IntN(2) == 0 {
		w.ability = supportsLists
	}
	x := newExpander(w)
	if random.IntN(4) > 0 {
		x.Zones = []string{"cluster.test."}
	}
	if deliver != nil {
		withWire(x, w, deliver)
	}
	r := query(name, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeHTTPS}[random.IntN(4)])
	r.Id = uint16(seed)
	r.RecursionDesired, r.CheckingDisabled, r.AuthenticatedData = random.IntN(2) == 0, random.IntN(8) == 0, random.IntN(2) == 0
	if random.IntN(3) > 0 {
		r.SetEdns0(1232, random.IntN(2) == 0)
		if random.IntN(4) == 0 {
			r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65313, Data: []byte("node")}}
		}
	}
	for range 3 {
		w.queries = nil
		before := testMetrics.snapshot()
		var got response
		if deliver != nil {
			var c *wireClient
			got, c = sendWire(t, x, r, q)
			count := "passed"
			if c.packed != nil {
				count = "answered"
			}
			counts[count]++
		} else {
			got = send(t, x, r, q)
			w.count(got, counts)
		}
		all = append(all, fmt.Sprint(got.code, got.err), packedText(t, got.Msg), fmt.Sprint(testMetrics.since(before)), fmt.Sprint(w.queries), storedText(x, r, q))
		time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
	}
	if deliver == nil && all[4] != "" {
		counts["stored"]++
	}
	return all
}

// withErrors adds extended errors to some facts.
func (w *backend) withErrors(random *rand.Rand) {
	w.followsEDNS = true
	for _, name := range slices.SortedFunc(maps.Keys(w.facts), func(a, b lookup) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	}) {
		f := w.facts[name]
		f.ede = random.IntN(10) == 0
		w.facts[name] = f
	}
}

// count counts the events of a reply.
func (w *backend) count(got response, counts map[string]int) {
	for name, happened := range map[string]bool{
		"alias":          got.Msg != nil && len(got.Answer) > 0 && got.Answer[0].Header().Rrtype == dns.TypeCNAME,
		"extended error": got.Msg != nil && got.IsEdns0() != nil,
		"search list":    slices.ContainsFunc(w.replies, func(o observed) bool { return o.list }),
	} {
		if happened {
			counts[name]++
		}
	}
}

// packedText returns a message in wire form as text.
func packedText(t *testing.T, m *dns.Msg) string {
	t.Helper()
	if m == nil {
		return ""
	}
	m.Compress = false
	b, err := m.Pack()
	kit.Must(t, err)
	return fmt.Sprintf("%x %v", b, m)
}

// storedText returns the stored answer to a query as text, "" if there is none.
func storedText(x *Expander, r *dns.Msg, q *Question) string {
	k := x.key(r, q)
	e := k.fresh()
	if e == nil {
		return ""
	}
	bounds := 0
	for _, b := range e.Bounds {
		if b.Generation != nil {
			bounds++
		}
	}
	var left time.Duration
	if e.Expires != 0 {
		left = e.Expires - e.Stored
	}
	labels := e.Count.(*hitCounter).labels
	plain := e.Plain.AppendReply(nil, k.query, &k.q, &store.Patch{})
	form := e.Form(&k.q, &store.Patch{}, 400, 1480)
	return fmt.Sprintf("%x %d %t %v %v bounds %d for %v, gone after %v, stored %v, costly %t, cached %t, options %x, serial %v",
		plain, e.CountedLen(), form != nil && form != &e.Plain, e.Kind, labels, bounds, left, e.Gone-e.Expires, e.Stored-validity.Now(), e.Costly, e.Cached, e.Options, e.Serial)
}

// slowly returns a wire handler that waits before it answers, in another goroutine.
type slowly struct {
	*wireBackend
	each func(q *wirechain.Request) time.Duration
}

func (s slowly) ServeWire(_ *batch.Batch, q *wirechain.Request) {
	go func() {
		time.Sleep(s.each(q))
		s.wireBackend.ServeWire(new(batch.Batch), q)
	}()
}

// TestWireTimes has slow servers: a walk in wire form observes walkTime and longWait.
func TestWireTimes(t *testing.T) {
	for _, tt := range []struct {
		name     string
		each     time.Duration
		fallback replyKind
		queries  int
		want     int
	}{
		{"just in time", walkTime / 4, replyNXDOMAIN, 5, dns.RcodeSuccess},
		{"too slow", walkTime/4 + 1, replyNXDOMAIN, 4, dns.RcodeServerFailure},
		{"not a late failure", longWait, replySERVFAIL, 5, dns.RcodeSuccess},
		{"a late failure", longWait + 1, replySERVFAIL, 2, dns.RcodeSuccess},
	} {
		inBubble(t, func(t *testing.T) {
			w := newBackend(map[string]replyKind{bareName: replyData})
			w.fallback.replyKind = tt.fallback
			x := newExpander(w, "test.")
			x.Next = slowly{&wireBackend{w, always(atOnce)}, func(*wirechain.Request) time.Duration { return tt.each }}
			got, _ := sendWire(t, x, query(first, dns.TypeA), &podQuestion)
			if got.rcode() != tt.want || len(w.queries) != tt.queries {
				t.Errorf("%s: %s after %d queries, want %s after %d", tt.name, dns.RcodeToString[got.rcode()], len(w.queries), dns.RcodeToString[tt.want], tt.queries)
			}
		})
	}
}

// concurrentHandler answers from other goroutines: NXDOMAIN, or data for the bare name.
type concurrentHandler struct {
	*wireBackend
	entries map[string]*store.Entry
}

func (h *concurrentHandler) ServeWire(b *batch.Batch, q *wirechain.Request) {
	name, _, err := dns.UnpackDomainName(q.Packed, wire.HeaderLen)
	if err != nil {
		panic(err)
	}
	e := h.entries[name]
	switch rand.IntN(3) {
	case 0:
		q.Answer(b, q, e, e.Patch(validity.Now()))
	case 1:
		go q.Answer(new(batch.Batch), q, e, e.Patch(validity.Now()))
	case 2:
		go func() {
			time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond)
			q.Answer(new(batch.Batch), q, e, e.Patch(validity.Now()))
		}()
	}
}

// TestConcurrentWalks has many walks in progress, for equal and different names, whose queries are answered by other
// goroutines. Each client gets its answer once.
func TestConcurrentWalks(t *testing.T) {
	const clients, queries, names = 16, 100, 5
	h := &concurrentHandler{wireBackend: &wireBackend{backend: newBackend(nil)}, entries: map[string]*store.Entry{}}
	for n := range names {
		base := fmt.Sprintf("w%d.", n)
		for _, name := range namesOf(base+podSuffixes[0], &Question{Base: base, Suffixes: podSuffixes}) {
			f := fact{replyKind: replyNXDOMAIN, ttl: 5}
			if name == base {
				f.replyKind = replyData
			}
			e := &store.Entry{Validity: validity.Validity{Expires: validity.Now() + time.Hour}}
			kit.Must(t, e.Fill(replyOf(query(name, dns.TypeA), name, f)))
			h.entries[name] = e
		}
	}
	x := newExpander(h.backend)
	x.Next = h
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for n := range queries {
				base := fmt.Sprintf("w%d.", n%names)
				q := &Question{Base: base, Suffixes: podSuffixes, ListID: 1 + uint32(n/names)}
				got, _ := sendWire(t, x, query(base+podSuffixes[0], dns.TypeA), q)
				if got.Msg == nil || len(got.Answer) != 3 || got.Answer[1].Header().Name != base {
					t.Errorf("%s: got %v, %v", base, got.Msg, got.err)
				}
			}
		})
	}
	wg.Wait()
}

// silent is a wire handler that does not answer.
type silent struct {
	*wireBackend
	waiting []*wirechain.Request
}

func (s *silent) ServeWire(_ *batch.Batch, q *wirechain.Request) { s.waiting = append(s.waiting, q) }

// TestWalkMemory asserts that a walk in progress uses less than 2 KB and no goroutine.
func TestWalkMemory(t *testing.T) {
	const walks = 1000
	h := &silent{wireBackend: &wireBackend{backend: newBackend(nil)}, waiting: make([]*wirechain.Request, 0, walks)}
	x := newExpander(h.backend, "cluster.test.")
	x.Next = h
	const name = "a-long-name.of-another.zone.example.org."
	r := query(name+podSuffixes[0], dns.TypeA)
	packed, err := r.SetEdns0(1232, false).Pack()
	kit.Must(t, err)
	q := &wirechain.Request{Packed: packed, Answerer: &wireClient{}}
	if !q.Parse(packed) {
		t.Fatal("not parsed")
	}
	q.Key = x.Block.Keyspace.Key(make([]byte, 0, store.MaxKey), packed, &q.Query)
	question := &Question{Base: name, Suffixes: podSuffixes, ListID: 1}
	goroutines, before := runtime.NumGoroutine(), heap()
	for range walks {
		x.ServeWire(new(batch.Batch), q, r.Question[0].Name, question)
	}
	each := (heap() - before) / walks
	t.Logf("%d bytes for each walk", each)
	if each > 2000 {
		t.Errorf("%d bytes for each walk", each)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines for %d walks", n-goroutines, walks)
	}
	runtime.KeepAlive(h)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// expander is a plugin that expands names, in front of another one.
type expander struct {
	wireBackend
	*Expander
}

func (e expander) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	return e.Expander.ServeDNS(ctx, w, r, &podQuestion)
}

func (e expander) ServeWire(b *batch.Batch, q *wirechain.Request) {
	if ExpandableWire(q) {
		panic("a candidate is expanded")
	}
	e.PassWire(b, q)
}

// TestTwoExpanders asserts that another plugin that expands names does not expand candidates.
func TestTwoExpanders(t *testing.T) {
	w := newBackend(map[string]replyKind{bareName: replyData})
	behind := withWire(newExpander(w), w, always(atOnce))
	x := newExpander(w)
	x.Next = expander{Expander: behind}
	if got, c := sendWire(t, x, query(first, dns.TypeA), &podQuestion); c.packed == nil || len(got.Answer) != 3 {
		t.Errorf("got %v", got)
	}
}

// discarding is an Answerer that does nothing.
type discarding struct{}

func (discarding) Answer(*batch.Batch, *wirechain.Request, *store.Entry, store.Patch) {}
func (discarding) Pass(*batch.Batch, *wirechain.Request, any)                         { panic("passed") }

// replies is a wire handler that answers each query with the next of its entries.
type replies struct {
	*backend
	entries []*store.Entry
	next    int
}

func (h *replies) ServeWire(b *batch.Batch, q *wirechain.Request) {
	e := h.entries[h.next%len(h.entries)]
	h.next++
	q.Answer(b, q, e, e.Patch(validity.Now()))
}

// BenchmarkServeWire expands a name: the server answers the search list with the second candidate, or with NXDOMAIN, after
// which the bare name is found.
func BenchmarkServeWire(b *testing.B) {
	entryOf := func(name string, f fact, list ...string) *store.Entry {
		e := &store.Entry{} // expires at once, so that the result is not stored
		m := replyOf(query(name, dns.TypeA), name, f)
		if len(list) > 0 {
			m.Question[0].Name = first
			m.Answer = append([]dns.RR{alias(first, name, 5)}, m.Answer...)
		}
		data, _ := searchlist.AppendSuffixes(nil, list)
		e.Options = searchlist.AppendOption(nil, data)
		if err := e.Fill(m); err != nil {
			b.Fatal(err)
		}
		return e
	}
	for name, entries := range map[string][]*store.Entry{
		"second":  {entryOf(second, fact{replyKind: replyData, ttl: 5}, podSuffixes[1])},
		"missing": {entryOf(first, fact{replyKind: replyNXDOMAIN, ttl: 5}), entryOf(fourth, fact{replyKind: replyNXDOMAIN, ttl: 5}), entryOf(bareName, fact{replyKind: replyNXDOMAIN, ttl: 5})},
		"bare":    {entryOf(first, fact{replyKind: replyNXDOMAIN, ttl: 5}), entryOf(fourth, fact{replyKind: replyNXDOMAIN, ttl: 5}), entryOf(bareName, fact{replyKind: replyData, ttl: 5})},
	} {
		b.Run(name, func(b *testing.B) {
			x := newExpander(newBackend(nil), "cluster.test.")
			x.Next = &replies{backend: newBackend(nil), entries: entries}
			packed, err := query(first, dns.TypeA).SetEdns0(1232, false).Pack()
			if err != nil {
				b.Fatal(err)
			}
			q := &wirechain.Request{Packed: packed, Answerer: discarding{}}
			if !q.Parse(packed) {
				b.Fatal("not parsed")
			}
			q.Key = x.Block.Keyspace.Key(make([]byte, 0, store.MaxKey), packed, &q.Query)
			out := new(batch.Batch)
			b.ReportAllocs()
			for b.Loop() {
				x.ServeWire(out, q, first, &podQuestion)
			}
		})
	}
}
