package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Config is what a Pool is made of.
type Config struct {
	// Dial makes a connection; it may include a handshake.
	Dial func(ctx context.Context) (net.Conn, error)
	// MaxInFlight is the number of queries on their way on one connection, and MaxConnections that of
	// connections, while the upstream takes many queries on one; both at least 1.
	MaxInFlight, MaxConnections int
	// MaxIdle is how many idle connections are kept; 0 is any number.
	MaxIdle int
	// Expire is how long an idle connection is kept, and MaxAge after what time a connection takes no more
	// queries; 0 is never.
	Expire, MaxAge time.Duration
	Metrics        *Metrics
	// Say is told what has been found out of the upstream, as a predicate.
	Say func(what string)
}

const (
	// maxSingleConnections bounds the connections while each takes one query at a time: as many queries as
	// there may be on two connections by default.
	maxSingleConnections = 2000
	// maxAlone bounds the connections for one query each, and those that are about to end.
	maxAlone = 256
	// maxEscapes bounds such connections for queries that have lost others.
	maxEscapes = 16
	// someConnections bounds them as long as they bring nothing.
	someConnections = 16
	// maxWaiting bounds the queries that wait for room on a connection.
	maxWaiting = 1024
	// maxUnsent bounds what waits to be written to a connection, in bytes: a server that does not read
	// gets no more.
	maxUnsent = 256 << 10
	// maxForgotten bounds the ids of a connection that wait for an answer nobody waits for.
	maxForgotten = 16384
	// dialTime bounds the making of a connection: two segments of the handshake may be lost (RFC 6298
	// section 2).
	dialTime = 3500 * time.Millisecond
)

// times are what a Pool goes by. Tests have shorter ones.
type times struct {
	now        func() time.Time
	backoff    time.Duration // after a connection could not be made, doubled each time
	maxBackoff time.Duration
	single     time.Duration // of one query per connection, doubled each time
	maxSingle  time.Duration
	stall      time.Duration // least silence of a connection that is suspicious
	maxStall   time.Duration
	prompt     time.Duration // after an answer, in which a close has to do with it
	tick       time.Duration
}

func realTimes() times {
	return times{
		now:     time.Now,
		backoff: 50 * time.Millisecond, maxBackoff: 500 * time.Millisecond,
		single: 30 * time.Second, maxSingle: 10 * time.Minute,
		stall: 100 * time.Millisecond, maxStall: 500 * time.Millisecond,
		prompt: 200 * time.Millisecond,
		tick:   50 * time.Millisecond,
	}
}

// Pool carries queries over few connections, many at a time on each. Make one with NewPool.
type Pool struct {
	Config
	times

	mu      sync.Mutex
	conns   []*conn // that take queries, or are being made
	leaving []*conn // that take none, and are closed when those on them have ended
	waiting []*Call
	closing bool
	ticking bool

	failures int // connections that could not be made, one after the other
	retryAt  time.Time
	dialErr  error

	rtt   time.Duration // average time that answers take
	least time.Duration // that answers take
	learnt
}

// NewPool returns a Pool. It opens nothing before the first query.
func NewPool(c Config) *Pool {
	p := &Pool{Config: c, times: realTimes()}
	p.learnt.hold = p.single
	return p
}

// Send implements Carrier.
func (p *Pool) Send(call *Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !call.prepare() {
		call.finish(nil, errQuery)
		return
	}
	if call.earlier != nil {
		call.not, call.earlier = call.earlier.not, nil
	}
	p.feed() // those who wait come first
	p.assign(call)
}

// assign puts a call on a connection, or lets it wait for room.
func (p *Pool) assign(call *Call) {
	c, fresh, err := p.place(call)
	switch {
	case err != nil:
		call.finish(nil, err)
	case c != nil:
		p.put(call, c, fresh)
	case len(p.waiting) >= maxWaiting:
		call.finish(nil, ErrBusy)
	default:
		call.waits = true
		p.waiting = append(p.waiting, call)
	}
}

// put sends a call by a connection, which may have been opened for it.
func (p *Pool) put(call *Call, c *conn, fresh bool) {
	if fresh {
		p.Metrics.Misses.Inc()
	} else {
		p.Metrics.Hits.Inc()
	}
	c.put(call)
}

