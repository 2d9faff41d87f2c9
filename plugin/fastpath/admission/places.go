// Package admission decides when a query without a stored answer may be worked on: its Places are shared out by Queue, and within
// a Queue by client, so that neither a busy client nor a dead upstream takes the places of others. Queries beyond that wait for
// their turn, and are dropped if they wait for too long or are too many. Input is queries with the addresses of their clients;
// output is calls of their methods. It has no sockets and no goroutines.
package admission

import (
	"container/heap"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// The memory of queries without a stored answer, in bytes. With the 98 MiB of a nodecache whose cache is full, the default
// stays below the 160 MiB that the documentation recommends for such a container.
const (
	// runningCost is the resident memory that a query in the plugin chain adds to the process, beside an upstream that does
	// not answer: a stack of 32 KiB, the message and its copies, two attempts over UDP with a goroutine and a buffer each,
	// and a proportional amount of garbage.
	runningCost = 100 << 10
	// WaitingCost is the size of a waiting query, of the maximum length of a datagram, with its Ticket.
	WaitingCost = 2280
	// clientCost is the size of a client with its entry in a map.
	clientCost = 152
	// queryBudget limits the memory of all queries: seven eighths for running queries, one eighth for waiting ones.
	queryBudget = 60 << 20

	// wireCost is the memory of a query in wire form in the wire handlers: the request, the cache's flight, the forwarded
	// query and its timers.
	wireCost = 2 << 10

	defaultRunning = queryBudget / 8 * 7 / runningCost
	defaultWaiting = queryBudget / 8 / (WaitingCost + clientCost)

	chainPlaces = runningCost / wireCost
)

// maxWait is the maximum time that a query waits. Resolvers repeat a query after 2 seconds at the earliest, and ignore the
// answer to the first one from then on.
const maxWait = 1500 * time.Millisecond

// shareFactor limits a Queue to this multiple of the free places, and a client to this multiple of the free places of its
// Queue. A lone client, such as a node's cache or a proxy, can use three quarters of the places, and some are always free for
// a new client or a new Queue. (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
// 1998.)
const shareFactor = 4

// reservedFraction is the divisor for the places of a Queue that only clients without a running query get. With hundreds of
// busy clients, their shares leave less than one place.
const reservedFraction = 16

// overloadPause is the minimum time between two log lines about dropped queries.
const overloadPause = time.Minute

// Places limits the queries of its Queues. The limit and the numbers of running queries are in places; see Limits.
type Places struct {
	now         func() time.Duration
	warn        func(line string)
	chainPlaces int

	mu         sync.Mutex
	maxRunning int  // not below running
	target     int  // of maxRunning, which is higher for a while after a reload to a lower limit
	lowerNext  bool // the next query that ends lowers maxRunning, if it is above target
	maxWaiting int  // queries
	running    int
	waiting    int
	busy       []*Queue // with waiting queries
	turn       int      // index in busy of the Queue whose turn it is

	dropped    atomic.Int64 // queries since the last log line
	lastLogged atomic.Int64 // time of the last log line; 0 without one
}

// Limits are the limits of Places.
type Limits struct {
	Running int // in the plugin chain
	Waiting int
	// ChainPlaces is the number of places of a query in the plugin chain; one in wire form has one place.
	ChainPlaces int
}

// DefaultLimits are the limits without option max_concurrent.
var DefaultLimits = Limits{defaultRunning, defaultWaiting, chainPlaces}

// NewPlaces returns places with limits. now is a monotonic clock; warn gets a line about dropped queries, at most once a minute.
func NewPlaces(l Limits, now func() time.Duration, warn func(line string)) *Places {
	places := l.Running * l.ChainPlaces
	return &Places{now: now, warn: warn, chainPlaces: l.ChainPlaces, maxRunning: places, target: places, maxWaiting: l.Waiting}
}

// Resize sets the number of places for a configuration, given the highest limit of its Queues. If more queries run than that,
// the number is lowered as queries end, and starts with a quarter of the new places free for new clients, unless all places
// were taken.
func (p *Places) Resize(limit int) {
	p.mu.Lock()
	p.target, p.maxWaiting = max(defaultRunning, limit)*p.chainPlaces, max(defaultWaiting, limit)
	p.maxRunning = max(p.target, min(p.maxRunning, p.running+p.target/4))
	started := p.startAll()
	p.mu.Unlock()
	var output batch.Batch
	started.run(&output)
	output.Flush()
}

// expire removes the queries that have waited for maxWait, and returns them. The oldest query of a Queue is the first one
// of its client, as remove requires.
func (p *Places) expire() (expired list) {
	if p.waiting == 0 {
		return expired
	}
	now := p.now()
	for i := len(p.busy) - 1; i >= 0; i-- { // remove may remove the Queue from busy
		for q := p.busy[i]; q.oldest != nil && now-q.oldest.arrived >= maxWait; {
			expired.add(q.remove(q.oldest))
		}
	}
	return expired
}

// next starts the query whose turn it is, and returns it; nil if none may run.
func (p *Places) next() *Ticket {
	for i := range p.busy {
		at := (p.turn + i) % len(p.busy)
		q := p.busy[at]
		c := q.ready[0]
		if l := q.loadOf(c.first.wire); q.admits(c, l) {
			p.turn = at + 1
			q.start(c, l)
			return q.remove(c.first)
		}
	}
	return nil
}

// startAll starts all queries that may run.
func (p *Places) startAll() (started list) {
	for t := p.next(); t != nil; t = p.next() {
		started.add(t)
	}
	return started
}

// end ends a running query of a client. It returns the queries that start in its place, several if the freed place raises the
// limits of several clients, and the queries that it drops because they have waited for too long.
func (p *Places) end(c *client, l load) (started, dropped list) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := c.queue
	p.running -= l.places
	q.running -= l.places
	q.wire -= l.wire
	c.running -= l.places
	c.wire -= l.wire
	c.queries--
	if p.lowerNext && p.maxRunning > p.target {
		p.maxRunning = max(p.target, p.maxRunning-l.places)
	}
	p.lowerNext = !p.lowerNext // every other query that ends frees places, for new clients
	if c.waiting > 0 {
		heap.Fix(&q.ready, c.index)
	}
	q.removeIdle(c)
	dropped = p.expire()
	return p.startAll(), dropped
}

// warning counts dropped queries of a Queue, and returns the log line, "" if the last one was less than overloadPause ago.
func (p *Places) warning(q *Queue, dropped int) string {
	now := int64(p.now())
	p.dropped.Add(int64(dropped))
	last := p.lastLogged.Load()
	if last != 0 && now-last < int64(overloadPause) || !p.lastLogged.CompareAndSwap(last, max(now, 1)) {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	busiest := &client{}
	for _, c := range q.clients {
		if c.queries+c.waiting > busiest.queries+busiest.waiting {
			busiest = c
		}
	}
	limit := min(p.maxRunning/max(1, busiest.running/max(1, busiest.queries)), q.limit) // at the average places of its queries
	return fmt.Sprintf("%d queries dropped for overload since the last such line, their clients get no reply over UDP: client %v has the most, %d in progress and %d waiting; limit %d in progress (logged once a minute)",
		p.dropped.Swap(0), busiest.address, busiest.queries, busiest.waiting, limit)
}
