package fastpath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
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

	// sessionUserTimeout is the time in which the kernel of the client has to acknowledge the messages of a session. A node that
	// has lost its network does not close connections.
	sessionUserTimeout = 10 * time.Second

	// maxSessionUnsent is the number of bytes that the kernel has not accepted beyond which a session is closed: those of
	// answers before a pause, and several invalidations of dso.MaxInvalidated handles.
	maxSessionUnsent = 4 * maxUnsent

	// delayedTime is the time in which a client has to close a connection after Retry Delay, RFC 8490 section 6.6.1.
	delayedTime = 5 * time.Second

	// minInactivity is the minimum time after which a server may close an established DSO session for inactivity, RFC 8490
	// section 6.4.1.
	minInactivity = 5 * time.Second
)

// isStateful reports whether a message is one of DNS Stateful Operations that the connection handles. Without an offer of
// sessions, it goes to the plugin chain like any unknown opcode.
func (c *connection) isStateful(message []byte) bool {
	return dso.IsDSO(message) && (c.established || push.Process.Offers())
}

// operate handles a DSO message.
func (c *connection) operate(message []byte, s *server, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writable() {
		return
	}
	m, err := dso.Parse(message)
	switch {
	case !m.Request(): // the server has sent no request, and no unidirectional message of a client is known
		c.violate()
	case errors.Is(err, dso.ErrCounts):
		c.refuse(m.ID, dso.FormatError)
	case err != nil:
		c.violate()
	default:
		c.request(&m, s, now)
	}
	c.flush()
}

// request answers a DSO request. Additional TLVs of unknown types are ignored. The mutex is locked.
func (c *connection) request(m *dso.Message, s *server, now time.Duration) {
	primary, _ := m.Primary() // Parse requires one
	ok, first := true, true
	for t := range m.TLVs() {
		ok = ok && t.Type != dso.RetryDelay && (first || t.Type != dso.Keepalive) // RFC 8490 sections 7.1 and 7.2
		first = false
	}
	switch {
	case !ok || primary.Type == dso.Padding || primary.Type == dso.Keepalive && len(primary.Data) != 8:
		c.violate()
	case c.drainEnd > 0 || c.finished || !push.Process.Offers():
		c.refuse(m.ID, dso.ServerFailure) // not now: the client is to connect again, RFC 8490 section 5.5.3
		if c.drainEnd == 0 {
			c.drainFrom(now)
		}
	case primary.Type == dso.Keepalive:
		c.keepalives++
		c.establish(now)
		c.out.message(dso.AppendKeepalive(nil, m.ID, true, timeouts(s)))
	case primary.Type == dso.Session && len(primary.Data) == 0:
		c.refuse(m.ID, dso.FormatError)
	case primary.Type == dso.Session && dso.ReadSessionRequest(primary.Data):
		c.establish(now)
		c.out.message(dso.AppendSessionResponse(nil, m.ID, push.Process.Opening()))
		c.open()
	default:
		c.refuse(m.ID, dso.TypeNI)
	}
}

// timeouts returns the timeouts of a DSO session on a server.
func timeouts(s *server) dso.Timeouts {
	return dso.Timeouts{
		Inactivity: uint32(s.IdleTimeout / time.Millisecond), // #nosec G115 -- a configured timeout
		Keepalive:  uint32(keepaliveInterval / time.Millisecond),
	}
}

// refuse answers a DSO request with an error. The mutex is locked.
func (c *connection) refuse(id uint16, rcode int) {
	c.out.message(dso.AppendErrorResponse(nil, id, rcode))
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

// abortViolated is violate without the mutex.
func (c *connection) abortViolated() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violate()
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

// establish establishes a DSO session with the first successful response, RFC 8490 section 5.1. The mutex is locked.
func (c *connection) establish(now time.Duration) { c.established, c.heard = true, now }

// open opens the session that notifies the client, once. The mutex is locked.
func (c *connection) open() {
	if c.session.Load() != nil {
		return
	}
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(sessionUserTimeout/time.Millisecond))
	c.session.Store(push.Process.Open(c, c.client))
	c.poller.relink(c)
}

