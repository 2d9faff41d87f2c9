package fastpath

import (
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// background has the queries that no client waits for. They are refused instead of queued. Each takes a place of the
// process (runningCost), so that more than half of the places are left to the queries of clients.
var background = newChain(block.MaxBackground)

// StartBackground implements block.FastPath.
func (fastPath) StartBackground(client netip.Addr) (end func(), ok bool) {
	cl := background.reserve(client)
	if cl == nil {
		return nil, false
	}
	return func() { background.leave(cl) }, true
}

// reserve starts a query without a datagram, and returns its client; nil if it may not run.
func (c *chain) reserve(from netip.Addr) *client {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	cl := c.client(from)
	if !c.admits(cl) {
		c.forget(cl)
		return nil
	}
	c.start(cl)
	return cl
}

// leave ends a query without a datagram.
func (c *chain) leave(cl *client) {
	if next := c.queue.finish(c, cl); next != nil {
		pool.do(next)
	}
}
