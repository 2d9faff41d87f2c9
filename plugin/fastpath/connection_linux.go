package fastpath

import (
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

const (
	// maxInFlight limits the queries of a connection that are not answered. A node's cache sends up to 1000 (max_in_flight
	// of plugin forward), and must not be stopped because of the queries to a dead upstream among them.
	maxInFlight = 1024

	// maxUnsent limits the bytes of answers that the kernel has not accepted: beyond it, no more queries of the connection
	// are read, and the plugin chain waits with further messages of a zone transfer.
	maxUnsent = 64 << 10

	// lingerTime is the time in which a client may close a connection that the server ends. A connection that is closed
	// with unread queries is reset, and the client may lose the answers before it.
	lingerTime = 500 * time.Millisecond

	// delayedTime is the time in which a client has to close a connection after Retry Delay, RFC 8490 section 6.6.1.
	delayedTime = 5 * time.Second
)

// connection is a TCP connection of a client. Its poller reads queries; any goroutine sends answers, in the order of their
// completion (RFC 7766 section 7). Without queries, it has no buffer and no goroutine.
type connection struct {
	listener *listener
	poller   *poller
	source   *source
	remote   netip.AddrPort
	client   netip.Addr // address of remote, unmapped and without a zone
	number   int32      // accepted connections since the start of the process, with this one
	optioned optioned
	notified notified

	// These fields belong to the poller's goroutine.
	in      input
	queries int
	aborted bool // the client has violated the protocol
	// keepalives are the Keepalive messages among the queries: they do not extend the time of inactivity, RFC 8490 section 6.3.
	keepalives int

	session session

	active       atomic.Int64 // time of the last query or the last answer, on the clock of validity.Now
	started      atomic.Bool  // it has received a query
	newer, older *connection  // in the poller's ring, guarded by the poller's mutex

	mu        sync.Mutex
	fd        int          // -1 after it was closed
	inFlight  atomic.Int32 // changed with the mutex
	out       output
	space     sync.Cond     // out was sent, or the connection is closed
	begun     time.Duration // time at which an incomplete query began, 0 without one
	keepAlive bool          // the client sends edns-tcp-keepalive
	paused    bool          // no queries are read, see pause
	drainEnd  time.Duration // only queries in the kernel's buffer are read, until this time; 0 if the connection remains
	finished  bool          // no more queries are read
	eof       bool          // the client has sent its last byte
	timedOut  bool          // a call has returned the error ETIMEDOUT, which the kernel reports once
	lingering time.Duration // time at which the connection is closed, 0 before the server has sent its last byte
	retained  int           // capacity of in.bytes
	inQueries int           // bytes beyond datagramLen of the queries in flight
	held      int           // bytes of buffers, as streamTable counts them
	random    random

	closed    atomic.Bool  // fd is -1
	heldCount atomic.Int32 // of the queries in flight, those that wait for a name
	firstHeld *held        // the newest of these, guarded by the mutex of heldTable
}

// optioned is the destination of the replies to queries with edns-tcp-keepalive on a connection.
type optioned struct{ *connection }

// newConnection returns a connection that a listener has accepted.
func newConnection(l *listener, fd int, remote netip.AddrPort) *connection {
	c := &connection{
		listener: l, fd: fd, remote: remote, client: remote.Addr().Unmap().WithZone(""), number: accepted.Add(1), random: newRandom(),
	}
	c.optioned.connection, c.notified.connection = c, c
	c.space.L = &c.mu
	c.active.Store(int64(validity.Now()))
	return c
}

// accepted counts the connections since the start of the process.
var accepted atomic.Int32

// unusedTime is added to the idle time of a connection that has received no query, so that a burst of connections does not close
// those in use.
const unusedTime = time.Second

// Results of idleSince that rank connections behind all idle ones without a session.
const (
	busySince    = math.MaxInt64 / 4 // queries are in progress
	sessionSince = math.MaxInt64 / 2 // a session is open; the time since which it is idle is added
)

// idleSince returns the time since which the connection counts as idle. At a limit, the connection with the lowest result is
// closed: idle ones first, then those with queries in progress, and those with a session last.
func (c *connection) idleSince() time.Duration {
	since := time.Duration(c.active.Load())
	busy := c.inFlight.Load() > 0
	switch {
	case c.session.notifies() && busy:
		return math.MaxInt64
	case c.session.notifies():
		return sessionSince + since
	case busy:
		return busySince
	case !c.started.Load():
		since -= unusedTime
	}
	return since
}

// receive counts a query that has no stored answer, and reports whether the connection may have more.
func (c *connection) receive(query []byte) (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight.Add(1)
	c.inQueries += beyondDatagram(query)
	c.hold()
	return c.fd >= 0 && !c.isFull()
}

// beyondDatagram returns the bytes by which a query exceeds datagramLen; the queue accounts for the others.
func beyondDatagram(query []byte) int { return max(0, len(query)-datagramLen) }

// ended implements destination.
func (c *connection) ended(query []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight.Add(-1)
	c.inQueries -= beyondDatagram(query)
	if c.fd >= 0 {
		c.hold()
	}
	c.active.Store(int64(validity.Now()))
	c.proceed()
}

// close implements destination: the plugin chain closes the connection after the replies in progress.
func (c *connection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = true
	c.proceed()
}

// isFinished reports whether no more queries are handled.
func (c *connection) isFinished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.finished
}

