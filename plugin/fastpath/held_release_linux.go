package fastpath

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
)

// maxHeldWorkers limits the goroutines that answer queries that have waited for a name, or hand them over: an event may release
// more queries than the queue of the process accepts at a time.
const maxHeldWorkers = 16

// clusterTime is more than the plugin chain takes for an answer from the data of the cluster. A query that takes longer waits for
// a place, or for another server as with a search list: the goroutine leaves it to the queue.
const clusterTime = 10 * time.Millisecond

// heldList is a list of queries, linked by next.
type heldList struct{ first, last *held }

func (l *heldList) add(h *held) {
	if l.first == nil {
		l.first = h
	} else {
		l.last.next = h
	}
	l.last = h
}

// Expired implements wheel.Owner.
func (h *held) Expired(time.Time) {
	t := h.server.process.held
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.name != nil {
		t.release(h, h.counters.TimedOut)
	}
}

// release ends the waiting of a query, which is answered soon and counted in result, unless that is nil. The mutex is locked.
func (t *heldTable) release(h *held, result prometheus.Counter) {
	wheel.Process.Stop(&h.Deadline)
	t.unlink(h)
	h.result = result
	t.released.add(h)
	if t.answering < maxHeldWorkers {
		t.answering++
		go t.answerReleased()
	}
}

// releaseAll ends the waiting of all queries for a name. The mutex is locked.
func (t *heldTable) releaseAll(n *heldName) {
	for n.first != nil {
		t.release(n.first, n.first.counters.Answered)
	}
}

// releaseServer ends the waiting of all queries of a server that is not used any more. Later ones do not wait.
func (t *heldTable) releaseServer(s *server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.answersAtOnce = true
	for _, n := range t.names {
		for h := n.first; h != nil; {
			newer := h.newer
			if h.server == s {
				t.release(h, h.counters.Answered)
			}
			h = newer
		}
	}
}

// releaseConnection ends the waiting of all queries of a connection whose field closed is set. Most connections have none.
func (t *heldTable) releaseConnection(c *connection) {
	if c.heldCount.Load() == 0 {
		return // a query that is added now is released by add
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := c.firstHeld; h != nil; h = c.firstHeld {
		t.release(h, nil)
	}
}

// next removes and returns the first released query. Without one, the calling goroutine ends.
func (t *heldTable) next() *held {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.released.first
	if h == nil {
		t.released.last = nil
		t.answering--
		return nil
	}
	t.released.first, h.next = h.next, nil
	return h
}

// answerReleased answers released queries until none is left.
func (t *heldTable) answerReleased() {
	l := &lookup{waited: true}
	var output batch.Batch
	for i := 1; ; i++ {
		h := t.next()
		if h == nil {
			break
		}
		h.answer(&output, l)
		if i%batchLen == 0 {
			output.Flush()
		}
	}
	output.Flush()
}

// answer answers a query from the store, where the first of several queries for a name has left the answer, or hands it over to
// the plugin chain.
func (h *held) answer(b *batch.Batch, l *lookup) {
	defer h.server.process.held.answered(h)
	r := h.request()
	if h.result != nil {
		h.result.Inc()
	}
	now := validity.Now()
	if !r.awaits() || l.find(h.server, r.query, h.client, now) && l.answer(b, r, now) {
		r.done()
		return
	}
	ended := make(chan struct{})
	r.ended = ended
	queue := l.route.queue
	r.handOver(b, queue)
	b.Flush()
	if queue.InProgress(h.client) > maxHeldWorkers {
		return // some were left to the queue: the client's queries take long
	}
	select {
	case <-ended:
	case <-time.After(clusterTime):
	}
}

// answer sends the stored answer that the last lookup has found, and reports whether there is a form of it for the client.
func (l *lookup) answer(b *batch.Batch, r *request, now time.Duration) bool {
	r.route, r.received, r.Query, r.Packed, r.unnamed = l.route, now, l.query, r.query, l.unnamed
	p := l.entry.Patch(now)
	if !r.to.answer(b, r, l.entry, &p) {
		return false
	}
	l.count()
	return true
}

// lookUpAgain has a name looked up again, after the data has changed. The mutex is locked.
func (t *heldTable) lookUpAgain(n *heldName) {
	if n.changed || n.first == nil {
		return
	}
	n.changed = true
	t.changed = append(t.changed, n)
	if !t.checking {
		t.checking = true
		go t.check()
	}
}

// check looks names up again, until none has changed.
func (t *heldTable) check() {
	for all := t.takeChanged(); len(all) > 0; all = t.takeChanged() {
		for _, n := range all {
			t.checkName(n)
		}
	}
}

// takeChanged returns the names that have changed. Without any, the calling goroutine ends.
func (t *heldTable) takeChanged() []*heldName {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.changed
	t.changed = nil
	t.checking = len(all) > 0
	return all
}

// checkName looks a name up again, and releases its queries unless they wait further.
func (t *heldTable) checkName(n *heldName) {
	name, suffixes := []byte(n.key.name[:n.key.length]), []byte(n.key.name[n.key.length:])
	w, waits := n.key.plugin.AwaitName(name, suffixes)
	t.mu.Lock()
	defer t.mu.Unlock()
	n.changed = false
	switch {
	case n.first == nil:
	case !waits:
		t.releaseAll(n)
	case !push.Process.Wait(w.Generation, w.Number, &n.waiter):
		t.lookUpAgain(n)
	}
}
