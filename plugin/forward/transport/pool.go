package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// Config configures a Pool.
type Config struct {
	// Dial opens a connection, including a TLS handshake.
	Dial func(ctx context.Context) (net.Conn, error)
	// MaxInFlight limits the queries in flight on one connection, and MaxConnections the connections to a server
	// that accepts many queries on each; both at least 1.
	MaxInFlight, MaxConnections int
	// MaxIdle limits the idle connections; 0 is no limit.
	MaxIdle int
	// Expire limits the idle time of a connection, and MaxAge the time in which it gets queries; a MaxAge of 0 is
	// no limit.
	Expire, MaxAge time.Duration
	Metrics        *Metrics
	// Coherence is nil for a pool without sessions.
	Coherence *Coherence
	// CheckKeepAlive checks whether the server answers queries with edns-tcp-keepalive, and calls KeepAliveChecked. It is
	// called in a goroutine of its own, every 5 seconds at most. nil is no check.
	CheckKeepAlive func()
	// Log logs a change of the server's class or limit, or that it opens no session, given as a predicate.
	Log func(predicate string)
}

const (
	// maxSerialConnections bounds the connections to a serial server: as many queries as two connections carry by
	// default.
	maxSerialConnections = 2000
	// maxUnansweredConnections is that bound while no connection delivers an answer.
	maxUnansweredConnections = 16
	// maxRetiredConnections bounds the retired connections, with those for one query.
	maxRetiredConnections = 256
	// maxEscapes bounds the connections for one query that is a copy, or that may have ended other connections.
	maxEscapes = 16
	// minConnections times MaxInFlight queries may be in flight to a server that closes connections after some queries, on more
	// connections. A flood may have that many in flight when the limit is found: with fewer, other clients wait for its end.
	minConnections = 16
	// maxWaiting bounds the queries that wait for room on a connection.
	maxWaiting = 1024
	// maxUnsent bounds the unwritten bytes of a connection: the server may not read.
	maxUnsent = 256 << 10
	// maxReserved bounds the ids of a connection reserved for answers to cancelled queries.
	maxReserved = 16384
	// maxLateness is the time after which a check of the connections is late.
	maxLateness = 20 * time.Millisecond
	// dialTimeout bounds a handshake, in which two segments may be lost (RFC 6298 section 2).
	dialTimeout = 3500 * time.Millisecond
)

// times are the timing of a Pool. Tests shorten it.
type times struct {
	now                  func() time.Time
	backoff, maxBackoff  time.Duration // after a failed handshake, doubled each time
	minSerial, maxSerial time.Duration // validity of the serial class, doubled each time
	stall, maxStall      time.Duration // bounds of the wait that counts as a stall
	silence              time.Duration // after which a connection of a pipelined server may be dead
	prompt               time.Duration // between an answer and a close that is due to it
	tick                 time.Duration // between two checks of the connections
	write                time.Duration // for one write: longer than the kernel waits for acknowledgements
}

// Pool sends many queries over few TCP or TLS connections. Create it with NewPool.
type Pool struct {
	Config
	times

	mu      sync.Mutex
	conns   []*conn // for queries, some still being established
	retired []*conn // get no more queries, and are closed after their last one
	waiting []*Call
	unsent  []*conn // with new output; empty while the mutex is unlocked
	done    []*Call // whose owners are called; empty while the mutex is unlocked

	spareFlights flightList
	closing      bool
	ticking      bool
	checkAt      time.Time // of the next check

	failures int // successive failed handshakes
	retryAt  time.Time
	dialErr  error

	capacity     atomic.Int64 // see Capacity
	notifiesFrom atomic.Int64 // see Notifies

	rtt    time.Duration // smoothed
	minRTT time.Duration
	behaviour
	extension
	coherent
}

// NewPool returns a Pool. It opens no connection before the first query.
func NewPool(c Config) *Pool {
	p := &Pool{Config: c, times: times{
		now:     time.Now,
		backoff: 50 * time.Millisecond, maxBackoff: 500 * time.Millisecond,
		minSerial: 30 * time.Second, maxSerial: 10 * time.Minute,
		stall: 100 * time.Millisecond, maxStall: 500 * time.Millisecond,
		silence: 500 * time.Millisecond,
		prompt:  200 * time.Millisecond,
		tick:    50 * time.Millisecond,
		write:   2 * time.Second,
	}}
	p.setCapacity(p.MaxInFlight, p.MaxConnections)
	return p
}

// unlock unlocks the pool. New output is sent when the batch is flushed, or by the writers if b is nil. The caller calls
// the owners of the returned calls.
func (p *Pool) unlock(b *batch.Batch) (ended []*Call) {
	for i, c := range p.unsent {
		c.unsent, p.unsent[i] = false, nil
		if b != nil {
			b.Add(c)
		} else {
			c.wakeWriter()
		}
	}
	p.unsent = p.unsent[:0]
	ended, p.done = p.done, nil
	p.mu.Unlock()
	return ended
}

