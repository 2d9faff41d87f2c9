package forward

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestCoherent_Held: an upstream that holds a query while its session vouches has not failed, and gets the query once.
func TestCoherent_Held(t *testing.T) {
	const name, answered = "held.example.", 1200 * time.Millisecond
	hold := func(queried string) time.Duration {
		if queried == name {
			return answered
		}
		return 0
	}
	count := func(s *sessionServer) (n int) {
		for _, m := range s.seen.all() {
			if m.Question[0].Name == name {
				n++
			}
		}
		return n
	}
	t.Run("one upstream", func(t *testing.T) {
		s := startSessions(t)
		s.hold.Store(&hold)
		f := chainOf(t, stanzaOf("coherent\nfallback udp\nread_timeout 200ms\ntimeout 10s", s.addr))
		s.open(t, f)
		m := question(name)
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
		if a, _ := throughChain(f, question(name)); a.err == nil {
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
		f := chainOf(t, stanzaOf("coherent\nfallback udp\npolicy sequential\nread_timeout 200ms\ntimeout 1400ms", first.addr, second.addr))
		first.open(t, f)
		held := make(chan string, 1)
		go func() {
			m := question(name)
			a, v := throughChain(f, m)
			if v == nil {
				held <- "no voucher " + a.wrong(m)
			}
			held <- a.wrong(m)
		}()
		others := 0
		for wrong := ""; ; others++ { // other clients, until the held query is answered
			select {
			case wrong = <-held:
			default:
				wantRight(t, f, false, fmt.Sprintf("other%d.example.", others))
				time.Sleep(5 * time.Millisecond)
				continue
			}
			if wrong != "" {
				t.Error(wrong)
			}
			break
		}
		if n := len(second.seen.all()); count(first) != 1 || n != 1 || count(second) != 1 || len(first.seen.all()) != 2+others {
			t.Errorf("%d and %d held queries; %d queries of others, of which the first upstream has %d, the second %d", count(first), count(second),
				others, len(first.seen.all())-2, n-count(second))
		}
		for i, s := range []*sessionServer{first, second} {
			u := upstreamOf(f, i)
			fallbacks := metric(t, "nearside_forward_fallbacks_total", "to", s.addr) + metric(t, "nearside_forward_coherence_fallbacks_total", "to", s.addr)
			if u.doubted() || u.tcpBad.Load() || len(s.all()) != 1 || fallbacks != 0 || metric(t, checkFailures, "to", s.addr) != 0 {
				t.Errorf("upstream %d: doubted %t, over UDP %t, %d connections, %v fallbacks", i, u.doubted(), u.tcpBad.Load(), len(s.all()), fallbacks)
			}
		}
	})
	t.Run("the second upstream is dead", func(t *testing.T) {
		first, second := startSessions(t), startSessions(t)
		first.hold.Store(&hold)
		f := chainOf(t, stanzaOf("coherent\npolicy sequential\nread_timeout 200ms\ntimeout 3s", first.addr, second.addr))
		first.open(t, f)
		second.stop()
		m := question(name)
		if a, _ := throughChain(f, m); a.wrong(m) != "" {
			t.Errorf("%s after %v", a.wrong(m), a.took)
		}
		if count(first) != 1 || upstreamOf(f, 0).doubted() || !upstreamOf(f, 1).doubted() {
			t.Errorf("%d queries, doubted: %t and %t", count(first), upstreamOf(f, 0).doubted(), upstreamOf(f, 1).doubted())
		}
	})
	t.Run("a silent session", func(t *testing.T) {
		s := startSessions(t)
		s.hold.Store(&hold)
		f := chainOf(t, stanzaOf("coherent\nread_timeout 200ms\ntimeout 600ms", s.addr))
		wantRight(t, f, false, "first.example.") // other than open, which waits for a heartbeat
		kit.Eventually(t, "the session is open", func() bool { return s.sessions() > 0 })
		for _, c := range s.all() {
			c.mu.Lock()
			c.opened = false
			c.mu.Unlock()
		}
		u := upstreamOf(f, 0)
		kit.Eventually(t, "the session is silent", func() bool { return !u.vouches(nil) })
		time.Sleep(vouch.Silence)
		if a, _ := throughChain(f, question(name)); a.err == nil {
			t.Errorf("answer %v after %v", a.Msg, a.took)
		}
		if n := count(s); n < 2 {
			t.Errorf("%d queries, want a second one after read_timeout", n)
		}
	})
}

// TestCoherent_AnswersNothing: an upstream that sends heartbeats and answers no query ends as one without a session: the query is
// sent again on another connection, over UDP or to the next upstream, and the upstream is checked.
func TestCoherent_AnswersNothing(t *testing.T) {
	started := func(t testing.TB, options string, others ...string) (*sessionServer, *Forward) {
		s := startSessions(t)
		f := chainOf(t, stanzaOf("coherent\n"+options, append([]string{s.addr}, others...)...))
		s.open(t, f)
		s.mute.Store(true)
		return s, f
	}
	count := func(s *sessionServer, name string) (n int) {
		for _, m := range s.seen.all() {
			if m.Question[0].Name == name {
				n++
			}
		}
		return n
	}
	run := concurrently(t)
	defer run.Wait()
	run.Run("one upstream", func(t testing.TB) {
		s, f := started(t, "")
		if a, _ := throughChain(f, question("www.example.")); a.err == nil {
			t.Errorf("answer %v", a.Msg)
		}
		if n, m := count(s, "www.example."), s.sessions(); n < 2 || m < 2 || !upstreamOf(f, 0).doubted() {
			t.Errorf("%d queries and %d connections with a session, want 2; doubted %t", n, m, upstreamOf(f, 0).doubted())
		}
		kit.Eventually(t, "checks fail", func() bool { return metric(t, checkFailures, "to", s.addr) > 0 })
		s.mute.Store(false)
		kit.Eventually(t, "the upstream works", func() bool { return !upstreamOf(f, 0).doubted() })
		wantRight(t, f, false, "later.example.")
	})
	run.Run("short timeouts", func(t testing.TB) {
		s, f := started(t, "read_timeout 100ms\ntimeout 400ms")
		kit.Eventually(t, "the upstream is doubted", func() bool {
			_, _ = throughChain(f, question("www.example."))
			return upstreamOf(f, 0).doubted()
		})
		s.mute.Store(false)
		kit.Eventually(t, "the upstream works", func() bool { return !upstreamOf(f, 0).doubted() })
		wantRight(t, f, false, "later.example.")
	})
	run.Run("one query of many", func(t testing.TB) { // is lost
		s, f := started(t, "")
		s.mute.Store(false)
		hold := func(name string) time.Duration {
			if name == "lost.example." && count(s, name) == 1 {
				return 6 * time.Second
			}
			return 0
		}
		s.hold.Store(&hold)
		wrong := make(chan string, 1)
		go func() {
			m := question("lost.example.")
			a, _ := throughChain(f, m)
			wrong <- a.wrong(m)
		}()
		for {
			wantRight(t, f, false, "other.example.")
			select {
			case w := <-wrong:
				if n := count(s, "lost.example."); w != "" || n != 2 || upstreamOf(f, 0).doubted() {
					t.Errorf("%s, %d queries, want 2; doubted %t", w, n, upstreamOf(f, 0).doubted())
				}
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	run.Run("over UDP", func(t testing.TB) {
		s, f := started(t, "fallback udp")
		p, err := net.ListenPacket("udp", s.addr)
		kit.Must(t, err)
		kit.Run(t, &dns.Server{PacketConn: p, Handler: replies(addressReply)})
		wantRight(t, f, false, "www.example.")
		kit.Eventually(t, "queries go over UDP at once", upstreamOf(f, 0).tcpBad.Load)
		before := len(s.seen.all())
		wantRight(t, f, false, "later.example.")
		if n := count(s, "later.example."); n != 0 || before == 0 {
			t.Errorf("%d queries over TCP", n)
		}
	})
	run.Run("two upstreams", func(t testing.TB) {
		second := startSessions(t)
		_, f := started(t, "policy sequential\nread_timeout 500ms", second.addr)
		kit.Eventually(t, "the first upstream is doubted", func() bool {
			wantRight(t, f, false, "www.example.")
			return upstreamOf(f, 0).doubted()
		})
		if upstreamOf(f, 1).doubted() {
			t.Error("the second upstream is doubted")
		}
	})
}

// TestCoherent_Reload: sessions end with their upstreams.
func TestCoherent_Reload(t *testing.T) {
	s := startSessions(t)
	f := chainOf(t, stanzaOf("coherent", s.addr))
	s.open(t, f)
	wire := overWire(t, f, question("www.example."))
	if !wire.voucher.Vouches(validity.Now()) {
		t.Fatal("the session does not vouch")
	}
	u := upstreamOf(f, 0)
	f.use(nil)
	kit.Eventually(t, "the session has ended", func() bool { return !wire.voucher.Vouches(validity.Now()) && !u.vouches(nil) })
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

// TestCoherent_RetryDelay: a query in flight is repeated at once when the upstream ends the session, and the upstream has not
// failed.
func TestCoherent_RetryDelay(t *testing.T) {
	const never = 2 * time.Second
	s := startSessions(t)
	f := chainOf(t, stanzaOf("coherent\nfallback udp\nread_timeout 10s\ntimeout 10s", s.addr))
	s.open(t, f)
	time.Sleep(sessionAtOnce)
	var queries atomic.Int32
	hold := func(string) time.Duration {
		if queries.Add(1) == 1 {
			return never // behind the message
		}
		return 0
	}
	s.hold.Store(&hold)
	m := question("www.example.")
	type result struct {
		answer
		*vouch.Voucher
	}
	done := make(chan result, 1)
	go func() {
		a, v := throughChain(f, m)
		done <- result{a, v}
	}()
	kit.Eventually(t, "the query is in flight", func() bool { return queries.Load() == 1 })
	s.push(dso.AppendRetryDelay(nil, dso.NoError, 0))
	got := <-done
	a, v := got.answer, got.Voucher
	if a.wrong(m) != "" || v == nil || a.took >= never {
		t.Errorf("%s after %v", a.wrong(m), a.took)
	}
	u := upstreamOf(f, 0)
	failed := metric(t, checkFailures, "to", s.addr) + metric(t, "nearside_forward_fallbacks_total", "to", s.addr)
	if u.doubted() || u.tcpBad.Load() || failed != 0 || len(s.all()) != 2 || queries.Load() != 2 {
		t.Errorf("doubted %t, over UDP %t, %v failures, %d queries over %d connections", u.doubted(), u.tcpBad.Load(), failed, queries.Load(), len(s.all()))
	}
	for reason, want := range map[string]float64{"retry_delay": 1, "closed": 0, "unsupported": 0} {
		if n := metric(t, "nearside_forward_coherence_fallbacks_total", "to", s.addr, "reason", reason); n != want {
			t.Errorf("%v fallbacks because of %s, want %v", n, reason, want)
		}
	}
}

// sessionAtOnce is the time in which a session that ends has ended at once: then the next one is opened after a pause.
const sessionAtOnce = time.Second
