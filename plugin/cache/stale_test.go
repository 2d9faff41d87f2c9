package cache

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// slowly makes the upstream reply after a delay.
func (b *testCache) slowly(d time.Duration, text string) {
	b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		time.Sleep(d)
		m := replyTo(b.t, r, text)
		return m.Rcode, w.WriteMsg(m)
	})
}

const staleA = "NOERROR; w. 30 IN A 192.0.2.1"

// TestStaleOnFailure tests the default, without serve_stale.
func TestStaleOnFailure(t *testing.T) {
	const sec = time.Second
	first := step{"NOERROR; " + a("w.", 60), 0, "w. A", "NOERROR; " + a("w.", 60), 1}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"the upstream answers", []step{
			first,
			{"NOERROR; w. 60 IN A 192.0.2.2", 61 * sec, "w. A", "NOERROR; w. 60 IN A 192.0.2.2", 2},
			{"", sec, "w. A", "NOERROR; w. 59 IN A 192.0.2.2", 2},
		}},
		{"the upstream fails", []step{
			first,
			{"fail", 60 * sec, "w. A", staleA, 2},
			{"", 29 * sec, "w. A", staleA, 2},
			{"", sec, "w. A", staleA, 3},
			{"NOERROR; w. 60 IN A 192.0.2.2", 30 * sec, "w. A", "NOERROR; w. 60 IN A 192.0.2.2", 4},
		}},
		{"the upstream replies SERVFAIL", []step{first, {"SERVFAIL", 60 * sec, "w. A", staleA, 2}, {"", 6 * sec, "w. A", staleA, 2}}},
		{"the upstream replies REFUSED", []step{first, {"REFUSED", 60 * sec, "w. A", staleA, 2}, {"", sec, "w. A", staleA, 2}}},
		{"the name no longer exists", []step{
			first,
			{denial("NXDOMAIN", 60, 60), 60 * sec, "w. A", "NXDOMAIN; authority; example. 60 IN SOA ns.example. root.example. 1 2 3 4 60", 2},
			{"fail", sec, "w. A", "NXDOMAIN; authority; example. 59 IN SOA ns.example. root.example. 1 2 3 4 60", 2},
			{"", 60 * sec, "w. A", "NXDOMAIN; authority; example. 30 IN SOA ns.example. root.example. 1 2 3 4 60", 3},
		}},
		{"the answer is too old", []step{
			first,
			{"fail", time.Hour + 60*sec - 1, "w. A", staleA, 2},
			{"", 1, "w. A", "nothing", 3},
		}},
		{"a failure is not served stale", []step{
			{"SERVFAIL", 0, "w. A", "SERVFAIL", 1},
			{"fail", 5 * sec, "w. A", "nothing", 2},
		}},
		{"the reply is truncated", []step{
			first,
			{"NOERROR TC", 60 * sec, "w. A", "NOERROR TC", 2},
			{"fail", sec, "w. A", staleA, 3},
		}},
		{"clients with EDNS get an extended error", []step{
			first,
			{"fail", 60 * sec, "w. A +edns", staleA + "; additional; OPT 3 (Stale Answer): ()", 2},
			{denial("NXDOMAIN", 60, 60), 0, "v. A", "NXDOMAIN; authority; example. 60 IN SOA ns.example. root.example. 1 2 3 4 60", 3},
			{"fail", 60 * sec, "v. A +edns", "NXDOMAIN; authority; example. 30 IN SOA ns.example. root.example. 1 2 3 4 60; additional; OPT 19 (Stale NXDOMAIN Answer): ()", 4},
		}},
		{"the name is the alias of a nonexistent one", []step{
			first,
			{"NXDOMAIN; w. 60 IN CNAME v.", 60 * sec, "w. A", "NXDOMAIN; w. 60 IN CNAME v.", 2},
		}},
		{"a reply with TTL 0 is served, not stored", []step{
			first,
			{"NOERROR; " + a("w.", 0), 60 * sec, "w. A", "NOERROR; " + a("w.", 0), 2},
		}},
	} {
		inBubble(t, c.name, func(t *testing.T) { newTestCache(t, "cache").steps(c.steps) })
	}
}

