package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// wireNext is the plugin behind the cache for queries in wire form.
type wireNext struct {
	wirechain.Exchanger
	except plugin.Zones // zones that other plugins of the block answer
	all    bool         // all names are cached and forwarded
}

// SetExchanger implements wirechain.Cache.
func (c *Cache) SetExchanger(x wirechain.Exchanger, except []string) {
	disabled := c.kinds[store.Success].disabled
	c.forward = wireNext{
		Exchanger: x, except: except,
		all: len(except)+len(c.bypass)+len(disabled) == 0 && c.Covers("."),
	}
}

// forwards reports whether a query may be answered in wire form.
func (c *Cache) forwards(q *wirechain.Request) bool {
	if c.forward.all {
		return true
	}
	name, _, err := dns.UnpackDomainName(store.KeyName(q.Key), 0)
	return err == nil && c.Covers(name) && !c.forward.except.Contains(name) && !c.kinds[store.Success].disabled.Contains(name)
}

// ServeWire implements wirechain.Handler.
func (c *Cache) ServeWire(b *batch.Batch, q *wirechain.Request) {
	if !c.forwards(q) {
		q.Pass(b, q, nil)
		return
	}
	now := c.now()
	e, state := c.lookup(q.Key, q.Packed, &q.Query, now)
	if e != nil && e.Views != nil || state == fresh && prefetchDue(e, now) {
		q.Pass(b, q, nil)
		return
	}
	if state == stale && q.RD && !c.stale.onFailure || state == stale && !c.stale.verify { // serve_stale
		q.Pass(b, q, nil)
		return
	}
	n := c.counters(q.Server)
	n.requests.Inc()
	switch {
	case state == fresh:
		n.hit(e, now)
		q.Answer(b, q, e, e.Patch(now))
	case state == stale && q.RD && !mayRefresh(e, now):
		n.hits[e.Kind].Inc()
		c.answerStale(b, q, n, e)
	case state == stale && q.RD:
		n.misses.Inc()
		c.fetchWire(b, &wireWaiter{q: q, counters: n, stale: e}, now)
	default:
		n.misses.Inc()
		c.fetchWire(b, &wireWaiter{q: q, counters: n}, now)
	}
}

// wireWaiter is a query in wire form that waits for a flight.
type wireWaiter struct {
	q        *wirechain.Request
	counters *counters
	stale    *store.Entry // served unless the flight renews it; nil without one
	leader   bool
	joined   time.Duration // time at which it joined its flight
	repeated bool          // it has joined a second flight, since it was late for the first

	cache    *Cache
	flight   *flight
	place    int            // in flight.wire
	deadline wheel.Deadline // of the client response timer, RFC 8767 section 5
}

// Expired implements wheel.Owner: it serves a stale answer before the flight has ended, unless a session has invalidated it or its
// time has ended.
func (w *wireWaiter) Expired(time.Time) {
	if !w.cache.mayServe(w.stale) || !w.cache.flights.leave(w.flight, w) {
		return
	}
	var b batch.Batch
	w.cache.answerStale(&b, w.q, w.counters, w.stale)
	b.Flush()
}

// fetchWire answers a query without a usable entry from a flight, which it starts if there is none for the question.
func (c *Cache) fetchWire(b *batch.Batch, w *wireWaiter, now time.Duration) {
	q := clientQuery{Query: w.q.Query, packed: w.q.Packed, key: w.q.Key, udp: !w.q.TCP, counters: w.counters}
	f := c.flights.joinWire(&q, now, w)
	if f == nil {
		w.counters.skipped.Inc()
		c.answerStale(b, w.q, w.counters, w.stale)
		return
	}
	if w.leader {
		c.leadWire(b, &q, f, w.stale) // before the timer, which may release the query
	}
	if w.stale == nil || c.stale.timeout == 0 {
		return
	}
	if wait := f.started + c.stale.timeout - now; wait > 0 {
		c.startTimer(f, w, wait)
	} else if c.flights.leave(f, w) {
		c.answerStale(b, w.q, w.counters, w.stale)
	}
}

// wireFlight is the query of a flight in wire form to the next plugin.
type wireFlight struct {
	cache *Cache
	query clientQuery
	buf   [256]byte // of the query and its key, unless they are longer
	*flight
	stale *store.Entry
}

// offsetUDPSize is the offset of the class of an OPT record, behind the question's type and class and the record's name and type.
const offsetUDPSize = 4 + 1 + 2

// leadWire forwards the query of a flight. A panic ends the flight.
func (c *Cache) leadWire(b *batch.Batch, q *clientQuery, f *flight, stale *store.Entry) {
	if e, state := c.lookup(q.key, q.packed, &q.Query, c.now()); state == fresh {
		c.finish(b, f, result{entry: e, renews: true}) // another flight has finished since the lookup of this query
		return
	}
	l := &wireFlight{cache: c, query: *q, flight: f, stale: stale}
	// The client may be answered before the flight ends; the memory of its query is not valid after that.
	n := len(q.packed)
	l.query.packed = append(append(l.buf[:0], q.packed...), q.key...)
	l.query.key, l.query.packed = l.query.packed[n:], l.query.packed[:n:n]
	if q.EDNS { // plugin bufsize may have reduced UDPSize
		binary.BigEndian.PutUint16(l.query.packed[wire.HeaderLen+q.NameLen+offsetUDPSize:], q.UDPSize)
	}
	if q.Search != nil {
		l.query.Parse(l.query.packed)
	}
	l.query.packed[wire.RcodeAt] |= wire.AD // see forNext
	sent := false
	defer func() {
		if !sent {
			l.end(b, panicked())
		}
	}()
	if !c.forward.Exchange(b, &l.query.Query, l.query.packed, !q.udp, l) {
		l.end(b, result{abandoned: true})
	}
	sent = true
}

