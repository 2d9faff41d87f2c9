package transport

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// Coherence configures the sessions of a Pool: its connections for many queries request notification of the answers that end
// (RFC 8490, see package dso). It is for plain TCP.
type Coherence struct {
	// Now is the clock of the answers' validity.
	Now func() time.Duration
	// MaxAge replaces that of Config for a connection with a session on whose handles answers depend; 0 is no limit.
	MaxAge time.Duration

	// Lost has the lost sessions of all servers that answer the same queries.
	Lost *LostSessions

	Sessions      prometheus.Gauge              // open
	Invalidations prometheus.Counter            // handles that the server has invalidated
	Fallbacks     map[string]prometheus.Counter // of answers to their TTL, by each of FallbackReasons
}

// Reasons for which the TTL of answers applies.
const (
	SessionClosed      = "closed"
	SessionSilent      = "silent"      // no heartbeat for longer than vouch.Silence
	SessionClock       = "clock"       // the clocks are compared again: one of the machines was suspended
	SessionUnsupported = "unsupported" // by the server
	SessionDelayed     = "retry_delay" // the server has requested a delay, RFC 8490 section 7.2
	SessionLimit       = "limit"       // of the handles of a session, beyond which an answer has no voucher
)

// FallbackReasons returns all reasons for which the TTL of answers applies.
func FallbackReasons() []string {
	return []string{SessionClosed, SessionSilent, SessionClock, SessionUnsupported, SessionDelayed, SessionLimit}
}

// MaxHold is the maximum time for which a server with sessions holds a query until a name exists (4 s), plus the time on the
// network. A server whose session is heard, and that answers nothing for this time, does not work.
const MaxHold = 4200 * time.Millisecond

const (
	// sessionPause is the time without new sessions after a server has refused one, doubled each time up to
	// sessionPause<<maxPauseShift.
	sessionPause  = 10 * time.Second
	maxPauseShift = 6
	// briefPause is that time after a server that had sessions has closed a connection before it opened another session, as a
	// server that restarts behind the address of a Service; it is doubled each time up to maxBriefPause. A random part, at most
	// half of it, is subtracted: all clients of the server have lost their sessions at the same time.
	briefPause    = 100 * time.Millisecond
	maxBriefPause = time.Second
	// maxSilence is the time for which a session may be silent before its connection is as one without a session.
	maxSilence = 30 * time.Second
	// minSession is the minimum duration of a session that does not count as ended at once.
	minSession = time.Second
	// abortPause is the time without sessions after this side has aborted a connection, or the server has closed one because
	// of a request, RFC 8490 sections 5.1.1 and 6.6.3. It is also the time after which a server without sessions is probed
	// again, with a new connection.
	abortPause = time.Hour
	// probePause is that time for a server that has answered with an error, and has closed a connection since then: the next
	// connection may reach another server behind the same address.
	probePause = 5 * time.Minute
	// maxRetryDelay limits a Retry Delay: a node without cluster DNS for longer is no service to the server.
	maxRetryDelay = time.Hour
	// maxClosedRequests is the number of successive connections closed without an answer, and without the response to their
	// first Session request, after which the request counts as the reason. One may be chance: a server that restarts.
	maxClosedRequests = 2
)

// errDelay is the error of a query that needs a connection before the end of the server's Retry Delay.
var errDelay = errors.New("the server has requested a delay")

// coherent is the state of a pool's sessions.
type coherent struct {
	sessions    int   // open
	probe       *conn // has sent the first request to a server that may have no sessions; other connections wait for the response
	known       bool  // the server has opened a session
	unsupported bool  // the server has no sessions
	reported    bool  // a refusal was logged
	aborted     bool  // the last refusal was no error in a response: a violation of the protocol, or a close
	refusals    int   // successive ones
	closes      int   // see maxClosedRequests
	pauses      int   // successive brief ones
	reopens     bool  // a connection is opened soon, see reopenSession
	pausedUntil time.Time
	refusedAt   time.Time // of the last refusal
	leftAt      time.Time // the server has closed a connection for another reason than its idle time
	// delayedUntil is the end of a Retry Delay: no connection is opened before it, RFC 8490 section 6.6.3.
	delayedUntil time.Time
}

// Notifies reports whether the server may answer a query with handles: it has sessions, or that is not known yet.
func (p *Pool) Notifies() bool {
	return p.Coherence != nil && p.Coherence.Now() >= time.Duration(p.notifiesFrom.Load())
}

