package fastpath

import (
	"context"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// wireHandler is a fake of plugin cache.
type wireHandler func(b *batch.Batch, q *wirechain.Request)

// ServeWire implements wirechain.Handler.
func (f wireHandler) ServeWire(b *batch.Batch, q *wirechain.Request) { f(b, q) }

// wireBed is a bed whose server block has a wire handler, and a plugin chain that replies with the code that it finds in
// the result of the wire handler, or REFUSED.
type wireBed struct {
	*bed
	server  *server
	route   *route
	results chan any
}

func newWireBed(t *testing.T, limit int, handler wireHandler) *wireBed {
	t.Helper()
	b := &wireBed{bed: newBed(t, false), results: make(chan any, 100)}
	config := &dnsserver.Config{Zone: ".", Transport: "dns", ListenHosts: []string{"127.0.0.1"}, Port: "53"}
	config.AddPlugin(func(plugin.Handler) plugin.Handler {
		return plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
			b.results <- wirechain.Result(ctx, m)
			return dns.RcodeRefused, nil
		})
	})
	coreDNS, err := dnsserver.NewServer("dns://"+t.Name(), []*dnsserver.Config{config})
	if err != nil {
		t.Fatal(err)
	}
	b.server = b.listener.server.Load()
	b.server.Server = coreDNS
	b.route = b.server.routes.byZone["\x00"]
	b.route.wire, b.route.queue = handler, b.server.process.places.NewQueue(limit)
	return b
}

// ask sends a query and runs the reader once.
func (b *wireBed) ask(t *testing.T, name string) {
	t.Helper()
	b.query(t, new(dns.Msg).SetQuestion(name, dns.TypeA))
}

// awaitEnd waits until no query is in progress.
func (b *wireBed) awaitEnd(t *testing.T) {
	awaitIdle(t, b.route.queue, b.server, netip.MustParseAddr("127.0.0.1"))
}

// entryFor returns an entry with addresses of a name.
func entryFor(t testing.TB, name string, count int) *store.Entry {
	t.Helper()
	e := &store.Entry{AnyCase: true}
	kit.Must(t, e.Fill(addressReply(name, count)))
	return e
}

