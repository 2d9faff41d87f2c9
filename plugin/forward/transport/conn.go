package transport

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const (
	lengthLen  = 2 // bytes of the length before a message, RFC 1035 section 4.2.2
	maxMessage = 65535
	maxIDs     = 1 << 16
	// reservedIDs is the number of ids that no query has in a session: 0, and the id of Session requests.
	reservedIDs = 2
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
	silent bool // of a copy: copyFrom had received no answer for the time of a stall
	number int  // in the order of sending, from 1
	sent   time.Time

	copyFrom       *conn // of a copy: the connection that may be stalled
	answeredBefore int   // answers that conn, or copyFrom of a copy, had received when the query was sent
	copyOfFront    *conn // of a copy of the front of a connection
}

// queryNumber identifies a query of a connection, also after its flight is reused.
type queryNumber struct {
	id     uint16
	number int // 0 is none
}

// conn is a connection. The pool's mutex guards everything but the socket.
type conn struct {
	pool   *Pool
	c      net.Conn           // nil until the connection is established
	cancel context.CancelFunc // of the handshake
	output
	input

	byID     map[uint16]*flight // including those without a call
	inFlight int                // with a call
	nextID   uint16

	created    time.Time
	opened     time.Time
	used       time.Time // last query or answer
	lastAnswer time.Time
	waitsSince time.Time     // time of the first query since the last answer; zero without one
	idle       time.Duration // limit of the idle time
	sent       int           // queries
	answered   int
	highest    int  // number of the last query that was answered
	retired    bool // gets no more queries
	alone      bool // for a query with Call.Alone: its answer and its end show nothing about the server
	closed     bool

	copies   int // of its queries, sent on other connections since the last answer
	copiedAt time.Time
	packets  packets // those already counted in the metrics

	session      *dsoSession // nil before the first request
	violation    error       // of RFC 8490, or errDelayed: the reader ends the connection
	hasKeepAlive bool        // a query has edns-tcp-keepalive
	extended     bool        // the option was added to the first query
	refused      bool        // the server has refused the option
	firstID      uint16      // of the first query

	slow       queryNumber // the query because of which other queries were moved away; 0 if its copy was answered sooner
	awaitsLate bool        // answers to queries that were moved away
}

// newConn returns a connection, and the context of its handshake.
func newConn(p *Pool) (*conn, context.Context) {
	now := p.now()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	c := &conn{
		pool: p, cancel: cancel, byID: map[uint16]*flight{},
		created: now, used: now, idle: p.Expire,
		// Forging an answer needs the sequence numbers of TCP, so ids need not be random. In sequence the reuse of an
		// id takes longest.
		nextID: uint16(now.UnixNano()), // #nosec G115 -- any id is good
	}
	c.wake = make(chan struct{}, 1)
	return c, ctx
}

// hasRoom reports whether a query may be sent on the connection. depth is the limit of queries in flight, and limit that
// of all queries, 0 for none.
func (c *conn) hasRoom(depth, limit int) bool {
	used := c.inFlight
	if depth == 1 { // the server may be working on a query that was cancelled
		used = len(c.byID)
	}
	return !c.retired && used < depth && (limit == 0 || c.sent < limit) &&
		len(c.out) < maxUnsent && len(c.byID) < maxIDs-reservedIDs
}

// put appends the query of a call to the output.
func (c *conn) put(call *Call) *flight {
	f := c.pool.newFlight()
	*f = flight{call: call, conn: c, sent: c.pool.now(), number: c.sent + 1, answeredBefore: c.answered}
	f.id = c.newID()
	c.byID[f.id] = f
	c.inFlight++
	c.used = f.sent
	if c.waitsSince.IsZero() {
		c.waitsSince = f.sent
	}
	if call.flights == nil {
		call.flights = call.first[:0]
	}
	call.flights = append(call.flights, f)
	c.append(call, f.id)
	c.pool.Metrics.InFlight.Inc()
	c.pool.Metrics.Depth.Observe(float64(c.inFlight))
	return f
}

// newID returns a free id. With sessions, id 0 is for messages without a response, and another id for Session requests.
func (c *conn) newID() (id uint16) {
	for c.byID[c.nextID] != nil || c.nextID == 0 && c.pool.Coherence != nil || c.session != nil && c.nextID == c.session.id {
		c.nextID++
	}
	id = c.nextID
	c.nextID++
	return id
}

