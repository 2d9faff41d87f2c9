package fastpath

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// The memory of queries without a stored answer, in bytes. With the 98 MiB of a nodecache whose cache is full, the default
// stays below the 160 MiB that the documentation recommends for such a container.
const (
	// runningCost is the resident memory that a query in the chain adds to the process, beside an upstream that does not
	// answer: a stack of 32 KiB, the message and its copies, two attempts over UDP with a goroutine and a buffer each,
	// and a proportional amount of garbage.
	runningCost = 100 << 10
	// waitingCost is the size of a waiting query of datagramLen bytes, with its client.
	waitingCost = 2432
	// queryBudget is shared by both: seven eighths for running queries, one eighth for waiting ones.
	queryBudget = 60 << 20

	// wireCost is the memory of a query in wire form in the wire handlers: the request, the cache's flight, the forwarded
	// query and its timers.
	wireCost = 2 << 10

	defaultRunning = queryBudget / 8 * 7 / runningCost
	defaultWaiting = queryBudget / 8 / waitingCost

	// chainPlaces is the number of places of a query in the plugin chain; one in wire form has one place.
	chainPlaces = runningCost / wireCost
)

// maxWait is the maximum time that a query waits. Resolvers repeat a query after 2 seconds at the earliest, and ignore the
// answer to the first one from then on.
const maxWait = 1500 * time.Millisecond

// shareFactor limits a chain to this multiple of the free places of the process, and a client to this multiple of the free
// places of its chain. A lone client, such as a node's cache or a proxy, can use three quarters of the process, and there
// are always places for a new client or a new chain. (Choudhury and Hahne, "Dynamic queue length thresholds for
// shared-memory packet switches", 1998.)
const shareFactor = 4

// reservedFraction is the divisor for the places of a chain that only clients without a running query get. With hundreds of
// busy clients, their shares leave less than one place.
const reservedFraction = 16

// overloadPause is the minimum time between two log lines about dropped queries.
const overloadPause = time.Minute

// queue limits the queries of the process without a stored answer, and shares the places out by chain, and within a
// chain by client: the source address of a query. IPv6 addresses are not grouped by prefix, since the pods of a node
// share a /64. Limits and numbers of running queries are in places; see chainPlaces.
type queue struct {
	now         func() time.Duration
	chainPlaces int // 1 in tests

	mu         sync.Mutex
	maxRunning int  // not below running
	target     int  // of maxRunning, which is higher for a while after a reload to a lower limit
	lowerNext  bool // the next query that ends lowers maxRunning, if it is above target
	maxWaiting int  // queries
	running    int
	waiting    int
	busy       []*chain // with waiting queries
	turn       int      // index in busy of the chain whose turn it is

	dropped    atomic.Int64 // queries since the last log line
	lastLogged atomic.Int64 // time of the last log line; 0 without one
}

// queries is the queue of the process.
var queries = newQueue(validity.Now, chainPlaces)

func newQueue(now func() time.Duration, chainPlaces int) *queue {
	places := defaultRunning * chainPlaces
	return &queue{now: now, chainPlaces: chainPlaces, maxRunning: places, target: places, maxWaiting: defaultWaiting}
}

// chain has the queries that are handed to the plugins of a server block on a listener. Zones that the plugins answer
// without an upstream have chains of their own.
type chain struct {
	queue *queue
	limit int // of queries in progress, and of waiting ones; math.MaxInt for that of the process only

	// capacity returns the number of queries that the upstreams of the wire handlers can have in progress; nil for no limit.
	capacity func() int

	running int
	wire    int // queries in progress in the wire handlers
	waiting int
	clients map[netip.Addr]*client // with running or waiting queries
	ready   clientHeap             // those with waiting queries
	oldest  *request               // of the waiting queries
	newest  *request
}

// newChain returns a chain with a limit; 0 for that of the process only.
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
	queries int // in progress
	wire    int // of queries, those in the wire handlers
	waiting int
	index   int // in chain.ready

	requestList // the waiting queries
}