// unlockInCaller unlocks the pool in a goroutine of a call's owner, which is not called before the method returns.
func (p *Pool) unlockInCaller(b *batch.Batch) {
	if ended := p.unlock(b); len(ended) > 0 { // waiting calls failed, which is rare
		go endOwners(ended...)
	}
}

// unlockAndCall unlocks the pool in one of its own goroutines.
func (p *Pool) unlockAndCall() {
	if ended := p.unlock(nil); len(ended) > 0 {
		endOwners(ended...)
	}
}

// end ends a call. Its owner is called after the pool is unlocked.
func (p *Pool) end(call *Call, reply []byte, err error) {
	if call.end(reply, err) {
		p.done = append(p.done, call)
	}
}

// Send implements Carrier.
func (p *Pool) Send(b *batch.Batch, call *Call) error {
	p.mu.Lock()
	defer p.unlockInCaller(b)
	if !call.prepare() {
		call.ended = true
		return errQuery
	}
	if call.earlier != nil {
		call.avoid, call.earlier = call.earlier.avoid, nil
	}
	p.sendWaiting()
	err := p.assign(call)
	if err != nil {
		call.ended = true
	}
	return err
}

// assign sends a call, or appends it to the waiting ones. After an error the caller ends it.
func (p *Pool) assign(call *Call) error {
	if sent, err := p.trySend(call); sent || err != nil {
		return err
	}
	if len(p.waiting) >= maxWaiting {
		return ErrBusy
	}
	call.waits = true
	p.waiting = append(p.waiting, call)
	return nil
}

// reassign sends a call again that was separated from its connection.
func (p *Pool) reassign(call *Call) {
	if err := p.assign(call); err != nil {
		p.end(call, nil, err)
	}
}

// trySend sends a call. It returns false if there is no room.
func (p *Pool) trySend(call *Call) (sent bool, err error) {
	c, err := p.place(call)
	switch {
	case c == nil:
		return false, err
	case c.sent == 0:
		p.Metrics.Misses.Inc()
	default:
		p.Metrics.Hits.Inc()
	}
	c.put(call)
	return true, nil
}

// place returns a connection with room, which may be new, or nil if all are full. It fails if no connection exists
// and none can be opened.
func (p *Pool) place(call *Call) (*conn, error) {
	now := p.now()
	if call.Alone {
		if len(p.retired) >= maxRetiredConnections {
			return nil, ErrBusy
		}
		if now.Before(p.delayedUntil) {
			return nil, errDelay
		}
		c := p.openAlone()
		c.alone = call.moves == 0 // not after the server has closed connections of others
		return c, nil
	}
	depth := p.depth(now)
	p.retireOld(now)
	for _, c := range p.conns {
		if c != call.avoid && c.hasRoom(depth, p.limit) {
			return c, nil
		}
	}
	limit := p.maxConns(depth)
	p.setCapacity(depth, limit)
	if len(p.conns) >= limit {
		p.retireSpent()
	}
	switch {
	case len(p.conns) < limit && p.mayConnect(now):
		return p.openShared(), nil
	case call.avoid != nil && slices.Contains(p.conns, call.avoid) && call.avoid.hasRoom(depth, p.limit):
		return call.avoid, nil
	case len(p.conns) > 0:
		return nil, nil
	}
	return nil, p.connectError(now)
}

// Capacity implements Carrier. It follows a change of the server's class when a query needs another connection, and at the
// next check.
func (p *Pool) Capacity() int { return int(p.capacity.Load()) }

// setCapacity sets the capacity for a number of queries in flight on one connection, and of connections.
func (p *Pool) setCapacity(depth, connections int) {
	if p.limit > 0 {
		depth = min(depth, p.limit)
	}
	p.capacity.Store(int64(depth * connections))
}

// maxConns returns the limit of connections: higher if each may have few queries.
func (p *Pool) maxConns(depth int) int {
	switch {
	case depth == 1 && p.unanswered >= serialAfter:
		return maxUnansweredConnections
	case depth == 1:
		return max(p.MaxConnections, maxSerialConnections)
	case p.limit > 0:
		return max(p.MaxConnections, minConnections*max(1, p.MaxInFlight/p.limit))
	}
	return p.MaxConnections
}

// open begins to establish a connection.
func (p *Pool) open() *conn {
	c, ctx := newConn(p)
	go c.run(ctx)
	if !p.ticking {
		p.ticking = true
		p.checkIn(p.tick)
	}
	return c
}

// openShared opens a connection for many queries.
func (p *Pool) openShared() *conn {
	c := p.open()
	p.conns = append(p.conns, c)
	return c
}

