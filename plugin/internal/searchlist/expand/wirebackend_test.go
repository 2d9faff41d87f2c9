package expand

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// delivery is how a wire handler answers a query.
type delivery int

const (
	atOnce        delivery = iota // before ServeWire returns
	later                         // from another goroutine
	byChain                       // it passes the query to the plugin chain, with the reply
	byChainLater                  // the same from another goroutine
	byChainNoInfo                 // it passes the query to the plugin chain, and has not queried the backend
	deliveries
)

// wireBackend is a backend with a wire handler, as plugin cache is.
type wireBackend struct {
	*backend
	deliver func() delivery
}

// held is the reply that a wireBackend has for a query that it passes to the plugin chain.
type held struct {
	msg        *dns.Msg
	properties store.Properties
	forAll     bool
	code       int
	err        error
}

// ServeDNS implements plugin.Handler.
func (w *wireBackend) ServeDNS(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
	h, ok := wirechain.Result(ctx, r).(*held)
	switch result := wirechain.Result(ctx, r); {
	case !ok && result != nil:
		return dns.RcodeServerFailure, fmt.Errorf("the result of another plugin: %T", result)
	case !ok:
		return w.backend.ServeDNS(ctx, rw, r)
	}
	if p := store.PropertiesOf(ctx, r); p != nil {
		*p = h.properties
	}
	if !h.forAll {
		store.MarkPrivate(ctx)
	}
	if h.msg == nil {
		return h.code, h.err
	}
	return h.code, rw.WriteMsg(h.msg)
}

// ServeWire implements wirechain.Handler.
func (w *wireBackend) ServeWire(b *batch.Batch, q *wirechain.Request) {
	how := w.deliver()
	if how == byChainNoInfo {
		q.Pass(b, q, nil)
		return
	}
	h := w.query(q)
	answer := func(b *batch.Batch) {
		if e := h.entry(); e != nil && how < byChain {
			if !q.EDNS {
				e.Options = []byte{0, dns.EDNS0EDE, 0, 2, 0, 1} // not for this client
			}
			q.Answer(b, q, e, e.Patch(validity.Now()))
			return
		}
		q.Pass(b, q, h)
	}
	if how == atOnce || how == byChain {
		answer(b)
		return
	}
	go answer(new(batch.Batch))
}

// query queries the backend.
func (w *wireBackend) query(q *wirechain.Request) *held {
	r := new(dns.Msg)
	if err := r.Unpack(q.Packed); err != nil {
		panic(err)
	}
	ctx, recorded := store.Record(context.Background(), r)
	rw := dnstest.NewRecorder(&test.ResponseWriter{})
	code, err := w.backend.ServeDNS(ctx, rw, r)
	return &held{msg: rw.Msg, properties: recorded.Properties, forAll: recorded.ForAll(), code: code, err: err}
}

// entry returns the reply as an entry, nil if it has none.
func (h *held) entry() *store.Entry {
	if h.msg == nil || h.msg.Truncated || !h.forAll {
		return nil
	}
	e := &store.Entry{Stored: validity.Now(), Validity: h.properties.Validity, Serial: h.properties.Serial}
	m := h.msg.Copy()
	if opt := m.IsEdns0(); opt != nil {
		m.Extra = nil
		for _, o := range opt.Option {
			switch o := o.(type) {
			case *dns.EDNS0_LOCAL:
				e.Options = searchlist.AppendOption(e.Options, o.Data)
			case *dns.EDNS0_EDE:
				e.Options = append(e.Options, 0, dns.EDNS0EDE, 0, byte(2+len(o.ExtraText)), 0, byte(o.InfoCode))
				e.Options = append(e.Options, o.ExtraText...)
			}
		}
	}
	if e.Fill(m) != nil {
		return nil
	}
	return e
}

// wireClient is the Answerer of a client's query. It passes queries to ServeDNS.
type wireClient struct {
	t      *testing.T
	x      *Expander
	r      *dns.Msg
	q      *Question
	packed []byte // the answer, nil if the plugin chain has answered
	stored *store.Entry
	done   chan response
}

// Answer implements wirechain.Answerer.
func (c *wireClient) Answer(_ *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	m, err := e.Message(q.Packed, q.Query, &p)
	c.packed, c.stored = e.Plain.AppendReply(nil, q.Packed, &q.Query, &p), e
	clear(q.Packed) // it belongs to the client again
	c.done <- response{m, dns.RcodeSuccess, err}
}

// Pass implements wirechain.Answerer.
func (c *wireClient) Pass(_ *batch.Batch, q *wirechain.Request, result any) {
	clear(q.Packed)
	go func() {
		ctx := context.Background()
		if result != nil {
			ctx = wirechain.WithResult(ctx, c.r, result)
		}
		w := dnstest.NewRecorder(&test.ResponseWriter{})
		ok, code, err := c.x.Resume(ctx, w, c.r)
		if !ok {
			code, err = c.x.ServeDNS(ctx, w, c.r, c.q)
		}
		c.done <- response{w.Msg, code, err}
	}()
}

// sendWire expands a query in wire form. A query that the wire form does not have is sent to ServeDNS.
func sendWire(t *testing.T, x *Expander, r *dns.Msg, q *Question) (response, *wireClient) {
	t.Helper()
	packed, err := r.Pack()
	kit.Must(t, err)
	c := &wireClient{t: t, x: x, r: r, q: q, done: make(chan response, 2)}
	wire := &wirechain.Request{Packed: packed, Answerer: c}
	if !wire.Parse(packed) || !ExpandableWire(wire) {
		return send(t, x, r, q), c
	}
	wire.Key = x.Block.Keyspace.Key(make([]byte, 0, store.MaxKey), packed, &wire.Query)
	x.ServeWire(new(batch.Batch), wire, r.Question[0].Name, q)
	got := <-c.done
	if len(c.done) > 0 {
		t.Fatal("answered twice")
	}
	return got, c
}

// withWire sets the backend of an Expander as a wire handler.
func withWire(x *Expander, w *backend, deliver func() delivery) *Expander {
	x.Next = &wireBackend{w, deliver}
	return x
}

// always returns one delivery.
func always(how delivery) func() delivery { return func() delivery { return how } }

// randomly returns random deliveries, mostly answers.
func randomly(r *rand.Rand) func() delivery {
	return func() delivery {
		if r.IntN(3) > 0 {
			return delivery(r.IntN(int(byChain)))
		}
		return delivery(r.IntN(int(deliveries)))
	}
}