// setNotifies sets the time from which Notifies returns true.
func (p *Pool) setNotifies(now time.Time) {
	from := time.Duration(math.MaxInt64)
	switch {
	case p.sessions > 0:
		from = 0
	case !p.unsupported:
		from = p.Coherence.Now() + p.pausedUntil.Sub(now)
	}
	p.notifiesFrom.Store(int64(from))
}

// Vouches reports whether a session vouches for its answers now, and the server answers queries: the session of the call's
// connection, or any session if the call is nil.
func (p *Pool) Vouches(call *Call) bool {
	if p.Coherence == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if call != nil {
		for _, f := range call.flights {
			if f.conn.works(now) {
				return true
			}
		}
		return false
	}
	for _, list := range [2][]*conn{p.conns, p.retired} {
		for _, c := range list {
			if c.works(now) {
				return true
			}
		}
	}
	return false
}

// OpenSession opens a connection with a session before the first query: answers that are received without a session have their TTL.
func (p *Pool) OpenSession() {
	if p.Coherence == nil {
		return
	}
	p.mu.Lock()
	defer p.unlockInCaller(nil)
	p.openFirst(p.now())
}

// reopenSession opens a connection soon if answers of lost sessions wait for a new one, in which they can be fetched again. After
// each failed handshake it waits for longer.
func (p *Pool) reopenSession() {
	if p.Coherence == nil || p.closing || p.unsupported || p.reopens || !p.Coherence.Lost.some.Load() {
		return
	}
	p.reopens = true
	time.AfterFunc(jittered(min(maxBriefPause<<min(p.failures, 8), sessionPause)), func() {
		p.mu.Lock()
		defer p.unlockInCaller(nil)
		p.reopens = false
		p.openFirst(p.now())
	})
}

// openFirst opens a connection if there is none, for a session.
func (p *Pool) openFirst(now time.Time) {
	if len(p.conns) == 0 && !p.closing && p.mayConnect(now) {
		p.openShared()
	}
}

// WithoutSession returns the voucher of an answer of the server that was received by another carrier: nil while a session is open.
func (p *Pool) WithoutSession() *vouch.Voucher {
	if p.Coherence == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions > 0 {
		return nil
	}
	return p.withoutSession()
}

// withoutSession returns the voucher of an answer from before a session; nil if the server opens no session soon, since a session
// with another server would end the answer.
func (p *Pool) withoutSession() *vouch.Voucher {
	if !p.mayHaveSessions() || p.pausedUntil.Sub(p.now()) > maxBriefPause {
		return nil
	}
	return p.Coherence.Lost.voucher(p.Coherence.Now)
}

// HeartbeatAge returns the time since the last heartbeat of a session was sent, at most; false if no open session has had a
// heartbeat.
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
	return !p.closing && !now.Before(p.pausedUntil) && (!p.unsupported || p.mayProbe(c, now)) &&
		(p.known || p.probe == nil || p.probe == c)
}

// mayProbe reports whether a connection may request a session from a server that has refused one: the address may have another
// server by now, for example in place of CoreDNS.
func (p *Pool) mayProbe(c *conn, now time.Time) bool {
	since := now.Sub(p.refusedAt)
	left := !p.aborted && p.leftAt.After(p.refusedAt) && !c.opened.Before(p.leftAt)
	return c.opened.After(p.refusedAt) && (since >= abortPause || left && since >= probePause)
}

// mayHaveSessions reports whether the connections may have sessions, now or later.
func (p *Pool) mayHaveSessions() bool { return p.Coherence != nil && !p.unsupported }

// mayConnect reports whether a connection may be opened.
func (p *Pool) mayConnect(now time.Time) bool {
	return !now.Before(p.retryAt) && !now.Before(p.delayedUntil)
}

// connectError returns the error of a query without a connection while none may be opened.
func (p *Pool) connectError(now time.Time) error {
	if now.Before(p.delayedUntil) {
		return errDelay
	}
	return p.dialErr
}

// primary returns the connection that stays open for its session while it is idle, or nil: the first one whose answers depend
// on the session. Queries are sent on the first connection with room, so that further connections are for bursts.
func (p *Pool) primary() *conn {
	if p.Coherence == nil || p.closing {
		return nil
	}
	for _, c := range p.conns {
		if c.hasDependents() {
			return c
		}
	}
	return nil
}

