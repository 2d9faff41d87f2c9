package cache

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestCoreDNSCases has cases of CoreDNS's own tests that set the clock of its cache, and that no other test here has: test/upstream
// cannot run them.
func TestCoreDNSCases(t *testing.T) {
	const (
		sec    = time.Second
		first  = "NOERROR; w. 60 IN A 192.0.2.1"
		old    = "NOERROR; w. 0 IN A 192.0.2.1"
		cut    = "NOERROR TC; w. 60 IN A 192.0.2.3"
		prefer = "\nserve_stale_policy prefer_positive"
	)
	for _, c := range []struct {
		name, option string
		steps        []step
	}{
		{"a configured TTL of a stale denial", "serve_stale 1h immediate 25s", []step{
			{denial("NXDOMAIN", 60, 60), 0, "w. A", denied("60"), 1},
			{"SERVFAIL", 120 * sec, "w. A", denied("25"), 2},
		}},
		{"a configured TTL does not change a fresh answer", "serve_stale 1h immediate 30s", []step{
			{first, 0, "w. A", first, 1},
			{"", 10 * sec, "w. A", "NOERROR; w. 50 IN A 192.0.2.1", 1},
		}},
		{"verify with a timeout serves a denial that cannot be cached", "serve_stale 1h verify 1s", []step{
			{first, 0, "w. A", first, 1},
			{"NXDOMAIN", 120 * sec, "w. A", "NXDOMAIN", 2},
		}},
		{"prefer_positive with verify prefers a stale answer to NOTIMP", "serve_stale 1h verify" + prefer, []step{
			{first, 0, "w. A", first, 1},
			{"NOTIMP", 120 * sec, "w. A", old, 2},
		}},
		{"prefer_positive with verify and a timeout prefers it to a truncated reply", "serve_stale 1h verify 1s" + prefer, []step{
			{first, 0, "w. A", first, 1},
			{cut, 120 * sec, "w. A", old, 2},
		}},
		{"immediate pauses after a truncated reply", "serve_stale 1h immediate 30s 30s", []step{
			{first, 0, "w. A", first, 1},
			{cut, 61 * sec, "w. A", staleA, 2},
			{"", sec, "w. A", staleA, 2},
		}},
		{"verify pauses after a truncated reply", "serve_stale 1h verify 0 30s 30s", []step{
			{first, 0, "w. A", first, 1},
			{cut, 61 * sec, "w. A", staleA, 2},
			{"", sec, "w. A", staleA, 2},
		}},
		{"immediate pauses after a failure to refresh a denial", "serve_stale 1h immediate 30s 30s", []step{
			{denial("NXDOMAIN", 60, 60), 0, "w. A", denied("60"), 1},
			{"SERVFAIL", 61 * sec, "w. A", denied("30"), 2},
			{"", 29 * sec, "w. A", denied("30"), 2},
			{"", 2 * sec, "w. A", denied("30"), 3},
		}},
	} {
		inBubble(t, c.name, func(t *testing.T) { newTestCache(t, "cache {\n"+c.option+"\n}").steps(c.steps) })
	}
}

// TestInvalidRefresh checks that a reply with expired signatures, or to another question, does not replace a stale answer, and is
// followed by the pause after a failure.
func TestInvalidRefresh(t *testing.T) {
	replies := map[string]func(m *dns.Msg){
		"expired signature": func(*dns.Msg) {},
		"another question":  func(m *dns.Msg) { m.Question[0].Name, m.Answer = "v.", m.Answer[:1] },
	}
	for option, queries := range map[string]int{ // of the upstream after two queries for the stale answer
		"serve_stale 1h verify\nserve_stale_policy prefer_positive":    3,
		"serve_stale 1h verify 1s\nserve_stale_policy prefer_positive": 3,
		"serve_stale 1h verify 0 0 30s":                                2,
		"serve_stale 1h immediate 0 30s":                               2,
	} {
		for name, change := range replies {
			inBubble(t, name+" "+option, func(t *testing.T) {
				b := newTestCache(t, "cache {\n"+option+"\n}")
				b.replies("NOERROR; " + a("w.", 60))
				b.query("w. A +do")
				time.Sleep(time.Minute)
				b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
					m := replyTo(t, r, "NOERROR; w. 60 IN A 192.0.2.2; w. 60 IN RRSIG A 8 1 60 19990101000000 19980101000000 1 . AA==")
					m.SetEdns0(1232, true)
					change(m)
					return 0, w.WriteMsg(m)
				})
				for range 2 {
					b.want("w. A +do", "NOERROR; w. 0 IN A 192.0.2.1")
					synctest.Wait()
				}
				b.wantQueries(queries)
			})
		}
	}
}

// TestFlagsOfRefresh checks the queries that fetch an answer again: they have the flags DO and CD of the answer, whose clients
// alone get the new one, and AD.
func TestFlagsOfRefresh(t *testing.T) {
	for _, flag := range []string{"", "+do", "+cd"} {
		for option, c := range map[string]struct {
			after time.Duration
			last  int // digit of the first answer after that time
		}{
			"prefetch 1\nserve_stale off": {73 * time.Second, 1},
			"serve_stale 1h verify":       {80 * time.Second, 2},
			"serve_stale 1h immediate":    {80 * time.Second, 1},
		} {
			inBubble(t, option+" "+flag, func(t *testing.T) {
				b := newTestCache(t, "cache {\n"+option+"\n}")
				b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
					return 0, w.WriteMsg(replyTo(t, r, fmt.Sprintf("NOERROR AD; w. 80 IN A 192.0.2.%d", b.received())))
				})
				last := func(flags string, want int) {
					t.Helper()
					if got := brief(b.query("w. A " + flags)); !strings.HasSuffix(got, fmt.Sprint(" 192.0.2.", want)) {
						t.Errorf("%s: got %s, want the answer %d", flags, got, want)
					}
					synctest.Wait()
				}
				last(flag, 1)
				time.Sleep(c.after)
				last(flag, c.last)
				last(flag, 2)
				if reply := b.query("w. A +ad " + flag); !reply.AuthenticatedData {
					t.Errorf("the client with AD got %v", reply)
				}
				if flag != "" {
					last("", 3)
				}
				for _, q := range b.seen[:2] {
					do := q.IsEdns0() != nil && q.IsEdns0().Do()
					if !q.AuthenticatedData || do != (flag == "+do") || q.CheckingDisabled != (flag == "+cd") {
						t.Errorf("the upstream received %v", q)
					}
				}
			})
		}
	}
}
