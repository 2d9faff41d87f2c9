package transport

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const (
	// compareEvery is the time between two Session requests: they compare the clocks, and are the keepalive of the session
	// (RFC 8490 section 6.5.2). A comparison is inexact by the time that the response took: if that is more than exact, the
	// next one follows after compareSoon.
	compareEvery = 10 * time.Second
	compareSoon  = time.Second
	exact        = 100 * time.Millisecond
	// responseTime is the time for the response to a request. After it the connection is aborted, RFC 8490 section 5.1.1.
	// Queries use the connection meanwhile.
	responseTime = 30 * time.Second
	// minKeepalive is the minimum keepalive interval of a server, RFC 8490 section 6.5.2.
	minKeepalive = 10 * time.Second
)

// Violations of RFC 8490, after which the connection is aborted.
var (
	errNoResponse    = errors.New("does not answer a DSO message")            // section 5.1.1
	errResponse      = errors.New("its response to a DSO message is unknown") // section 5.4.2
	errMalformedDSO  = errors.New("sends a malformed DSO message")
	errUnexpectedDSO = errors.New("sends an unexpected DSO message")
	errKeepAlive     = errors.New("sends edns-tcp-keepalive in a DSO session") // RFC 8490 section 7.1.2
	errInstance      = errors.New("is another process in the same DSO session")
)

// errDelayed ends a connection whose server has sent a Retry Delay message: it answers no more queries on it (RFC 8490
// section 6.6.1.1). This is no failure of the server.
var errDelayed = errors.New("ends the DSO session")

// dsoSession is the session of a connection.
type dsoSession struct {
	*vouch.Session
	id       uint16 // of its requests; no query of the connection has it
	open     bool   // between the first response and the end
	awaits   bool   // the response to a request
	again    bool   // a machine was suspended since the request: its response does not count
	rejected bool   // the server has refused a request: the connection gets no other one, RFC 8490 section 5.1.1

	requested time.Duration // before the last request was written, on the clock of the answers' validity
	sentAt    time.Time     // the same on the pool's clock
	openedAt  time.Time
	nextAt    time.Time // of the next request
	heardAt   time.Time // of the last DSO message
	grace     time.Time // until then the session need not have a heartbeat
	quiet     bool      // a silence was counted
	instance  uint64

	handles []uint64          // a buffer for reuse
	ended   []vouch.Dependent // by the messages of a read
}

// openSession requests a session.
func (c *conn) openSession(now time.Time) {
	p := c.pool
	c.session = &dsoSession{id: c.newID(), Session: vouch.NewSession(p.Coherence.Now)}
	if !p.known {
		p.probe = c
	}
	c.request(now)
}

// request sends a Session request.
func (c *conn) request(now time.Time) {
	s := c.session
	s.awaits, s.again = true, false
	s.requested, s.sentAt, s.nextAt = c.pool.Coherence.Now(), now, now.Add(compareEvery)
	c.appendDSO(dso.AppendSessionRequest(nil, s.id))
}

// endSession ends the session. lapsed is set if both ends work: its answers lapse. Otherwise they fall back to their TTL, and lapse
// when a session is known to work again.
func (c *conn) endSession(lapsed bool) {
	s := c.session
	switch {
	case lapsed:
		s.Retire()
	case s.Len() > 0:
		c.pool.Coherence.Lost.add(s.Session)
	}
	s.Close()
	if s.open {
		c.pool.sessions--
		c.pool.Coherence.Sessions.Dec()
	}
	s.open, s.awaits = false, false
}

// isDSO reports whether a message belongs to the session: by its opcode, or by the id of the request, to which a server that does
// not implement the opcode may reply with another one.
func (c *conn) isDSO(message []byte) bool {
	return c.session != nil && (dso.IsDSO(message) || c.session.awaits && binary.BigEndian.Uint16(message) == c.session.id)
}