// Push implements push.Conn. The connection's client has to read; the process does not wait for it.
func (c *connection) Push(message []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writable() || c.session.Load() == nil {
		return
	}
	var small [64]byte // of a heartbeat
	c.writeFrames(appendMessage(small[:0], message))
	if len(c.out.bytes) > maxSessionUnsent {
		c.end(closedUnread)
	}
}

// endSession ends the DSO session: the client gets no more messages, and is to connect again without a delay (RFC 8490 section
// 6.6.1). A delay would be one of its queries, too. The mutex is locked, and the output writable.
func (c *connection) endSession() {
	if c.established && !c.eof {
		c.out.message(dso.AppendRetryDelay(nil, dso.NoError, 0))
		c.delayed = true
		c.space.Broadcast()
	}
	c.closeSession()
}

// countSession counts a session whose connection is closed for a reason, and a violation also without a session.
func (c *connection) countSession(r closeReason) {
	switch {
	case r == closedMalformed:
		push.Process.CountClosed(push.Malformed)
	case c.session.Load() == nil:
	case r == closedUnread:
		push.Process.CountClosed(push.Unread)
	case r == closedSilent:
		push.Process.CountClosed(push.Silent)
	}
}

// closeSession ends the subscriptions. The mutex is locked.
func (c *connection) closeSession() {
	if session := c.session.Swap(nil); session != nil {
		session.Close()
	}
}

// expireSession ends a session that is not offered any more. The mutex is locked.
func (c *connection) expireSession(now time.Duration) {
	if !push.Process.Offers() && c.drainEnd == 0 {
		c.drainFrom(now)
	}
}

// handles appends the handles of the data that a stored answer depends on, and subscribes the session to them. It appends
// none if the client has no session, if the answer depends on anything else, or beyond a limit. The location of the client's
// address is such: a node's cache sends the queries of all pods from one address. The mutex is locked, and remains so until the
// answer is in the output: no invalidation overtakes the answer.
func (c *connection) handles(s *server, l *lookup, handles []uint64) []uint64 {
	session := c.session.Load()
	if session == nil || !c.writable() || c.listener.server.Load() != s || !l.route.byGeneration || l.unnamed {
		return handles
	}
	var buf [validity.MaxBounds]push.Generation
	n := len(handles)
	for _, g := range l.entry.Watchable(buf[:0]) {
		h := session.Subscribe(g)
		if h == 0 {
			return handles[:n]
		}
		handles = append(handles, h)
	}
	return handles
}

// appendNotified appends the stored answer of a lookup to the output, with handles, and behind it their invalidation if the
// answer has ended meanwhile. options is a buffer for EDNS options. It returns the form of the answer, nil if the answer has no
// handles. The mutex is locked.
func (c *connection) appendNotified(s *server, l *lookup, query, options []byte, p *store.Patch, random *random) *store.Answer {
	var buf [dso.MaxHandles]uint64
	handles := c.handles(s, l, buf[:0])
	if len(handles) == 0 {
		return nil
	}
	patch := *p   // the reply without handles has the other one
	patch.Age = 0 // the answer is current, however long plugin cache has stored it
	p = &patch
	p.Options = appendHandles(append(options[:0], p.Options...), handles)
	form := shuffledForm(l.route, l.entry, &l.query, p, dns.MaxMsgSize, dns.MaxMsgSize, random) // a node's cache shuffles by itself
	if form == nil {
		return nil
	}
	c.out.answer(form, query, &l.query, p)
	if ended := c.endAdvanced(l.entry, handles); len(ended) > 0 {
		var message [128]byte
		c.out.message(dso.AppendInvalidate(message[:0], ended))
	}
	return form
}

