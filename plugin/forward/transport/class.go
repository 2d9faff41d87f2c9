package transport

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// class is the order in which a server processes the queries of one connection. It follows from observed answers and
// closes. Only while it is unknown, copies of queries may be sent to determine it.
type class int

const (
	unknown   class = iota
	pipelined       // answers out of order, RFC 7766 section 6.2.1.1
	serial          // works on one query at a time, or closes the connection after one
)

const (
	// serialAfter is the number of successive connections closed without an answer after which the server counts
	// as serial, and pauseAfter the number after which no connection is opened for a while.
	serialAfter = 3
	pauseAfter  = 32
	// manyQueries is the number of queries on connections closed without an answer from which half of them are tried. Package
	// dns closes a connection after 128.
	manyQueries = 32
	// maxCopies bounds the copies sent for queries of a connection while it receives nothing.
	maxCopies = 4
	// maxConnsForCopies is the number of connections up to which a new one may be opened for a copy, and maxRetired that of
	// the retired ones beside them.
	maxConnsForCopies = 2
	maxRetired        = 2
	// maxStalls is the number of successive stalls of connections that deliver answers after which the server counts
	// as serial. One may be a lossy network.
	maxStalls = 2
	// busyAnswers is the number of answers that a busy connection receives while a copy is under way, or while a query
	// waits for less than the maximum time of a stall: its queries wait because of the load, not because of one slow query.
	busyAnswers = 8
)

const serialReason = "works on one query of a connection at a time"

// behaviour is the state of a server, derived from its answers and closes.
type behaviour struct {
	class       class
	classUntil  time.Time     // end of the class's validity: the server behind the address may change
	serialFor   time.Duration // validity of the last serial class, doubled each time
	limit       int           // queries per connection; 0 is no limit
	limitUntil  time.Time
	closedAfter int // answers on the last connection that the server closed right after one
	stalls      int // successive copies answered while the original waits on a connection that delivers answers
	unanswered  int // successive connections closed without an answer
	fewest      int // queries on one of these connections
}

// classAt returns the class of the server.
func (p *Pool) classAt(now time.Time) class {
	if !now.Before(p.classUntil) {
		p.class = unknown
	}
	return p.class
}

// depth returns the maximum number of queries in flight on one connection.
func (p *Pool) depth(now time.Time) int {
	if p.limit > 0 && now.After(p.limitUntil) {
		p.limit = 0
	}
	if p.classAt(now) == serial {
		return 1
	}
	return p.MaxInFlight
}

// setSerial sets the class of a server that needs one query per connection at a time, and at most limit in all.
func (p *Pool) setSerial(limit int, reason string) {
	now := p.now()
	if p.depth(now) == 1 && p.limit == limit {
		return
	}
	p.serialFor = min(2*p.serialFor, p.maxSerial)
	if p.serialFor == 0 || now.Sub(p.classUntil) > p.maxSerial {
		p.serialFor = p.minSerial
	}
	p.class, p.classUntil, p.stalls = serial, now.Add(p.serialFor), 0
	p.limit, p.limitUntil = limit, p.classUntil
	p.Metrics.Single.Inc()
	go p.Log(fmt.Sprintf("%s: one query per connection for %v", reason, p.serialFor))
}

// answersOutOfOrder sets the class of a server that answered a query before an older one of the same connection, or
// implements edns-tcp-keepalive: servers of that age process queries concurrently (RFC 7828 section 1), and copies would only
// cost them.
func (p *Pool) answersOutOfOrder(now time.Time) {
	if p.classAt(now) == serial && p.limit == 1 {
		return // the server still closes connections after one answer
	}
	p.class, p.classUntil = pipelined, now.Add(p.maxSerial)
	p.serialFor, p.stalls = 0, 0
}

// closedByServer reports whether the server closed the connection, rather than this side or a timeout.
func closedByServer(err error) bool {
	var timeout net.Error
	return !errors.Is(err, net.ErrClosed) && !(errors.As(err, &timeout) && timeout.Timeout())
}

// observeClose updates the class or limit after the server closed a connection right after an answer. One close may be
// chance; two after the same number of answers are a limit of the server.
func (p *Pool) observeClose(c *conn) {
	now := p.now()
	if c.answered == 0 {
		p.observeUnanswered(c, now)
		return
	}
	if now.Sub(c.lastAnswer) > p.prompt {
		return
	}
	before := p.closedAfter
	p.closedAfter = c.answered
	switch {
	case c.answered != before:
	case c.answered == 1:
		p.setSerial(1, "closes connections after one answer")
	case p.limit != c.answered:
		p.setLimit(c.answered, "answers", now)
	}
}

// observeUnanswered counts a connection that was closed before its first answer. After a few in a row each query gets its
// own connection: one of the queries may be the cause. While each connection has many queries, half as many are tried first: the
// server may limit their number, and have none that it can answer. Half may still exceed the server's limit, since more queries
// are sent before its close arrives. After many such connections the server counts as unreachable.
func (p *Pool) observeUnanswered(c *conn, now time.Time) {
	if c.inFlight == 0 || p.limit > 0 && c.sent > p.limit { // the limit is newer than the queries
		return
	}
	if p.unanswered == 0 || c.sent < p.fewest {
		p.fewest = c.sent
	}
	p.unanswered++
	switch {
	case p.unanswered >= pauseAfter:
		p.backOff(now, errClosed)
	case p.unanswered < serialAfter || c.inFlight == 1:
	case p.fewest >= manyQueries:
		p.unanswered-- // the next one counts as the last of a few in a row
		p.setLimit(p.fewest/2, "queries", now)
	default:
		p.setSerial(0, "closes connections before an answer")
	}
}

