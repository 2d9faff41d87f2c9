package transport

import (
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"slices"
	"syscall"
	"time"
)

const (
	// A busy connection writes once in a fraction of the round trip, so that queries share a segment. Delays shorter than
	// minDelay are skipped.
	delayFraction = 32
	minDelay      = 50 * time.Microsecond
	maxDelay      = 750 * time.Microsecond
	busyInFlight  = 8
)

// output are the queries of a connection that are not written yet. A plain TCP connection is written by the goroutine that
// flushes the batch (see conn.Flush). The writer writes the rest, which the kernel does not accept at once, and all output of
// other connections.
type output struct {
	stream  *stream // for writes and reads without blocking; nil before the handshake and for TLS
	wake    chan struct{}
	out     []byte
	spare   []byte      // a buffer for reuse
	writing bool        // by one goroutine, without the mutex
	behind  bool        // the kernel accepts no more: only the writer writes
	broken  bool        // the server has closed the connection: the reader receives the rest, and ends it
	unsent  bool        // is in Pool.unsent
	wrote   time.Time   // the last write of a busy connection
	later   *time.Timer // writes the output of a busy connection
	planned bool        // later is running
}

// append appends a query to the output.
func (c *conn) append(call *Call, id uint16) {
	start := len(c.out)
	c.out = append(c.out, 0, 0)
	hasSession := c.session != nil || c.pool.mayHaveSessions() // a session has its own keepalive, RFC 8490 section 7.1.2
	if c.sent == 0 && !hasSession && !c.alone && !c.pool.now().Before(c.pool.omittedUntil) {
		c.out = appendKeepAlive(c.out, call.Query, call.question)
		c.hasKeepAlive, c.firstID = true, id
		c.extended = len(c.out)-start > lengthLen+len(call.Query)
	} else {
		c.out = append(c.out, call.Query...)
	}
	c.sent++
	message := c.out[start+lengthLen:]
	binary.BigEndian.PutUint16(c.out[start:], uint16(len(message))) // #nosec G115 -- a packed message is shorter
	setID(message, id)
	c.markUnsent()
}

// appendDSO appends a DSO message to the output.
func (c *conn) appendDSO(message []byte) {
	c.out = binary.BigEndian.AppendUint16(c.out, uint16(len(message))) // #nosec G115 -- of a few bytes
	c.out = append(c.out, message...)
	c.markUnsent()
}

// markUnsent makes the output be sent after the pool is unlocked.
func (c *conn) markUnsent() {
	if !c.unsent {
		c.unsent = true
		c.pool.unsent = append(c.pool.unsent, c)
	}
}

// wakeWriter makes the writer write the output.
func (c *conn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Flush implements batch.Flusher: it writes the output by one system call. A busy connection, which has written lately,
// does that later: with the next batch, or after its delay.
func (c *conn) Flush() {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(c.out) > 0 && !c.writing && !c.behind && !c.broken && !c.closed {
		if c.stream == nil {
			c.wakeWriter()
			return
		}
		now := p.now()
		if wait := c.delay() - now.Sub(c.wrote); wait > 0 {
			c.flushIn(wait)
			return
		}
		c.wrote = now
		b := c.takeOutput()
		p.mu.Unlock()
		n, err := c.stream.write(b)
		p.mu.Lock()
		c.written(b, n, err)
	}
}

// flushIn flushes the output after a while.
func (c *conn) flushIn(wait time.Duration) {
	switch {
	case c.planned:
		return
	case c.later == nil:
		c.later = time.AfterFunc(wait, c.flushPlanned)
	default:
		c.later.Reset(wait)
	}
	c.planned = true
}

func (c *conn) flushPlanned() {
	c.pool.mu.Lock()
	c.planned = false
	c.pool.mu.Unlock()
	c.Flush()
}

// delay returns the minimum time between two writes.
func (c *conn) delay() time.Duration {
	if c.inFlight < busyInFlight || len(c.out) >= maxUnsent/4 {
		return 0
	}
	if wait := min(c.pool.rtt/delayFraction, maxDelay); wait >= minDelay {
		return wait
	}
	return 0
}

// takeOutput returns the output, which the caller writes without the mutex, and then calls written.
func (c *conn) takeOutput() []byte {
	b := c.out
	c.out, c.spare, c.writing = c.spare[:0], nil, true
	return b
}

// written processes the result of a write of n bytes.
func (c *conn) written(b []byte, n int, err error) {
	c.writing = false
	if !countsSegments {
		c.pool.Metrics.Sent.Inc()
	}
	switch {
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		c.broken = true // the reader gets the end, and the answers before it
	case err != nil:
		c.broken = true
		go c.pool.lost(c, err)
	case n < len(b): // the rest is written before what was appended meanwhile
		c.out, c.behind = slices.Concat(b[n:], c.out), true
		c.wakeWriter()
	}
	if c.spare = b[:0]; cap(b) > maxUnsent/4 {
		c.spare = nil
	}
}

// writeAll is the writer: it writes the output until none is left, and blocks while the kernel accepts no more. It returns
// false after the end of the connection.
func (c *conn) writeAll(made net.Conn) bool {
	if c.stream == nil {
		c.pause()
	}
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(c.out) > 0 && !c.writing && !c.broken && !c.closed {
		b := c.takeOutput()
		c.behind = false
		p.mu.Unlock()
		err := made.SetWriteDeadline(time.Now().Add(p.write))
		if err == nil {
			_, err = made.Write(b)
		}
		p.mu.Lock()
		c.written(b, len(b), err)
	}
	return !c.broken && !c.closed
}

// pause waits for further queries or answers on a busy TLS connection, to share a segment.
func (c *conn) pause() {
	p := c.pool
	p.mu.Lock()
	wait := c.delay()
	p.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait)
	} else {
		runtime.Gosched() // to goroutines that are about to send
	}
}