// isFull reports whether no more queries may be read. The mutex is locked.
func (c *connection) isFull() bool {
	return c.inProgress() >= maxInFlight || len(c.out.bytes) > maxUnsent
}

// inProgress returns the number of queries in flight without those that wait for a name: they have a limit of their own.
func (c *connection) inProgress() int32 { return c.inFlight.Load() - c.heldCount.Load() }

// pause stops reading if the connection is full, until its queries and its unsent answers are at most half of their limits. It
// reports whether reading is stopped.
func (c *connection) pause() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.paused && c.isFull() {
		c.paused = true
		m := c.listener.server.Load().metrics
		if c.inProgress() >= maxInFlight {
			m.pausedInFlight.Inc()
		} else {
			m.pausedUnsent.Inc()
		}
	}
	return c.paused
}

// proceed resumes reading or ends the connection, if it can, after a query was answered or an answer was sent. The mutex is
// locked.
func (c *connection) proceed() {
	switch {
	case c.fd < 0:
	case c.finished && (c.inFlight.Load() == 0 || c.session.ended) && len(c.out.bytes) == 0:
		c.finish()
	case c.paused && c.inProgress() <= maxInFlight/2 && len(c.out.bytes) <= maxUnsent/2:
		c.paused = false
		c.poller.rearm(c)
	}
}

// finish ends a connection whose queries are answered. The mutex is locked.
func (c *connection) finish() {
	if c.eof {
		c.end(closedByClient)
		return
	}
	switch {
	case c.lingering > 0:
	case c.session.ended: // after Retry Delay, the client closes the connection
		c.lingering = validity.Now() + delayedTime
		c.poller.rearm(c)
	default:
		c.lingering = validity.Now() + lingerTime
		_ = unix.Shutdown(c.fd, unix.SHUT_WR) // the client may have reset the connection
		c.poller.rearm(c)
	}
}

// retire ends the connection after the replies in progress, as close does. A DSO session ends at once.
func (c *connection) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endReading()
}

// endReading ends the reading of queries, and the DSO session: its client sends the queries in progress again, on another
// connection. Without a session the connection ends after their replies. The mutex is locked.
func (c *connection) endReading() {
	c.finished = true
	if c.writable() {
		c.endSession()
	}
	c.flush()
	c.proceed()
}

// isEnding reports whether the connection ends after the queries that the kernel has received. The mutex is locked.
func (c *connection) isEnding() bool { return c.drainEnd > 0 || c.finished }

// drain ends the connection after the queries that the kernel has received.
func (c *connection) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drainFrom(validity.Now())
}

