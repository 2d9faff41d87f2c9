package admission

import (
	"cmp"
	"container/heap"
	"math"
	"net/netip"
	"slices"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// Queue has the queries of a server block on a listener that have a place or wait for one. Zones that the plugins answer
// without an upstream have Queues of their own. A client is a source address: IPv6 addresses are not grouped by prefix, since
// the pods of a node share a /64.
type Queue struct {
	// Capacity returns the number of queries that the upstreams of the wire handlers can have in progress; nil for no limit.
	// It is set before the first query.
	Capacity func() int

	places *Places
	limit  int // of queries in progress, and of waiting ones; math.MaxInt if only the limit of the process applies

	running int
	wire    int // queries in progress in the wire handlers
	waiting int
	clients map[netip.Addr]*client // with running or waiting queries
	ready   clientHeap             // those with waiting queries
	oldest  *Ticket                // of the waiting queries
	newest  *Ticket
}

// NewQueue returns a Queue with a limit of queries in progress, and of waiting ones; with 0 only the limit of the process applies.
func (p *Places) NewQueue(limit int) *Queue {
	if limit == 0 {
		limit = math.MaxInt
	}
	return &Queue{places: p, limit: limit, clients: map[netip.Addr]*client{}}
}

// client is a source address that has queries in a Queue.
type client struct {
	queue   *Queue
	address netip.Addr
	running int
	queries int // in progress
	wire    int // of queries, those in the wire handlers
	waiting int
	index   int // in Queue.ready

	list // the waiting queries
}

// load is how a running query counts for the limits.
type load struct {
	places int
	wire   int // 1 in the wire handlers, 0 in the plugin chain
}

// loadOf returns the load of a query. In a Queue with a limit, all queries have the same number of places.
func (q *Queue) loadOf(wire bool) load {
	l := load{places: q.places.chainPlaces}
	if wire {
		l.wire = 1
		if q.limit == math.MaxInt {
			l.places = 1
		}
	}
	return l
}

// HandOver starts or queues a client's query. wire is set for a query for the wire handlers, which needs less memory. The Ticket
// is the query's own, and not in use.
func (q *Queue) HandOver(b *batch.Batch, t *Ticket, query Query, from netip.Addr, wire bool) {
	t.query = query
	runs, dropped := q.add(t, from, wire)
	if runs {
		query.Run(b)
	}
	dropped.drop(b)
}

// add starts or queues a client's query, and reports whether it runs. It returns the waiting queries that it dropped.
func (q *Queue) add(t *Ticket, from netip.Addr, wire bool) (runs bool, dropped list) {
	p := q.places
	p.mu.Lock()
	defer p.mu.Unlock()
	dropped = p.expire()
	c := q.client(from)
	t.client, t.wire = c, wire
	if l := q.loadOf(wire); c.waiting == 0 && q.admits(c, l) {
		q.start(c, l)
		return true, dropped
	}
	t.arrived = p.now()
	q.enqueue(t)
	q.trim(c, &dropped)
	return false, dropped
}

// TryStart starts a query for the plugin chain that must not wait and has no Ticket. It returns the function that ends the query, or
// false if there is no place.
func (q *Queue) TryStart(from netip.Addr) (end func(), ok bool) {
	p := q.places
	p.mu.Lock()
	defer p.mu.Unlock()
	c, l := q.client(from), q.loadOf(false)
	if !q.admits(c, l) {
		q.removeIdle(c)
		return nil, false
	}
	q.start(c, l)
	return func() {
		var output batch.Batch
		started, dropped := p.end(c, l)
		dropped.drop(&output)
		started.run(&output)
		output.Flush()
	}, true
}

// client returns the client with an address, which it adds if it is new.
func (q *Queue) client(address netip.Addr) *client {
	c := q.clients[address]
	if c == nil {
		c = &client{queue: q, address: address}
		q.clients[address] = c
	}
	return c
}

// InProgress returns the number of queries in progress of the client with an address.
func (q *Queue) InProgress(address netip.Addr) int {
	q.places.mu.Lock()
	defer q.places.mu.Unlock()
	if c := q.clients[address]; c != nil {
		return c.queries
	}
	return 0
}

// removeIdle removes a client if it has no queries.
func (q *Queue) removeIdle(c *client) {
	if c.running == 0 && c.waiting == 0 {
		delete(q.clients, c.address)
	}
}

// admits reports whether a client may have another running query.
func (q *Queue) admits(c *client, l load) bool {
	limit := shareFactor * (q.places.maxRunning - q.places.running)
	if q.limit < math.MaxInt {
		limit = min(limit, q.limit*q.places.chainPlaces)
	}
	free := limit - q.running
	if free < l.places || c.running > 0 && c.running >= shareFactor*(free-limit/reservedFraction) {
		return false
	}
	return l.wire == 0 || q.Capacity == nil || q.forwards(c)
}

// forwards reports whether the upstreams can have another query of a client in progress. A client has a share of the upstreams'
// capacity, as it has of the places.
func (q *Queue) forwards(c *client) bool {
	capacity := min(q.Capacity(), q.places.maxRunning)
	free := capacity - q.wire
	return free > 0 && (c.wire == 0 || c.wire < shareFactor*(free-capacity/reservedFraction))
}

func (q *Queue) start(c *client, l load) {
	q.places.running += l.places
	q.running += l.places
	q.wire += l.wire
	c.running += l.places
	c.wire += l.wire
	c.queries++
}

// trim drops a waiting query after a client's latest one was added: the client's oldest if the client has more than there was
// room for, else, beyond a limit, the oldest of the Queue or of the process.
func (q *Queue) trim(c *client, dropped *list) {
	p := q.places
	free := min(p.maxWaiting-p.waiting, q.limit-q.waiting)
	switch {
	case c.waiting > 1 && c.waiting > free+1:
		dropped.add(q.remove(c.first))
	case free >= 0:
	case q.waiting > q.limit:
		dropped.add(q.remove(q.oldest))
	default:
		oldest := slices.MinFunc(p.busy, func(a, b *Queue) int { return cmp.Compare(a.oldest.arrived, b.oldest.arrived) })
		dropped.add(oldest.remove(oldest.oldest))
	}
}

// enqueue appends a query to those that wait.
func (q *Queue) enqueue(t *Ticket) {
	p, c := q.places, t.client
	if q.waiting == 0 {
		p.busy = append(p.busy, q)
	}
	p.waiting++
	q.waiting++
	c.waiting++
	if t.older = q.newest; t.older == nil {
		q.oldest = t
	} else {
		t.older.newer = t
	}
	q.newest = t
	c.add(t)
	if c.waiting == 1 {
		heap.Push(&q.ready, c)
	}
}

// remove removes a query, which is the first of its client, from those that wait.
func (q *Queue) remove(t *Ticket) *Ticket {
	p, c := q.places, t.client
	p.waiting--
	q.waiting--
	c.waiting--
	if t.older == nil {
		q.oldest = t.newer
	} else {
		t.older.newer = t.newer
	}
	if t.newer == nil {
		q.newest = t.older
	} else {
		t.newer.older = t.older
	}
	if c.takeFirst(); c.first == nil {
		heap.Remove(&q.ready, c.index)
		q.removeIdle(c)
	} else {
		heap.Fix(&q.ready, c.index)
	}
	t.older, t.newer = nil, nil
	if q.waiting == 0 {
		i := slices.Index(p.busy, q)
		p.busy = slices.Delete(p.busy, i, i+1)
		if p.turn > i {
			p.turn--
		}
	}
	return t
}

// clientHeap orders clients by the number of their running queries, lowest first, then by the arrival of their first
// waiting query. Round robin would favour clients with slow queries, which occupy their places for longer.
type clientHeap []*client

func (h clientHeap) Len() int { return len(h) }
func (h clientHeap) Less(i, j int) bool {
	if h[i].running != h[j].running {
		return h[i].running < h[j].running
	}
	return h[i].first.arrived < h[j].first.arrived
}
func (h clientHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *clientHeap) Push(x any) {
	c, _ := x.(*client)
	c.index = len(*h)
	*h = append(*h, c)
}
func (h *clientHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return c
}
