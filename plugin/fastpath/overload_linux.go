package fastpath

import (
	"fmt"
	"sync/atomic"
	"time"
)

// overloadPause is the shortest time between two log lines about dropped queries.
const overloadPause = time.Minute

// overload counts the queries that are dropped, for the log.
type overload struct {
	dropped    atomic.Int64 // since the last line
	lastLogged atomic.Int64 // on the queue's clock; 0 if there was no line
}

// warning counts dropped queries of the chain, and returns the line that is to be logged, "" if there was one less than
// a minute ago.
func (c *chain) warning(dropped int) string {
	o, now := &c.queue.overload, int64(c.queue.now())
	o.dropped.Add(int64(dropped))
	last := o.lastLogged.Load()
	if last != 0 && now-last < int64(overloadPause) || !o.lastLogged.CompareAndSwap(last, max(now, 1)) {
		return ""
	}
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	busiest := &client{}
	for _, cl := range c.clients {
		if cl.running+cl.waiting > busiest.running+busiest.waiting {
			busiest = cl
		}
	}
	return fmt.Sprintf("%d queries dropped for overload since the last such line, their clients get no reply: client %v has the most, %d in work and %d that wait; limit %d in work (logged once a minute)",
		o.dropped.Swap(0), busiest.address, busiest.running, busiest.waiting, min(c.queue.maxRunning, c.limit))
}
