package cache

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
)

// explained returns the steps of a query.
func (b *testCache) explained(text string) (steps []string) {
	trace := explain.New(explain.Query{})
	if _, err := b.ServeDNS(explain.With(context.Background(), trace), &client{}, query(text)); err != nil {
		steps = append(steps, err.Error())
	}
	for _, s := range trace.Steps() {
		steps = append(steps, s.Text)
	}
	return steps
}

// TestExplain has the steps of misses, hits, and queries that wait.
func TestExplain(t *testing.T) {
	expect := func(t *testing.T, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	chainOnly(t, "a hit", func(t *testing.T) {
		b := newTestCache(t, "cache 30 {\nprefetch 1 1h 90%\n}")
		b.replies("NOERROR; a.test. 20 IN A 192.0.2.1")
		expect(t, b.explained("a.test. A"), "miss: no answer is stored", "the plugins after it replied NOERROR, 1 records")
		time.Sleep(5 * time.Second)
		expect(t, b.explained("a.test. A"), "hit: stored 5s ago, valid: its TTL ends in 15s")
		synctest.Wait()
		if b.received() != 2 {
			t.Errorf("%d queries to the upstream, want another one that prefetches, and adds no step", b.received())
		}
		time.Sleep(25 * time.Second)
		expect(t, b.explained("a.test. A"),
			"stale: stored 25s ago, not valid: its TTL ended 5s ago; it is served if the upstream fails or is slow (serve_stale)",
			"the plugins after it replied NOERROR, 1 records")
	})
	chainOnly(t, "a failure", func(t *testing.T) {
		b := newTestCache(t, "cache 30 {\nservfail 0\n}")
		b.fails()
		expect(t, b.explained("a.test. A"), errUpstream.Error(), "miss: no answer is stored", "the plugins after it returned SERVFAIL: "+errUpstream.Error())
	})
	chainOnly(t, "a waiting query", func(t *testing.T) {
		b := newTestCache(t, "cache 30")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			time.Sleep(time.Second)
			return dns.RcodeSuccess, w.WriteMsg(replyTo(t, r, "NOERROR; a.test. 20 IN A 192.0.2.1"))
		})
		var wg sync.WaitGroup
		wg.Go(func() { b.explained("a.test. A") })
		time.Sleep(time.Millisecond)
		expect(t, b.explained("a.test. A"), "miss: no answer is stored", "waits for the reply to the same query of another client")
		wg.Wait()
	})
}
