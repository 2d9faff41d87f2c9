package fastpath

import (
	"cmp"
	"container/heap"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// The memory of queries without a packed answer, in bytes. With the 98 MiB of a nodecache whose cache is full, the
// default budget stays below the 160 MiB that the documentation gives such a container.
const (
	// runningCost is what a query in the chain adds to the process, by its resident memory beside an upstream that
	// does not answer: a stack of 32 KiB, the message and its copies, two attempts over UDP with a goroutine and a
	// buffer each, and the garbage that Go collects in proportion.
	runningCost = 100 << 10
	// waitingCost is the size of a waiting query of datagramLen bytes, with its client.
	waitingCost = 2304
	// queryBudget is shared by both: seven parts for running queries, one for waiting ones.
	queryBudget = 60 << 20

	defaultRunning = queryBudget / 8 * 7 / runningCost
	defaultWaiting = queryBudget / 8 / waitingCost
)

// maxWait is how long a query waits. Resolvers repeat a query after 2 seconds at the earliest, and ignore the answer to
// the first one from then on.
const maxWait = 1500 * time.Millisecond

// A chain may run share times as many queries as the process has room for at that moment, and a client share times
// as many as its chain has. A lone client, such as a node's cache or a proxy, can then use three quarters of the process,
// and there is always room for a new client or a new chain. (Choudhury and Hahne, "Dynamic queue length thresholds
// for shared-memory packet switches", 1998.)
const share = 4

// reserved is the part of a chain, one in so many, that clients without a running query have for themselves. Where
// there are hundreds of busy clients, the shares of all of them leave less than one place.
const reserved = 16

// queue bounds the queries of the process that go to a chain of plugins, and shares the room out by chain, and within
// a chain by client: the source address of a query. IPv6 addresses are not grouped by prefix, since the pods of a node
// share a /64.
type queue struct {
	now func() time.Duration

	mu         sync.Mutex
	maxRunning int  // not below running
	target     int  // of maxRunning, which is higher for a while after a reload to a lower limit
	kept       bool // the last query that ended did not lower maxRunning
	maxWaiting int
	running    int
	waiting    int
	busy       []*chain  // with waiting queries
	turn       int       // index in busy of the chain that is next
	spare      []*client // for new ones
	overload   overload
}

// maxSpare bounds the unused clients that are kept.
const maxSpare = 64

// queries is the queue of the process.
var queries = newQueue(answers.Now)

func newQueue(now func() time.Duration) *queue {
	return &queue{now: now, maxRunning: defaultRunning, target: defaultRunning, maxWaiting: defaultWaiting}
}

// chain is the plugins of a server block on a listener, or their part for one zone, which has room of its own: its
// queries do not depend on those of another chain.
type chain struct {
	queue *queue
	limit int // running queries, and waiting ones

	running int
	waiting int
	clients map[netip.Addr]*client // with running or waiting queries
	ready   clientHeap             // those with waiting queries
	oldest  *datagram              // of the waiting queries
	newest  *datagram
}

// newChain returns a chain with a limit; 0 is as many queries as the process may have.
func newChain(limit int) *chain {
	if limit == 0 {
		limit = math.MaxInt
	}
	return &chain{queue: queries, limit: limit, clients: map[netip.Addr]*client{}}
}

// client is a source address that has queries in a chain.
type client struct {
	address netip.Addr
	running int
	waiting int
	index   int // in chain.ready

	datagramList // the waiting queries
}

// clientHeap orders clients by the number of their running queries, lowest first, then by the arrival of their first
// waiting query. Taking turns would favor clients with slow queries, which occupy their places for longer.
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

// datagramList is a list by the link that waiting queries of a client use.
type datagramList struct{ first, last *datagram }

func (l *datagramList) add(d *datagram) {
	d.next = nil
	if l.first == nil {
		l.first = d
	} else {
		l.last.next = d
	}
	l.last = d
}

// drop ends the queries of the list without an answer.
func (l datagramList) drop() {
	if l.first == nil {
		return
	}
	dropped, c := 0, l.last.chain
	for d := l.first; d != nil; dropped++ {
		next := d.next
		d.service.metrics.droppedOverload.Inc()
		d.done()
		d = next
	}
	if line := c.warning(dropped); line != "" {
		log.Warning(line)
	}
}

// work has the queries of the list answered.
func (l datagramList) work() {
	for d := l.first; d != nil; {
		next := d.next
		d.next = nil
		pool.do(d)
		d = next
	}
}

// put starts a query of a client, or queues it.
func (c *chain) put(d *datagram, from netip.Addr) {
	runs, dropped := c.add(d, from)
	if runs {
		pool.do(d)
	}
	dropped.drop()
}

// add starts a query of a client or queues it, and reports whether it runs. It returns the waiting queries that it
// dropped.
func (c *chain) add(d *datagram, from netip.Addr) (runs bool, dropped datagramList) {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped = q.expire()
	cl := c.client(from)
	d.chain, d.client = c, cl
	if cl.waiting == 0 && c.admits(cl) {
		c.start(cl)
		return true, dropped
	}
	d.arrived = q.now()
	c.append(d)
	c.trim(cl, &dropped)
	return false, dropped
}

// client returns the state of a client in the chain.
func (c *chain) client(from netip.Addr) *client {
	cl := c.clients[from]
	if cl == nil {
		cl = c.queue.newClient(from)
		c.clients[from] = cl
	}
	return cl
}

func (q *queue) newClient(address netip.Addr) *client {
	last := len(q.spare) - 1
	if last < 0 {
		return &client{address: address}
	}
	cl := q.spare[last]
	q.spare = q.spare[:last]
	cl.address = address
	return cl
}

// admits reports whether a client may have another running query.
func (c *chain) admits(cl *client) bool {
	limit := min(share*(c.queue.maxRunning-c.queue.running), c.limit)
	room := limit - c.running
	if cl.running == 0 {
		return room > 0
	}
	return cl.running < share*(room-limit/reserved)
}

func (c *chain) start(cl *client) {
	c.queue.running++
	c.running++
	cl.running++
}

// trim drops a waiting query if there are too many with the last one of a client: its oldest if the client has more
// than there was room left, else the oldest of the chain or of the process.
func (c *chain) trim(cl *client, dropped *datagramList) {
	q := c.queue
	room := min(q.maxWaiting-q.waiting, c.limit-c.waiting)
	switch {
	case cl.waiting > 1 && cl.waiting > room+1:
		dropped.add(c.remove(cl.first))
	case room >= 0:
	case c.waiting > c.limit:
		dropped.add(c.remove(c.oldest))
	default:
		longest := slices.MinFunc(q.busy, func(a, b *chain) int { return cmp.Compare(a.oldest.arrived, b.oldest.arrived) })
		dropped.add(longest.remove(longest.oldest))
	}
}

// append has a query wait.
func (c *chain) append(d *datagram) {
	q, cl := c.queue, d.client
	if c.waiting == 0 {
		q.busy = append(q.busy, c)
	}
	q.waiting++
	c.waiting++
	cl.waiting++
	if d.older = c.newest; d.older == nil {
		c.oldest = d
	} else {
		d.older.newer = d
	}
	c.newest = d
	cl.add(d)
	if cl.waiting == 1 {
		heap.Push(&c.ready, cl)
	}
}

// remove takes a query that is the first of its client from those that wait.
func (c *chain) remove(d *datagram) *datagram {
	q, cl := c.queue, d.client
	q.waiting--
	c.waiting--
	cl.waiting--
	if d.older == nil {
		c.oldest = d.newer
	} else {
		d.older.newer = d.newer
	}
	if d.newer == nil {
		c.newest = d.older
	} else {
		d.newer.older = d.older
	}
	if cl.first = d.next; cl.first == nil {
		cl.last = nil
		heap.Remove(&c.ready, cl.index)
		c.forget(cl)
	} else {
		heap.Fix(&c.ready, cl.index)
	}
	d.older, d.newer, d.next = nil, nil, nil
	if c.waiting == 0 {
		i := slices.Index(q.busy, c)
		q.busy = slices.Delete(q.busy, i, i+1)
		if q.turn > i {
			q.turn--
		}
	}
	return d
}

// forget drops the state of a client that has no queries.
func (c *chain) forget(cl *client) {
	if cl.running > 0 || cl.waiting > 0 {
		return
	}
	delete(c.clients, cl.address)
	if q := c.queue; len(q.spare) < maxSpare {
		q.spare = append(q.spare, cl)
	}
}

// expire returns the queries that have waited for maxWait, and takes them out. The oldest query of a chain is the
// first one of its client.
func (q *queue) expire() (expired datagramList) {
	if q.waiting == 0 {
		return expired
	}
	now := q.now()
	for i := len(q.busy) - 1; i >= 0; i-- { // remove takes the chain out of the list
		for c := q.busy[i]; c.oldest != nil && now-c.oldest.arrived >= maxWait; {
			expired.add(c.remove(c.oldest))
		}
	}
	return expired
}

// next starts the query that is next in turn, and returns it; nil if none may run.
func (q *queue) next() *datagram {
	for i := range q.busy {
		at := (q.turn + i) % len(q.busy)
		c := q.busy[at]
		if cl := c.ready[0]; c.admits(cl) {
			q.turn = at + 1
			c.start(cl)
			return c.remove(cl.first)
		}
	}
	return nil
}

// finish ends a running query of a client, and returns the query that takes its place, if any.
func (q *queue) finish(c *chain, cl *client) (next *datagram) {
	next, others, dropped := q.end(c, cl)
	others.work()
	dropped.drop()
	return next
}

// end takes a running query of a client out, and returns those that may run instead: the place that it leaves may give
// a place to several clients.
func (q *queue) end(c *chain, cl *client) (next *datagram, others, dropped datagramList) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	c.running--
	cl.running--
	if q.kept = !q.kept; !q.kept && q.maxRunning > q.target {
		q.maxRunning-- // every other place that becomes free, so that new clients get places meanwhile
	}
	if cl.waiting > 0 {
		heap.Fix(&c.ready, cl.index)
	}
	c.forget(cl)
	dropped = q.expire()
	next = q.next()
	return next, q.startAll(), dropped
}

// startAll starts all queries that may run.
func (q *queue) startAll() (started datagramList) {
	for d := q.next(); d != nil; d = q.next() {
		started.add(d)
	}
	return started
}

// resize sets the limits for a configuration, given its highest limit of a chain. If more queries run than it allows,
// a quarter of its places is free at once for new clients, unless all places were taken, and the limit gets lower as
// queries end.
func (q *queue) resize(limit int) {
	q.mu.Lock()
	q.target, q.maxWaiting = max(defaultRunning, limit), max(defaultWaiting, limit)
	q.maxRunning = max(q.target, min(q.maxRunning, q.running+q.target/4))
	started := q.startAll()
	q.mu.Unlock()
	started.work()
}