// openAlone opens a connection for one query, which the caller puts on it.
func (p *Pool) openAlone() *conn {
	c := p.open()
	c.retired = true
	p.retired = append(p.retired, c)
	return c
}

// retire sends no more queries on a connection, and closes it after its last one.
func (p *Pool) retire(c *conn) {
	if c.closed {
		return
	}
	if i := slices.Index(p.conns, c); i >= 0 {
		p.conns = slices.Delete(p.conns, i, i+1)
	}
	if !c.retired {
		c.retired = true
		p.retired = append(p.retired, c)
	}
	if c.inFlight == 0 {
		c.close()
	}
}

// retireOld retires connections that have reached MaxAge.
func (p *Pool) retireOld(now time.Time) {
	if p.MaxAge == 0 {
		return
	}
	for i := len(p.conns) - 1; i >= 0; i-- { // retire changes the list
		c := p.conns[i]
		if c.awaitsSession() {
			continue
		}
		if age := now.Sub(c.created); age > p.MaxAge && (p.Coherence == nil || p.maxAge(c) > 0 && age > p.maxAge(c)) {
			p.retire(c)
		}
	}
}

// retireSpent retires idle connections that have reached the server's limit of queries.
func (p *Pool) retireSpent() {
	if p.limit == 0 {
		return
	}
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight == 0 && c.sent >= p.limit {
			p.retire(c)
		}
	}
}

// remove removes a closed connection from the lists.
func (p *Pool) remove(c *conn) {
	same := func(other *conn) bool { return other == c }
	p.conns = slices.DeleteFunc(p.conns, same)
	p.retired = slices.DeleteFunc(p.retired, same)
}

// sendWaiting sends waiting calls while there is room.
func (p *Pool) sendWaiting() {
	for len(p.waiting) > 0 {
		call := p.waiting[0]
		sent, err := p.trySend(call)
		if !sent && err == nil {
			return
		}
		call.waits = false
		if err != nil {
			p.end(call, nil, err)
		}
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
	}
	p.waiting = nil
}

// Cancel implements Carrier.
func (p *Pool) Cancel(call *Call) bool {
	p.mu.Lock()
	defer p.unlockInCaller(nil)
	if call.ended {
		return false
	}
	call.ended = true
	if call.waits {
		call.waits = false
		p.waiting = slices.DeleteFunc(p.waiting, func(c *Call) bool { return c == call })
	}
	for len(call.flights) > 0 {
		c := call.flights[0].conn
		call.avoid = c
		c.remove(call.flights[0])
		if len(c.byID)-c.inFlight >= maxReserved {
			p.retire(c)
		}
		c.closeIfUnused()
	}
	p.sendWaiting()
	return true
}

// Late implements Carrier. A connection that has received nothing since the query was sent may be dead without an
// error: it is retired.
func (p *Pool) Late(call *Call) {
	p.mu.Lock()
	defer p.unlockInCaller(nil)
	now := p.now()
	for _, f := range call.flights {
		call.avoid = f.conn
		if f.isExtended() {
			p.doubtKeepAlive(now)
		}
		if f.conn.lastAnswer.Before(f.sent) && !f.conn.retired && f.conn.c != nil && !f.conn.heardLately(now) {
			p.retire(f.conn)
		}
	}
	p.sendWaiting()
}

// Close implements Carrier.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
	for _, c := range slices.Concat(p.conns, p.retired) { // retire changes them
		if c.inFlight == 0 {
			p.retire(c)
		}
	}
}

// observeRTT updates the round trip times. The minimum grows slowly, since the path may have become longer.
func (p *Pool) observeRTT(rtt time.Duration) {
	if p.rtt == 0 {
		p.rtt, p.minRTT = rtt, rtt
	}
	p.rtt += (rtt - p.rtt) / 8
	p.minRTT = min(rtt, p.minRTT+(p.rtt-p.minRTT)/1024)
}

// check closes idle connections and detects stalled ones, periodically while connections exist.
func (p *Pool) check() {
	p.mu.Lock()
	defer p.unlockAndCall()
	now := p.now()
	// After a late check this process has not run for a while: answers may be in the kernel's buffers.
	late := now.Sub(p.checkAt) >= maxLateness
	p.expire(now)
	depth := p.depth(now)
	p.setCapacity(depth, p.maxConns(depth))
	p.sendWaiting() // the pause after a failed handshake may be over
	wait := 10 * p.tick
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight > 0 {
			wait = p.tick
			if !late {
				p.checkStall(c, now)
			}
		}
		p.tend(c, now, !late)
		c.countPackets()
	}
	if p.missed.conn != nil && !late {
		p.copyFronts(now)
	}
	if p.ticking = len(p.conns)+len(p.retired) > 0; p.ticking {
		p.checkIn(wait)
	}
}

