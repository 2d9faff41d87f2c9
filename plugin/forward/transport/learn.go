package transport

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// After how many connections that were closed before an answer, one after the other, each gets one query;
// and after how many making them is paused.
const (
	someFruitless = 3
	manyFruitless = 32
)

const (
	// maxCanaries bounds the queries of which a copy is sent while a connection says nothing.
	maxCanaries = 4
	// maxHeld is how many connections that take no more queries may be left to be waited for, before no further
	// one is made for a copy.
	maxHeld = 2
	// sureHeldUp is how many copies, one after the other, have to be answered before their originals, on a
	// connection that brings answers, for the conclusion that each query there waits for those before it.
	sureHeldUp = 2
	// busy is how many answers a connection brings in the time of a copy, for the conclusion that the server has
	// much to do, and not that queries wait for a slow one.
	busy = 8
)

// learnt is what the behaviour of the upstream has shown.
//
// One that works on one query of a connection at a time holds up all behind a slow one, and one that
// closes after each answer loses those behind it. They get one query per connection for a time, which
// doubles as long as they turn out to be so again.
type learnt struct {
	singleUntil time.Time     // until then, one query per connection
	hold        time.Duration // how long the next time
	limit       int           // queries that a connection takes before it is closed; 0 is any number
	limitUntil  time.Time
	closedAfter int       // how many answers the last connection had brought that was closed at once after one
	heldUp      int       // copies that were answered before their originals, one after the other
	fruitless   int       // connections that were closed before an answer, since the last answer
	orderUntil  time.Time // until then it is known to answer in any order
}

// depth returns how many queries may be on their way on one connection.
func (p *Pool) depth(now time.Time) int {
	if p.limit > 0 && now.After(p.limitUntil) {
		p.limit = 0
	}
	if now.Before(p.singleUntil) {
		return 1
	}
	return p.MaxInFlight
}

// oneQuery has each connection take one query at a time, and in all no more than the limit, for a time.
func (p *Pool) oneQuery(limit int, why string) {
	now := p.now()
	if p.depth(now) == 1 && p.limit == limit {
		return
	}
	if now.Sub(p.singleUntil) > p.times.maxSingle {
		p.hold = p.single
	}
	p.singleUntil = now.Add(p.hold)
	p.limit, p.limitUntil = limit, p.singleUntil
	p.Metrics.Single.Inc()
	go p.Say(fmt.Sprintf("%s: one query per connection for %v", why, p.hold))
	p.hold = min(2*p.hold, p.times.maxSingle)
}

// lost ends a connection.
func (p *Pool) lost(c *conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.gone {
		return
	}
	c.gone = true
	c.close()
	p.Metrics.Connections.Dec()
	p.forget(c)
	select {
	case c.wake <- struct{}{}: // for the writer to end
	default:
	}
	if closedByServer(err) {
		p.learnFromClose(c)
	}
	p.move(c, fmt.Errorf("%w: %w", errClosed, err))
}

// closedByServer reports whether an error says that the server has closed the connection, rather than this
// side, or that the connection is dead.
func closedByServer(err error) bool {
	var timeout net.Error
	return !errors.Is(err, net.ErrClosed) && !(errors.As(err, &timeout) && timeout.Timeout())
}

// learnFromClose learns from a connection that the server has closed. What happens once may have any
// reason; and one that was silent before was closed for that.
func (p *Pool) learnFromClose(c *conn) {
	now := p.now()
	if c.answered == 0 {
		p.learnFromNothing(c, now)
		return
	}
	if now.Sub(c.heard) > p.prompt {
		return
	}
	before := p.closedAfter
	p.closedAfter = c.answered
	switch {
	case c.answered != before:
	case c.answered == 1:
		p.oneQuery(1, "closes connections after one answer")
	case p.limit != c.answered:
		p.limit, p.limitUntil = c.answered, now.Add(p.times.maxSingle)
		go p.Say(fmt.Sprintf("closes connections after %d answers: they get no more queries than that for %v", p.limit, p.times.maxSingle))
	}
}

// learnFromNothing learns from a connection that was closed before it had brought anything. If that goes on,
// a query alone on a connection may fare better than many; if that does not help either, no connection is
// made for a moment, as if none could be.
func (p *Pool) learnFromNothing(c *conn, now time.Time) {
	if c.inFlight == 0 {
		return
	}
	p.fruitless++
	switch {
	case p.fruitless >= manyFruitless:
		p.backOff(now, errClosed)
	case p.fruitless >= someFruitless && c.inFlight > 1:
		p.oneQuery(0, "closes connections before an answer")
	}
}

// answersOutOfOrder notes that the upstream does not work on one query at a time. It may be another one
// tomorrow, behind the same address.
func (p *Pool) answersOutOfOrder(now time.Time) { p.orderUntil = now.Add(p.times.maxSingle) }