// TestStaleOnDelay checks that a client waits no longer than 1.8 seconds if there is a stale answer.
func TestStaleOnDelay(t *testing.T) {
	inBubble(t, "slow", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.replies("NOERROR; " + a("w.", 60))
		b.query("w. A")
		time.Sleep(60 * time.Second)
		b.slowly(3*time.Second, "NOERROR; w. 60 IN A 192.0.2.2")
		waits := func(want time.Duration, reply string) {
			t.Helper()
			start := time.Now()
			b.want("w. A", reply)
			if got := time.Since(start); got != want {
				t.Errorf("the client waited for %s, want %s", got, want)
			}
		}
		waits(1800*time.Millisecond, staleA)
		waits(0, staleA) // the timeout is that of the question, not of each client
		b.wantQueries(2)
		time.Sleep(1300 * time.Millisecond)
		b.want("w. A", "NOERROR; w. 60 IN A 192.0.2.2")
		b.wantQueries(2)

		time.Sleep(60 * time.Second)
		b.slowly(time.Second, "NOERROR; w. 60 IN A 192.0.2.3")
		waits(time.Second, "NOERROR; w. 60 IN A 192.0.2.3")
	})
}

// TestServeStale tests serve_stale, which behaves as in CoreDNS.
func TestServeStale(t *testing.T) {
	const (
		sec   = time.Second
		first = "NOERROR; w. 60 IN A 192.0.2.1"
		old   = "NOERROR; w. 0 IN A 192.0.2.1"
		fresh = "NOERROR; w. 60 IN A 192.0.2.2"
		gone  = "NXDOMAIN; authority; example. 60 IN SOA ns.example. root.example. 1 2 3 4 60"
	)
	for _, c := range []struct {
		name, option string
		steps        []step
	}{
		{"immediate serves at once, and fetches", "serve_stale", []step{
			{first, 0, "w. A", first, 1},
			{fresh, 60 * sec, "w. A", old, 2},
			{"", sec, "w. A", "NOERROR; w. 59 IN A 192.0.2.2", 2},
		}},
		{"immediate fetches for each client after a failure", "serve_stale", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", old, 2},
			{"", sec, "w. A", old, 3},
			{"SERVFAIL", sec, "w. A", old, 4},
			{fresh, sec, "w. A", old, 5},
			{"", sec, "w. A", "NOERROR; w. 59 IN A 192.0.2.2", 5},
		}},
		{"immediate with a TTL and a pause after a failure", "serve_stale 1h immediate 10s 20s", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", "NOERROR; w. 10 IN A 192.0.2.1", 2},
			{"", sec, "w. A", "NOERROR; w. 10 IN A 192.0.2.1", 2},
			{"", 18 * sec, "w. A", "NOERROR; w. 10 IN A 192.0.2.1", 2},
			{"", sec, "w. A", "NOERROR; w. 10 IN A 192.0.2.1", 3},
		}},
		{"until the configured age", "serve_stale 10s", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 70*sec - 1, "w. A", old, 2},
			{"", 1, "w. A", "nothing", 3},
		}},
		{"never for 0", "serve_stale 0", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", "nothing", 2},
		}},
		{"never with off", "serve_stale off", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", "nothing", 2},
			{"", sec, "w. A", "SERVFAIL", 2},
		}},
		{"verify fetches first", "serve_stale 1h verify", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", old, 2},
			{"SERVFAIL", sec, "w. A", old, 3},
			{"REFUSED", sec, "w. A", old, 4},
			{"NOERROR TC", sec, "w. A", old, 5},
			{fresh, sec, "w. A", fresh, 6},
			{gone, 60 * sec, "w. A", gone, 7},
			{"", sec, "w. A", "NXDOMAIN; authority; example. 59 IN SOA ns.example. root.example. 1 2 3 4 60", 7},
		}},
		{"verify pauses after a failure", "serve_stale 1h verify 0 30s 20s", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", staleA, 2},
			{fresh, 19 * sec, "w. A", staleA, 2},
			{"", sec, "w. A", fresh, 3},
		}},
		{"keepttl applies to stale answers", "serve_stale\nkeepttl", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", first, 2},
		}},
		{"a configured TTL overrides keepttl", "serve_stale 1h immediate 30s\nkeepttl", []step{
			{first, 0, "w. A", first, 1},
			{"fail", 60 * sec, "w. A", staleA, 2},
		}},
		{"prefer_positive prefers an answer to a later denial", "serve_stale\nserve_stale_policy prefer_positive", []step{
			{first, 0, "w. A", first, 1},
			{gone, 60 * sec, "w. A", old, 2},
			{"NOERROR", sec, "w. A", old, 3},
			{"NOERROR; authority; x. 300 IN NS y.", sec, "w. A", old, 4},
			{"SERVFAIL", sec, "w. A", old, 5},
			{fresh, sec, "w. A", old, 6},
			{"", sec, "w. A", "NOERROR; w. 59 IN A 192.0.2.2", 6},
			{gone, time.Hour + 60*sec, "w. A", gone, 7},
			{"", sec, "w. A", "NXDOMAIN; authority; example. 59 IN SOA ns.example. root.example. 1 2 3 4 60", 7},
			{fresh, 60 * sec, "w. A", "NXDOMAIN; authority; example. 0 IN SOA ns.example. root.example. 1 2 3 4 60", 8},
			{"", sec, "w. A", "NOERROR; w. 59 IN A 192.0.2.2", 8},
		}},
		{"prefer_positive replaces a denial by a later one", "serve_stale\nserve_stale_policy prefer_positive", []step{
			{denial("NXDOMAIN", 30, 60), 0, "w. A", denied("30"), 1},
			{gone, 30 * sec, "w. A", denied("0"), 2},
			{"", sec, "w. A", denied("59"), 2},
		}},
		{"prefer_positive with verify", "serve_stale 1h verify\nserve_stale_policy prefer_positive", []step{
			{first, 0, "w. A", first, 1},
			{gone, 60 * sec, "w. A", old, 2},
			{"NOERROR", sec, "w. A", old, 3},
			{"NOERROR TC; w. 60 IN A 192.0.2.3", sec, "w. A", old, 4},
			{fresh, sec, "w. A", fresh, 5},
		}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			newTestCache(t, "cache {\n"+c.option+"\n}").steps(c.steps)
		})
	}
}