// maxAge returns the time in which a connection gets queries; 0 is no limit.
func (p *Pool) maxAge(c *conn) time.Duration {
	if c.hasDependents() {
		return p.Coherence.MaxAge
	}
	return p.MaxAge
}

// hasDependents reports whether answers depend on the session of the connection. After a silence of maxSilence they do not: the
// server may have a frozen view of the cluster, and another one may be behind the same address. A shorter silence does not count: the
// session has received every change when it is heard again.
func (c *conn) hasDependents() bool {
	s := c.session
	return s != nil && s.open && s.Len() > 0 && c.pool.Coherence.Now() < s.LastVouched()+maxSilence
}

// sessionOpened records that the server has sessions.
func (p *Pool) sessionOpened(now time.Time) {
	p.probe, p.known, p.unsupported, p.reported = nil, true, false, false
	p.refusals, p.closes = 0, 0
	p.sessions++
	p.Coherence.Sessions.Inc()
	p.setNotifies(now)
}

// refused records that the server has no sessions. A server that had a session before is tried again after a pause, another
// one as mayProbe permits. aborted is false if the server has sent an error.
func (p *Pool) refused(reason string, aborted bool, now time.Time) {
	p.refusedAt, p.aborted, p.closes = now, aborted, 0
	if !p.known {
		p.unsupported = true
	}
	if !p.reported {
		p.reported = true
		go p.Log(fmt.Sprintf("opens no session (%s): its answers are valid for their TTL", reason))
	}
	p.pauseSessions(sessionPause<<min(p.refusals, maxPauseShift), now)
	p.refusals++
	p.Coherence.Fallbacks[SessionUnsupported].Inc()
}

// violated records that the server, which has sessions, has violated the protocol.
func (p *Pool) violated(violation error, now time.Time) {
	go p.Log(fmt.Sprintf("%v: no session for %v, its answers are valid for their TTL", violation, abortPause))
	p.pauseSessions(abortPause, now)
}

// pauseBriefly pauses new sessions for a short, random time.
func (p *Pool) pauseBriefly(now time.Time) {
	p.pauseSessions(jittered(min(briefPause<<min(p.pauses, 8), maxBriefPause)), now)
	p.pauses++
}

// pauseUntilReady opens no session for a while: the server has sessions, but not now.
func (p *Pool) pauseUntilReady(now time.Time) {
	if p.known {
		p.pauseBriefly(now)
	} else {
		p.pauseSessions(sessionPause, now)
	}
}

// jittered returns a random time from half of d to d.
func jittered(d time.Duration) time.Duration {
	return d - rand.N(max(d/2, 1)) // #nosec G404 -- it only spreads load
}

// delay opens no session until a Retry Delay in milliseconds is over, RFC 8490 section 7.2.
func (p *Pool) delay(data []byte, now time.Time) (time.Duration, error) {
	milliseconds, ok := dso.ReadRetryDelay(data)
	if !ok {
		return 0, errMalformedDSO
	}
	d := min(time.Duration(milliseconds)*time.Millisecond, maxRetryDelay)
	p.pauseSessions(d, now)
	p.Coherence.Fallbacks[SessionDelayed].Inc()
	return d, nil
}

// pauseSessions opens no session for a while.
func (p *Pool) pauseSessions(d time.Duration, now time.Time) {
	p.probe = nil
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
	if c.violation == nil && closedByServer(err) && now.Sub(c.used) < c.idle/2 {
		p.leftAt = now
	}
	if s != nil && s.open && now.Sub(s.openedAt) >= minSession {
		p.pauses = 0
	}
	switch {
	case s == nil:
	case errors.Is(c.violation, errDelayed):
		because = true
	case errors.Is(c.violation, errNoResponse) && !c.receivedAfterRequest(): // the server hangs
	case c.violation != nil && p.known:
		p.violated(c.violation, now)
		because = true
	case c.violation != nil:
		p.refused(c.violation.Error(), true, now)
		because = true
	case s.awaits && !s.open && closedByServer(err):
		because = p.closedBefore(c, now)
	}
	if s != nil && s.open {
		fallsBack, delayed := s.Len() > 0 || closedByServer(err), errors.Is(c.violation, errDelayed)
		c.endSession(delayed || c.violation == nil && errors.Is(err, net.ErrClosed) && c.works(now))
		if fallsBack && !delayed { // a delay is counted already
			p.Coherence.Fallbacks[SessionClosed].Inc()
		}
		p.setNotifies(now)
		p.reopenSession()
	}
	return because
}