// suspect looks whether queries wait behind the oldest of a connection for much longer than an answer needs.
// It may be that the server works on one at a time, that the connection is dead, or that the server is slow. A
// copy of a query, sent by another connection, tells the last from the others.
func (p *Pool) suspect(c *conn, now time.Time) {
	if now.Before(p.orderUntil) || c.c == nil || c.canaries >= maxCanaries {
		return
	}
	wait := min(max(4*p.least, p.stall), p.maxStall)
	if now.Sub(latest(c.up, c.oldest.sent, c.canaryAt)) < wait {
		return
	}
	f := c.candidate(now, wait)
	if f == nil || f.canary != nil || len(f.call.flights) > 1 {
		return
	}
	other := p.another(c)
	if other == nil {
		return
	}
	c.canaries++
	c.canaryAt = now
	sent := other.put(f.call)
	sent.canary, sent.brought = c, c.answered
}

// candidate returns the query to send a copy of: another one each time while the connection says nothing, and
// else one that has waited for a good while itself, so that a copy that is answered sooner means something.
func (c *conn) candidate(now time.Time, wait time.Duration) *flight {
	f := c.newest
	if now.Sub(latest(c.heard, c.up)) >= wait {
		for range c.canaries {
			if f.older != nil && f.older != c.oldest {
				f = f.older
			}
		}
		return f
	}
	for f != nil && now.Sub(f.sent) < wait/2 {
		f = f.older
	}
	if f == c.oldest {
		return nil
	}
	return f
}

// another returns a connection that takes a copy of a query besides one, or nil: rather one that is idle, or
// new, than one that may be held up as well.
func (p *Pool) another(than *conn) *conn {
	now := p.now()
	for _, c := range p.conns {
		if c != than && c.inFlight == 0 && c.takes(1, p.limit) {
			return c
		}
	}
	most := p.mayHave(p.depth(now))
	if len(p.conns) < most && len(p.conns)+len(p.leaving) < most+maxHeld && !now.Before(p.retryAt) {
		return p.openShared()
	}
	for _, c := range p.conns {
		if c != than && c.takes(maxCanaries, p.limit) {
			return c
		}
	}
	return nil
}

// canaryAnswered draws the conclusion from an answer to the copy of a query whose original still waits.
func (p *Pool) canaryAnswered(f *flight, now time.Time) {
	held := f.canary
	f.canary = nil
	if held.gone || held.oldest == nil || now.Before(p.orderUntil) || !held.has(f.call) {
		return
	}
	if held.heard.Before(f.sent) {
		p.moveFromSilent(held)
		return
	}
	if held.answered-f.brought > busy {
		p.heldUp = 0
		return
	}
	// The original was sent long before, and the connection brings answers: those to still older queries.
	if p.heldUp++; p.heldUp < sureHeldUp {
		return
	}
	p.heldUp = 0
	p.oneQuery(0, "works on one query of a connection at a time")
	p.moveBehindOldest(held)
}

// has reports whether a call is on the connection.
func (c *conn) has(call *Call) bool {
	return slices.ContainsFunc(call.flights, func(f *flight) bool { return f.conn == c })
}

// moveFromSilent moves the queries of a connection that says nothing to others, but for the oldest: if the
// server works on one at a time, that is the one to wait for. Of it, a copy goes on a connection of its own:
// if that is answered sooner, it is the connection that is stuck, and not the query.
func (p *Pool) moveFromSilent(c *conn) {
	c.slow = c.oldest
	if call := c.oldest.call; len(call.flights) == 1 && len(p.leaving) < maxEscapes {
		p.openAlone().put(call).copyOf = c
	}
	p.moveBehindOldest(c)
}

// moveBehindOldest moves the queries of a connection to others, but for the oldest.
func (p *Pool) moveBehindOldest(c *conn) {
	var homeless []*Call
	for f := c.oldest.newer; f != nil; {
		next, call := f.newer, f.call
		c.take(f)
		f.moved = true
		if len(call.flights) == 0 {
			call.not = c
			homeless = append(homeless, call)
		}
		f = next
	}
	p.leave(c)
	for _, call := range homeless {
		p.assign(call)
	}
}

// awaitsConfirmation reports whether answers to queries that were moved away are still to come.
func (c *conn) awaitsConfirmation() bool {
	if c.gone || c.inFlight > 0 || !c.leaving || c.answered == 0 {
		return false
	}
	for _, f := range c.flights {
		if f.moved {
			return true
		}
	}
	return false
}

// movedAnswered notes that a connection that said nothing has brought the answer to a query that was moved
// away. If that to its oldest came before, the connection was not dead but held up; otherwise the server
// was slow.
func (p *Pool) movedAnswered(c *conn, now time.Time) {
	switch {
	case c.slow == nil, c.stuck: // nothing is to be found out
	case c.flights[c.slow.id] == c.slow: // then the server answers in any order, or never
	case !now.Before(p.orderUntil):
		p.oneQuery(0, "works on one query of a connection at a time")
	}
	c.rest()
}

// latest returns the latest of times.
func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}