// checkIn checks the connections after a while.
func (p *Pool) checkIn(wait time.Duration) {
	p.checkAt = p.now().Add(wait)
	time.AfterFunc(wait, p.check)
}

// expire closes connections that have been idle for long, and those above the limits.
func (p *Pool) expire(now time.Time) {
	idle := 0
	limit := p.maxConns(p.depth(now))
	primary := p.primary()
	for _, c := range slices.Clone(p.conns) {
		if c.inFlight > 0 || c.c == nil || c == primary || c.awaitsSession() {
			continue
		}
		idle++
		spent := p.limit > 0 && c.sent >= p.limit
		if now.Sub(c.used) >= c.idle || spent || len(p.conns) > limit || p.MaxIdle > 0 && idle > p.MaxIdle {
			p.retire(c)
		}
	}
	for _, c := range slices.Clone(p.retired) {
		if now.Sub(c.used) > 2*dialTimeout { // its queries have timed out
			c.close()
		}
	}
}

// failed ends a connection that could not be established.
func (p *Pool) failed(c *conn, err error) {
	p.mu.Lock()
	defer p.unlockAndCall()
	c.closed = true
	p.remove(c)
	err = fmt.Errorf("connect: %w", err)
	if !errors.Is(err, context.Canceled) { // by this side
		p.backOff(p.now(), err)
		p.handshakeFailed(p.now())
		p.reopenSession()
	}
	p.moveAll(c, err)
	if len(p.conns) == 0 {
		for _, call := range p.waiting {
			call.waits = false
			p.end(call, nil, err)
		}
		p.waiting = nil
	}
}

// backOff opens no connection for a while. Queries that need one fail with the error.
func (p *Pool) backOff(now time.Time, err error) {
	wait := min(p.backoff<<min(p.failures, 8), p.maxBackoff)
	if p.Coherence != nil { // all clients of the server have lost their sessions
		wait = jittered(wait)
	}
	p.retryAt = now.Add(wait)
	p.failures++
	p.dialErr = err
}

// lost ends a connection that can't be read or written any more.
func (p *Pool) lost(c *conn, err error) {
	p.mu.Lock()
	defer p.unlockAndCall()
	if c.closed {
		return
	}
	c.closed = true
	if c.violation != nil && !errors.Is(c.violation, errDelayed) {
		c.abort()
	} else {
		c.close()
	}
	p.Metrics.Connections.Dec()
	p.remove(c)
	c.wakeWriter() // so that the writer ends
	if because := p.sessionLost(c, err, p.now()); closedByServer(err) && !because && !c.alone && !c.lostByKeepAlive() {
		p.observeClose(c)
	}
	p.moveAll(c, fmt.Errorf("%w: %w", errClosed, err))
}

// moveAll moves the calls of a closed connection to others. A call that has lost too many connections fails.
func (p *Pool) moveAll(c *conn, err error) {
	limit := maxMovesUnanswered
	if c.answered > 0 {
		limit = maxMoves
	}
	var displaced []*Call
	for _, f := range c.queue() {
		call := f.call
		c.remove(f)
		if len(call.flights) > 0 {
			continue
		}
		call.avoid = c
		moves := &call.moves
		if errors.Is(c.violation, errDelayed) { // the server works: the query is not the reason for the close
			moves, limit = &call.delays, maxMoves
		}
		*moves++
		if call.Alone && moves == &call.moves || *moves > limit {
			p.end(call, nil, err)
			continue
		}
		displaced = append(displaced, call)
	}
	now := p.now()
	for _, call := range displaced {
		// The query may be the reason for the closes. Then it must not close further connections of others.
		call.Alone = call.moves > 1 && p.depth(now) > 1 && p.escapes() < maxEscapes && p.mayConnect(now)
		p.reassign(call)
	}
	p.sendWaiting()
}

// State reports whether a connection of a call is established, whether it has received answers since the query was sent, and
// whether the server may hold the query, since its session is heard.
func (p *Pool) State(call *Call) (established, answers, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for _, f := range call.flights {
		established = established || f.conn.c != nil
		answers = answers || f.conn.lastAnswer.After(f.sent)
		held = held || f.conn.heardLately(now)
	}
	return established, answers, held
}

// flightList has flights for reuse, at most maxSpareFlights.
type flightList []*flight

const maxSpareFlights = 1024

func (l *flightList) put(f *flight) {
	if *f = (flight{}); len(*l) < maxSpareFlights {
		*l = append(*l, f)
	}
}

// newFlight returns a flight, whose fields the caller sets.
func (p *Pool) newFlight() *flight {
	n := len(p.spareFlights)
	if n == 0 {
		return new(flight)
	}
	f := p.spareFlights[n-1]
	p.spareFlights[n-1], p.spareFlights = nil, p.spareFlights[:n-1]
	return f
}
