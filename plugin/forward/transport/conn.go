package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"syscall"
	"time"
)

const (
	lengthLen  = 2 // of what precedes a message, in bytes, RFC 1035 section 4.2.2
	maxMessage = 65535
	ids        = 1 << 16
	firstRead  = 4 << 10
	mostRead   = 32 << 10
	// writeTime bounds one write. It is longer than the kernel keeps what nobody acknowledges.
	writeTime = 2 * time.Second
	// A query waits for others for a part of the time that answers take, when at least so many are on their
	// way. Less than the shortest wait is no wait.
	lingerPart = 64
	minLinger  = 50 * time.Microsecond
	maxLinger  = 500 * time.Microsecond
	busyFrom   = 8
	// maxMoves bounds how often a query moves from connections that were lost after they had brought
	// answers to other queries.
	maxMoves = 5
)

// flight is a call on a connection.
type flight struct {
	call         *Call // nil once nobody waits for the answer
	conn         *conn
	id           uint16
	sent         time.Time
	older, newer *flight
	canary       *conn // if the call is also on this one, where it has waited for long
	brought      int   // how many answers that one had brought then
	copyOf       *conn // the same, where it is the oldest and nothing is said
	number       int   // in the order of sending
	moved        bool  // to another connection, away from this one
}

// conn is a connection. Everything but the reading and the writing is guarded by the pool's mutex.
type conn struct {
	pool *Pool
	c    net.Conn // nil until it is made
	wake chan struct{}
	ctx  context.Context // of the making
	end  context.CancelFunc

	out, spare []byte // to be written; written

	flights        map[uint16]*flight // with those that nobody waits for
	oldest, newest *flight            // of those that someone waits for
	inFlight       int
	nextID         uint16

	made     time.Time // when that began
	up       time.Time // when that ended
	used     time.Time // when it last got or had a query
	heard    time.Time // when it last brought something
	idle     time.Duration
	sent     int // queries
	answered int
	leaving  bool
	gone     bool

	canaries int       // queries of which a copy was sent elsewhere since it last brought something
	canaryAt time.Time // when the last one was
	slow     *flight   // away from behind which queries were moved
	stuck    bool      // a copy of slow was answered sooner
	highest  int       // number of the answered queries

	writes, reads uint32 // packets, where the kernel does not count them
	kernelCounts  bool
	packets       packets
}

func newConn(p *Pool) *conn {
	now := p.now()
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	return &conn{
		pool: p, ctx: ctx, end: cancel, wake: make(chan struct{}, 1), flights: map[uint16]*flight{},
		made: now, used: now, idle: p.Expire,
		// Who cannot see the connection cannot answer on it, so ids need not be hard to guess. In sequence
		// they come again as late as can be.
		nextID: uint16(now.UnixNano()), // #nosec G115 -- any will do
	}
}

// takes reports whether there is room for a query, where so many may be on their way and so many may be
// sent in all; a limit of 0 is none.
func (c *conn) takes(depth, limit int) bool {
	return !c.leaving && c.inFlight < depth && (limit == 0 || c.sent < limit) &&
		len(c.out) < maxUnsent && len(c.flights) < ids
}

// forgotten returns how many ids wait for an answer that nobody waits for.
func (c *conn) forgotten() int { return len(c.flights) - c.inFlight }

// put sends a call.
func (c *conn) put(call *Call) *flight {
	f := &flight{call: call, conn: c, sent: c.pool.now(), older: c.newest}
	for c.flights[c.nextID] != nil {
		c.nextID++
	}
	f.id, f.number = c.nextID, c.sent+1
	c.nextID++
	c.flights[f.id] = f
	if c.newest == nil {
		c.oldest = f
	} else {
		c.newest.newer = f
	}
	c.newest = f
	c.inFlight++
	c.used = f.sent
	if call.flights == nil {
		call.flights = call.first[:0]
	}
	call.flights = append(call.flights, f)
	c.write(call, f.id)
	c.pool.Metrics.InFlight.Inc()
	c.pool.Metrics.Depth.Observe(float64(c.inFlight))
	return f
}