// setLimit sets the limit of the queries of a connection; counted is the noun of what was counted.
func (p *Pool) setLimit(n int, counted string, now time.Time) {
	p.limit, p.limitUntil = n, now.Add(p.maxSerial)
	go p.Log(fmt.Sprintf("closes connections after %d %s: no more queries than that per connection for %v", n, counted, p.maxSerial))
}

// checkStall detects queries that wait behind the oldest of a connection for much longer than an answer takes: the
// server is serial or slow, or the connection is dead. If the class is unknown, a copy of one of these queries goes to
// another connection: only a slow server does not answer that sooner.
func (p *Pool) checkStall(c *conn, now time.Time) {
	class := p.classAt(now)
	if class == pipelined || c.c == nil || c.copies >= maxCopies || c.heardLately(now) {
		return
	}
	wait := min(max(4*p.minRTT, p.stall), p.maxStall)
	if now.Sub(latest(c.opened, c.copiedAt, c.oldest().sent)) < wait {
		return
	}
	if class == serial {
		p.moveBehindOldest(c)
		return
	}
	silent := now.Sub(latest(c.opened, c.lastAnswer)) >= wait
	for _, f := range slices.Backward(c.queue()[1:]) {
		if !silent && now.Sub(f.sent) < wait/2 || len(f.call.flights) > 1 {
			continue
		}
		if other := p.connForCopy(c); other != nil {
			c.copies++
			c.copiedAt = now
			sent := other.put(f.call)
			sent.copyFrom, sent.silent, sent.answeredBefore = c, silent, c.answered
		}
		return
	}
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// connForCopy returns a connection for a copy of a query, or nil: an idle or new one if possible, since others may be
// stalled too.
func (p *Pool) connForCopy(except *conn) *conn {
	for _, c := range p.conns {
		if c != except && c.inFlight == 0 && c.hasRoom(1, p.limit) {
			return c
		}
	}
	now := p.now()
	limit := p.maxConns(p.depth(now))
	if p.depth(now) > 1 {
		limit = min(limit, maxConnsForCopies)
	}
	if len(p.conns) < limit && len(p.conns)+len(p.retired) < limit+maxRetired && p.mayConnect(now) {
		return p.openShared()
	}
	for _, c := range p.conns {
		if c != except && c.hasRoom(maxCopies, p.limit) {
			return c
		}
	}
	return nil
}

// copyAnswered evaluates a connection after the answer to a copy whose original still waits on it.
func (p *Pool) copyAnswered(f *flight, now time.Time) {
	c := f.copyFrom
	i := slices.IndexFunc(f.call.flights, func(f *flight) bool { return f.conn == c })
	if c.closed || i < 0 || p.classAt(now) != unknown {
		return
	}
	original := f.call.flights[i]
	switch {
	case f.silent && c.lastAnswer.Before(f.sent): // the server may be slow, and the late answers show it
		p.copyOldest(c)
		p.moveBehindOldest(c)
	case original.number < c.highest: // newer queries were answered: this one waits for no other
	case c.answered-f.answeredBefore > busyAnswers,
		c.answered-original.answeredBefore > busyAnswers && now.Sub(c.oldest().sent) < p.maxStall:
		p.stalls = 0
	default:
		if p.stalls++; p.stalls >= maxStalls {
			p.setSerial(0, serialReason)
			p.moveBehindOldest(c)
		}
	}
}

// observeSlow evaluates a late answer on a connection from which queries were moved away because of its oldest one. The
// server is serial if it answers the oldest one first.
func (p *Pool) observeSlow(c *conn, f *flight, now time.Time) {
	if c.slow.number == 0 || f.number <= c.slow.number || p.classAt(now) != unknown {
		return
	}
	if slow := c.byID[c.slow.id]; slow == nil || slow.number != c.slow.number { // it was answered before
		p.setSerial(0, serialReason)
	}
}

// copyOldest sends a copy of the oldest query of a connection on a separate connection. If that is answered sooner,
// the connection is dead or its network is lossy, and the server is not serial.
func (p *Pool) copyOldest(c *conn) {
	if call := c.oldest().call; len(call.flights) == 1 && len(p.retired) < maxEscapes {
		p.openAlone().put(call).copyOfOldest = c
	}
}

// moveBehindOldest moves all queries of a connection but the oldest to others: on a serial server only the oldest
// makes progress. The connection remains open for their late answers.
func (p *Pool) moveBehindOldest(c *conn) {
	oldest := c.oldest()
	c.slow, c.awaitsLate = queryNumber{oldest.id, oldest.number}, true
	var displaced []*Call
	for _, f := range c.queue()[1:] {
		call := f.call
		c.remove(f)
		if len(call.flights) == 0 {
			call.avoid = c
			displaced = append(displaced, call)
		}
	}
	p.retire(c)
	for _, call := range displaced {
		p.reassign(call)
	}
}