// receivedAfterRequest reports whether the server has sent messages since it must have read the last Session request, to which it
// has not responded. In an open session, messages that were on their way at the request do not count.
func (c *conn) receivedAfterRequest() bool {
	s := c.session
	read := s.sentAt
	if s.open {
		read = read.Add(responseTime / 2)
	}
	return latest(s.heardAt, c.lastAnswer).After(read)
}

// closedBefore processes the close of a connection before the response to its Session request, and reports whether the server
// has closed it because of the request. A server that had sessions, and answers nothing, is restarting.
func (p *Pool) closedBefore(c *conn, now time.Time) (because bool) {
	p.closes++
	answers, repeated := c.answered > 0, p.closes >= maxClosedRequests
	if because = answers && repeated || !p.known && (answers || repeated); because {
		p.refused("closes the connection", true, now)
	} else if p.known {
		p.pauseBriefly(now)
	}
	return because
}

// handshakeFailed processes a failed handshake: the server behind the address may be another one after it.
func (p *Pool) handshakeFailed(now time.Time) {
	if p.Coherence != nil {
		p.unsupported, p.probe, p.closes, p.refusals, p.pausedUntil = false, nil, 0, 0, time.Time{}
		p.setNotifies(now)
	}
}

// tend sends the Session request of a connection if it is due, and with beats counts the silence of its session: beats is false if
// heartbeats may wait to be read.
func (p *Pool) tend(c *conn, now time.Time, beats bool) {
	if p.Coherence == nil || c.c == nil || c.retired || c.closed {
		return
	}
	s := c.session
	switch {
	case s == nil:
		if p.mayOpen(c, now) {
			c.openSession(now)
		}
	case s.rejected:
		if p.mayOpen(c, now) { // on another connection
			p.retire(c)
			p.openFirst(now)
		}
	case s.awaits && now.Sub(s.sentAt) >= responseTime:
		if c.violation == nil {
			c.violation = errNoResponse
			go p.lost(c, errNoResponse)
		}
	case s.open && !s.awaits && !now.Before(s.nextAt):
		c.request(now)
	}
	if beats {
		c.noteSilence(now)
	}
}

// beginSession requests a session on an established connection, to which nothing was written. A server that is known to have
// sessions gets the request before the queries, so that the answer to the first one has handles. Any other server gets it behind
// them, since it may close the connection, and so does any server if the first query has edns-tcp-keepalive (RFC 8490 section 7.1.2).
func (c *conn) beginSession() {
	p := c.pool
	queries := len(c.out)
	p.tend(c, c.opened, false)
	if len(c.out) == queries {
		return
	}
	if p.known && !c.hasKeepAlive {
		c.out = slices.Concat(c.out[queries:], c.out[:queries])
	}
	c.unsent, p.unsent = false, p.unsent[:0]
	c.wakeWriter()
}

// awaitsSession reports whether the connection awaits the response to its first Session request. responseTime limits the wait.
func (c *conn) awaitsSession() bool { return c.session != nil && c.session.awaits && !c.session.open }

// noteSilence counts the begin of a silence.
func (c *conn) noteSilence(now time.Time) {
	s := c.session
	if s != nil && s.open && !s.quiet && !now.Before(s.grace) && !s.Vouches(c.pool.Coherence.Now()) {
		s.quiet = true
		c.pool.Coherence.Fallbacks[SessionSilent].Inc()
	}
}

// works reports whether the session of the connection vouches for its answers, and the server answers queries.
func (c *conn) works(now time.Time) bool {
	return c.session != nil && c.session.open && c.session.Vouches(c.pool.Coherence.Now()) && !c.answersNothing(now)
}

// heardLately reports whether the connection has delivered a DSO message lately: a query without an answer does not mean that
// the connection is dead, unless the server answers nothing.
func (c *conn) heardLately(now time.Time) bool {
	return c.session != nil && now.Sub(c.session.heardAt) < vouch.Silence && !c.answersNothing(now)
}

// answersNothing reports whether the connection has delivered no answer for longer than the server may hold a query.
func (c *conn) answersNothing(now time.Time) bool {
	return !c.waitsSince.IsZero() && now.Sub(c.waitsSince) >= MaxHold
}
