package fastpath

import (
	"runtime/debug"
	"time"

	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// setWire prepares a request for the wire handlers of its route. key is the key of the query, without a view.
func (r *request) setWire(rt *route, q *wire.Query, key []byte, received time.Duration) {
	r.route, r.wire, r.received = rt, rt.wire, received
	n := len(r.query)
	r.query = append(r.query, key...)
	r.Key = r.query[n:]
	r.query = r.query[:n:n]
	r.Query, r.Packed, r.Server, r.Dispatcher, r.Answerer = *q, r.query, rt.counters.server, r.server, r
	if q.Search != nil { // which is a slice of the reader's buffer
		r.Query.Parse(r.query)
		r.Query.UDPSize = q.UDPSize // plugin bufsize may have reduced it
	}
}

// isForWire reports whether the wire handlers may answer a query. Plugin loop has to see each HINFO query; the plugin chain
// handles queries of the other types in the list.
func isForWire(q *wire.Query) bool {
	switch q.Type {
	case dns.TypeHINFO, dns.TypeDS, dns.TypeAXFR, dns.TypeIXFR, dns.TypeANY:
		return false
	}
	return true
}

// runWire hands the query to the wire handlers. A panic must not end the reader: it is logged. If no handler has ended the
// work, the query loses its place, and the client gets no reply. Its memory is not reused then: a handler may still have it.
func (r *request) runWire(b *batch.Batch) {
	turn := r.turn
	before := turn.Load()
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		vars.Panic.Inc()
		if !turn.CompareAndSwap(before, before+1) { // the memory may have another query already
			log.Errorf("Handler of a query that it has answered or passed on panicked: %v\n%s", p, debug.Stack())
			return
		}
		log.Errorf("Query % x panicked: %v\n%s", r.Packed, p, debug.Stack())
		r.ticket.Finish(b)
		r.end()
	}()
	r.wire.ServeWire(b, &r.Request)
}

// endWire ends the work of the wire handlers. It returns false if a panic has ended it.
func (r *request) endWire() bool {
	turn := r.turn.Load()
	return turn%2 == 0 && r.turn.CompareAndSwap(turn, turn+1)
}

// Answer implements wirechain.Answerer.
func (r *request) Answer(b *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	if r.turn.Load()%2 != 0 { // a panic has ended the work
		return
	}
	if !r.to.answer(b, r, e, &p) {
		r.Pass(b, q, &wirechain.StoredResult{Entry: e, Patch: p})
		return
	}
	if r.endWire() {
		r.finish(b)
	}
}

// Pass implements wirechain.Answerer.
func (r *request) Pass(b *batch.Batch, _ *wirechain.Request, result any) {
	if !r.endWire() {
		return
	}
	if _, final := result.(wirechain.FinalResult); final {
		r.wire, r.result = nil, result
		r.server.process.finals.add(r)
		return
	}
	r.ticket.Finish(b)
	r.wire, r.result = nil, result
	r.handOver(b, r.ticket.Queue())
}

// finish ends the work on a query that was answered.
func (r *request) finish(b *batch.Batch) {
	r.ticket.Finish(b)
	r.done()
}

// Dispatch implements wirechain.Dispatcher. Answers that depend on the caller, or belong to another plugin than cache, are for
// the plugin chain: the answer to the client's query would be stored for all callers.
func (s *server) Dispatch(b *batch.Batch, q *wirechain.Request) bool {
	l, now := lookup{nested: true}, validity.Now()
	found := l.find(s, q.Packed, q.Client, now)
	d := &dispatched{Answerer: q.Answerer, route: l.route, received: now}
	q.UDPSize = l.query.UDPSize // plugin bufsize of the other block may have reduced it
	switch {
	case found && (l.viewed || l.entry.Count != nil):
		return false
	case found:
		l.count()
		d.Answer(b, q, l.entry, l.entry.Patch(now))
	case l.wire:
		d.counted = true
		q.Key = append(q.Key[:0], l.key[:l.keyLen]...)
		q.Answerer = d
		l.route.wire.ServeWire(b, q)
	default:
		return false
	}
	return true
}

// dispatched counts the answer to a query of a plugin in the metrics of the name's server block.
type dispatched struct {
	wirechain.Answerer
	route    *route
	received time.Duration
	counted  bool // by plugin cache
}

// Answer implements wirechain.Answerer.
func (d *dispatched) Answer(b *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	var h hit
	h.set(d.route.counters, e, &q.Query, e.Plain.Rcode(), q.Client, len(q.Packed))
	h.counted = d.counted
	if q.TCP {
		h.protocol = protocolTCP
	}
	h.count(validity.Now() - d.received)
	q.Answerer = d.Answerer
	q.Answer(b, q, e, p)
}

// Pass implements wirechain.Answerer. The plugin chain counts the query.
func (d *dispatched) Pass(b *batch.Batch, q *wirechain.Request, result any) {
	q.Answerer = d.Answerer
	q.Pass(b, q, result)
}