// endAdvanced ends the subscriptions to the Generations of an answer that have advanced since it was made, and returns their
// handles. A Generation may never advance again. The other handles may stand for much else that is valid. The mutex is locked.
func (c *connection) endAdvanced(e *store.Entry, handles []uint64) (ended []uint64) {
	for i, h := range handles {
		b := &e.Bounds[i]
		if g, ok := b.Generation.(push.Generation); ok && g.Load() != b.Number {
			ended = append(ended, h)
			c.session.Load().Unsubscribe(g)
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

// notified is the destination of the replies to queries with a request for notification on a connection with a session.
type notified struct{ *connection }

// answer implements destination. The answer has handles unless it depends on the client's address.
func (n *notified) answer(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) bool {
	if form := n.appendEntry(b, r, e, p); form != nil {
		r.countOverTCP(e, form)
		return true
	}
	return n.connection.answer(b, r, e, p)
}

// appendEntry appends the answer of an entry with handles to the output, and returns its form, nil if it has no handles.
func (n *notified) appendEntry(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) *store.Answer {
	c := n.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	l := lookup{route: r.route, entry: e, query: r.Query, unnamed: r.unnamed}
	form := c.appendNotified(r.server, &l, r.Packed, nil, p, &c.random)
	if form != nil {
		b.Add(c)
	}
	return form
}

// notifiedReply is the destination of the plugin chain's reply to such a query.
type notifiedReply struct {
	*connection
	server *server
	query  []byte
	since  time.Duration
	name   []byte // of the question, if the plugin chain gets it in lower case
}

// newNotifiedReply returns the destination of the reply to a request, which may be reused.
func newNotifiedReply(c *connection, r *request) *notifiedReply {
	return &notifiedReply{connection: c, server: r.server, query: append([]byte(nil), r.query...), since: validity.Now()}
}

// lowerCase changes the question to lower case, if the answers of its server block are stored: only those are, so that the
// answers to other questions would have no handles. The client gets its question as it is.
func (n *notifiedReply) lowerCase(m *dns.Msg) {
	var q wire.Query
	if !q.Parse(n.query) || !q.Upper {
		return
	}
	var buf [store.MaxKey]byte
	lower := store.KeyName(store.AppendKey(buf[:0], 0, n.query, &q))
	if rt := n.server.routes.find(lower); rt == nil || rt.keyspace == 0 {
		return
	}
	name := q.Name(n.query)
	n.name = append([]byte(nil), name...)
	copy(name, lower)
	m.Question[0].Name = strings.ToLower(m.Question[0].Name)
}

// restore changes the question of a message back to the case of the client. Without a question, as after a failure to pack the
// reply, it changes nothing.
func (n *notifiedReply) restore(message []byte) {
	if end := wire.HeaderLen + len(n.name); len(message) > end && bytes.EqualFold(message[wire.HeaderLen:end], n.name) {
		copy(message[wire.HeaderLen:], n.name)
	}
}

// send implements destination. If the chain has stored the reply, the stored form is sent, with handles, also if it has ended
// meanwhile: without handles, the client would use it until its TTL ends.
func (n *notifiedReply) send(reply []byte, mayWait bool) error {
	if n.sendStored(reply, mayWait) {
		return nil
	}
	n.restore(reply)
	return n.connection.send(reply, mayWait)
}

// sendStored sends the stored answer with handles, and reports whether there is one. The chain has counted the reply.
func (n *notifiedReply) sendStored(reply []byte, mayWait bool) bool {
	c, now := n.connection, validity.Now()
	l := lookup{waited: true, reply: reply, since: n.since} // if queries wait for the name, this one has
	if !isResult(reply) || !n.find(&l, reply, now) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if mayWait {
		c.awaitSpace()
	}
	p := l.entry.Patch(now)
	n.restore(n.query)
	if c.appendNotified(n.server, &l, n.query, nil, &p, &c.random) == nil {
		return false
	}
	c.flush()
	return true
}

// isResult reports whether a reply is complete, and no failure.
func isResult(reply []byte) bool {
	if len(reply) < wire.HeaderLen || reply[wire.FlagsAt]&wire.TC != 0 {
		return false
	}
	code := int(reply[wire.RcodeAt] & wire.RcodeMask)
	return code == dns.RcodeSuccess || code == dns.RcodeNameError
}

// find finds the stored answer. A reply without the option of package searchlist is stored as that to the name alone.
func (n *notifiedReply) find(l *lookup, reply []byte, now time.Duration) bool {
	if l.find(n.server, n.query, n.client, now) {
		return true
	}
	_, listed := wire.MessageOption(reply, wire.OptionSearchList)
	l.single = l.query.Search != nil && !listed
	return l.single && l.find(n.server, n.query, n.client, now)
}