// TestWireAnswer answers a query in wire form, before and after ServeWire returns.
func TestWireAnswer(t *testing.T) {
	e := entryFor(t, "miss.test.", 2)
	answer := func(b *batch.Batch, q *wirechain.Request) { q.Answer(b, q, e, store.Patch{}) }
	for name, handler := range map[string]wireHandler{
		"at once": answer,
		"later": func(_ *batch.Batch, q *wirechain.Request) {
			time.AfterFunc(time.Millisecond, func() {
				var b batch.Batch
				answer(&b, q)
				b.Flush()
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newWireBed(t, 0, handler)
			before := valueOf(t, b.server.metrics.handedOver)
			b.ask(t, "mIss.test.")
			if m := b.receive(t); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 2 || m.Question[0].Name != "mIss.test." {
				t.Errorf("the answer is %v", m)
			}
			b.awaitEnd(t)
			if got := valueOf(t, b.server.metrics.handedOver) - before; got != 1 {
				t.Errorf("%v handed over, want 1", got)
			}
			if got := valueOf(t, b.cache.Requests); got != 0 {
				t.Errorf("the fast path counted %v lookups of the cache, which counts them itself", got)
			}
			if got := valueOf(t, b.server.metrics.inFlight); got != 0 {
				t.Errorf("%v in flight", got)
			}
		})
	}
}

// TestWirePass passes queries to the plugin chain: with the wire handler's result, and when the answer has to be truncated.
func TestWirePass(t *testing.T) {
	long := entryFor(t, "miss.test.", 60)
	for name, c := range map[string]struct {
		handler wireHandler
		want    func(result any) bool
	}{
		"without a result": {
			func(b *batch.Batch, q *wirechain.Request) { q.Pass(b, q, nil) },
			func(result any) bool { return result == nil },
		},
		"with a result": {
			func(b *batch.Batch, q *wirechain.Request) { q.Pass(b, q, "result") },
			func(result any) bool { return result == "result" },
		},
		"too long for the client": {
			func(b *batch.Batch, q *wirechain.Request) { q.Answer(b, q, long, store.Patch{Age: 7}) },
			func(result any) bool {
				stored, ok := result.(*wirechain.StoredResult)
				return ok && stored.Entry == long && stored.Patch.Age == 7
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newWireBed(t, 0, c.handler)
			b.ask(t, "miss.test.")
			if m := b.receive(t); m.Rcode != dns.RcodeRefused {
				t.Errorf("the reply is not the chain's: %v", m)
			}
			if got := <-b.results; !c.want(got) {
				t.Errorf("the chain found the result %v", got)
			}
			b.awaitEnd(t)
		})
	}
}

// TestManyFinalResults has more queries that end with a final result at the same time than the plugin chain has places: all
// get a reply.
func TestManyFinalResults(t *testing.T) {
	const queries = 100
	var held []*wirechain.Request
	b := newWireBed(t, 0, func(_ *batch.Batch, q *wirechain.Request) { held = append(held, q) })
	const inChain = 2
	b.route.queue = admission.NewPlaces(admission.Limits{Running: inChain, Waiting: queries, ChainPlaces: queries}, validity.Now, nil).NewQueue(0)
	go func() {
		for range b.results {
		}
	}()
	defer close(b.results)
	for range queries {
		b.ask(t, "miss.test.")
	}
	if len(held) != queries {
		t.Fatalf("%d queries are in the wire handler, want %d", len(held), queries)
	}
	dropped := valueOf(t, b.server.metrics.droppedOverload)
	for _, q := range held {
		var out batch.Batch
		q.Pass(&out, q, &wirechain.StoredResult{})
		out.Flush()
	}
	for range queries {
		if m := b.receive(t); m.Rcode != dns.RcodeRefused {
			t.Fatalf("the reply is not the chain's: %v", m)
		}
	}
	b.awaitEnd(t)
	if got := valueOf(t, b.server.metrics.droppedOverload) - dropped; got != 0 {
		t.Errorf("%v queries are dropped", got)
	}
}

// TestClientThatDoesNotReadStallsNoOtherReply has final results for a client whose connections do not read their replies. A client
// over TCP and one over UDP get theirs.
func TestClientThatDoesNotReadStallsNoOtherReply(t *testing.T) {
	held := make(chan *wirechain.Request)
	handler := wireHandler(func(b *batch.Batch, q *wirechain.Request) {
		if netip.MustParseAddr("127.0.0.2") == q.Client {
			held <- q
			return
		}
		q.Pass(b, q, &wirechain.StoredResult{})
	})
	l, address := newStreamListener(t, echo, withRoute(t, newKeyspace(t), handler), func(s *server) {
		s.WriteTimeout = time.Hour // no query is answered because a connection was closed
	})
	r := newReader(l, newSocket(t))
	go r.run()
	t.Cleanup(r.finish)
	var deaf []*wirechain.Request
	for range maxFinalWorkers + 4 {
		c := dialFrom(t, "127.0.0.2", address)
		kit.Send(t, c, framed(t, 1, "deaf."))
		deaf = append(deaf, <-held)
		deafen(serverEnd(t, l, c))
	}
	for _, q := range deaf {
		q.Pass(new(batch.Batch), q, &wirechain.StoredResult{})
	}
	for network, to := range map[string]string{"tcp": address, "udp": r.socket.conn.LocalAddr().String()} {
		c := dialHeld(t, network, "127.0.0.3", to)
		c.query(t, 7, "other.")
		c.expect(t, 7, dns.RcodeSuccess)
	}
}

// TestFinalResultsOfOneClientDelayNoOther has thousands of final results of one client before that of another one.
func TestFinalResultsOfOneClientDelayNoOther(t *testing.T) {
	f := newFinalQueue()
	f.workers = maxFinalWorkers // none is started
	result := func(from int) *request {
		r := new(request)
		r.Client = clientAddress(from)
		return r
	}
	const many = 2000
	for range many {
		f.add(result(1))
	}
	other := result(2)
	f.add(other)
	if first, second := f.next(), f.next(); first == other || second != other {
		t.Error("the result of the other client is not the second one")
	}
	for n := many - 1; n > 0; n-- {
		if r := f.next(); r == nil || r.Client != clientAddress(1) {
			t.Fatalf("a result is lost, %d remain", n)
		}
	}
	if r := f.next(); r != nil || len(f.waiting) > 0 || f.workers != maxFinalWorkers-1 {
		t.Errorf("after the last result: %v, %d clients, %d workers", r, len(f.waiting), f.workers)
	}
}

// deafen makes a connection one whose client has not read its replies for long.
func deafen(c *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.frames(make([]byte, maxUnsent+1)) // never flushed
}

// TestPanicInWireHandler has a handler that panics before, after or while it ends the work on a query: the reader answers the
// query of another client, and no place remains taken. A handler that answers a query later than its panic ends no other one.
func TestPanicInWireHandler(t *testing.T) {
	e := entryFor(t, "miss.test.", 1)
	answer := func(b *batch.Batch, q *wirechain.Request) { q.Answer(b, q, e, store.Patch{}) }
	for name, c := range map[string]struct {
		handler  wireHandler
		answered bool
		late     bool // the handler answers the query after the panic
	}{
		"before the answer":              {func(*batch.Batch, *wirechain.Request) { panic("on purpose") }, false, false},
		"before the answer, which comes": {func(*batch.Batch, *wirechain.Request) { panic("on purpose") }, false, true},
		"after the answer":               {func(b *batch.Batch, q *wirechain.Request) { answer(b, q); panic("on purpose") }, true, false},
		"after it has passed the query":  {func(b *batch.Batch, q *wirechain.Request) { q.Pass(b, q, nil); panic("on purpose") }, true, false},
		"in the answer":                  {func(b *batch.Batch, q *wirechain.Request) { q.Answer(b, q, nil, store.Patch{}) }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var first *wirechain.Request
			b := newWireBed(t, 0, func(b *batch.Batch, q *wirechain.Request) {
				if first != nil {
					answer(b, q)
					return
				}
				first = q
				c.handler(b, q)
			})
			b.ask(t, "miss.test.")
			if c.answered {
				b.receive(t)
			}
			b.awaitEnd(t)
			b.ask(t, "miss.test.")
			if m := b.receive(t); len(m.Answer) != 1 {
				t.Errorf("the answer is %v", m)
			}
			if c.late {
				var late batch.Batch
				answer(&late, first)
				late.Flush()
			}
			b.awaitEnd(t)
			if got := valueOf(t, b.server.metrics.inFlight); got != 0 {
				t.Errorf("%v in flight", got)
			}
		})
	}
}