// TestVerifyTimeout checks that verify serves the stale answer at the timeout, and stores the later reply.
func TestVerifyTimeout(t *testing.T) {
	inBubble(t, "slow", func(t *testing.T) {
		b := newTestCache(t, "cache {\nserve_stale 1h verify 100ms\n}")
		b.replies("NOERROR; " + a("w.", 60))
		b.query("w. A")
		time.Sleep(60 * time.Second)
		b.slowly(time.Second, "NOERROR; w. 60 IN A 192.0.2.2")
		start := time.Now()
		b.want("w. A", "NOERROR; w. 0 IN A 192.0.2.1")
		if got := time.Since(start); got != 100*time.Millisecond {
			t.Errorf("the client waited for %s", got)
		}
		b.want("w. A", "NOERROR; w. 0 IN A 192.0.2.1") // one query at a time
		if got := time.Since(start); got != 100*time.Millisecond {
			t.Errorf("the second client waited for %s", got)
		}
		time.Sleep(time.Second)
		b.want("w. A", "NOERROR; w. 60 IN A 192.0.2.2")
		b.wantQueries(2)
		time.Sleep(60 * time.Second)
		b.slowly(50*time.Millisecond, "NOERROR; w. 60 IN A 192.0.2.3")
		b.want("w. A", "NOERROR; w. 60 IN A 192.0.2.3")
	})
}

// TestPanicInBackground has the next plugin panic in a background query: later queries succeed.
func TestPanicInBackground(t *testing.T) {
	for _, c := range []struct{ name, option, want string }{
		{"immediate", "serve_stale", "NOERROR; w. 0 IN A 192.0.2.1"},
		{"verify", "serve_stale 1h verify 1s", "NOERROR; w. 0 IN A 192.0.2.1"},
		{"on failure", "", staleA},
	} {
		chainOnly(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+c.option+"\n}")
			b.replies("NOERROR; " + a("w.", 60))
			b.query("w. A")
			time.Sleep(60 * time.Second)
			b.upstream(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { panic("on purpose") })
			b.want("w. A", c.want)
			synctest.Wait()
			time.Sleep(time.Minute)
			b.replies("NOERROR; w. 60 IN A 192.0.2.2")
			b.query("w. A")
			synctest.Wait()
			b.want("w. A", "NOERROR; w. 60 IN A 192.0.2.2")
			wantBackgroundFree(t)
		})
	}
}

// TestBackgroundLimit has no free place for background queries: clients get the stale answer.
func TestBackgroundLimit(t *testing.T) {
	for _, c := range []struct{ name, option, want string }{
		{"immediate", "serve_stale", "NOERROR; w. 0 IN A 192.0.2.1"},
		{"verify", "serve_stale 1h verify 1s", "NOERROR; w. 0 IN A 192.0.2.1"},
		{"on failure", "", staleA},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+c.option+"\n}")
			b.replies("NOERROR; " + a("w.", 60))
			b.query("w. A")
			time.Sleep(60 * time.Second)
			var end func()
			if b.wire && c.option == "" {
				end = b.takeVerifying()
			} else {
				_, end = takeBackground()
			}
			for range 2 {
				b.want("w. A", c.want)
			}
			b.wantQueries(1)
			if got := value(t, b.counters("").skipped); got != 2 {
				t.Errorf("%v skipped refreshes were counted, want 2", got)
			}
			end()
			b.query("w. A")
			synctest.Wait()
			b.wantQueries(2)
		})
	}
}

