package fastpath

import (
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// background is the chain of queries that no client waits for. They are refused instead of queued. The limit leaves more
// than half of the places of the process to the queries of clients.
var background = newChain(block.MaxBackground)

// StartBackground implements block.FastPath.
func (fastPath) StartBackground(client netip.Addr) (end func(), ok bool) {
	cl := background.startBackground(client)
	if cl == nil {
		return nil, false
	}
	return func() { background.endBackground(cl) }, true
}

// startBackground starts a query without a datagram, and returns its client; nil if it may not run.
func (c *chain) startBackground(from netip.Addr) *client {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	cl := c.client(from)
	if !c.admits(cl) {
		c.removeIdle(cl)
		return nil
	}
	c.start(cl)
	return cl
}

// endBackground ends a query without a datagram.
func (c *chain) endBackground(cl *client) {
	if next := c.queue.finish(c, cl); next != nil {
		pool.do(next)
	}
}
