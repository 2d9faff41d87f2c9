package fastpath

import (
	"net"
	"slices"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// answer implements destination.
func (c *connection) answer(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) bool {
	return c.answerWith(b, r, e, p, false)
}

// answer implements destination.
func (o *optioned) answer(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) bool {
	return o.answerWith(b, r, e, p, true)
}

// answerWith appends the answer of an entry to the output, and counts it.
func (c *connection) answerWith(b *batch.Batch, r *request, e *store.Entry, p *store.Patch, keepAlive bool) bool {
	form := c.append(b, r, e, p, keepAlive)
	if form == nil {
		return false
	}
	r.countOverTCP(e, form)
	return true
}

// countOverTCP counts the answer to a query over TCP.
func (r *request) countOverTCP(e *store.Entry, form *store.Answer) {
	var h hit
	h.set(r.route.counters, e, &r.Query, form.Rcode(), r.Client, len(r.Packed))
	h.protocol, h.counted = protocolTCP, r.wire != nil
	h.count(validity.Now() - r.received)
}

// append appends the answer of an entry to the output, and returns its form, nil if the entry has none for the client.
func (c *connection) append(b *batch.Batch, r *request, e *store.Entry, p *store.Patch, keepAlive bool) *store.Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, patch := &r.Query, *p // the plugin chain gets the patch without the option
	p = &patch
	if q.EDNS && c.announces(keepAlive) {
		p.Options = appendKeepAlive(slices.Clip(p.Options), c.idleTimeout(r.server))
	}
	form := formOf(r.route, e, q, p, dns.MaxMsgSize, dns.MaxMsgSize, &c.random)
	if form != nil && c.writable() {
		c.out.answer(form, r.Packed, q, p)
		b.Add(c)
	}
	return form
}

// announces reports whether a reply has edns-tcp-keepalive, given whether its query has the option. Clients that send it
// only in the first query of a connection learn as well that the server ends the connection. No message of a DSO session has
// it (RFC 8490 section 7.1.2). The mutex is locked.
func (c *connection) announces(keepAlive bool) bool {
	return !c.session.established && (keepAlive || c.keepAlive && c.isEnding())
}

// idleTimeout returns the timeout of edns-tcp-keepalive, 0 if the server ends the connection. The mutex is locked.
func (c *connection) idleTimeout(s *server) time.Duration {
	if c.isEnding() {
		return 0
	}
	return s.IdleTimeout
}

// writable reports whether messages may be appended to the output: not to that of a closed connection, and none behind a Retry
// Delay message, RFC 8490 section 6.6.1. The mutex is locked.
func (c *connection) writable() bool { return c.fd >= 0 && !c.session.ended }

// send implements destination.
func (c *connection) send(reply []byte, mayWait bool) error { return c.sendWith(reply, false, mayWait) }

// send implements destination.
func (o *optioned) send(reply []byte, mayWait bool) error { return o.sendWith(reply, true, mayWait) }

// sendWith sends a reply of the plugin chain.
func (c *connection) sendWith(reply []byte, keepAlive, mayWait bool) error {
	if len(reply) > dns.MaxMsgSize {
		return dns.ErrBuf
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if mayWait {
		c.awaitSpace()
	}
	if !c.writable() {
		return net.ErrClosed
	}
	if c.announces(keepAlive) {
		reply = addKeepAlive(slices.Clip(reply), c.idleTimeout(c.listener.server.Load()))
	}
	c.out.message(reply)
	c.flush()
	return nil
}

// awaitSpace waits while the client does not read; the write timeout closes the connection. The mutex is locked.
func (c *connection) awaitSpace() {
	for c.writable() && len(c.out.bytes) > maxUnsent {
		c.space.Wait()
	}
}

// dropped implements destination: it answers SERVFAIL. Over UDP, the client repeats a query without an answer; over TCP it
// waits until its timeout.
func (c *connection) dropped(b *batch.Batch, query []byte) {
	m := new(dns.Msg)
	if len(query) < wire.HeaderLen || m.Unpack(query) != nil {
		return
	}
	reply := new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)
	if opt := m.IsEdns0(); opt != nil {
		reply.SetEdns0(opt.UDPSize(), opt.Do())
	}
	packed, err := reply.Pack()
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writable() {
		c.out.message(packed)
		b.Add(c)
	}
}

// Flush implements batch.Flusher.
func (c *connection) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
}

// write sends framed answers, after those that wait already.
func (c *connection) write(frames []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writable() {
		c.writeFrames(frames)
	}
}

// writeFrames is write on a connection that is writable. The mutex is locked.
func (c *connection) writeFrames(frames []byte) {
	sent := 0
	if len(c.out.bytes) == 0 {
		sent = c.writeSome(frames)
	}
	if sent < len(frames) {
		c.out.frames(frames[sent:])
		c.flush()
	}
}

// flush sends the output that the kernel accepts. The poller calls it again when the kernel accepts more. The mutex is locked.
func (c *connection) flush() {
	if c.fd < 0 || len(c.out.bytes) == 0 {
		return
	}
	c.out.sent(c.writeSome(c.out.bytes))
	if len(c.out.bytes) <= maxUnsent {
		c.space.Broadcast()
	}
	if c.hold(); c.fd >= 0 {
		c.proceed()
	}
}

// writeSome writes to the socket, and returns the number of bytes that the kernel accepted. After an error, the poller closes
// the connection.
func (c *connection) writeSome(b []byte) (sent int) {
	for sent < len(b) {
		n, errno := sendNow(c.fd, b[sent:])
		switch {
		case errno == 0:
			sent += n
		case errno == unix.EINTR:
		default:
			c.timedOut = c.timedOut || errno == unix.ETIMEDOUT
			return sent
		}
	}
	return sent
}

// sendNow sends bytes without waiting. RawSyscall6: see reader.batch.
func sendNow(fd int, b []byte) (n int, errno unix.Errno) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	// #nosec G115 -- a descriptor, and at most len(b)
	sent, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), flags, 0, 0)
	return int(sent), errno // #nosec G115
}
