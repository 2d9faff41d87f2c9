package fastpath

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const (
	// sessionSilence is the time without a message of the client after which its session is closed: RFC 8490 section 6.5.2
	// allows two intervals.
	sessionSilence    = 2 * keepaliveInterval
	keepaliveInterval = 15 * time.Second

	// minInactivity is the minimum time after which a server may close an established DSO session for inactivity, RFC 8490
	// section 6.4.1.
	minInactivity = 5 * time.Second

	// sessionUserTimeout is the time in which the kernel of the client has to acknowledge the messages of a session. A node that
	// has lost its network does not close connections.
	sessionUserTimeout = 10 * time.Second

	// maxSessionUnsent limits the bytes that the kernel has not accepted; a session beyond it is closed. It has room for the
	// answers before a pause, and for several invalidations of dso.MaxInvalidated handles.
	maxSessionUnsent = 4 * maxUnsent
)

// session is the state of DNS Stateful Operations (DSO) on a connection, RFC 8490. The connection's mutex guards it.
type session struct {
	// established is set by the first successful response. Only the poller's goroutine sets it, and may read it without the mutex.
	established bool
	ended       bool          // Retry Delay is in the output: nothing follows
	heard       time.Duration // time of the last message of the client, in an established session

	// subscriber notifies the client. It is nil while the client is not notified; the mutex is locked to change it.
	subscriber atomic.Pointer[push.Subscriber]
}

// sessionRequest is the effect of a DSO message on the connection, beside its response.
type sessionRequest int

const (
	requestsNothing    sessionRequest = iota
	requestsKeepalive                 // it is no activity, RFC 8490 section 6.3
	requestsInvalidity                // the client is to be notified
	requestsLater                     // no session is possible now: the connection is to end
	requestsForbidden                 // the message violates RFC 8490: the connection is to be aborted
)

// notifies reports whether the client has a session that notifies it.
func (s *session) notifies() bool { return s.subscriber.Load() != nil }

// receive reads a DSO message of the client, and appends the response to the output. possible is false if the connection ends, or
// sessions are not offered.
func (s *session) receive(out *output, message []byte, possible bool, limits dso.Timeouts, now time.Duration) sessionRequest {
	m, err := dso.Parse(message)
	switch {
	case !m.Request(): // the server has sent no request, and no unidirectional message of a client is known
		return requestsForbidden
	case errors.Is(err, dso.ErrCounts):
		out.message(dso.AppendErrorResponse(nil, m.ID, dso.FormatError))
		return requestsNothing
	case err != nil:
		return requestsForbidden
	}
	return s.respond(out, &m, possible, limits, now)
}

// respond answers a DSO request. Additional TLVs of unknown types are ignored.
func (s *session) respond(out *output, m *dso.Message, possible bool, limits dso.Timeouts, now time.Duration) sessionRequest {
	primary, _ := m.Primary() // Parse requires one
	ok, first := true, true
	for t := range m.TLVs() {
		ok = ok && t.Type != dso.RetryDelay && (first || t.Type != dso.Keepalive) // RFC 8490 sections 7.1 and 7.2
		first = false
	}
	code := dso.TypeNI
	switch {
	case !ok || primary.Type == dso.Padding || primary.Type == dso.Keepalive && len(primary.Data) != 8:
		return requestsForbidden
	case !possible:
		out.message(dso.AppendErrorResponse(nil, m.ID, dso.ServerFailure)) // the client is to connect again, RFC 8490 section 5.5.3
		return requestsLater
	case primary.Type == dso.Keepalive:
		s.establish(now)
		out.message(dso.AppendKeepalive(nil, m.ID, true, limits))
		return requestsKeepalive
	case primary.Type == dso.Session && dso.ReadSessionRequest(primary.Data):
		s.establish(now)
		out.message(dso.AppendSessionResponse(nil, m.ID, push.Process.Opening()))
		return requestsInvalidity
	case primary.Type == dso.Session && len(primary.Data) == 0:
		code = dso.FormatError
	}
	out.message(dso.AppendErrorResponse(nil, m.ID, code))
	return requestsNothing
}

// establish establishes the session with the first successful response, RFC 8490 section 5.1.
func (s *session) establish(now time.Duration) { s.established, s.heard = true, now }

// isSilent reports whether the client has sent no message for too long.
func (s *session) isSilent(now time.Duration) bool {
	return s.established && now-s.heard > sessionSilence
}

// end appends Retry Delay to the output: the client gets no more messages, and is to connect again without a delay (RFC 8490
// section 6.6.1). A delay would delay the client's queries, too.
func (s *session) end(out *output) {
	if s.established && !s.ended {
		out.message(dso.AppendRetryDelay(nil, dso.NoError, 0))
		s.ended = true
	}
}

// unsubscribe ends the subscriptions.
func (s *session) unsubscribe() {
	if subscriber := s.subscriber.Swap(nil); subscriber != nil {
		subscriber.Close()
	}
}

// countClosed counts a session whose connection is closed for a reason, and a violation also without a session.
func (s *session) countClosed(r closeReason) {
	switch {
	case r == closedMalformed:
		push.Process.CountClosed(push.Malformed)
	case !s.notifies():
	case r == closedUnread:
		push.Process.CountClosed(push.Unread)
	case r == closedSilent:
		push.Process.CountClosed(push.Silent)
	}
}

