package expand

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// PassWire passes a query to the next wire handler, or to the plugin chain if there is none.
func (x *Expander) PassWire(b *batch.Batch, q *wirechain.Request) {
	if h, ok := x.Next.(wirechain.Handler); ok {
		h.ServeWire(b, q)
		return
	}
	q.Pass(b, q, nil)
}

// ExpandableWire reports whether a query may be expanded, like Nested and Expandable.
func ExpandableWire(q *wirechain.Request) bool {
	switch q.Type {
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeDS:
		return false
	}
	return q.Search == nil && !q.Nested
}

// ServeWire answers a query that is ExpandableWire. Names with upper-case letters are passed to the plugin chain.
func (x *Expander) ServeWire(b *batch.Batch, q *wirechain.Request, name string, question *Question) {
	handler, ok := x.Next.(wirechain.Handler)
	if q.Upper || !ok || x.StoresCandidates {
		q.Pass(b, q, nil)
		return
	}
	k := &key{query: q.Packed, q: q.Query, bytes: append(make([]byte, 0, len(q.Key)+4), q.Key...)}
	if question.ListID != 0 {
		k.bytes = store.AppendKeyList(k.bytes, question.ListID)
	}
	if e := k.fresh(); e != nil {
		e.Count.Counter(q.Server).Inc()
		q.Answer(b, q, e, e.Patch(validity.Now()))
		return
	}
	w := &wireWalk{client: q, key: k.bytes, handler: handler}
	w.start(x, question, dns.Question{Name: name, Qtype: q.Type, Qclass: dns.ClassINET}, x.Block.ZonesOn(q.Server))
	w.query = wirechain.Request{Client: q.Client, TCP: q.TCP, Server: q.Server, Nested: true, Dispatcher: q.Dispatcher, Answerer: w}
	w.run(b)
}

// wireWalk is a walk whose queries are in wire form. It implements wirechain.Answerer for them.
type wireWalk struct {
	walk
	client  *wirechain.Request
	key     []byte // of the answer
	handler wirechain.Handler

	query    wirechain.Request
	toKey    [store.MaxKey]byte // memory of the query's Key
	state    atomic.Uint32
	unserved bool // the handler has passed the query to the plugin chain
}

// The states of a query. ServeWire and the Answerer may run in two goroutines at the same time: the one that is later
// continues the walk.
const (
	sending  uint32 = iota // ServeWire has not returned
	waiting                // ServeWire has returned without an answer
	answered               // there is an answer, and ServeWire has not returned
)

// run continues the walk until it waits for the answer to a query, or has ended.
func (w *wireWalk) run(b *batch.Batch) {
	for !w.unserved && w.next() {
		w.state.Store(sending)
		if !w.pack() || !w.send(b) {
			break
		}
		if w.state.CompareAndSwap(sending, waiting) {
			return // the Answerer continues
		}
	}
	w.end(b)
}

// send sends the query to the next plugin if the name is this server block's, and to the server otherwise. It returns false
// if the plugin chain has to handle the query.
func (w *wireWalk) send(b *batch.Batch) bool {
	if w.zones.Serves(w.name()) {
		w.query.Key = w.Block.Keyspace.Key(w.toKey[:0], w.query.Packed, &w.query.Query)
		w.handler.ServeWire(b, &w.query)
		return true
	}
	return w.query.Dispatcher != nil && w.query.Dispatcher.Dispatch(b, &w.query)
}

// Answer implements wirechain.Answerer.
func (w *wireWalk) Answer(b *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	w.receive(entryReply(e, &p, q), &e.Validity, true)
	w.proceed(b)
}

// Pass implements wirechain.Answerer: the plugin chain queries this candidate and the rest.
func (w *wireWalk) Pass(b *batch.Batch, _ *wirechain.Request, result any) {
	w.passed, w.unserved = result, true
	w.proceed(b)
}

// proceed continues the walk after an answer. If ServeWire has not returned, its caller continues the walk.
func (w *wireWalk) proceed(b *batch.Batch) {
	if !w.state.CompareAndSwap(sending, answered) {
		w.run(b)
	}
}

// end answers the client after the last candidate. The plugin chain continues a walk that is incomplete, and handles
// failures and extended errors.
func (w *wireWalk) end(b *batch.Batch) {
	q, out := w.client, w.outcome
	if out == nil || out.result == failure || len(out.reply.errors) > 0 {
		q.Pass(b, q, &w.walk)
		return
	}
	var e *store.Entry
	composed, err := w.compose(out)
	if err == nil {
		e, err = w.newEntry(out, composed)
	}
	if err != nil {
		q.Pass(b, q, &w.walk)
		return
	}
	if k := (&key{bytes: w.key}); k.storable(out) {
		store.Shared.Put(w.Block.Keyspace, w.key, e)
	}
	w.Metrics.counter(q.Server, out.labels()).Inc()
	q.Answer(b, q, e, e.Patch(e.Stored))
}

// pack packs the next query: the client's with another name and type, and with the search list of the candidates. It
// returns false for a name that cannot be packed.
func (w *wireWalk) pack() bool {
	client, name, q := w.client.Packed, w.name(), &w.query
	rest := client[w.client.QuestionEnd():]
	size := wire.HeaderLen + len(name) + 1
	if need := size + 4 + len(rest) + wire.OPTLen + wire.OptionLen + len(w.suffixes); cap(q.Packed) < need {
		q.Packed = make([]byte, need)
	}
	b := q.Packed[:size]
	copy(b, client[:wire.HeaderLen])
	end, err := dns.PackDomainName(name, b, wire.HeaderLen, nil, false)
	if err != nil {
		return false
	}
	b = binary.BigEndian.AppendUint16(b[:end], w.qtype())
	b = binary.BigEndian.AppendUint16(b, w.original.Qclass)
	opt := len(b)
	b = append(b, rest...)
	if w.suffixes != nil {
		b = appendList(b, opt, w.suffixes)
	}
	if !q.Parse(b) {
		return false
	}
	q.Packed, q.Key = b, w.toKey[:0]
	return true
}

// appendList adds a search list to the OPT record at an offset, which ends a query. It adds the record if there is none.
func appendList(b []byte, opt int, suffixes []byte) []byte {
	if opt == len(b) {
		b = wire.AddOPT(b, searchlist.UDPSize)
	}
	b = searchlist.AppendOption(b, suffixes)
	wire.EndOPT(b, opt)
	return b
}
