package forward

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/coherence"
)

// TestCoherent_Held: an upstream that holds a query while its session vouches has not failed, and gets the query once.
func TestCoherent_Held(t *testing.T) {
	const held, answered = "held.example.", 1200 * time.Millisecond
	hold := func(name string) time.Duration {
		if name == held {
			return answered
		}
		return 0
	}
	count := func(s *sessionServer) (n int) {
		for _, m := range s.seen.all() {
			if m.Question[0].Name == held {
				n++
			}
		}
		return n
	}
	checks := func(s *sessionServer) int { return len(s.seen.all()) - count(s) - 1 } // and the first query
	t.Run("one upstream", func(t *testing.T) {
		s := startSessions(t)
		s.hold.Store(&hold)
		f := chainOf(t, stanzaOf("coherent\nfallback udp\nread_timeout 200ms\ntimeout 10s", s.addr))
		s.open(t, f)
		m := question(held)
		if a, v := throughChain(f, m); a.wrong(m) != "" || v == nil || a.took < answered {
			t.Errorf("%s after %v", a.wrong(m), a.took)
		}
		if n := count(s); n != 1 || upstreamOf(f, 0).doubted() || len(s.all()) != 1 {
			t.Errorf("%d queries over %d connections, the upstream is doubted: %t", n, len(s.all()), upstreamOf(f, 0).doubted())
		}
	})
	t.Run("beyond the timeout", func(t *testing.T) {
		s := startSessions(t)
		s.hold.Store(&hold)
		f := chainOf(t, stanzaOf("coherent\nread_timeout 100ms\ntimeout 600ms", s.addr))
		s.open(t, f)
		if a, _ := throughChain(f, question(held)); a.err == nil {
			t.Errorf("answer %v after %v", a.Msg, a.took)
		}
		if n := count(s); n != 1 || upstreamOf(f, 0).doubted() {
			t.Errorf("%d queries, the upstream is doubted: %t", n, upstreamOf(f, 0).doubted())
		}
	})
	t.Run("two upstreams", func(t *testing.T) {
		first, second := startSessions(t), startSessions(t)
		first.hold.Store(&hold)
		second.hold.Store(&hold)
		f := chainOf(t, stanzaOf("coherent\npolicy sequential\nread_timeout 200ms\ntimeout 10s", first.addr, second.addr))
		first.open(t, f)
		m := question(held)
		if a, _ := throughChain(f, m); a.wrong(m) != "" {
			t.Error(a.wrong(m))
		}
		if count(first) != 1 || count(second) != 1 || checks(first) != 0 {
			t.Errorf("%d and %d queries, %d checks of the first upstream", count(first), count(second), checks(first))
		}
	})
	t.Run("a silent session", func(t *testing.T) {
		s := startSessions(t)
		s.hold.Store(&hold)
		f := chainOf(t, stanzaOf("coherent\nread_timeout 200ms\ntimeout 600ms", s.addr))
		wantRight(t, f, false, "first.example.") // other than open, which waits for a heartbeat
		for _, c := range s.all() {
			c.mu.Lock()
			c.opened = false
			c.mu.Unlock()
		}
		u := upstreamOf(f, 0)
		within(t, "the session is silent", func() bool { return !u.vouches(nil) })
		time.Sleep(coherence.Silence)
		if a, _ := throughChain(f, question(held)); a.err == nil {
			t.Errorf("answer %v after %v", a.Msg, a.took)
		}
		if n := count(s); n < 2 {
			t.Errorf("%d queries, want a second one after read_timeout", n)
		}
	})
}

// TestCoherent_Reload: sessions end with their upstreams.
func TestCoherent_Reload(t *testing.T) {
	s := startSessions(t)
	f := chainOf(t, stanzaOf("coherent", s.addr))
	s.open(t, f)
	wire := overWire(t, f, question("www.example."))
	if !wire.voucher.Vouches(answers.Now()) {
		t.Fatal("the session does not vouch")
	}
	u := upstreamOf(f, 0)
	f.use(nil)
	within(t, "the session has ended", func() bool { return !wire.voucher.Vouches(answers.Now()) && !u.vouches(nil) })
	if wire.voucher.Ended() {
		t.Error("the answer was invalidated: its TTL applies")
	}
}

// TestCoherent_Next: the answer of a later stanza depends on that of the earlier one, and has no voucher.
func TestCoherent_Next(t *testing.T) {
	first, second := startSessions(t), startSessions(t)
	f := chainOf(t, stanzaOf("coherent\nnext NOERROR", first.addr)+"\n"+stanzaOf("coherent", second.addr))
	next, _ := f.Next.(*Forward)
	second.open(t, next)
	first.open(t, f)
	m := question("www.example.")
	if a, v := throughChain(f, m); a.wrong(m) != "" || v != nil {
		t.Errorf("%s, voucher %v in the chain", a.wrong(m), v)
	}
	if wire := overWire(t, f, m); wire.err != nil || wire.voucher != nil {
		t.Errorf("error %v and voucher %v in wire form", wire.err, wire.voucher)
	}
	if a, v := throughChain(next, m); a.wrong(m) != "" || v == nil {
		t.Errorf("%s, voucher %v of the second stanza alone", a.wrong(m), v)
	}
}