// TestRefreshWithoutClient checks that a refresh continues when the client is gone, and uses TCP addresses.
func TestRefreshWithoutClient(t *testing.T) {
	chainOnly(t, "context", func(t *testing.T) {
		b := newTestCache(t, "cache {\nserve_stale\n}")
		b.replies("NOERROR; " + a("w.", 60))
		b.query("w. A")
		time.Sleep(60 * time.Second)
		network := make(chan string, 1)
		b.Next = plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			time.Sleep(time.Second)
			network <- w.RemoteAddr().Network() + " " + w.LocalAddr().Network()
			if ctx.Err() != nil {
				t.Error("the context ended with that of the client")
			}
			w.Hijack()
			w.TsigTimersOnly(true)
			if w.TsigStatus() != nil || w.Close() != nil {
				t.Error("unexpected error without a client")
			}
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 60)))
		})
		ctx, cancel := context.WithCancel(context.Background())
		if _, err := b.ServeDNS(ctx, new(client), query("w. A")); err != nil {
			t.Error(err)
		}
		cancel()
		if got := <-network; got != "tcp tcp" {
			t.Errorf("the query came from %s", got)
		}
		synctest.Wait()
		b.want("w. A", "NOERROR; "+a("w.", 60))
	})
}

// TestStaleOrExpiredSignature checks that verify prefers a stale answer to a reply with expired signatures; the default does
// not, since the reply is no failure.
func TestStaleOrExpiredSignature(t *testing.T) {
	const reply = "NOERROR; w. 60 IN A 192.0.2.2; w. 60 IN RRSIG A 8 1 60 19990101000000 19980101000000 1 . AA=="
	for option, want := range map[string]string{"serve_stale 1h verify": "NOERROR; w. 0 IN A 192.0.2.1", "": reply} {
		inBubble(t, option, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+option+"\n}")
			b.replies("NOERROR; " + a("w.", 60))
			b.query("w. A +do")
			time.Sleep(60 * time.Second)
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				m := replyTo(t, r, reply)
				m.SetEdns0(1232, true)
				return 0, w.WriteMsg(m)
			})
			b.want("w. A +do", want)
		})
	}
}

// denied is a denial with the TTL of its SOA record.
func denied(ttl string) string {
	return "NXDOMAIN; authority; example. " + ttl + " IN SOA ns.example. root.example. 1 2 3 4 60"
}

// TestVerifyOneAtATime checks that with a recheck time other clients do not wait for a running query.
func TestVerifyOneAtATime(t *testing.T) {
	inBubble(t, "recheck", func(t *testing.T) {
		b := newTestCache(t, "cache {\nserve_stale 1h verify 0 30s 20s\n}")
		b.replies("NOERROR; " + a("w.", 60))
		b.query("w. A")
		time.Sleep(60 * time.Second)
		b.slowly(time.Second, "NOERROR; w. 60 IN A 192.0.2.2")
		b.concurrently([]timedQuery{
			{0, "w. A", 0, "NOERROR; w. 60 IN A 192.0.2.2", nil},
			{time.Millisecond, "w. A", 0, staleA, nil},
		})
		b.wantQueries(2)
	})
}

// TestVerifyWithoutClient checks that a background query continues when the client is gone, and stores the reply.
func TestVerifyWithoutClient(t *testing.T) {
	for _, option := range []string{"serve_stale 1h verify 1s", ""} {
		chainOnly(t, option, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+option+"\n}")
			b.replies("NOERROR; " + a("w.", 60))
			b.query("w. A")
			time.Sleep(60 * time.Second)
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				select {
				case <-ctx.Done():
					return dns.RcodeServerFailure, ctx.Err()
				case <-time.After(3 * time.Second):
				}
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; w. 60 IN A 192.0.2.2"))
			})
			ctx, cancel := context.WithCancel(context.Background())
			if _, err := b.ServeDNS(ctx, new(client), query("w. A")); err != nil {
				t.Error(err)
			}
			cancel()
			time.Sleep(4 * time.Second)
			b.wantQueries(2)
			if got := brief(b.query("w. A")); !strings.HasSuffix(got, "192.0.2.2") {
				t.Errorf("got %s", got)
			}
			b.wantQueries(2)
		})
	}
}
