package fastpath

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestInactiveSession: a DSO session without notifications, whose client sends Keepalive messages only, is aborted after five
// seconds or twice the timeout (RFC 8490 section 6.4.1).
func TestInactiveSession(t *testing.T) {
	offer(t)
	for timeout, limit := range map[time.Duration]time.Duration{time.Second: minInactivity, time.Hour: 2 * time.Hour} {
		l, address := newStreamListener(t, echo, func(s *server) { s.IdleTimeout = timeout })
		c := &sessionClient{dialTCP(t, address), t}
		keepalive := func() {
			c.send(dso.AppendKeepalive(nil, 1, false, dso.Timeouts{}))
			c.next()
		}
		keepalive()
		conn := serverEnd(t, l, c)
		since := func(d time.Duration) {
			kit.Eventually(t, "the query has ended", func() bool {
				conn.mu.Lock()
				defer conn.mu.Unlock()
				return conn.inFlight.Load() == 0
			})
			keepalive() // the messages before it are processed
			conn.active.Store(int64(validity.Now() - d))
		}
		c.ask("www.example.")
		since(limit - time.Second)
		conn.expire(validity.Now())
		keepalive()
		keepalive()
		if idle := validity.Now() - time.Duration(conn.active.Load()); idle < limit-time.Second {
			t.Errorf("inactive for %v after a Keepalive message, want more than %v", idle, limit-time.Second)
		}
		since(limit + time.Second)
		c.wantReset()
	}
}

// TestSilentKeepalive has a DSO session without notifications whose client sends nothing for twice the keepalive interval: it is
// aborted, however long the timeout for inactivity is (RFC 8490 section 6.5.1).
func TestSilentKeepalive(t *testing.T) {
	offer(t)
	l, address := newStreamListener(t, echo, func(s *server) { s.IdleTimeout = time.Hour })
	c := &sessionClient{dialTCP(t, address), t}
	c.send(dso.AppendKeepalive(nil, 1, false, dso.Timeouts{}))
	c.next()
	conn := serverEnd(t, l, c)
	conn.expire(validity.Now())
	c.send(dso.AppendKeepalive(nil, 2, false, dso.Timeouts{}))
	c.next()
	kit.Eventually(t, "the connection is closed", func() bool { // the message may be recorded as heard meanwhile
		conn.mu.Lock()
		conn.session.heard -= sessionSilence
		conn.mu.Unlock()
		conn.expire(validity.Now())
		return !connectionIsOpen(conn)
	})
	c.wantReset()
}

// wantRetryDelay checks that the server ends the session.
func (c *sessionClient) wantRetryDelay() {
	c.t.Helper()
	m := c.next()
	primary, _ := m.Primary()
	delay, ok := dso.ReadRetryDelay(primary.Data)
	if primary.Type != dso.RetryDelay || !m.Unidirectional() || m.Rcode != dso.NoError || !ok || delay != 0 {
		c.t.Fatalf("%+v, want a retry delay of 0", m)
	}
}

// TestSessionsAtStop ends sessions with a retry delay, when the listener stops and when sessions are not offered any more.
func TestSessionsAtStop(t *testing.T) {
	for name, end := range map[string]func(l *listener, withdraw func()){
		"stop":    func(l *listener, _ func()) { go l.drainStreams() },
		"offered": func(_ *listener, withdraw func()) { withdraw() },
	} {
		t.Run(name, func(t *testing.T) {
			withdraw := offer(t)
			l, address := newStreamListener(t, echo)
			stateful := &sessionClient{dialTCP(t, address), t}
			stateful.send(dso.AppendKeepalive(nil, 1, false, dso.Timeouts{}))
			stateful.next()
			sessions := []*sessionClient{dialSession(t, address), dialSession(t, address)}
			if name == "stop" { // a DSO session without notifications remains until its timeout
				sessions = append(sessions, stateful)
			}
			end(l, withdraw)
			for _, c := range sessions {
				c.wantRetryDelay()
				c.endSending()
				c.wantEnd()
			}
		})
	}
}

// TestNothingAfterRetryDelay ends a session with a query in progress: neither its reply nor a response to a later request is
// behind the message, and a client that does not close the connection is disconnected (RFC 8490 section 6.6.1).
func TestNothingAfterRetryDelay(t *testing.T) {
	offer(t)
	release := make(chan struct{})
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if m.Question[0].Name == "slow.example." {
			<-release
		}
		echo(w, m)
	})
	closes, remains := dialSession(t, address), dialSession(t, address)
	for _, c := range []*sessionClient{closes, remains} {
		conn := serverEnd(t, l, c)
		kit.Send(t, c, framed(t, 3, "slow.example."))
		kit.Eventually(t, "the query is in progress", func() bool { return conn.inFlight.Load() == 1 })
		conn.drain()
		c.wantRetryDelay()
	}
	closes.send(dso.AppendSessionRequest(nil, 4))
	kit.Send(t, closes, framed(t, 5, "late.example."))
	conn := serverEnd(t, l, remains)
	close(release)
	kit.Eventually(t, "the reply was made", func() bool { return conn.inFlight.Load() == 0 })
	closes.endSending()
	closes.wantEnd()
	conn.mu.Lock()
	left := conn.lingering - validity.Now()
	conn.lingering -= delayedTime
	conn.mu.Unlock()
	if left <= 0 || left > delayedTime {
		t.Errorf("the client has %v to close the connection, want %v", left, delayedTime)
	}
	remains.wantReset()
}

// TestSessionWhileEnding requests a session on a connection that the server is about to end: the failure is temporary.
func TestSessionWhileEnding(t *testing.T) {
	offer(t)
	l, address := newStreamListener(t, echo)
	c := dialSession(t, address)
	conn := serverEnd(t, l, c)
	conn.mu.Lock()
	conn.drainEnd = validity.Now() + time.Hour
	conn.mu.Unlock()
	c.send(dso.AppendSessionRequest(nil, 5))
	if m := c.next(); m.ID != 5 || m.Rcode != dso.ServerFailure {
		t.Errorf("response %+v, want SERVFAIL", m)
	}
}
