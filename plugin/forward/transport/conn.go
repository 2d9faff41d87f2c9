package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"slices"
	"syscall"
	"time"
)

const (
	lengthLen  = 2 // bytes of the length before a message, RFC 1035 section 4.2.2
	maxMessage = 65535
	maxIDs     = 1 << 16
	minRead    = 4 << 10
	maxRead    = 32 << 10
	// writeTimeout bounds one write. It is longer than the kernel waits for acknowledgements.
	writeTimeout = 2 * time.Second
	// A busy connection delays writes and reads by a fraction of the round trip, so that more queries share a segment.
	// Delays below minDelay are left out.
	delayFraction = 64
	minDelay      = 50 * time.Microsecond
	maxDelay      = 500 * time.Microsecond
	busyInFlight  = 8
	// maxMoves bounds the connections that a query loses after they had delivered other answers, and
	// maxMovesUnanswered those that delivered none.
	maxMoves           = 5
	maxMovesUnanswered = 2
)

// flight is a call on one connection.
type flight struct {
	call   *Call // nil after it was cancelled or moved; the id stays reserved
	conn   *conn
	id     uint16
	number int // in the order of sending, from 1
	sent   time.Time

	copyFrom       *conn // of a copy: the connection that may be stalled
	answeredBefore int   // answers on that connection when the copy was sent
	copyOfOldest   *conn // of a copy of the oldest query of a connection
}

// conn is a connection. The pool's mutex guards everything but the socket.
type conn struct {
	pool   *Pool
	c      net.Conn // nil until the connection is established
	wake   chan struct{}
	ctx    context.Context // of the handshake
	cancel context.CancelFunc

	out, spare []byte // to be written; a buffer for reuse

	byID     map[uint16]*flight // including those without a call
	inFlight int                // with a call
	nextID   uint16

	created    time.Time
	opened     time.Time
	used       time.Time // last query or answer
	lastAnswer time.Time
	idle       time.Duration // limit of the idle time
	sent       int           // queries
	answered   int
	highest    int  // number of the last query that was answered
	retired    bool // gets no more queries
	closed     bool

	copies   int // of its queries sent by others since the last answer
	copiedAt time.Time
	packets  packets // those already counted in the metrics

	slow       *flight // the query because of which others were moved away; nil if its copy was answered sooner
	awaitsLate bool    // answers to those that were moved away
}

func newConn(p *Pool) *conn {
	now := p.now()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	return &conn{
		pool: p, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), byID: map[uint16]*flight{},
		created: now, used: now, idle: p.Expire,
		// Forging an answer needs the sequence numbers of TCP, so ids need not be random. In sequence the reuse of an
		// id takes longest.
		nextID: uint16(now.UnixNano()), // #nosec G115 -- any id is good
	}
}

// hasRoom reports whether a query may be sent on the connection. depth is the limit of queries in flight, and limit that
// of all queries, 0 for none.
func (c *conn) hasRoom(depth, limit int) bool {
	return !c.retired && c.inFlight < depth && (limit == 0 || c.sent < limit) &&
		len(c.out) < maxUnsent && len(c.byID) < maxIDs
}