// forget releases the id of a flight without a call, and the flight for reuse.
func (c *conn) forget(f *flight) {
	delete(c.byID, f.id)
	c.pool.spareFlights.put(f)
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

// front returns the oldest flight with a call that was not overtaken by the answer to a newer one, or nil: a serial server works
// on it.
func (c *conn) front() *flight {
	for _, f := range c.queue() {
		if f.number > c.highest {
			return f
		}
	}
	return nil
}

// isNext reports whether a serial server works on a query: it has answered all older ones, or ignores them.
func (c *conn) isNext(f *flight) bool {
	for _, other := range c.byID {
		if c.highest < other.number && other.number < f.number {
			return false
		}
	}
	return true
}

// waitsFor reports whether the answer to a query may still arrive on the connection.
func (c *conn) waitsFor(q queryNumber) bool {
	f := c.byID[q.id]
	return !c.closed && f != nil && f.number == q.number
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
	if c.alone {
		c.reset()
	}
	go func() { _ = c.c.Close() }() // the reader gets the error
}

// abort closes the connection with a reset, RFC 8490 section 5.3.
func (c *conn) abort() {
	c.reset()
	c.close()
}

// reset makes the close of a TCP connection a reset, after which its local port is free: clients whose queries require connections of
// their own could use up the ports.
func (c *conn) reset() {
	if tcp, ok := c.c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
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

// run establishes the connection, starts its reader, and is its writer.
func (c *conn) run(ctx context.Context) {
	p := c.pool
	made, err := p.dial(ctx, c)
	if err != nil {
		p.failed(c, err)
		return
	}
	p.Metrics.Connections.Inc()
	go c.read()
	for range c.wake {
		if !c.writeAll(made) {
			return
		}
	}
}

// Dialer returns a dialer with a local address; nil leaves the choice to the kernel.
func Dialer(network string, source net.IP) *net.Dialer {
	d := &net.Dialer{KeepAlive: -1} // idle connections are closed soon
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
func (p *Pool) dial(ctx context.Context, c *conn) (net.Conn, error) {
	defer c.cancel()
	made, err := p.Dial(ctx)
	if err != nil {
		return nil, err
	}
	setUserTimeout(made)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.c, c.stream = made, newStream(made)
	c.opened = p.now()
	if p.unanswered < pauseAfter {
		p.failures, p.retryAt, p.dialErr = 0, time.Time{}, nil
	}
	if c.retired && c.inFlight == 0 {
		c.close()
	}
	c.beginSession()
	return made, nil
}

// answer processes one message. If it does not answer the query of its id it is dropped, and the right one may follow.
func (c *conn) answer(message []byte, now time.Time) {
	p := c.pool
	if len(message) < wire.HeaderLen {
		p.Metrics.Dropped[Malformed].Inc()
		return
	}
	if c.isDSO(message) {
		c.violation = c.receiveDSO(message, now)
		return
	}
	f := c.byID[binary.BigEndian.Uint16(message)]
	if f == nil {
		p.Metrics.Dropped[WrongID].Inc()
		return
	}
	call := f.call
	if call == nil {
		p.Metrics.Late.Inc()
		c.observe(f, message, now)
		c.forget(f)
		return
	}
	switch reason := check(call.Query[:call.question], message); reason {
	case "":
	case WrongCase:
		p.Metrics.Case.Inc()
		call.CaseChanged = true
		call.restoreCase(message)
	default:
		p.Metrics.Dropped[reason].Inc()
		return
	}
	c.complete(f, message, now)
}

// complete ends a call with its answer.
func (c *conn) complete(f *flight, message []byte, now time.Time) {
	p, call := c.pool, f.call
	delete(c.byID, f.id)
	if c.repeatPlain(f, message, now) {
		return
	}
	switch {
	case f.copyOfFront != nil:
		p.frontCopyAnswered(f, now)
	case f.copyFrom != nil:
		p.copyAnswered(f, now)
	}
	c.observe(f, message, now)
	c.used = now
	p.observeRTT(now.Sub(f.sent))
	call.Voucher = c.voucher(call.Query, message, f.sent)
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
	p.spareFlights.put(f)
	p.end(call, message, nil)
}

// observe updates the order of answers and the limit of the idle time from an answer. An overtaken query is evidence only
// when it is answered: the server may drop it.
func (c *conn) observe(f *flight, message []byte, now time.Time) {
	if f.number < c.highest {
		c.pool.answersOutOfOrder(now)
	}
	c.highest = max(c.highest, f.number)
	c.pool.observeSlow(c, f, now)
	if f.copyFrom == nil && f.answeredBefore == c.answered && now.Sub(f.sent) >= c.pool.maxStall {
		c.pool.slowUntil = now.Add(c.pool.minSerial)
	}
	c.lastAnswer, c.waitsSince, c.copies = now, time.Time{}, 0
	c.answered++
	c.pool.unanswered = 0
	if c.session != nil && c.session.open {
		c.pool.Coherence.Lost.lapse()
	}
	idle, ok := keepAliveOf(message)
	if !ok || c.alone {
		return
	}
	if c.session != nil && c.session.open {
		c.violation = errKeepAlive
		return
	}
	if c.pool.classAt(now) != serial { // the class serial was observed
		c.pool.answersOutOfOrder(now)
	}
	c.idle = min(c.pool.Expire, idle)
	if idle == 0 && !c.retired {
		c.pool.retire(c)
	}
}
