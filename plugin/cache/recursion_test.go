package cache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// byRecursion is an upstream with a different reply to queries without RD.
func byRecursion(t *testing.T, without string) plugin.HandlerFunc {
	return func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		text := "NOERROR; " + a("w.", 60)
		if !r.RecursionDesired {
			text = without
		}
		if text == "fail" {
			return dns.RcodeServerFailure, errUpstream
		}
		m := replyTo(t, r, text)
		return m.Rcode, w.WriteMsg(m)
	}
}

// withoutRecursion are replies of servers to queries without RD.
var withoutRecursion = []string{
	"NOERROR; authority; w. 300 IN NS ns.w.", "SERVFAIL", "REFUSED", "NOERROR", "fail",
	"NXDOMAIN; authority; example. 60 IN SOA ns.example. root.example. 1 2 3 4 60",
}

// TestWithoutRecursion checks that the reply to a query without RD is not served to queries with RD.
func TestWithoutRecursion(t *testing.T) {
	for _, without := range withoutRecursion {
		want := without
		if without == "fail" {
			want = "nothing"
		}
		inBubble(t, without, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.upstream(byRecursion(t, without))
			if got := b.query("w. A +norec"); brief(got) != want && len(got.Ns) == 0 {
				t.Errorf("without RD: %s, want %s", brief(got), want)
			}
			b.want("w. A", "NOERROR; "+a("w.", 60))
			b.wantQueries(2)
			b.want("w. A +norec", "NOERROR; "+a("w.", 60)) // a cached answer requires no recursion
			b.wantQueries(2)
		})
	}
}

// TestWithoutRecursion_Expired checks that a query without RD does not replace an expired answer.
func TestWithoutRecursion_Expired(t *testing.T) {
	for _, without := range withoutRecursion {
		for _, option := range []string{"", "serve_stale 1h verify", "serve_stale 1h verify 1s 30s 30s"} {
			inBubble(t, without+" "+option, func(t *testing.T) {
				b := newTestCache(t, "cache {\n"+option+"\n}")
				b.upstream(byRecursion(t, without))
				b.want("w. A", "NOERROR; "+a("w.", 60))
				time.Sleep(time.Minute)
				b.query("w. A +norec")
				b.want("w. A", "NOERROR; "+a("w.", 60))
				b.wantQueries(3)
			})
		}
	}
}

// TestWithoutRecursion_Background checks that a background query has RD set, even if a query without RD caused it.
func TestWithoutRecursion_Background(t *testing.T) {
	for _, c := range []struct {
		option string
		after  time.Duration
		want   string
	}{
		{"prefetch 1 1m 50%", 59 * time.Second, "NOERROR; " + a("w.", 1)},
		{"serve_stale 1h immediate", time.Minute, "NOERROR; " + a("w.", 0)},
	} {
		inBubble(t, c.option, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+c.option+"\n}")
			b.upstream(byRecursion(t, "REFUSED"))
			b.want("w. A", "NOERROR; "+a("w.", 60))
			time.Sleep(c.after)
			b.want("w. A +norec", c.want)
			synctest.Wait()
			b.want("w. A", "NOERROR; "+a("w.", 60))
			b.wantQueries(2)
		})
	}
}

// TestWithoutRecursion_Generations checks that an answer that depends on generations is cached whatever RD is.
func TestWithoutRecursion_Generations(t *testing.T) {
	chainOnly(t, "generations", func(t *testing.T) {
		b, g := newTestCache(t, "cache"), new(generation)
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			store.PropertiesOf(ctx, r).Bounds[0] = validity.Bound{Generation: g}
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 60)))
		})
		for _, text := range []string{"w. A +norec", "w. A +norec", "w. A"} {
			b.want(text, "NOERROR; "+a("w.", 60))
		}
		b.wantQueries(1)
	})
}
