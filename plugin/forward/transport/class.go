package transport

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// class is the order in which a server processes the queries of one connection. It follows from observed answers and
// closes. Only while it is unknown, or a connection is silent, copies of queries may be sent to determine it.
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
	// manyQueries is the minimum number of queries on each connection closed without an answer for which half as many are tried.
	// Package dns closes a connection after 128.
	manyQueries = 32
	// maxCopies bounds the copies sent for queries of a connection while it receives nothing.
	maxCopies = 4
	// maxConnsForCopies is the number of connections up to which a new one may be opened for a copy, and maxRetired the number
	// of retired connections beside them.
	maxConnsForCopies = 2
	maxRetired        = 2
	// maxStalls is the number of successive stalls of connections that deliver answers after which the server counts
	// as serial. One may be a lossy network.
	maxStalls = 2
	// busyAnswers is the number of answers that a busy connection receives while a copy is under way, or while a query
	// waits for less than the maximum time of a stall: its queries wait because of the load, not because of one slow query.
	busyAnswers = 8
	// silentInFlight is the number of queries in flight from which a silent connection of a pipelined server may be dead.
	silentInFlight = 4
)

const serialReason = "works on one query of a connection at a time"

// behaviour is the state of a server, derived from its answers and closes.
type behaviour struct {
	class       class
	classUntil  time.Time     // end of the class's validity: the server behind the address may change
	serialFor   time.Duration // validity of the last serial class, doubled each time
	limit       int           // queries per connection; 0 is no limit
	limitUntil  time.Time
	closedAfter int // answers on the last connection that the server closed right after an answer
	stalls      int // successive copies answered while the original waits on a connection that delivers answers
	missed      missed
	slowUntil   time.Time // the server has answered a query that was alone on its connection later than a stall: it is slow, not silent
	unanswered  int       // successive connections closed without an answer
	fewest      int       // lowest number of queries on one of these connections
}

// missed is a query that its connection had not answered when another connection did.
type missed struct {
	queryNumber
	conn     *conn // nil for none
	answered int   // answers that conn had received by then
	at       time.Time
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

// setSerial sets the class of a server that needs one query per connection at a time, and limit in all; 0 is no limit.
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
// implements edns-tcp-keepalive: servers with this option process queries concurrently (RFC 7828 section 1), and copies would only
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
		p.setLimit(c.answered, fmt.Sprintf("closes connections after %d answers", c.answered), now)
	}
}

// observeUnanswered counts a connection that was closed before its first answer. After a few in a row each query gets its
// own connection: one of the queries may be the cause. While each connection has many queries, half as many are tried first: the
// server may limit their number, and may have no answer to any of them yet. Half may still exceed the server's limit, since more
// queries are sent before its close arrives. After many such connections the server counts as unreachable.
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
		p.setLimit(p.fewest/2, fmt.Sprintf("closes connections after %d queries", p.fewest/2), now)
	default:
		p.setSerial(0, "closes connections before an answer")
	}
}

// setLimit sets the limit of the queries of a connection.
func (p *Pool) setLimit(n int, reason string, now time.Time) {
	p.limit, p.limitUntil = n, now.Add(p.maxSerial)
	go p.Log(fmt.Sprintf("%s: no more queries than that per connection for %v", reason, p.maxSerial))
}

// checkStall detects queries that wait for much longer than an answer takes: the server is serial or slow, or ignores them, or the
// connection is dead. If the class is unknown, a copy of one of these queries goes to another connection: only a slow server does
// not answer the copy sooner.
func (p *Pool) checkStall(c *conn, now time.Time) {
	class := p.classAt(now)
	if c.c == nil || c.copies >= maxCopies || c.heardLately(now) {
		return
	}
	wait, silence := min(max(4*p.minRTT, p.stall), p.maxStall), now.Sub(latest(c.opened, c.lastAnswer))
	p.checkFirst(c, wait, now)
	if class == pipelined {
		if wait = p.silence; c.inFlight < silentInFlight || silence < wait {
			return
		}
	}
	if now.Sub(latest(c.opened, c.copiedAt, c.oldest().sent)) < wait {
		return
	}
	if class == serial {
		if c.inFlight > 1 || c.front() == nil {
			p.moveBehindFront(c)
		}
		return
	}
	silent := silence >= wait
	for i, f := range slices.Backward(c.queue()) {
		if len(f.call.flights) > 1 || !p.isStalled(f, i, silent, wait, now) {
			continue
		}
		if other := p.connForCopy(c, silent); other != nil {
			c.copies++
			c.copiedAt = now
			sent := other.put(f.call)
			sent.copyFrom, sent.silent, sent.answeredBefore = c, silent, c.answered
		}
		return
	}
	if silent && c.inFlight > 1 && c.answered > 0 { // the connections of the copies may be silent as well
		c.copiedAt = now
		p.copyFront(c)
	}
}

