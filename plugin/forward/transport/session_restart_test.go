package transport

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestSession_Restart: the first connection to a server that has restarted has a session.
func TestSession_Restart(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	for n := 1; n <= 3; n++ {
		c := b.begin()
		pending := b.send("pending.example.")
		c.query()
		b.refuse()
		c.reset()
		_ = pending.fails()
		b.wantFallbacks(map[string]int{SessionClosed: n})
		for range 3 { // connections are refused
			b.clock.skip(b.maxBackoff)
			_ = b.send("www.example.").fails()
		}
		b.again()
		b.clock.skip(b.maxBackoff)
	}
	b.begin()
	b.wantFallbacks(map[string]int{SessionClosed: 3})
}

// TestSession_RestartBehindProxy: a proxy closes connections while the server restarts. The pause before another session is
// short, and the server is not classified.
func TestSession_RestartBehindProxy(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	b.closesNew.Store(true)
	c.close()
	for range 12 {
		_ = b.send("lost.example.").fails()
		b.mu.Lock()
		pause := b.pausedUntil.Sub(b.now())
		b.mu.Unlock()
		if pause > maxBriefPause {
			t.Fatalf("no session for %v", pause)
		}
		b.clock.skip(maxBriefPause)
	}
	b.closesNew.Store(false)
	b.begin()
	b.wantFallbacks(map[string]int{SessionClosed: 1})
}

// TestSession_DropsRequests: another server, which closes connections because of a request, is behind the address of one that
// had sessions. It gets few requests.
func TestSession_DropsRequests(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	b.begin().close()
	becomes(t, "connections", b.Metrics.Connections, 0)
	s := b.send("www.example.")
	c := b.accept()
	c.request()
	c.close()
	c = b.accept() // in the pause
	c.respond(answer(c.query()))
	s.answered()
	b.wantFallbacks(map[string]int{SessionClosed: 1})
	b.clock.skip(maxBriefPause)
	c.request()
	c.close()
	b.wantFallbacks(map[string]int{SessionClosed: 1, SessionUnsupported: 1})
	b.clock.skip(sessionPause - time.Second)
	s = b.send("www.example.")
	c = b.accept()
	c.respond(answer(c.query())) // a request would be the first message
	s.answered()
}

// TestJitter: clients that have lost their sessions at the same time connect at different times.
func TestJitter(t *testing.T) {
	const d = 800 * time.Millisecond
	parts := [4]int{}
	for range 1000 {
		got := jittered(d)
		if got > d || got <= d/2 {
			t.Fatalf("%v of %v", got, d)
		}
		parts[(got-d/2-1)*4/(d/2)]++
	}
	for _, n := range parts {
		if n < 100 {
			t.Fatalf("%v in the quarters of the time", parts)
		}
	}
}

// TestSession_SilentServer: a server that ignores the request is recognized after 30 seconds, RFC 8490 section 5.1.1. No query
// fails, and the connection remains until then.
func TestSession_SilentServer(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	b.Expire, b.MaxAge = 10*time.Second, 15*time.Second
	first := b.send("first.example.")
	c := b.acceptFirst()
	c.respond(answer(c.query()))
	c.request()
	first.answered()
	for range 2 {
		b.clock.skip(responseTime/2 - time.Second)
		time.Sleep(20 * time.Millisecond) // several checks
		s := b.send("www.example.")
		c.respond(answer(c.query()))
		s.answered()
	}
	if !b.Notifies() {
		t.Error("classified before the end of the time")
	}
	pending := b.send("pending.example.")
	c.query()
	b.clock.skip(2 * time.Second)
	c.aborted()
	next := b.accept()
	next.respond(answer(next.query()))
	pending.answered()
	b.wantLog("opens no session (does not answer")
	b.wantFallbacks(map[string]int{SessionUnsupported: 1})
	if n := b.dials.Load(); n != 2 || b.Notifies() {
		t.Errorf("%d connections, queries request notification: %t", n, b.Notifies())
	}
}

// TestSession_HungServer: a server that is stopped answers nothing. The connection is aborted, and the next one has a session.
func TestSession_HungServer(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	b.clock.skip(compareEvery)
	c.request()
	pending := b.send("pending.example.")
	c.query()
	b.clock.skip(responseTime)
	c.aborted()
	next := b.accept()
	next.respond(b.opening(next.request()), answer(next.query()), b.beat())
	pending.answered()
	becomes(t, "sessions", b.Coherence.Sessions, 1)
	b.wantFallbacks(map[string]int{SessionSilent: 1, SessionClosed: 1})
}

// refuseOne answers a query and the first Session request of the pool: the server has no sessions.
func (b *coherentBed) refuseOne() *session {
	b.t.Helper()
	s := b.send("first.example.")
	c := b.acceptFirst()
	c.respond(answer(c.query()))
	c.respond(dso.AppendErrorResponse(nil, id(c.request()), dso.NotImplemented))
	s.answered()
	b.wantFallbacks(map[string]int{SessionUnsupported: 1})
	return c
}

// withoutRequest sends a query, and fails if a Session request precedes or follows it.
func (b *coherentBed) withoutRequest(c *session) *session {
	b.t.Helper()
	for range 2 {
		s := b.send("www.example.")
		if c == nil {
			c = b.accept()
		}
		c.respond(answer(c.query()))
		s.answered()
	}
	return c
}

// TestSession_Replaced: the server without sessions is replaced by one with sessions, behind the same address.
func TestSession_Replaced(t *testing.T) {
	for name, close := range map[string]func(*coherentBed, *session){
		"a used connection is closed": func(b *coherentBed, c *session) { b.withoutRequest(c).close() },
		"in the first minutes": func(b *coherentBed, c *session) {
			b.clock.skip(time.Minute)
			c.end()
			b.withoutRequest(nil).close()
		},
		"a query is in flight": func(b *coherentBed, c *session) {
			s := b.send("www.example.")
			c.query()
			c.reset()
			next := b.accept()
			next.respond(answer(next.query()))
			s.answered()
			b.retireAll()
			next.end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCoherent(t, newServer(t), 100, 1)
			close(b, b.refuseOne())
			becomes(t, "connections", b.Metrics.Connections, 0)
			c := b.withoutRequest(nil)
			b.clock.skip(b.Expire)
			c.end()
			b.clock.skip(probePause)
			s := b.send("www.example.")
			c = b.accept()
			c.respond(answer(c.query()), b.opening(c.request()), b.beat())
			s.answered()
			kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(nil) && b.Notifies() })
			b.learn(c, "a.example.", 1)
			b.wantFallbacks(map[string]int{SessionUnsupported: 1})
		})
	}
}

// TestSession_NotReplaced: a server without sessions is probed every hour at most while it closes no used connection, and one
// that violates the protocol in any case.
func TestSession_NotReplaced(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.refuseOne()
	for range 11 {
		b.clock.skip(b.Expire / 2)
		c.close() // an idle connection
		becomes(t, "connections", b.Metrics.Connections, 0)
		b.clock.skip(abortPause/12 - b.Expire/2)
		c = b.withoutRequest(nil)
	}
	b.clock.skip(b.Expire)
	c.end()
	b.clock.skip(abortPause / 12)
	s := b.send("www.example.")
	c = b.accept()
	c.respond(answer(c.query()), dso.AppendHeader(nil, id(c.request()), true, dso.NoError)) // without the TLV
	s.answered()
	c.aborted()
	b.wantFallbacks(map[string]int{SessionUnsupported: 2})
	for range 11 {
		b.withoutRequest(nil).close()
		becomes(t, "connections", b.Metrics.Connections, 0)
		b.clock.skip(probePause)
	}
}
