package transport

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/coherence"
)

// Coherence configures the sessions of a Pool: its connections for many queries request notification of the answers that end
// (RFC 8490, see package dso). It is for plain TCP.
type Coherence struct {
	// Now is the clock of the answers' validity.
	Now func() time.Duration
	// MaxAge replaces that of Config for a connection with a session on whose handles answers depend; 0 is no limit.
	MaxAge time.Duration

	Sessions      prometheus.Gauge              // open
	Invalidations prometheus.Counter            // handles that the server has invalidated
	Fallbacks     map[string]prometheus.Counter // of answers to their TTL, by each of FallbackReasons
}

// Reasons for which the TTL of answers applies.
const (
	SessionClosed      = "closed"
	SessionSilent      = "silent"      // no heartbeat for longer than coherence.Silence
	SessionClock       = "clock"       // the clocks are compared again: one of the machines was suspended
	SessionUnsupported = "unsupported" // by the server
	SessionDelayed     = "retry_delay" // the server has requested a delay, RFC 8490 section 7.2
)

// FallbackReasons returns all reasons for which the TTL of answers applies.
func FallbackReasons() []string {
	return []string{SessionClosed, SessionSilent, SessionClock, SessionUnsupported, SessionDelayed}
}

const (
	// sessionPause is the time without new sessions at a server that had one, and refuses another.
	sessionPause = 10 * time.Second
	// maxClosedRequests is the number of successive connections closed without an answer, and without the response to their
	// first Session request, after which the request counts as the reason. One may be chance: a server that restarts.
	maxClosedRequests = 2
)

// coherent is the state of a pool's sessions.
type coherent struct {
	probe       *conn // has sent the first request to a server that may have no sessions; the others wait for its response
	known       bool  // the server has opened a session
	unsupported bool  // the server has no sessions
	reported    bool  // that is logged
	closes      int   // see maxClosedRequests
	pausedUntil time.Time
}

// Notifies reports whether the server may answer a query with handles: it has sessions, or that is not known yet.
func (p *Pool) Notifies() bool { return p.notifies.Load() }

// setNotifies sets the result of Notifies.
func (p *Pool) setNotifies(now time.Time) {
	p.notifies.Store(p.Coherence != nil && !p.unsupported && !now.Before(p.pausedUntil))
}

// Vouches reports whether a session vouches for its answers now: that of the connection of a call, or any if the call is nil.
func (p *Pool) Vouches(call *Call) bool {
	if p.Coherence == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Coherence.Now()
	if call != nil {
		for _, f := range call.flights {
			if f.conn.vouches(now) {
				return true
			}
		}
		return false
	}
	for _, list := range [2][]*conn{p.conns, p.retired} {
		for _, c := range list {
			if c.vouches(now) {
				return true
			}
		}
	}
	return false
}

// HeartbeatAge returns the time since the last heartbeat of a session was sent, at the latest; false without an open session
// that has had one.
func (p *Pool) HeartbeatAge() (age time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range [2][]*conn{p.conns, p.retired} {
		for _, c := range list {
			if c.session == nil || !c.session.open {
				continue
			}
			if a, heard := c.session.Age(); heard && (!ok || a < age) {
				age, ok = a, true
			}
		}
	}
	return age, ok
}

// mayOpen reports whether a connection may request a session. Until the server is known to have sessions only one connection
// does at a time.
func (p *Pool) mayOpen(c *conn, now time.Time) bool {
	return !p.unsupported && !p.closing && !now.Before(p.pausedUntil) && (p.known || p.probe == nil || p.probe == c)
}

// primary returns the connection that stays open for its session while it is idle, or nil: the first one whose answers depend
// on the session. Queries are sent on the first connection with room, so that further ones are those of bursts.
func (p *Pool) primary() *conn {
	if p.Coherence == nil || p.closing {
		return nil
	}
	for _, c := range p.conns {
		if c.session != nil && c.session.open && c.session.Len() > 0 {
			return c
		}
	}
	return nil
}

