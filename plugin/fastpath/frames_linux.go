package fastpath

import (
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const (
	readLen = 16 << 10 // bytes received from a connection by a system call

	// framesLen is the number of bytes of answers that are sent by a system call.
	framesLen = 32 << 10

	// optionsLen is the capacity in bytes for the EDNS options of an answer. The options of a stored answer are short.
	optionsLen = 128
)

// defaultMaxTCPQueries is the limit of queries on a connection that the server of miekg/dns has for MaxTCPQueries 0.
const defaultMaxTCPQueries = 128

// frames handles the queries of connections, one connection after the other. Its memory is reused.
type frames struct {
	buf [readLen]byte
	lookup
	patch   store.Patch
	options []byte
	random  random
	output  batch.Batch

	out  []byte // framed answers of the connection
	hits []hit
	now  time.Duration
}

func (f *frames) init() {
	// With room for a copy of the records of the last answer, to shuffle them.
	f.out, f.random = make([]byte, 0, framesLen+maxHitLen), newRandom()
	f.options = make([]byte, 0, optionsLen)
}

// serve reads and handles the queries of a connection that is ready.
func (p *poller) serve(c *connection, events uint32) {
	if !c.ready() {
		return
	}
	s := c.listener.acquire()
	defer s.release()
	f := &p.frames
	f.now = validity.Now()
	if !f.consume(c, s, nil) { // queries that were read before a pause
		return
	}
	for {
		n, state := c.read(f.buf[:])
		if n > 0 && !f.consume(c, s, f.buf[:n]) {
			return
		}
		switch state {
		case readAgain:
			continue
		case readFull:
			c.again()
		case readShort:
			if events&unix.EPOLLRDHUP != 0 { // the client's FIN may not cause another event
				continue
			}
		case readEmpty:
			c.drained()
		case readEnd:
			c.endOfQueries()
		}
		return
	}
}

// readState is the state of a socket after a read.
type readState int

const (
	readShort  readState = iota // all bytes were read
	readFull                    // there may be more
	readEmpty                   // no bytes were received
	readEnd                     // the client has sent its last byte, or the connection has failed
	readAgain                   // the call was interrupted
	readPaused                  // no more queries may be read
)

// read receives bytes.
func (c *connection) read(buf []byte) (n int, state readState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 || c.paused || c.eof || c.finished && c.lingering == 0 {
		return 0, readPaused
	}
	// RawSyscall6: see reader.batch.
	r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), unix.MSG_DONTWAIT, 0, 0) // #nosec G115 -- a descriptor
	switch {
	case errno == unix.EINTR:
		return 0, readAgain
	case errno == unix.EAGAIN:
		return 0, readEmpty
	case errno != 0 || r == 0:
		c.timedOut = c.timedOut || errno == unix.ETIMEDOUT
		return 0, readEnd
	case c.lingering > 0: // discarded
		return 0, readFull
	case int(r) == len(buf) || c.drainEnd > 0: // #nosec G115 -- at most len(buf)
		return int(r), readFull // #nosec G115
	}
	return int(r), readShort // #nosec G115
}

// again has the connection's present events occur again, after those of other connections. It ends the reading of a
// connection that has drained for too long, since the client continues to send.
func (c *connection) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.fd < 0:
	case c.drainEnd > 0 && c.lingering == 0 && validity.Now() > c.drainEnd:
		c.endReading()
	default:
		c.poller.rearm(c)
	}
}

// ready sends output that the kernel did not accept before, and reports whether queries are to be read.
func (c *connection) ready() (reads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
	return c.fd >= 0 && !c.paused && !c.eof
}

// drained ends a connection that drains, after its last query was read.
func (c *connection) drained() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drainEnd > 0 {
		c.endReading()
	}
}

// endOfQueries ends a connection when its queries are answered: the client has sent its last byte, and may still read.
func (c *connection) endOfQueries() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.eof, c.finished = true, true
	c.proceed()
}

// consume handles the queries in the bytes that were received, and retains an incomplete one. It returns false if no more
// bytes may be read.
func (f *frames) consume(c *connection, s *server, data []byte) (more bool) {
	if len(data) == 0 && len(c.in.bytes) < lengthLen {
		return true
	}
	if c.isFinished() {
		c.in.bytes = nil
		return true
	}
	limit := s.MaxTCPQueries
	if limit == 0 {
		limit = defaultMaxTCPQueries
	}
	more, before, active := true, c.queries, c.queries-c.keepalives
	for more {
		var query []byte
		if query, data = c.in.next(data); query == nil {
			break
		}
		c.queries++
		more = f.answer(c, s, query) || !c.pause()
		if c.aborted {
			c.in.bytes, data, more = nil, nil, false
		} else if limit > 0 && c.queries >= limit && !c.session.notifies() {
			c.in.bytes, data, more = nil, nil, false
			f.flush(c, s)
			c.retire()
		}
		if len(f.out) > framesLen {
			f.flush(c, s)
			more = more && !c.pause()
		}
	}
	f.flush(c, s)
	c.in.bytes = append(c.in.bytes, data...)
	return c.received(f.now, c.queries > before, c.queries-c.keepalives > active) && more
}

