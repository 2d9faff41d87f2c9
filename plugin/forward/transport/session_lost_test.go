package transport

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestSession_ClosedWhileSilent: this side closes the connection to a server that hangs. Its answers do not lapse: they could not
// be fetched again, and have their TTL.
func TestSession_ClosedWhileSilent(t *testing.T) {
	for name, end := range map[string]func(b *coherentBed, c *session){
		"an answer is late": func(b *coherentBed, c *session) {
			late := b.send("late.example.")
			c.query()
			b.Late(late.Call)
			b.Cancel(late.Call)
		},
		"idle": func(b *coherentBed, _ *session) { b.retireAll() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newCoherent(t, newServer(t), 100, 1)
			c := b.begin()
			v := b.learn(c, "a.example.", 1)
			b.clock.skip(vouch.Silence)
			end(b, c)
			becomes(t, "sessions", b.Coherence.Sessions, 0)
			if v.Lapsed() || v.Ended() {
				t.Errorf("lapsed %t, ended %t", v.Lapsed(), v.Ended())
			}
		})
	}
}

// TestSession_HungServerHeard: a server hangs when a request is repeated, and its last heartbeat is on the way. The heartbeat does
// not show that it ignores the request: the next connection has a session.
func TestSession_HungServerHeard(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	b.clock.skip(compareEvery)
	c.request()
	c.respond(b.beat())
	kit.Eventually(t, "the heartbeat is received", func() bool { return v.Vouches(b.Coherence.Now()) })
	b.clock.skip(responseTime)
	c.aborted()
	b.begin()
	becomes(t, "sessions", b.Coherence.Sessions, 1)
}

// TestSession_AnswersNothing: a server that sends heartbeats, and answers no query for longer than it may hold one, is as one
// without a session. Its answers do not lapse, since it could not be queried for them.
func TestSession_AnswersNothing(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	s := b.send("held.example.")
	c.query()
	works := func(want bool) {
		t.Helper()
		c.respond(b.beat())
		kit.Eventually(t, "the session vouches", func() bool { return v.Vouches(b.Coherence.Now()) })
		b.Late(s.Call)
		_, answers, held := b.State(s.Call)
		if got := [4]bool{held, b.Vouches(s.Call), b.Vouches(nil), b.connsNow() > 0}; got != [4]bool{want, want, want, want} || answers {
			t.Errorf("held, the session of the query and any vouch, the connection gets queries: %v, want %t; answers %t", got, want, answers)
		}
	}
	works(true)
	b.clock.skip(MaxHold / 2)
	works(true)
	b.clock.skip(MaxHold / 2)
	works(false)
	other := b.send("other.example.")
	next := b.accept()
	next.respond(b.opening(next.request()))
	next.query()
	becomes(t, "sessions", b.Coherence.Sessions, 2)
	b.Cancel(s.Call)
	becomes(t, "sessions", b.Coherence.Sessions, 1)
	if v.Lapsed() {
		t.Error("the answers have lapsed")
	}
	b.Cancel(other.Call)
}

// TestSession_AnswersOthers: a server that answers other queries may hold one.
func TestSession_AnswersOthers(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	held := b.send("held.example.")
	q := c.query()
	b.clock.skip(MaxHold - time.Second)
	b.learn(c, "a.example.", 1)
	b.clock.skip(time.Second)
	c.respond(b.beat())
	kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(held.Call) })
	if b.Late(held.Call); b.connsNow() != 1 {
		t.Error("the connection gets no more queries")
	}
	c.respond(answer(q))
	held.answered()
}

// TestSession_LostAnswersLapse: after a switch to another session that works, the answers of the lost one are fetched again as they
// are used. Those of other sessions are not.
func TestSession_LostAnswersLapse(t *testing.T) {
	lose := func(b *coherentBed, c *session) {
		c.reset()
		becomes(t, "sessions", b.Coherence.Sessions, 0)
	}
	t.Run("another connection", func(t *testing.T) {
		b := newCoherent(t, newServer(t), 100, 1)
		for range 3 {
			c := b.begin()
			v := b.learn(c, "a.example.", 1)
			lose(b, c)
			if v.Lapsed() {
				t.Error("the answers have lapsed, although no server works")
			}
			defer func() {
				if !v.Lapsed() || v.Ended() {
					t.Errorf("lapsed %t, ended %t", v.Lapsed(), v.Ended())
				}
			}()
		}
		b.learn(b.begin(), "b.example.", 1)
	})
	t.Run("another connection without a query", func(t *testing.T) {
		b := newCoherent(t, newServer(t), 100, 1)
		c := b.begin()
		v := b.learn(c, "a.example.", 1)
		b.refuse()
		dials := b.dials.Load()
		lose(b, c)
		kit.Eventually(t, "a connection is tried", func() bool { return b.dials.Load() > dials })
		if v.Lapsed() {
			t.Error("the answers have lapsed, although no server works")
		}
		b.again()
		c = b.accept()
		c.respond(b.opening(c.request()), b.beat())
		kit.Eventually(t, "the answers have lapsed", v.Lapsed)
	})
	t.Run("one that answers nothing", func(t *testing.T) {
		b := newCoherent(t, newServer(t), 100, 1)
		c := b.begin()
		v := b.learn(c, "a.example.", 1)
		lose(b, c)
		s := b.send("www.example.")
		c = b.accept()
		c.respond(b.opening(c.request()), b.beat())
		q := c.query()
		kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(nil) })
		if v.Lapsed() {
			t.Error("the answers have lapsed before an answer")
		}
		c.respond(answer(q))
		s.answered()
		if !v.Lapsed() {
			t.Error("the answers have not lapsed")
		}
	})
	t.Run("one of two connections", func(t *testing.T) {
		b := newCoherent(t, newServer(t), 1, 2)
		c := b.begin()
		first := b.learn(c, "a.example.", 1)
		held := b.send("held.example.")
		q := c.query()
		other := b.send("b.example.")
		second := b.accept()
		second.respond(b.opening(second.request()), answerWith(second.query(), 1), b.beat())
		other.answered()
		second.close()
		becomes(t, "sessions", b.Coherence.Sessions, 1)
		if other.Voucher.Lapsed() {
			t.Error("the answers have lapsed before an answer")
		}
		c.respond(answer(q))
		held.answered()
		if first.Lapsed() || !other.Voucher.Lapsed() {
			t.Errorf("lapsed: %t that of the open session, %t that of the lost one", first.Lapsed(), other.Voucher.Lapsed())
		}
	})
	t.Run("another upstream", func(t *testing.T) {
		a, b := newCoherent(t, newServer(t), 100, 1), newCoherent(t, newServer(t), 100, 1)
		b.Coherence.Lost = a.Coherence.Lost
		c, other := a.begin(), b.begin()
		v, open := a.learn(c, "a.example.", 1), b.learn(other, "a.example.", 1)
		lose(a, c)
		b.learn(other, "b.example.", 2)
		if !v.Lapsed() || open.Lapsed() {
			t.Errorf("lapsed: %t that of the lost session, %t that of the open one", v.Lapsed(), open.Lapsed())
		}
	})
}