// receiveDSO processes a message of the session.
func (c *conn) receiveDSO(message []byte, now time.Time) error {
	s := c.session
	s.heardAt = now
	if message[wire.FlagsAt]&wire.QR != 0 {
		if !s.awaits || binary.BigEndian.Uint16(message) != s.id {
			return errUnexpectedDSO
		}
		return c.responded(message, now)
	}
	m, err := dso.Parse(message)
	switch {
	case errors.Is(err, dso.ErrCounts) && m.Request() && s.open: // RFC 8490 section 5.4
		c.appendDSO(dso.AppendErrorResponse(nil, m.ID, dso.FormatError))
		return nil
	case err != nil || !dso.IsDSO(message):
		return errMalformedDSO
	}
	tlv, ok := m.Primary()
	switch {
	case m.ID == 0 && tlv.Type == dso.RetryDelay:
		return c.delayed(tlv.Data, now)
	case !s.open:
		return errUnexpectedDSO
	case m.ID != 0 && ok && isNotification(tlv.Type):
		return errUnexpectedDSO
	case m.ID != 0: // a request of the server: none is known here
		c.appendDSO(dso.AppendErrorResponse(nil, m.ID, dso.TypeNI))
		return nil
	case !ok:
		return errMalformedDSO
	}
	return c.notified(tlv, now)
}

// responded processes the response to a Session request.
func (c *conn) responded(message []byte, now time.Time) error {
	p, s := c.pool, c.session
	s.awaits = false
	m, err := dso.Parse(message)
	if rcode := int(message[wire.RcodeAt] & wire.RcodeMask); rcode != dso.NoError || !dso.IsDSO(message) {
		return c.rejected(&m, err == nil, rcode, now)
	}
	opening, ok := openingOf(&m)
	switch {
	case err != nil || !ok:
		return errResponse
	case s.again:
		c.request(now)
		return nil
	case s.open && opening.Instance != s.instance:
		return errInstance
	}
	s.Opened(s.requested, opening.Clock)
	s.instance = opening.Instance
	if now.Sub(s.sentAt) > exact {
		s.nextAt = now.Add(compareSoon)
	}
	if p.limit == 1 { // the server that closed connections after one answer has ended
		p.limit = 0
	}
	p.answersOutOfOrder(now) // a server with sessions is pipelined
	if !s.open {
		s.open, s.quiet, s.openedAt, s.grace = true, false, now, now.Add(vouch.Silence)
		p.sessionOpened(now)
	}
	return nil
}

// openingOf returns the content of the response to a Session request, whose first TLV is the only Session TLV (RFC 8490
// section 5.4.2).
func openingOf(m *dso.Message) (o dso.Opening, ok bool) {
	n := 0
	for tlv := range m.TLVs() {
		if isSession := tlv.Type == dso.Session; isSession != (n == 0) {
			return o, false
		} else if isSession {
			o, ok = dso.ReadOpening(tlv.Data)
		}
		n++
	}
	return o, ok
}

// rejected processes a response without a session. The connection remains for queries.
func (c *conn) rejected(m *dso.Message, parsed bool, rcode int, now time.Time) error {
	p := c.pool
	wasOpen := c.session.open
	c.endSession(false)
	c.session.rejected = true
	if wasOpen {
		p.Coherence.Fallbacks[SessionClosed].Inc()
	}
	if parsed {
		for tlv := range m.TLVs() {
			if tlv.Type == dso.RetryDelay { // of this operation, RFC 8490 section 7.2.2
				_, err := p.delay(tlv.Data, now)
				return err
			}
		}
	}
	switch rcode {
	case dso.ServerFailure: // it has sessions, but not now
		p.pauseUntilReady(now)
	case dso.NoError:
		p.refused(errResponse.Error(), false, now)
	default:
		p.refused("it answers "+rcodeText(rcode)+" to a DSO message", false, now)
	}
	return nil
}

func rcodeText(rcode int) string {
	switch rcode {
	case dso.FormatError:
		return "FORMERR"
	case dso.NotImplemented:
		return "NOTIMP"
	case dso.Refused:
		return "REFUSED"
	case dso.TypeNI:
		return "DSOTYPENI"
	}
	return "an error"
}

// delayed processes a Retry Delay message, RFC 8490 section 6.6.1: the connection is closed, its queries move to another
// one, and none is opened until the delay is over.
func (c *conn) delayed(data []byte, now time.Time) error {
	p, s := c.pool, c.session
	d, err := p.delay(data, now)
	if err != nil {
		return err
	}
	p.delayedUntil = latest(p.delayedUntil, now.Add(d))
	if !s.open || now.Sub(s.openedAt) < minSession { // sessions that end at once are not worth more connections
		p.pauseBriefly(now)
	}
	return errDelayed
}