// received records that bytes were received, given whether messages among them were handled and whether some of these are
// activity. It reports whether the connection is open.
func (c *connection) received(now time.Duration, handled, active bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.fd < 0:
		c.in.bytes = nil
		return false
	case len(c.in.bytes) == 0:
		c.begun = 0
	case c.begun == 0 || handled:
		c.begun = now
	}
	if handled {
		c.started.Store(true)
		c.session.heard = now
	}
	if active {
		c.active.Store(int64(now))
	}
	c.retained = cap(c.in.bytes)
	c.hold()
	return c.fd >= 0
}

// hold counts the bytes in the connection's buffers, and closes the connection if they exceed a limit. The mutex is locked.
func (c *connection) hold() {
	if !c.listener.process.streams.hold(c, c.retained+c.inQueries+cap(c.out.bytes)) {
		c.end(closedForMemory)
	}
}

// answer handles a DSO message, or answers a query from the store, or hands it over. It returns false if the connection may
// be full.
func (f *frames) answer(c *connection, s *server, query []byte) (more bool) {
	if c.isStateful(query) {
		c.operate(query, s, f.now)
		return false
	}
	if c.session.established {
		if _, violates := wire.MessageOption(query, dns.EDNS0TCPKEEPALIVE); violates { // RFC 8490 section 7.1.2
			c.abortViolated()
			return false
		}
	}
	size := len(query)
	query, keepAlive := withoutKeepAlive(query)
	if keepAlive {
		c.useKeepAlive()
	}
	if f.find(s, query, c.client, f.now) && f.append(c, s, query, size, keepAlive) {
		return !f.query.Notify || !c.session.notifies() // an answer with handles may have filled the output
	}
	r := newRequest(s, query)
	r.to, r.TCP = c, true
	switch {
	case keepAlive:
		r.to = &c.optioned
	case f.route != nil && f.query.Notify && c.session.notifies():
		r.to = &c.notified
	}
	more = c.receive(query)
	f.pass(&f.output, r, c.client, f.now)
	return more
}

// useKeepAlive records that the client sends edns-tcp-keepalive.
func (c *connection) useKeepAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepAlive = true
}

// append appends the stored answer to a query, which was received with size bytes. It returns false without a form for the client.
func (f *frames) append(c *connection, s *server, query []byte, size int, keepAlive bool) bool {
	q := &f.query
	f.patch = f.entry.Patch(f.now)
	form := f.appendNotified(c, s, query)
	if form == nil {
		if q.EDNS {
			f.addOption(c, s, keepAlive)
		}
		form = formOf(f.route, f.entry, q, &f.patch, dns.MaxMsgSize, dns.MaxMsgSize, &f.random)
		if form == nil {
			f.wire = false // the answer has to be truncated or reordered
			return false
		}
		f.out = appendFrame(f.out, form, query, q, &f.patch)
	}
	f.count()
	f.hits = append(f.hits, hit{})
	h := &f.hits[len(f.hits)-1]
	h.set(f.route.counters, f.entry, q, form.Rcode(), c.client, size)
	h.protocol = protocolTCP
	return true
}

// appendNotified appends the stored answer to a query that requests notification to the output of the connection, and returns
// its form, nil if the answer has no handles.
func (f *frames) appendNotified(c *connection, s *server, query []byte) *store.Answer {
	if !f.query.Notify || !c.session.notifies() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	form := c.appendNotified(s, &f.lookup, query, f.options, &f.patch, &f.random)
	if len(c.out.bytes) > framesLen {
		c.flush()
	}
	return form
}

// addOption adds edns-tcp-keepalive to the answer if announces reports it.
func (f *frames) addOption(c *connection, s *server, keepAlive bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.announces(keepAlive) {
		f.options = appendKeepAlive(append(f.options[:0], f.patch.Options...), c.idleTimeout(s))
		f.patch.Options = f.options
	}
}

// flush sends and counts the answers of a connection.
func (f *frames) flush(c *connection, s *server) {
	if len(f.hits) == 0 {
		return
	}
	if len(f.out) > 0 {
		c.write(f.out)
	} else {
		c.Flush()
	}
	took := validity.Now() - f.now
	for i := range f.hits {
		f.hits[i].count(took)
	}
	s.metrics.answered.Add(float64(len(f.hits)))
	if f.hits, f.out = f.hits[:0], f.out[:0]; cap(f.out) > maxPooled {
		f.init()
	}
}