// load is what a running query counts.
type load struct {
	places int
	wire   int // 1 in the wire handlers, 0 in the plugin chain
}

// loadOf returns the load of a query. In a chain with a limit, all queries have the same places.
func (c *chain) loadOf(r *request) load {
	l := load{places: c.queue.chainPlaces}
	if r.wire != nil {
		l.wire = 1
		if c.limit == math.MaxInt {
			l.places = 1
		}
	}
	return l
}

// handOver starts or queues a query of r.Client.
func (c *chain) handOver(b *batch.Batch, r *request) {
	runs, dropped := c.add(r, r.Client)
	if runs {
		r.run(b)
	}
	dropped.drop(b)
}

// add starts or queues a client's query, and reports whether it runs. It returns the waiting queries that it dropped.
func (c *chain) add(r *request, from netip.Addr) (runs bool, dropped requestList) {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped = q.expire()
	cl := c.client(from)
	r.chain, r.client, r.load = c, cl, c.loadOf(r)
	if cl.waiting == 0 && c.admits(cl, r.load) {
		c.start(cl, r.load)
		return true, dropped
	}
	r.arrived = q.now()
	c.enqueue(r)
	c.trim(cl, &dropped)
	return false, dropped
}

// client returns the client with an address.
func (c *chain) client(address netip.Addr) *client {
	cl := c.clients[address]
	if cl == nil {
		cl = &client{address: address}
		c.clients[address] = cl
	}
	return cl
}

// inProgress returns the number of queries in progress of the client with an address.
func (c *chain) inProgress(address netip.Addr) int {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	if cl := c.clients[address]; cl != nil {
		return cl.queries
	}
	return 0
}

// removeIdle removes a client if it has no queries.
func (c *chain) removeIdle(cl *client) {
	if cl.running == 0 && cl.waiting == 0 {
		delete(c.clients, cl.address)
	}
}

// admits reports whether a client may have another running query.
func (c *chain) admits(cl *client, l load) bool {
	limit := shareFactor * (c.queue.maxRunning - c.queue.running)
	if c.limit < math.MaxInt {
		limit = min(limit, c.limit*c.queue.chainPlaces)
	}
	free := limit - c.running
	if free < l.places || cl.running > 0 && cl.running >= shareFactor*(free-limit/reservedFraction) {
		return false
	}
	return l.wire == 0 || c.capacity == nil || c.forwards(cl)
}

// forwards reports whether the upstreams can have another query of a client in progress. Clients have shares of their
// capacity, as they have of the places.
func (c *chain) forwards(cl *client) bool {
	capacity := min(c.capacity(), c.queue.maxRunning)
	free := capacity - c.wire
	return free > 0 && (cl.wire == 0 || cl.wire < shareFactor*(free-capacity/reservedFraction))
}

func (c *chain) start(cl *client, l load) {
	c.queue.running += l.places
	c.running += l.places
	c.wire += l.wire
	cl.running += l.places
	cl.wire += l.wire
	cl.queries++
}

// trim drops a waiting query if there are too many with a client's latest one: the client's oldest if the client has more
// than there were free places, else the oldest of the chain or of the process.
func (c *chain) trim(cl *client, dropped *requestList) {
	q := c.queue
	free := min(q.maxWaiting-q.waiting, c.limit-c.waiting)
	switch {
	case cl.waiting > 1 && cl.waiting > free+1:
		dropped.add(c.remove(cl.first))
	case free >= 0:
	case c.waiting > c.limit:
		dropped.add(c.remove(c.oldest))
	default:
		oldest := slices.MinFunc(q.busy, func(a, b *chain) int { return cmp.Compare(a.oldest.arrived, b.oldest.arrived) })
		dropped.add(oldest.remove(oldest.oldest))
	}
}

// expire removes the queries that have waited for maxWait, and returns them. The oldest query of a chain is the first one
// of its client.
func (q *queue) expire() (expired requestList) {
	if q.waiting == 0 {
		return expired
	}
	now := q.now()
	for i := len(q.busy) - 1; i >= 0; i-- { // remove may remove the chain from busy
		for c := q.busy[i]; c.oldest != nil && now-c.oldest.arrived >= maxWait; {
			expired.add(c.remove(c.oldest))
		}
	}
	return expired
}