// handles appends the handles of the data that a stored answer depends on, and subscribes the session to them. It appends
// none if the client has no session, beyond a limit, or if the answer depends on anything else, such as the location of the client's
// address: a node's cache sends the queries of all pods from one address. The mutex remains locked until the answer is in the
// output, so that no invalidation overtakes it.
func (s *session) handles(l *lookup, handles []uint64) []uint64 {
	subscriber := s.subscriber.Load()
	if subscriber == nil || !l.route.byGeneration || l.unnamed {
		return handles
	}
	var buf [validity.MaxBounds]push.Generation
	n := len(handles)
	for _, g := range l.entry.Watchable(buf[:0]) {
		h := subscriber.Subscribe(g)
		if h == 0 {
			return handles[:n]
		}
		handles = append(handles, h)
	}
	return handles
}

// answer appends the stored answer of a lookup to the output, with handles, and behind it their invalidation if the answer has
// ended meanwhile. options is a buffer for EDNS options. It returns the form of the answer, nil if the answer has no handles.
func (s *session) answer(out *output, l *lookup, query, options []byte, p *store.Patch, random *random) *store.Answer {
	var buf [dso.MaxHandles]uint64
	handles := s.handles(l, buf[:0])
	if len(handles) == 0 {
		return nil
	}
	patch := *p   // a reply without handles uses p unchanged
	patch.Age = 0 // the answer is current, however long plugin cache has stored it
	p = &patch
	p.Options = appendHandles(append(options[:0], p.Options...), handles)
	form := shuffledForm(l.route, l.entry, &l.query, p, dns.MaxMsgSize, dns.MaxMsgSize, random) // a node's cache shuffles by itself
	if form == nil {
		return nil
	}
	out.answer(form, query, &l.query, p)
	if ended := s.endAdvanced(l.entry, handles); len(ended) > 0 {
		var message [128]byte
		out.message(dso.AppendInvalidate(message[:0], ended))
	}
	return form
}

// endAdvanced ends the subscriptions to the Generations of an answer that have advanced since it was made, and returns their
// handles: such a Generation may never advance again. Other handles remain, since other valid answers may depend on them.
func (s *session) endAdvanced(e *store.Entry, handles []uint64) (ended []uint64) {
	for i, h := range handles {
		b := &e.Bounds[i]
		if g, ok := b.Generation.(push.Generation); ok && g.Load() != b.Number {
			ended = append(ended, h)
			s.subscriber.Load().Unsubscribe(g)
		}
	}
	return ended
}

// appendHandles appends the option with handles to the options of an OPT record.
func appendHandles(options []byte, handles []uint64) []byte {
	options = binary.BigEndian.AppendUint16(options, wire.OptionNotify)
	options = binary.BigEndian.AppendUint16(options, uint16(8*len(handles))) // #nosec G115 -- at most dso.MaxHandles
	return dso.AppendHandles(options, handles)
}

// isStateful reports whether a message is one of DNS Stateful Operations that the connection handles. Without an offer of
// sessions, it goes to the plugin chain like any unknown opcode.
func (c *connection) isStateful(message []byte) bool {
	return dso.IsDSO(message) && (c.session.established || push.Process.Offers())
}

// operate handles a DSO message.
func (c *connection) operate(message []byte, s *server, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writable() {
		return
	}
	possible := !c.isEnding() && push.Process.Offers()
	switch c.session.receive(&c.out, message, possible, timeouts(s), now) {
	case requestsForbidden:
		c.violate()
	case requestsLater:
		if c.drainEnd == 0 {
			c.drainFrom(now)
		}
	case requestsKeepalive:
		c.keepalives++
	case requestsInvalidity:
		c.subscribe()
	case requestsNothing:
	}
	c.flush()
}

// timeouts returns the timeouts of a DSO session on a server.
func timeouts(s *server) dso.Timeouts {
	return dso.Timeouts{
		Inactivity: uint32(s.IdleTimeout / time.Millisecond), // #nosec G115 -- a configured timeout
		Keepalive:  uint32(keepaliveInterval / time.Millisecond),
	}
}

// violate aborts the connection of a client that has violated RFC 8490, with a reset. The mutex is locked.
func (c *connection) violate() {
	c.aborted = true
	if c.fd >= 0 {
		c.resetOnClose()
		c.end(closedMalformed)
	}
}

// resetOnClose makes the close of the socket abort the connection, RFC 8490 section 5.3. The mutex is locked.
func (c *connection) resetOnClose() {
	_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // otherwise the close is graceful
}

// abortViolated is violate for a caller that has not locked the mutex.
func (c *connection) abortViolated() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violate()
}

// subscribe makes the session notify the client, once. The mutex is locked.
func (c *connection) subscribe() {
	if c.session.notifies() {
		return
	}
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(sessionUserTimeout/time.Millisecond))
	c.session.subscriber.Store(push.Process.Open(c, c.client))
	c.poller.relink(c)
}

// Push implements push.Conn. It does not wait for a client that does not read: beyond maxSessionUnsent it closes the connection.
func (c *connection) Push(message []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writable() || !c.session.notifies() {
		return
	}
	var small [64]byte // of a heartbeat
	c.writeFrames(appendMessage(small[:0], message))
	if len(c.out.bytes) > maxSessionUnsent {
		c.end(closedUnread)
	}
}

// endSession ends the DSO session. The mutex is locked, and the output writable.
func (c *connection) endSession() {
	if !c.eof {
		c.session.end(&c.out)
		c.space.Broadcast()
	}
	c.session.unsubscribe()
}

// appendNotified appends the stored answer of a lookup to the output, with handles; see session.answer. The mutex is locked.
func (c *connection) appendNotified(s *server, l *lookup, query, options []byte, p *store.Patch, random *random) *store.Answer {
	if !c.writable() || c.listener.server.Load() != s {
		return nil
	}
	return c.session.answer(&c.out, l, query, options, p, random)
}