// put sends a call.
func (c *conn) put(call *Call) *flight {
	f := &flight{call: call, conn: c, sent: c.pool.now(), number: c.sent + 1}
	for c.byID[c.nextID] != nil {
		c.nextID++
	}
	f.id = c.nextID
	c.nextID++
	c.byID[f.id] = f
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

// write appends a query to the output, and wakes the writer.
func (c *conn) write(call *Call, id uint16) {
	start := len(c.out)
	c.out = append(c.out, 0, 0)
	if c.sent == 0 {
		c.out = appendKeepAlive(c.out, call.Query, call.question)
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

// remove separates a call from the connection. The id stays reserved until its answer arrives.
func (c *conn) remove(f *flight) {
	c.inFlight--
	c.pool.Metrics.InFlight.Dec()
	i := slices.Index(f.call.flights, f)
	f.call.flights = slices.Delete(f.call.flights, i, i+1)
	f.call = nil
}

// oldest returns the oldest flight with a call.
func (c *conn) oldest() (oldest *flight) {
	for _, f := range c.byID {
		if f.call != nil && (oldest == nil || f.number < oldest.number) {
			oldest = f
		}
	}
	return oldest
}

// queue returns the flights with a call, the oldest first.
func (c *conn) queue() []*flight {
	all := make([]*flight, 0, c.inFlight)
	for _, f := range c.byID {
		if f.call != nil {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b *flight) int { return a.number - b.number })
	return all
}

// closeIfUnused closes a retired connection without queries and without expected late answers.
func (c *conn) closeIfUnused() {
	awaits := c.awaitsLate && c.answered > 0 && len(c.byID) > 0
	if c.inFlight == 0 && (c.retired && !awaits || c.pool.closing) {
		c.pool.retire(c)
	}
}

// close closes the connection in the background: a server that does not read delays the end of TLS.
func (c *conn) close() {
	if c.c == nil {
		c.cancel()
		return
	}
	c.countPackets()
	go func() { _ = c.c.Close() }() // the reader gets the error
}

// countPackets adds the packets since the last count to the metrics. On systems without such counters, each write and
// read counts as a packet.
func (c *conn) countPackets() {
	if c.c == nil {
		return
	}
	now, ok := segments(c.c)
	if !ok {
		return
	}
	c.pool.Metrics.Sent.Add(float64(now.sent - c.packets.sent))
	c.pool.Metrics.Received.Add(float64(now.received - c.packets.received))
	c.packets = now
}

// packets are the packets of a connection.
type packets struct{ sent, received uint32 }

// run establishes the connection, and writes to it.
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
		c.delay()
		p.mu.Lock()
		b, closed := c.out, c.closed
		c.out, c.spare = c.spare[:0], nil
		p.mu.Unlock()
		if closed {
			return
		}
		if len(b) > 0 {
			if err = made.SetWriteDeadline(time.Now().Add(writeTimeout)); err == nil {
				_, err = made.Write(b)
			}
			switch {
			case err == nil:
			case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
				return // the reader gets the end, and the answers before it
			default:
				p.lost(c, err)
				return
			}
		}
		if !countsSegments {
			p.Metrics.Sent.Inc()
		}
		p.mu.Lock()
		if c.spare = b[:0]; cap(b) > maxUnsent/4 {
			c.spare = nil
		}
		p.mu.Unlock()
	}
}

// delay waits for further queries or answers on a busy connection, to share a segment and a system call: for a
// small fraction of the round trip.
func (c *conn) delay() {
	p := c.pool
	p.mu.Lock()
	wait := min(p.rtt/delayFraction, maxDelay)
	busy := c.inFlight >= busyInFlight
	p.mu.Unlock()
	if busy && wait >= minDelay {
		time.Sleep(wait)
	} else {
		runtime.Gosched() // to goroutines that are about to send
	}
}

// Dialer returns a dialer with a local address; nil leaves the choice to the kernel.
func Dialer(network string, source net.IP) *net.Dialer {
	d := &net.Dialer{Control: control, KeepAlive: -1} // idle connections are closed soon
	switch {
	case source == nil:
	case network == "udp":
		d.LocalAddr = &net.UDPAddr{IP: source}
	default:
		d.LocalAddr = &net.TCPAddr{IP: source}
	}
	return d
}

// dial establishes a connection. Cancelling its last query cancels the handshake.
func (p *Pool) dial(c *conn) (net.Conn, error) {
	defer c.cancel()
	made, err := p.Dial(c.ctx)
	if err != nil {
		return nil, err
	}
	setUserTimeout(made)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.c = made
	c.opened = p.now()
	if p.unanswered < pauseAfter {
		p.failures, p.retryAt, p.dialErr = 0, time.Time{}, nil
	}
	if c.retired && c.inFlight == 0 {
		c.close()
	}
	return made, nil
}

// read receives answers until the connection ends.
func (c *conn) read() {
	buf := make([]byte, minRead)
	have := 0
	for {
		n, err := c.c.Read(buf[have:])
		have += n
		rest := c.receive(buf[:have])
		c.delay()
		if err != nil {
			c.pool.lost(c, err)
			return
		}
		have = copy(buf, rest)
		if need := readSize(buf[:have], n); need > len(buf) {
			buf = append(make([]byte, 0, need), buf[:have]...)[:need]
		}
	}
}

// readSize returns the size of the read buffer: larger after a long read, and at least the message that has begun.
func readSize(begun []byte, lastRead int) int {
	need := 0
	if lastRead >= minRead {
		need = maxRead
	}
	if len(begun) >= lengthLen {
		need = max(need, lengthLen+int(binary.BigEndian.Uint16(begun)))
	}
	return need
}

// nextMessage splits off the first message, which is nil if it is incomplete.
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

// receive processes the complete messages of a read, and returns the rest.
func (c *conn) receive(b []byte) (rest []byte) {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !countsSegments {
		p.Metrics.Received.Inc()
	}
	now := p.now()
	for {
		message, rest := nextMessage(b)
		if message == nil {
			p.sendWaiting()
			c.closeIfUnused()
			return rest
		}
		b = rest
		c.answer(message, now)
	}
}

// answer processes one message. If it does not answer the query of its id it is dropped, and the right one may follow.
func (c *conn) answer(message []byte, now time.Time) {
	p := c.pool
	if len(message) < headerLen {
		p.Metrics.Dropped[Malformed].Inc()
		return
	}
	f := c.byID[binary.BigEndian.Uint16(message)]
	if f == nil {
		p.Metrics.Dropped[WrongID].Inc()
		return
	}
	call := f.call
	if call == nil {
		delete(c.byID, f.id)
		p.Metrics.Late.Inc()
		c.observe(f, message, now)
		return
	}
	if reason := check(call.Query[:call.question], message); reason != "" {
		p.Metrics.Dropped[reason].Inc()
		return
	}
	c.complete(f, message, now)
}

// complete ends a call with its answer.
func (c *conn) complete(f *flight, message []byte, now time.Time) {
	p, call := c.pool, f.call
	delete(c.byID, f.id)
	switch {
	case f.copyOfOldest != nil:
		f.copyOfOldest.slow = nil
	case f.copyFrom != nil:
		p.copyAnswered(f, now)
	}
	c.observe(f, message, now)
	c.used = now
	p.observeRTT(now.Sub(f.sent))
	c.remove(f)
	for len(call.flights) > 0 { // copies
		other := call.flights[0]
		if other.copyFrom != nil {
			p.stalls = 0 // the original was faster
		}
		other.conn.remove(other)
		other.conn.closeIfUnused()
	}
	call.avoid = c
	call.finish(append([]byte(nil), message...), nil)
}

// observe updates the order of answers and the limit of the idle time from an answer. An overtaken query is evidence only
// when it is answered: the server may drop it.
func (c *conn) observe(f *flight, message []byte, now time.Time) {
	if f.number < c.highest {
		c.pool.answeredOutOfOrder(now)
	}
	c.highest = max(c.highest, f.number)
	c.pool.observeSlow(c, f, now)
	c.lastAnswer, c.copies = now, 0
	c.answered++
	c.pool.unanswered = 0
	idle, ok := keepAliveOf(message)
	if !ok {
		return
	}
	c.idle = min(c.pool.Expire, idle)
	if idle == 0 && !c.retired {
		c.pool.retire(c)
	}
}