// next starts the query whose turn it is, and returns it; nil if none may run.
func (q *queue) next() *request {
	for i := range q.busy {
		at := (q.turn + i) % len(q.busy)
		c := q.busy[at]
		if cl := c.ready[0]; c.admits(cl, cl.first.load) {
			q.turn = at + 1
			c.start(cl, cl.first.load)
			return c.remove(cl.first)
		}
	}
	return nil
}

// startAll starts all queries that may run.
func (q *queue) startAll() (started requestList) {
	for d := q.next(); d != nil; d = q.next() {
		started.add(d)
	}
	return started
}

// finish ends a running query, and runs those that start in its place.
func (q *queue) finish(b *batch.Batch, r *request) { q.end(b, r.chain, r.client, r.load).run(b) }

// finishAnd ends a running query. Of the queries for the plugin chain that start in its place, it returns the first one,
// which the caller answers.
func (q *queue) finishAnd(b *batch.Batch, r *request) (next *request) {
	started := q.end(b, r.chain, r.client, r.load)
	if next = started.first; next != nil && next.wire == nil {
		started.first, next.next = next.next, nil
	} else {
		next = nil
	}
	started.run(b)
	return next
}

// end ends a running query of a client, and returns the queries that start in its place: it may free shares of several
// clients. It drops those that have waited for too long.
func (q *queue) end(b *batch.Batch, c *chain, cl *client, l load) (started requestList) {
	started, dropped := q.endLocked(c, cl, l)
	dropped.drop(b)
	return started
}

func (q *queue) endLocked(c *chain, cl *client, l load) (started, dropped requestList) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running -= l.places
	c.running -= l.places
	c.wire -= l.wire
	cl.running -= l.places
	cl.wire -= l.wire
	cl.queries--
	if q.lowerNext && q.maxRunning > q.target {
		q.maxRunning = max(q.target, q.maxRunning-l.places)
	}
	q.lowerNext = !q.lowerNext // every other query that ends frees places, for new clients
	if cl.waiting > 0 {
		heap.Fix(&c.ready, cl.index)
	}
	c.removeIdle(cl)
	dropped = q.expire()
	return q.startAll(), dropped
}

// resize sets the limits for a configuration, given the highest limit of its chains. If more queries run than that, the
// limit is lowered as queries end, and starts with a quarter of the new places free for new clients, unless all places
// were taken.
func (q *queue) resize(limit int) {
	q.mu.Lock()
	q.target, q.maxWaiting = max(defaultRunning, limit)*q.chainPlaces, max(defaultWaiting, limit)
	q.maxRunning = max(q.target, min(q.maxRunning, q.running+q.target/4))
	started := q.startAll()
	q.mu.Unlock()
	var output batch.Batch
	started.run(&output)
	output.Flush()
}

// warning counts dropped queries of the chain, and returns the log line, "" if the last one was less than overloadPause ago.
func (c *chain) warning(dropped int) string {
	q, now := c.queue, int64(c.queue.now())
	q.dropped.Add(int64(dropped))
	last := q.lastLogged.Load()
	if last != 0 && now-last < int64(overloadPause) || !q.lastLogged.CompareAndSwap(last, max(now, 1)) {
		return ""
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	busiest := &client{}
	for _, cl := range c.clients {
		if cl.queries+cl.waiting > busiest.queries+busiest.waiting {
			busiest = cl
		}
	}
	limit := min(q.maxRunning/max(1, busiest.running/max(1, busiest.queries)), c.limit) // at the average places of its queries
	return fmt.Sprintf("%d queries dropped for overload since the last such line, their clients get no reply over UDP: client %v has the most, %d in progress and %d waiting; limit %d in progress (logged once a minute)",
		q.dropped.Swap(0), busiest.address, busiest.queries, busiest.waiting, limit)
}