// drainFrom is drain, given the present time. The mutex is locked.
func (c *connection) drainFrom(now time.Duration) {
	c.drainEnd = now + lingerTime
	if c.flush(); c.fd >= 0 {
		c.poller.rearm(c)
	}
}

// abort closes the connection without regard to its queries, and counts the reason.
func (c *connection) abort(r closeReason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(r)
}

// end closes the socket. The mutex is locked.
func (c *connection) end(r closeReason) {
	if c.fd < 0 {
		return
	}
	if r == closedByClient && c.isTimedOut() {
		r = closedUnread
	}
	m := c.listener.server.Load().metrics
	m.connections.Dec()
	if counter := m.closed[r]; counter != nil {
		counter.Inc()
	}
	c.session.countClosed(r)
	c.session.unsubscribe()
	if c.session.established && r != closedByClient {
		c.resetOnClose()
	}
	c.poller.remove(c, c.fd)
	_ = unix.Close(c.fd)
	c.fd = -1
	c.closed.Store(true)
	c.listener.process.held.releaseConnection(c)
	c.out.release()
	c.space.Broadcast()
	c.listener.process.streams.remove(c)
	c.listener.connections.Add(-1)
}

// isTimedOut reports whether the kernel has aborted the connection because the client's kernel did not acknowledge the output: after
// TCP_USER_TIMEOUT, or after many retransmissions. The mutex is locked, and the socket is open.
func (c *connection) isTimedOut() bool {
	errno, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	return c.timedOut || err == nil && unix.Errno(errno) == unix.ETIMEDOUT // #nosec G115 -- an error number
}

// expire closes the connection if one of the server's timeouts has passed.
func (c *connection) expire(now time.Duration) {
	s := c.listener.server.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := s.IdleTimeout
	if !c.started.Load() {
		idle = s.ReadTimeout // as CoreDNS for the first query
	} else if c.session.established {
		idle = max(2*idle, minInactivity) // RFC 8490 section 6.4.1
	}
	quiet := c.inFlight.Load() == 0 && len(c.out.bytes) == 0 && !c.paused
	switch {
	case c.fd < 0:
	case c.lingering > 0 && now >= c.lingering:
		c.end(closedByServer)
	case len(c.out.bytes) > 0 && now-c.out.progress > s.WriteTimeout:
		c.end(closedUnread)
	case c.begun > 0 && !c.paused && now-c.begun > s.ReadTimeout:
		c.end(closedUnfinished)
	case c.session.isSilent(now) && !c.paused && !c.hasInput():
		c.end(closedSilent)
	case c.session.notifies():
		if !push.Process.Offers() && c.drainEnd == 0 {
			c.drainFrom(now)
		}
	case quiet && c.begun == 0 && now-time.Duration(c.active.Load()) > idle && !c.hasInput():
		c.end(closedIdle)
	}
}

// hasInput reports whether the kernel has received bytes that are not read.
func (c *connection) hasInput() bool {
	n, err := unix.IoctlGetInt(c.fd, unix.SIOCINQ)
	return err == nil && n > 0
}

// localAddr implements destination.
func (c *connection) localAddr() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 {
		if a, err := unix.Getsockname(c.fd); err == nil {
			return tcpAddr(addressOf(a))
		}
	}
	return new(net.TCPAddr)
}

// remoteAddr implements destination.
func (c *connection) remoteAddr() net.Addr { return tcpAddr(c.remote) }

// tcpAddr returns an address as package net does: a mapped IPv4 address is unmapped.
func tcpAddr(a netip.AddrPort) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
}

// addressOf returns a socket address, with the name of the interface as its zone.
func addressOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)) // #nosec G115 -- a port
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(a.Addr)
		if a.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(a.ZoneId)); err == nil {
				ip = ip.WithZone(i.Name)
			}
		}
		return netip.AddrPortFrom(ip, uint16(a.Port)) // #nosec G115
	}
	return netip.AddrPort{}
}