// place returns a connection with room, which may be a new one, or nil if there is none. It fails if none
// can be made.
func (p *Pool) place(call *Call) (c *conn, fresh bool, err error) {
	now := p.now()
	if call.Alone {
		if len(p.leaving) >= maxAlone {
			return nil, false, ErrBusy
		}
		return p.openAlone(), true, nil
	}
	depth := p.depth(now)
	p.leaveOld(now)
	for _, c := range p.conns {
		if c != call.not && c.takes(depth, p.limit) {
			return c, false, nil
		}
	}
	most := p.mayHave(depth)
	if len(p.conns) >= most {
		p.leaveSpent()
	}
	switch {
	case len(p.conns) < most && !now.Before(p.retryAt):
		return p.openShared(), true, nil
	case call.not != nil && slices.Contains(p.conns, call.not) && call.not.takes(depth, p.limit):
		return call.not, false, nil
	case len(p.conns) > 0:
		return nil, false, nil
	}
	return nil, false, p.dialErr
}

// mayHave returns how many connections there may be: more where each takes few queries.
func (p *Pool) mayHave(depth int) int {
	switch {
	case depth == 1 && p.fruitless >= someFruitless: // it may be that it answers nobody
		return max(p.MaxConnections, someConnections)
	case depth == 1:
		return max(p.MaxConnections, maxSingleConnections)
	case p.limit > 0:
		return p.MaxConnections * max(1, p.MaxInFlight/p.limit)
	}
	return p.MaxConnections
}

// leaveSpent closes connections that have had as many queries as the server answers on one, if it has not
// closed them itself.
func (p *Pool) leaveSpent() {
	if p.limit == 0 {
		return
	}
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight == 0 && c.sent >= p.limit {
			p.leave(c)
		}
	}
}

// open begins to make a connection.
func (p *Pool) open() *conn {
	c := newConn(p)
	go c.run()
	p.keepTime()
	return c
}

// openShared opens a connection that takes queries.
func (p *Pool) openShared() *conn {
	c := p.open()
	p.conns = append(p.conns, c)
	return c
}

// openAlone opens a connection for one query, which the caller puts on it.
func (p *Pool) openAlone() *conn {
	c := p.open()
	c.leaving = true
	p.leaving = append(p.leaving, c)
	return c
}

// leave lets a connection end when those on it have.
func (p *Pool) leave(c *conn) {
	if c.gone {
		return
	}
	if i := slices.Index(p.conns, c); i >= 0 {
		p.conns = slices.Delete(p.conns, i, i+1)
	}
	if !c.leaving {
		c.leaving = true
		p.leaving = append(p.leaving, c)
	}
	if c.inFlight == 0 {
		c.close()
	}
}

// leaveOld lets those end that have taken queries for long enough.
func (p *Pool) leaveOld(now time.Time) {
	if p.MaxAge == 0 {
		return
	}
	for i := len(p.conns) - 1; i >= 0; i-- { // leave takes it out of the list
		if now.Sub(p.conns[i].made) > p.MaxAge {
			p.leave(p.conns[i])
		}
	}
}

// forget takes a connection that has ended off the lists.
func (p *Pool) forget(c *conn) {
	gone := func(other *conn) bool { return other == c }
	p.conns = slices.DeleteFunc(p.conns, gone)
	p.leaving = slices.DeleteFunc(p.leaving, gone)
}

// feed gives room to those who wait for it.
func (p *Pool) feed() {
	for len(p.waiting) > 0 {
		call := p.waiting[0]
		c, fresh, err := p.place(call)
		if c == nil && err == nil {
			return
		}
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		call.waits = false
		if err != nil {
			call.finish(nil, err)
			continue
		}
		p.put(call, c, fresh)
	}
	p.waiting = nil
}

// Cancel implements Carrier.
func (p *Pool) Cancel(call *Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	call.ended = true
	p.detach(call)
}