// maxAge returns the time in which a connection gets queries; 0 is no limit.
func (p *Pool) maxAge(c *conn) time.Duration {
	if c.session != nil && c.session.open && c.session.Len() > 0 {
		return p.Coherence.MaxAge
	}
	return p.MaxAge
}

// refused records that the server has no sessions. It is not probed again unless it had one before.
func (p *Pool) refused(reason string, now time.Time) {
	p.Coherence.Fallbacks[SessionUnsupported].Inc()
	if !p.known {
		p.unsupported = true
	}
	if !p.reported {
		p.reported = true
		go p.Log(fmt.Sprintf("opens no session (%s): its answers are valid for their TTL", reason))
	}
	p.pauseSessions(sessionPause, now)
}

// pauseSessions opens no session for a while.
func (p *Pool) pauseSessions(d time.Duration, now time.Time) {
	p.probe, p.closes = nil, 0
	if until := now.Add(d); until.After(p.pausedUntil) {
		p.pausedUntil = until
	}
	p.setNotifies(now)
}

// sessionLost ends the session of a lost connection. It reports whether the server has closed the connection because of a
// Session request, or this side because of a DSO message.
func (p *Pool) sessionLost(c *conn, err error, now time.Time) (because bool) {
	if p.Coherence == nil {
		return false
	}
	if p.probe == c {
		p.probe = nil
	}
	s := c.session
	switch {
	case s == nil:
	case c.violation != nil && s.open:
		p.pauseSessions(sessionPause, now)
		because = true
	case c.violation != nil:
		p.refused(c.violation.Error(), now)
		because = true
	case s.awaits && !s.open && closedByServer(err) && now.Sub(s.sentAt) < patience:
		if p.closes++; c.answered > 0 || p.closes >= maxClosedRequests {
			p.refused("closes the connection", now)
			because = true
		}
	}
	if s != nil && s.open {
		fallsBack := s.Len() > 0 || closedByServer(err)
		c.endSession()
		if fallsBack {
			p.Coherence.Fallbacks[SessionClosed].Inc()
		}
	}
	return because
}

// handshakeFailed processes a failed handshake: the server behind the address may be another one after it.
func (p *Pool) handshakeFailed(now time.Time) {
	if p.Coherence != nil {
		p.unsupported, p.probe, p.closes = false, nil, 0
		p.setNotifies(now)
	}
}

// tend sends the Session request of a connection that is due, and counts the silence of its session. Without beats the
// process may have heartbeats that it has not read.
func (p *Pool) tend(c *conn, now time.Time, beats bool) {
	if p.Coherence == nil || c.c == nil || c.retired || c.closed {
		return
	}
	s := c.session
	switch {
	case s == nil || !s.open && !s.awaits:
		if p.mayOpen(c, now) {
			c.openSession(now)
		}
	case s.awaits && !s.open && now.Sub(s.sentAt) >= patience && c.lastAnswer.After(s.sentAt):
		c.endSession() // it answers queries only
		p.refused("does not answer a DSO message", now)
	case s.open && !s.awaits && !now.Before(s.nextAt):
		c.request(now)
	}
	if beats {
		c.noteSilence(now)
	}
}

// noteSilence counts the begin of a silence.
func (c *conn) noteSilence(now time.Time) {
	s := c.session
	if s != nil && s.open && !s.quiet && !now.Before(s.grace) && !s.Vouches(c.pool.Coherence.Now()) {
		s.quiet = true
		c.pool.Coherence.Fallbacks[SessionSilent].Inc()
	}
}

// vouches reports whether the session of the connection vouches for its answers.
func (c *conn) vouches(now time.Duration) bool {
	return c.session != nil && c.session.open && c.session.Vouches(now)
}

// heardLately reports whether the connection has delivered a DSO message lately: a query without an answer does not mean that
// the connection is dead.
func (c *conn) heardLately(now time.Time) bool {
	return c.session != nil && now.Sub(c.session.heardAt) < coherence.Silence
}
