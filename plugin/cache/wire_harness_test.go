package cache

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// exchanger forwards queries in wire form to the next plugin of a cache.
type exchanger struct{ *Cache }

// Capacity implements wirechain.Exchanger.
func (x exchanger) Capacity() int { return 1 << 20 }

// Exchange implements wirechain.Exchanger.
func (x exchanger) Exchange(_ *batch.Batch, _ *wire.Query, packed []byte, tcp bool, r wirechain.Receiver) bool {
	m := new(dns.Msg)
	if m.Unpack(packed) != nil {
		return false
	}
	go func() {
		w := newRecorder(&client{tcp: tcp})
		ctx, recorded := store.Record(context.Background(), m)
		code, err := x.Next.ServeDNS(ctx, w, m)
		var reply *wire.Reply
		if w.reply != nil {
			packed, _ := w.reply.Pack()
			reply = parsedReply(packed)
		}
		var b batch.Batch
		r.Receive(&b, reply, recorded.Voucher, code, err)
		b.Flush()
	}()
	return true
}

// answerer sends the answer to a query in wire form to a client, as the fast path does.
type answerer struct {
	cache *Cache
	w     *client
	r     *dns.Msg
	done  chan struct{}
	code  int
	err   error
}

// Answer implements wirechain.Answerer.
func (a *answerer) Answer(b *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	limit := q.Limit()
	if q.TCP {
		limit = dns.MaxMsgSize
	}
	form := e.Form(&q.Query, &p, limit, limit)
	if form == nil || q.Upper && !e.AnyCase {
		a.Pass(b, q, &wirechain.StoredResult{Entry: e, Patch: p})
		return
	}
	m, err := store.Unpack(form.AppendReply(nil, q.Packed, &q.Query, &p))
	if a.err = err; err != nil {
		close(a.done)
		return
	}
	if opt := m.IsEdns0(); opt != nil && len(opt.Option) == 0 { // which the server adds
		m.Extra = m.Extra[:len(m.Extra)-1]
	}
	a.w.reply = m
	close(a.done)
}

// Pass implements wirechain.Answerer.
func (a *answerer) Pass(_ *batch.Batch, _ *wirechain.Request, result any) {
	go func() { // as the queue of the chain does
		a.code, a.err = a.cache.ServeDNS(wirechain.WithResult(context.Background(), a.r, result), a.w, a.r)
		close(a.done)
	}()
}

// serve answers a query through the plugin chain or in wire form.
func (b *testCache) serve(w *client, r *dns.Msg) (int, error) {
	packed, err := r.Pack()
	kit.Must(b.t, err)
	from, _ := netip.ParseAddrPort(w.RemoteAddr().String())
	q := &wirechain.Request{Packed: packed, Client: from.Addr(), TCP: w.tcp}
	if !b.wire || !q.Parse(packed) || q.Type == dns.TypeHINFO {
		return b.ServeDNS(context.Background(), w, r)
	}
	a := &answerer{cache: b.Cache, w: w, r: r, done: make(chan struct{})}
	q.Key, q.Answerer = b.space.Key(nil, packed, &q.Query), a
	var out batch.Batch
	b.ServeWire(&out, q)
	out.Flush()
	<-a.done
	return a.code, a.err
}

// takeVerifying reserves all flights in wire form for stale entries, and returns a function that releases them.
func (b *testCache) takeVerifying() (end func()) {
	client := netip.MustParseAddr("192.0.2.1")
	b.flights.byClient = map[netip.Addr]int{client: maxVerifying}
	b.flights.verifying = maxVerifying
	return func() {
		b.flights.mu.Lock()
		defer b.flights.mu.Unlock()
		b.flights.byClient, b.flights.verifying = nil, 0
	}
}

// TestWireFormIsUsed fails if the tests in wire form send their queries through the plugin chain.
func TestWireFormIsUsed(t *testing.T) {
	t.Run(inWireForm, func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.replies("NOERROR; " + a("w.", 60))
		b.Next = nil
		b.forward.Exchanger = nil
		defer func() {
			if recover() == nil {
				t.Error("the exchanger is not called")
			}
		}()
		b.query("w. A")
	})
}

// TestPanicInExchanger has an Exchanger that panics once: the queries for the name get an error, and later ones an answer.
func TestPanicInExchanger(t *testing.T) {
	t.Run(inWireForm, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.replies("NOERROR; " + a("w.", 60))
			b.forward.Exchanger = nil
			b.concurrently([]timedQuery{{0, "w. A", 0, "nothing", errServerPanicked}})
			b.SetExchanger(exchanger{b.Cache}, nil)
			b.want("w. A", "NOERROR; "+a("w.", 60))
		})
	})
}

// refusing is an Exchanger that leaves all queries to the plugin chain.
type refusing struct{ exchanger }

// Exchange implements wirechain.Exchanger.
func (refusing) Exchange(*batch.Batch, *wire.Query, []byte, bool, wirechain.Receiver) bool {
	return false
}

// TestStaleInChain has an Exchanger that leaves the query to the plugin chain, where the upstream fails: the client gets the
// stale answer.
func TestStaleInChain(t *testing.T) {
	t.Run(inWireForm, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.replies("NOERROR; " + a("w.", 60))
			b.query("w. A")
			time.Sleep(60 * time.Second)
			b.SetExchanger(refusing{exchanger{b.Cache}}, nil)
			b.fails()
			b.want("w. A", staleA)
			b.wantQueries(2)
			b.replies("NOERROR; w. 60 IN A 192.0.2.2")
			time.Sleep(time.Minute)
			b.want("w. A", "NOERROR; w. 60 IN A 192.0.2.2")
		})
	})
}