// oneView is the Views of an answer that all callers get.
type oneView struct{}

// View implements store.Views.
func (oneView) View(netip.Addr, []byte) store.View { return store.View{Number: 1} }

// TestDispatchOfViews has a stored answer that depends on the caller: a plugin that sends a query to answer another one
// does not get it, since it would store its own answer for all callers.
func TestDispatchOfViews(t *testing.T) {
	b := newWireBed(t, 0, nil)
	b.route.wire = nil
	query := func(name string) *wirechain.Request {
		packed := kit.Pack(t, new(dns.Msg).SetQuestion(name, dns.TypeA))
		q := &wirechain.Request{Packed: packed, Client: clientAddress(1), Answerer: discard{}}
		if !q.Parse(packed) {
			t.Fatal("the query is not ordinary")
		}
		return q
	}
	b.store(t, &store.Entry{}, addressReply("same.test.", 1))
	if !b.server.Dispatch(new(batch.Batch), query("same.test.")) {
		t.Error("a stored answer for all callers is not used")
	}
	q := query("view.test.")
	key := b.keyspace.Key(nil, q.Packed, &q.Query)
	store.Shared.Put(b.keyspace, key, &store.Entry{Views: oneView{}})
	store.Shared.Put(b.keyspace, binary.BigEndian.AppendUint32(key, 1), entryFor(t, "view.test.", 1))
	var l lookup
	if !l.find(b.server, q.Packed, q.Client, validity.Now()) {
		t.Fatal("the view's answer is not found")
	}
	if b.server.Dispatch(new(batch.Batch), q) {
		t.Error("the answer for some callers is used")
	}
}