// isStalled reports whether a copy of a query is due; behind is the number of older ones on its connection.
func (p *Pool) isStalled(f *flight, behind int, silent bool, wait time.Duration, now time.Time) bool {
	c := f.conn
	switch age := now.Sub(f.sent); {
	case f.number < c.highest: // newer queries were answered
		return age >= wait
	case behind > 0 || !c.isNext(f):
		return silent || age >= wait/2
	case c.inFlight > 1: // this query may be the slow one
		return false
	case c.answered == f.answeredBefore:
		return c.answered > 0 && age >= p.maxStall && !now.Before(p.slowUntil)
	default: // the server was working on another query when it received this one
		return silent
	}
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// connForCopy returns a connection for a copy of a query, or nil: an idle or new one if possible, since others may be stalled too.
// One for the copy alone is opened if connection except has no other query, or is silent and no other connection has room.
func (p *Pool) connForCopy(except *conn, silent bool) *conn {
	if except.inFlight == 1 && p.MaxConnections > 1 {
		return p.openEscape()
	}
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
	if silent && p.MaxConnections > 1 {
		return p.openEscape()
	}
	return nil
}

// copyAnswered evaluates a connection after the answer to a copy whose original still waits on it.
func (p *Pool) copyAnswered(f *flight, now time.Time) {
	c := f.copyFrom
	original := f.call.flightOn(c)
	class := p.classAt(now)
	if original == nil || c.closed || class == serial {
		return
	}
	overtaken := original.number < c.highest
	alone := c.inFlight == 1 && c.isNext(original)
	if overtaken || alone {
		p.observeMissed(original, now)
	}
	switch {
	case alone:
		if c.answered == original.answeredBefore { // the server was working on no other query
			p.moveBehindFront(c)
		}
	case f.silent && c.lastAnswer.Before(f.sent): // the server may be slow, and the late answers show it
		p.copyFront(c)
		p.moveBehindFront(c)
	case class == pipelined, overtaken, c.answered == f.answeredBefore: // it waits for no other, or the connection may be silent
	case c.answered-f.answeredBefore > busyAnswers,
		c.answered-original.answeredBefore > busyAnswers && now.Sub(c.oldest().sent) < p.maxStall:
		p.stalls = 0
	default:
		if p.stalls++; p.stalls >= maxStalls {
			p.setSerial(p.limit, serialReason)
			p.moveBehindFront(c)
		}
	}
}

// observeMissed evaluates a query that waits for no other of its connection, and that another connection has answered sooner. Its
// answer may only be late: the server leaves queries unanswered if a while later another one is missed, and this one still waits.
func (p *Pool) observeMissed(f *flight, now time.Time) {
	c, last := f.conn, p.missed
	waits := last.conn != nil && last.conn.waitsFor(last.queryNumber)
	switch {
	case p.classAt(now) == serial:
		return
	case !waits:
	case last.conn.answered > last.answered && p.class == unknown:
		if now.Sub(last.at) < p.maxStall {
			return
		}
		p.setSerial(p.limit, "ignores a query while it works on another")
	case last.conn.answered > last.answered:
	case last.conn == c: // silent since then
		return
	case c.answered != last.answered || c.answered == 0: // dead connections
	case c.answered == 1:
		p.setSerial(1, "answers one query of a connection")
	case p.limit != c.answered:
		p.setLimit(c.answered, fmt.Sprintf("answers %d queries of a connection", c.answered), now)
	}
	p.missed = missed{queryNumber{f.id, f.number}, c, c.answered, now}
}

// observeSlow evaluates a late answer on a connection from which queries were moved away because of its front. The
// server is serial if it answers the front first.
func (p *Pool) observeSlow(c *conn, f *flight, now time.Time) {
	if c.slow.number == 0 || f.number <= c.slow.number || p.classAt(now) != unknown {
		return
	}
	if !c.waitsFor(c.slow) { // it was answered before
		p.setSerial(p.limit, serialReason)
	}
}

// copyFront sends a copy of the front of a connection on a separate connection. If the copy is answered sooner, the
// connection is dead or its network is lossy, or the server ignores the query, and is not serial.
func (p *Pool) copyFront(c *conn) {
	f := c.front()
	if f == nil || len(f.call.flights) > 2 { // it may be the front of two silent connections
		return
	}
	if other := p.openEscape(); other != nil {
		other.put(f.call).copyOfFront = c
	}
}

// copyFronts sends copies of the fronts of connections from which the other queries were moved away: a server that leaves queries
// unanswered may ignore the fronts as well.
func (p *Pool) copyFronts(now time.Time) {
	for _, c := range slices.Clone(p.retired) {
		if c.awaitsLate && c.inFlight > 0 && now.Sub(latest(c.lastAnswer, c.copiedAt, c.oldest().sent)) >= p.maxStall {
			c.copiedAt = now
			p.copyFront(c)
		}
	}
}

// openEscape opens a connection for a query that is not answered on others, or returns nil.
func (p *Pool) openEscape() *conn {
	if p.escapes() >= maxEscapes || !p.mayConnect(p.now()) {
		return nil
	}
	return p.openAlone()
}

// escapes returns the number of connections that get no more queries, without those of queries that require their own.
func (p *Pool) escapes() (n int) {
	for _, c := range p.retired {
		if !c.alone {
			n++
		}
	}
	return n
}

// frontCopyAnswered evaluates the answer to the copy of the front of a connection.
func (p *Pool) frontCopyAnswered(f *flight, now time.Time) {
	c := f.copyOfFront
	if original := f.call.flightOn(c); original != nil && c.isNext(original) {
		p.observeMissed(original, now)
		if c.lastAnswer.Before(f.sent) {
			p.moveBehindFront(c)
		}
	}
	c.slow = queryNumber{}
}

// moveBehindFront moves all queries of a connection but the front to others: on a serial server only the front
// makes progress. The connection remains open for their late answers.
func (p *Pool) moveBehindFront(c *conn) {
	front := c.front()
	if c.slow = (queryNumber{}); front != nil {
		c.slow = queryNumber{front.id, front.number}
	}
	c.awaitsLate = true
	var displaced []*Call
	for _, f := range c.queue() {
		if f == front {
			continue
		}
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
