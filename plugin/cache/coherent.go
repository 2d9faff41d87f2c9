package cache

import (
	"sync/atomic"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// maxRefetching limits the queries of the process for answers that sessions have invalidated. Beyond it, an answer is fetched
// for its next client.
const maxRefetching = 64

// refetching is the number of these queries in progress.
var refetching atomic.Int32

// invalidated counts an entry that its session has invalidated, in the metrics of the last server, as evicted does. It fetches
// a popular entry again, at most once per query of a client.
func (c *Cache) invalidated(e *store.Entry) {
	last := c.metrics.last.Load()
	if last == nil || !e.Cached {
		return
	}
	last.invalidated.Inc()
	if e.Popular() && c.forward.Exchanger != nil {
		c.refetch(last, e)
	}
}

// refetch queries the upstream for the answer of an entry in wire form. Clients wait for the reply as for the reply to
// another client. Answers that only the plugin chain can make are not fetched again.
func (c *Cache) refetch(n *serverCounters, e *store.Entry) {
	r := &refetch{Request: wirechain.Request{TCP: true, Server: n.server, Key: e.Key()}}
	var ok bool
	if r.Packed, ok = store.QueryFromKey(&r.Query, r.buf[:0], r.Key); !ok || !c.forwards(&r.Request) {
		return
	}
	if refetching.Add(1) > maxRefetching {
		refetching.Add(-1)
		n.skipped.Inc()
		return
	}
	r.Answerer = r
	w := &wireWaiter{q: &r.Request, counters: &n.counters}
	q := clientQuery{Query: r.Query, packed: r.Packed, key: r.Key, counters: &n.counters}
	f := c.flights.begin(&q, c.now(), w)
	if f == nil { // a client waits for the answer already
		refetching.Add(-1)
		return
	}
	n.refetches.Inc()
	var b batch.Batch
	c.leadWire(&b, &q, f, nil)
	b.Flush()
}

// refetch is the query for an answer without a client.
type refetch struct {
	wirechain.Request
	buf [wire.MaxQuery + wire.OPTLen + maxSearchOption]byte
}

// Answer implements wirechain.Answerer: the answer is stored.
func (*refetch) Answer(*batch.Batch, *wirechain.Request, *store.Entry, store.Patch) {
	refetching.Add(-1)
}

// Pass implements wirechain.Answerer: the upstream has failed, or the plugin chain has to make the answer.
func (*refetch) Pass(*batch.Batch, *wirechain.Request, any) { refetching.Add(-1) }