// Receive implements wirechain.Receiver. A panic must not end the reader of a connection: it is logged, and the queries that were
// not answered before get no reply.
func (l *wireFlight) Receive(b *batch.Batch, reply *wire.Reply, v *vouch.Voucher, code int, err error) {
	defer func() {
		if r := recover(); r != nil {
			logPanic(&l.query, r)
		}
	}()
	l.end(b, l.resultOf(reply, v, code, err))
}

// logPanic counts and logs a panic.
func logPanic(q *clientQuery, r any) {
	vars.Panic.Inc()
	log.Errorf("Reply to %s panicked: %v\n%s", q.name(), r, debug.Stack())
}

func (l *wireFlight) end(b *batch.Batch, res result) {
	c := l.cache
	if l.stale != nil && !res.abandoned {
		c.endRefresh(l.stale, res.renews, c.stale.recheck)
	}
	c.finish(b, l.flight, res)
}

// resultOf stores a reply. After a panic, the result is a failure.
func (l *wireFlight) resultOf(reply *wire.Reply, v *vouch.Voucher, code int, err error) (res result) {
	defer func() {
		if r := recover(); r != nil {
			logPanic(&l.query, r)
			res = panicked()
		}
	}()
	c, q := l.cache, &l.query
	if reply == nil {
		return c.failure(q, code, err)
	}
	var r upstreamReply
	if reply.Ordinary {
		r = c.examine(q, reply, &noProperties, v)
		if entry := c.storeReply(&r, nil); entry != nil {
			return c.resultOf(&r, code, entry)
		}
	}
	m, err := store.Unpack(reply.Message)
	if err != nil {
		return c.failure(q, dns.RcodeServerFailure, fmt.Errorf("plugin/%s: unpack reply: %w", pluginName, err))
	}
	if !reply.Ordinary {
		recorded := new(store.Recorded)
		recorded.Voucher = v
		return c.storedResult(q, m, recorded, code, "", false)
	}
	show(m, reply)
	res = c.resultOf(&r, code, nil)
	res.reply = m
	if v != nil {
		res.properties = new(store.Properties)
		res.properties.Voucher = v
	}
	return res
}

// deliverWire answers a query in wire form with the result of its flight.
func (c *Cache) deliverWire(b *batch.Batch, w *wireWaiter, f *flight) {
	q, res := w.q, &f.result
	if w.stale != nil && c.mayServe(w.stale) && !res.renews && !(res.abandoned && w.leader) {
		c.answerStale(b, q, w.counters, w.stale)
		return
	}
	if !w.leader && !w.repeated && f.isLate(w.joined) {
		c.fetchWire(b, &wireWaiter{q: q, counters: w.counters, repeated: true}, c.now())
		return
	}
	if res.abandoned || !w.leader && !f.shares(&q.Query) {
		q.Pass(b, q, wireFetch{w.stale})
		return
	}
	if !w.leader {
		w.counters.coalesced.Inc()
	}
	if res.entry != nil && res.err == nil {
		q.Answer(b, q, res.entry, res.entry.Patch(c.now()))
		return
	}
	q.Pass(b, q, res)
}

// answerStale answers a query with a stale entry.
func (c *Cache) answerStale(b *batch.Batch, q *wirechain.Request, n *counters, e *store.Entry) {
	q.Answer(b, q, e, c.stalePatch(n, e, func() string { return (&clientQuery{packed: q.Packed}).name() }))
}

// wireFetch is the result of a query that plugin cache has counted, and that it has to fetch in the plugin chain.
type wireFetch struct{ stale *store.Entry } // or nil

// hasWireResult reports whether a query was passed to the plugin chain with a result of ServeWire, which has counted it.
func hasWireResult(ctx context.Context, query *dns.Msg) bool {
	switch wirechain.Result(ctx, query).(type) {
	case *wirechain.StoredResult, *result, wireFetch:
		return true
	}
	return false
}

// serveWireResult answers a query for which hasWireResult is true.
func (c *Cache) serveWireResult(ctx context.Context, w dns.ResponseWriter, q *clientQuery) (int, error) {
	switch res := wirechain.Result(ctx, q.msg).(type) {
	case *wirechain.StoredResult:
		return c.serve(ctx, w, q.msg, q.packed, q.Query, res.Entry, res.Patch)
	case *result:
		return c.deliver(ctx, w, q, res, true)
	case wireFetch:
		if res.stale != nil {
			return c.verify(ctx, w, q, res.stale)
		}
	}
	return c.fetch(ctx, w, q)
}