// discard is an Answerer.
type discard struct{}

// Answer implements wirechain.Answerer.
func (discard) Answer(*batch.Batch, *wirechain.Request, *store.Entry, store.Patch) {}

// Pass implements wirechain.Answerer.
func (discard) Pass(*batch.Batch, *wirechain.Request, any) {}

// TestChainOnlyTypes has queries that a plugin of the chain has to see.
func TestChainOnlyTypes(t *testing.T) {
	b := newWireBed(t, 0, func(*batch.Batch, *wirechain.Request) { t.Error("the wire handler got the query") })
	for _, qtype := range []uint16{dns.TypeHINFO, dns.TypeDS, dns.TypeANY, dns.TypeAXFR, dns.TypeIXFR} {
		b.query(t, new(dns.Msg).SetQuestion("chain.test.", qtype))
		if m := b.receive(t); m.Rcode != dns.RcodeRefused {
			t.Errorf("type %d: %v", qtype, m)
		}
		b.awaitEnd(t)
	}
}

// TestWaitingInWireForm has more queries than places. All are answered, the waiting ones when others end; their number
// does not deepen the stack.
func TestWaitingInWireForm(t *testing.T) {
	e := entryFor(t, "miss.test.", 1)
	const places, queries = 8, 300
	var held []*wirechain.Request
	hold := true
	handled := 0
	b := newWireBed(t, 0, nil)
	b.route.queue = admission.NewPlaces(admission.Limits{Running: places, Waiting: 3 * queries, ChainPlaces: 1}, validity.Now, nil).NewQueue(0)
	b.route.wire = wireHandler(func(out *batch.Batch, q *wirechain.Request) {
		if handled++; hold {
			held = append(held, q)
			return
		}
		if depth := runtime.Callers(0, make([]uintptr, 1000)); depth > 100 {
			t.Errorf("a stack of %d calls", depth)
		}
		q.Answer(out, q, e, store.Patch{})
	})
	for range queries {
		b.ask(t, "miss.test.")
	}
	if len(held) == 0 || len(held) > places {
		t.Fatalf("%d queries run, with %d places", len(held), places)
	}
	hold = false
	for _, q := range held {
		var out batch.Batch
		q.Answer(&out, q, e, store.Patch{})
		out.Flush()
	}
	b.awaitEnd(t)
	if handled != queries {
		t.Errorf("%d queries were handled, want %d", handled, queries)
	}
}

// TestWireAllocatesNothing answers queries in wire form without allocations of the fast path itself.
func TestWireAllocatesNothing(t *testing.T) {
	e := entryFor(t, "miss.test.", 1)
	b := newWireBed(t, 0, func(b *batch.Batch, q *wirechain.Request) { q.Answer(b, q, e, store.Patch{}) })
	packed := kit.Pack(t, new(dns.Msg).SetQuestion("miss.test.", dns.TypeA))
	miss := b.answering(t, packed)
	miss()
	const limit = 6 // the client in the queue, and those of the race detector's pools
	if got := testing.AllocsPerRun(200, miss); got > limit {
		t.Errorf("%v allocations per answer, want at most %d", got, limit)
	}
}
