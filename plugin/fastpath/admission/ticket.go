package admission

import (
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// Query is a query that has a place or waits for one.
type Query interface {
	// Run starts the work on the query, which has a place. It does not wait for the end, which the Ticket's Finish reports.
	Run(b *batch.Batch)
	// Drop releases a query that gets no place.
	Drop(b *batch.Batch)
}

// Ticket is a query in a Queue, from HandOver until Finish or Query.Drop. The zero value is one that is not in use.
type Ticket struct {
	query  Query
	client *client // in the Queue
	wire   bool    // the query is for the wire handlers

	// While the query waits:
	arrived      time.Duration // on the clock of Places
	next         *Ticket       // of the same client
	older, newer *Ticket       // in the same Queue
}

// Queue returns the Queue.
func (t *Ticket) Queue() *Queue { return t.client.queue }

// Finish ends a running query, and runs those that start in its place.
func (t *Ticket) Finish(b *batch.Batch) {
	started := t.end(b)
	started.run(b)
}

// FinishAnd ends a running query, and runs those that start in its place. If the first of these is for the plugin chain, it returns
// that query instead of running it; otherwise it returns nil.
func (t *Ticket) FinishAnd(b *batch.Batch) (next Query) {
	started := t.end(b)
	if first := started.first; first != nil && !first.wire {
		next = started.takeFirst().query
	}
	started.run(b)
	return next
}

// end ends a running query, and returns those that start in its place. It drops those that have waited for too long.
func (t *Ticket) end(b *batch.Batch) (started list) {
	q := t.Queue()
	started, dropped := q.places.end(t.client, q.loadOf(t.wire))
	dropped.drop(b)
	return started
}

// list is a list of queries, linked by next.
type list struct{ first, last *Ticket }

func (l *list) add(t *Ticket) {
	t.next = nil
	if l.first == nil {
		l.first = t
	} else {
		l.last.next = t
	}
	l.last = t
}

// takeFirst removes and returns the first query. The list is not empty.
func (l *list) takeFirst() *Ticket {
	t := l.first
	if l.first, t.next = t.next, nil; l.first == nil {
		l.last = nil
	}
	return t
}

// drop releases the queries of the list, and logs them.
func (l list) drop(b *batch.Batch) {
	if l.first == nil {
		return
	}
	dropped, q := 0, l.last.Queue()
	for ; l.first != nil; dropped++ {
		l.takeFirst().query.Drop(b)
	}
	if line := q.places.warning(q, dropped); line != "" {
		q.places.warn(line)
	}
}

// run runs the queries of the list. Those for wire handlers run when the batch is flushed, since their end may start
// others.
func (l list) run(b *batch.Batch) {
	for l.first != nil {
		if t := l.takeFirst(); t.wire {
			starterOf(b).add(t)
		} else {
			t.query.Run(b)
		}
	}
}

// starter runs queries for wire handlers that have waited. It implements batch.Flusher.
type starter struct{ list }

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
		s.takeFirst().query.Run(&output)
	}
	output.Flush()
}
