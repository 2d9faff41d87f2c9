package fastpath

import (
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
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

// startBackground starts a query without a request, and returns its client; nil if it may not run.
func (c *chain) startBackground(from netip.Addr) *client {
	q := c.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	cl := c.client(from)
	if !c.admits(cl, load{places: q.chainPlaces}) {
		c.removeIdle(cl)
		return nil
	}
	c.start(cl, load{places: q.chainPlaces})
	return cl
}

// endBackground ends a query without a request.
func (c *chain) endBackground(cl *client) {
	var output batch.Batch
	c.queue.end(&output, c, cl, load{places: c.queue.chainPlaces}).run(&output)
	output.Flush()
}