// isNotification reports whether messages with a primary TLV are unidirectional: an ID in them is an error (RFC 8490 section
// 5.4.1).
func isNotification(t dso.Type) bool {
	switch t {
	case dso.Heartbeat, dso.Invalidate, dso.Keepalive, dso.RetryDelay:
		return true
	}
	return false
}

// notified processes a unidirectional message of an open session. An unknown type is an error (RFC 8490 section 5.4.5).
func (c *conn) notified(tlv dso.TLV, now time.Time) error {
	switch tlv.Type {
	case dso.Heartbeat:
		clock, ok := dso.ReadHeartbeat(tlv.Data)
		if !ok {
			return errMalformedDSO
		}
		c.heard(clock, now)
		return nil
	case dso.Invalidate:
		return c.invalidated(tlv.Data)
	case dso.Keepalive:
		return c.keepAlive(tlv.Data)
	}
	return errUnexpectedDSO
}

// heard processes a heartbeat.
func (c *conn) heard(clock uint64, now time.Time) {
	s := c.session
	c.noteSilence(now)
	if s.Heard(clock) {
		if c.waitsSince.IsZero() { // otherwise the next answer calls lapse
			c.pool.Coherence.Lost.lapse()
		}
		s.quiet = s.quiet && !s.Vouches(c.pool.Coherence.Now())
		return
	}
	c.pool.Coherence.Fallbacks[SessionClock].Inc()
	s.quiet = true
	if s.awaits {
		s.again = true
	} else {
		c.request(now)
	}
}

// invalidated processes the handles of an Invalidate TLV.
func (c *conn) invalidated(data []byte) error {
	s := c.session
	handles, ok := dso.ReadHandles(s.handles[:0], data)
	if !ok {
		return errMalformedDSO
	}
	n := len(handles)
	if n == 0 {
		n = s.Len()
	}
	c.pool.Coherence.Invalidations.Add(float64(n))
	s.ended = append(s.ended, s.Invalidate(handles)...)
	if s.handles = handles[:0]; cap(handles) > dso.MaxHandles {
		s.handles = nil
	}
	return nil
}

// keepAlive processes the timeouts of a Keepalive TLV, RFC 8490 section 7.1. The inactivity timeout is for a connection on
// whose session nothing depends. Session requests are always as frequent as the shortest keepalive interval.
func (c *conn) keepAlive(data []byte) error {
	const length = 8
	if len(data) != length {
		return errMalformedDSO
	}
	milliseconds := func(b []byte) time.Duration { return time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond }
	if milliseconds(data[4:]) < minKeepalive {
		return errUnexpectedDSO
	}
	c.idle = min(c.pool.Expire, milliseconds(data))
	return nil
}

// voucher returns the voucher for the answer to a query that was sent at a time: that of withoutSession from before a session, and in
// a session that of the handles in the answer; nil without any, or if the query has not requested them.
func (c *conn) voucher(query, reply []byte, sent time.Time) *vouch.Voucher {
	s := c.session
	if s == nil || !s.open {
		if c.pool.sessions > 0 {
			return nil
		}
		return c.pool.withoutSession()
	}
	data, ok := wire.MessageOption(reply, wire.OptionNotify)
	if !ok || len(data) == 0 {
		if sent.Before(s.openedAt) {
			return c.pool.withoutSession()
		}
		return nil
	}
	if _, requested := wire.MessageOption(query, wire.OptionNotify); !requested {
		return nil
	}
	handles, ok := dso.ReadHandles(s.handles[:0], data)
	if s.handles = handles[:0]; cap(handles) > dso.MaxHandles {
		s.handles = nil
	}
	if !ok || len(handles) > dso.MaxHandles {
		return nil
	}
	v := s.Voucher(handles)
	if v == nil {
		c.pool.Coherence.Fallbacks[SessionLimit].Inc()
	}
	return v
}

// takeEnded returns the answers that depend on handles which the messages of a read have invalidated.
func (c *conn) takeEnded() (ended []vouch.Dependent) {
	if c.session != nil {
		ended, c.session.ended = c.session.ended, nil
	}
	return ended
}