// detach takes a call off its connections, which may have room then.
func (p *Pool) detach(call *Call) {
	if call.waits {
		call.waits = false
		p.waiting = slices.DeleteFunc(p.waiting, func(c *Call) bool { return c == call })
	}
	for len(call.flights) > 0 {
		f := call.flights[0]
		call.not = f.conn
		f.conn.take(f)
		if f.conn.forgotten() >= maxForgotten {
			p.leave(f.conn)
		}
		f.conn.rest()
	}
	p.feed()
}

// Late implements Carrier. A connection that has brought nothing since the query was sent may be dead,
// with nobody left to say so: the next queries go by another.
func (p *Pool) Late(call *Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range call.flights {
		call.not = f.conn
		if f.conn.heard.Before(f.sent) && !f.conn.leaving && f.conn.c != nil {
			p.leave(f.conn)
		}
	}
	p.feed()
}

// Close implements Carrier.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight == 0 {
			p.leave(c)
		}
	}
}

// note takes in how long an answer took.
func (p *Pool) note(took time.Duration) {
	if p.rtt == 0 {
		p.rtt, p.least = took, took
	}
	p.rtt += (took - p.rtt) / 8
	// The least time is forgotten slowly: the way may have become longer.
	p.least = min(took, p.least+(p.rtt-p.least)/1024)
}

// keepTime has the connections looked after as long as there are any.
func (p *Pool) keepTime() {
	if !p.ticking {
		p.ticking = true
		time.AfterFunc(p.tick, p.look)
	}
}

// look closes what is idle and finds out what is stuck.
func (p *Pool) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.expire(now)
	p.feed() // the time for another connection may have come
	wait := 10 * p.tick
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight > 1 {
			wait = p.tick
			p.suspect(c, now)
		}
		c.count()
	}
	if p.ticking = len(p.conns)+len(p.leaving) > 0; p.ticking {
		time.AfterFunc(wait, p.look)
	}
}

// expire closes connections that have been idle for long, or are more than are wanted.
func (p *Pool) expire(now time.Time) {
	idle := 0
	most := p.mayHave(p.depth(now))
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight > 0 || c.c == nil {
			continue
		}
		idle++
		if now.Sub(c.used) >= c.idle || len(p.conns) > most || p.MaxIdle > 0 && idle > p.MaxIdle {
			p.leave(c)
		}
	}
	for _, c := range slices.Clone(p.leaving) {
		if now.Sub(c.used) > 2*dialTime { // those on it have given up
			c.close()
		}
	}
}

// failed ends a connection that could not be made.
func (p *Pool) failed(c *conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.gone = true
	p.forget(c)
	err = fmt.Errorf("connect: %w", err)
	if !errors.Is(err, context.Canceled) { // which was our doing
		p.backOff(p.now(), err)
	}
	p.move(c, err)
	if len(p.conns) == 0 {
		for _, call := range p.waiting {
			call.waits = false
			call.finish(nil, err)
		}
		p.waiting = nil
	}
}

// backOff lets no connection be made for a time, and says why to queries that need one.
func (p *Pool) backOff(now time.Time, why error) {
	p.retryAt = now.Add(min(p.backoff<<min(p.failures, 8), p.maxBackoff))
	p.failures++
	p.dialErr = why
}

// move gives the calls of a connection that has ended to others.
func (p *Pool) move(c *conn, err error) {
	var homeless []*Call
	for c.oldest != nil {
		f := c.oldest
		call := f.call
		c.take(f)
		if len(call.flights) > 0 {
			continue
		}
		call.not = c
		call.moved++
		if call.Alone || call.moved > c.movable() {
			call.finish(nil, err)
			continue
		}
		homeless = append(homeless, call)
	}
	now := p.now()
	for _, call := range homeless {
		// It may be the query that has the server hang up. Others are not to suffer again.
		call.Alone = call.moved > 1 && p.depth(now) > 1 && len(p.leaving) < maxEscapes && !now.Before(p.retryAt)
		p.assign(call)
	}
	p.feed()
}

// State reports whether a call is on a connection that is made, and whether that has brought something
// since the query was sent.
func (p *Pool) State(call *Call) (made, brings bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range call.flights {
		made = made || f.conn.c != nil
		brings = brings || f.conn.c != nil && f.conn.heard.After(f.sent)
	}
	return made, brings
}