// write appends a query to what is to be written, and wakes the writer.
func (c *conn) write(call *Call, id uint16) {
	start := len(c.out)
	c.out = append(c.out, 0, 0)
	if c.sent == 0 {
		c.out = asksToStay(c.out, call.Query, call.question)
	} else {
		c.out = append(c.out, call.Query...)
	}
	c.sent++
	message := c.out[start+lengthLen:]
	binary.BigEndian.PutUint16(c.out[start:], uint16(len(message))) // #nosec G115 -- a packed message is shorter
	setID(message, id)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take takes a call off the connection. Its id is not used before an answer has come.
func (c *conn) take(f *flight) {
	if f.older == nil {
		c.oldest = f.newer
	} else {
		f.older.newer = f.newer
	}
	if f.newer == nil {
		c.newest = f.older
	} else {
		f.newer.older = f.older
	}
	f.older, f.newer = nil, nil
	c.inFlight--
	c.pool.Metrics.InFlight.Dec()
	for i, other := range f.call.flights {
		if other == f {
			f.call.flights[i] = f.call.flights[len(f.call.flights)-1]
			f.call.flights = f.call.flights[:len(f.call.flights)-1]
			break
		}
	}
	f.call = nil
}

// rest closes the connection if nobody is on it, and nobody will be.
func (c *conn) rest() {
	if c.inFlight == 0 && (c.leaving || c.pool.closing) && !c.awaitsConfirmation() {
		c.pool.leave(c)
	}
}

// close ends the connection. It does not wait: TLS says goodbye, which a server that does not read holds
// up.
func (c *conn) close() {
	if c.c == nil {
		c.end()
		return
	}
	c.count()
	go func() { _ = c.c.Close() }() // the reader finds out
}

// count counts the packets since the last time.
func (c *conn) count() {
	if c.c == nil {
		return
	}
	now, ok := segments(c.c)
	switch {
	case ok:
		c.kernelCounts = true
	case c.kernelCounts: // and does no more, since the connection is closed
		return
	default:
		now = packets{sent: c.writes, received: c.reads}
	}
	c.pool.Metrics.Sent.Add(float64(now.sent - c.packets.sent))
	c.pool.Metrics.Received.Add(float64(now.received - c.packets.received))
	c.packets = now
}

// packets are how many a connection has had.
type packets struct{ sent, received uint32 }

// movable returns from how many lost connections a call may have come when this one is lost. One that had
// brought answers was lost for reasons of its own.
func (c *conn) movable() int {
	if c.answered > 0 {
		return maxMoves
	}
	return 2
}

// run makes the connection, and writes to it.
func (c *conn) run() {
	p := c.pool
	made, err := p.dial(c)
	if err != nil {
		p.failed(c, err)
		return
	}
	p.Metrics.Connections.Inc()
	go c.read()
	for range c.wake {
		c.linger()
		p.mu.Lock()
		b, gone := c.out, c.gone
		c.out, c.spare = c.spare[:0], nil
		p.mu.Unlock()
		if gone {
			return
		}
		if len(b) > 0 {
			if err = made.SetWriteDeadline(time.Now().Add(writeTime)); err == nil {
				_, err = made.Write(b)
			}
			switch {
			case err == nil:
			case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
				return // the reader finds the end, and the answers that came before it
			default:
				p.lost(c, err)
				return
			}
		}
		p.mu.Lock()
		c.writes++
		if c.spare = b[:0]; cap(b) > maxUnsent/4 {
			c.spare = nil
		}
		p.mu.Unlock()
	}
}

// linger waits a little for others, whose queries or answers then share a segment and a system call with
// those that are there: no longer than is lost in the time that answers take, and not at all if there are
// few.
func (c *conn) linger() {
	p := c.pool
	p.mu.Lock()
	wait := min(p.rtt/lingerPart, maxLinger)
	busy := c.inFlight >= busyFrom
	p.mu.Unlock()
	if busy && wait >= minLinger {
		time.Sleep(wait)
	} else {
		runtime.Gosched() // those who are about to send
	}
}

// dial makes a connection. It is given up when nobody waits for it any more.
func (p *Pool) dial(c *conn) (net.Conn, error) {
	defer c.end()
	made, err := p.Dial(c.ctx)
	if err != nil {
		return nil, err
	}
	endSoon(made)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.c = made
	c.up = p.now()
	if p.fruitless < manyFruitless {
		p.failures, p.retryAt, p.dialErr = 0, time.Time{}, nil
	}
	if c.leaving && c.inFlight == 0 {
		c.close()
	}
	return made, nil
}

// read takes answers until the connection ends.
func (c *conn) read() {
	buf := make([]byte, firstRead)
	have := 0
	for {
		n, err := c.c.Read(buf[have:])
		have += n
		rest := c.receive(buf[:have])
		c.linger()
		if err != nil {
			c.pool.lost(c, err)
			return
		}
		have = copy(buf, rest)
		if need := c.room(buf[:have], n); need > len(buf) {
			buf = append(make([]byte, 0, need), buf[:have]...)[:need]
		}
	}
}

// room returns how much is to be read at once, in bytes: more if that much came, and at least the message
// that has begun.
func (c *conn) room(begun []byte, came int) int {
	need := 0
	if came >= firstRead {
		need = mostRead
	}
	if len(begun) >= lengthLen {
		need = max(need, lengthLen+int(binary.BigEndian.Uint16(begun)))
	}
	return need
}

// nextMessage splits what was read after the first message, which is nil if it is not there as a whole.
func nextMessage(b []byte) (message, rest []byte) {
	if len(b) < lengthLen {
		return nil, b
	}
	end := lengthLen + int(binary.BigEndian.Uint16(b))
	if len(b) < end {
		return nil, b
	}
	return b[lengthLen:end:end], b[end:]
}

// receive takes the answers in what was read, and returns what is left.
func (c *conn) receive(b []byte) (rest []byte) {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	c.reads++
	now := p.now()
	for {
		message, rest := nextMessage(b)
		if message == nil {
			p.feed()
			c.rest()
			return rest
		}
		b = rest
		c.answer(message, now)
	}
}

// answer takes one answer. One that is none to the query of its id is dropped, and the right one may
// follow.
func (c *conn) answer(message []byte, now time.Time) {
	p := c.pool
	if len(message) < headerLen {
		p.Metrics.drop(malformed)
		return
	}
	f := c.flights[binary.BigEndian.Uint16(message)]
	if f == nil {
		p.Metrics.drop(wrongID)
		return
	}
	if f.call == nil {
		c.lateAnswer(f, message, now)
		return
	}
	call := f.call
	if v := check(call.Query[:call.question], message); v != right {
		p.Metrics.drop(v)
		return
	}
	delete(c.flights, f.id)
	if f.canary != nil {
		p.canaryAnswered(f, now)
	}
	if f.copyOf != nil {
		f.copyOf.stuck = true
	}
	c.hear(f, message, now)
	c.used = now
	p.note(now.Sub(f.sent))
	c.take(f)
	for len(call.flights) > 0 { // on another connection too
		other := call.flights[0]
		if other.canary != nil {
			p.heldUp = 0 // the original was sooner
		}
		other.conn.take(other)
		other.conn.rest()
	}
	call.not = c
	call.finish(append([]byte(nil), message...), nil)
}

// lateAnswer takes an answer that nobody waits for.
func (c *conn) lateAnswer(f *flight, message []byte, now time.Time) {
	delete(c.flights, f.id)
	c.pool.Metrics.Late.Inc()
	c.hear(f, message, now)
	if f.moved {
		c.pool.movedAnswered(c, now)
	}
}

// hear notes what an answer says of the connection: that it works, whether answers keep the order, and for
// how long it may be idle. A query that was overtaken may never be answered, which says nothing; if it is, the
// server does not work on one at a time.
func (c *conn) hear(f *flight, message []byte, now time.Time) {
	if f.number < c.highest {
		c.pool.answersOutOfOrder(now)
	}
	c.highest = max(c.highest, f.number)
	c.heard, c.canaries = now, 0
	c.answered++
	c.pool.fruitless = 0
	idle, ok := mayStay(message)
	if !ok {
		return
	}
	c.idle = min(c.pool.Expire, idle)
	if idle == 0 && !c.leaving {
		c.pool.leave(c)
	}
}
