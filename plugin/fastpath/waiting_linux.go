package fastpath

import (
	"container/heap"
	"slices"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

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

// requestList is a list of queries, linked by next.
type requestList struct{ first, last *request }

func (l *requestList) add(d *request) {
	d.next = nil
	if l.first == nil {
		l.first = d
	} else {
		l.last.next = d
	}
	l.last = d
}

// drop releases the queries of the list, counts and logs them.
func (l requestList) drop(b *batch.Batch) {
	if l.first == nil {
		return
	}
	dropped, c := 0, l.last.chain
	for d := l.first; d != nil; dropped++ {
		next := d.next
		d.server.metrics.droppedOverload.Inc()
		d.to.dropped(b, d.query)
		d.done()
		d = next
	}
	if line := c.warning(dropped); line != "" {
		log.Warning(line)
	}
}

// run runs the queries of the list. Those for wire handlers run when the batch is flushed, since their end may start
// others.
func (l requestList) run(b *batch.Batch) {
	for r := l.first; r != nil; {
		next := r.next
		r.next = nil
		if r.wire != nil {
			starterOf(b).add(r)
		} else {
			r.run(b)
		}
		r = next
	}
}

// starter runs queries for wire handlers that have waited. It implements batch.Flusher.
type starter struct{ requestList }

func starterOf(b *batch.Batch) *starter {
	for _, f := range b.Pending() {
		if s, ok := f.(*starter); ok {
			return s
		}
	}
	s := new(starter)
	b.Add(s)
	return s
}

// Flush implements batch.Flusher. The queries that it runs may end at once and let others run: these are added to the
// starter, so that the stack does not grow.
func (s *starter) Flush() {
	if s.first == nil {
		return
	}
	var output batch.Batch
	output.Add(s)
	for s.first != nil {
		r := s.first
		if s.first = r.next; s.first == nil {
			s.last = nil
		}
		r.next = nil
		r.run(&output)
	}
	output.Flush()
}

// enqueue appends a query to those that wait.
func (c *chain) enqueue(d *request) {
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

// remove removes a query, which is the first of its client, from those that wait.
func (c *chain) remove(d *request) *request {
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
		c.removeIdle(cl)
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
