package cache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// event is a query at a time, with the expected answer.
type event struct {
	at      time.Duration
	want    string
	queries int // to the upstream by the end of the refresh
}

func TestPrefetch(t *testing.T) {
	const sec = time.Second
	address := func(ttl string, last string) string { return "NOERROR; w. " + ttl + " IN A 192.0.2." + last }
	for _, c := range []struct {
		name, option string
		ttl          string
		events       []event
	}{
		{"popular, at the last tenth", "prefetch 2", "100", []event{
			{0, address("100", "1"), 1},
			{80 * sec, address("20", "1"), 1},
			{90 * sec, address("10", "1"), 2},
			{91 * sec, address("99", "2"), 2},
		}},
		{"not popular enough", "prefetch 4", "100", []event{
			{0, address("100", "1"), 1}, {80 * sec, address("20", "1"), 1}, {90 * sec, address("10", "1"), 1},
			{95 * sec, address("5", "1"), 1}, {96 * sec, address("4", "1"), 2},
		}},
		{"a gap resets the count", "prefetch 3 10s", "100", []event{
			{0, address("100", "1"), 1}, {sec, address("99", "1"), 1}, {2 * sec, address("98", "1"), 1},
			{90 * sec, address("10", "1"), 1}, {91 * sec, address("9", "1"), 1}, {92 * sec, address("8", "1"), 2},
		}},
		{"a percentage", "prefetch 1 1m 50%", "100", []event{
			{0, address("100", "1"), 1}, {49 * sec, address("51", "1"), 1}, {50 * sec, address("50", "1"), 2}, {51 * sec, address("99", "2"), 2},
		}},
		{"a short TTL", "prefetch 1", "5", []event{
			{0, address("5", "1"), 1}, {3 * sec, address("2", "1"), 1}, {4 * sec, address("1", "1"), 2},
		}},
		{"a fetched answer inherits the hits", "prefetch 3 1h", "100", []event{
			{0, address("100", "1"), 1}, {sec, address("99", "1"), 1}, {2 * sec, address("98", "1"), 1}, {95 * sec, address("5", "1"), 2},
			{190 * sec, address("5", "2"), 3},
		}},
		{"never", "prefetch 0", "100", []event{{0, address("100", "1"), 1}, {99 * sec, address("1", "1"), 1}}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+c.option+"\n}")
			start := time.Now()
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				return 0, w.WriteMsg(replyTo(t, r, address(c.ttl, string(rune('0'+b.received())))))
			})
			for i, e := range c.events {
				time.Sleep(time.Until(start.Add(e.at)))
				if got := brief(b.query("w. A")); got != e.want {
					t.Errorf("event %d: got %s, want %s", i, got, e.want)
				}
				synctest.Wait()
				if got := b.received(); got != e.queries {
					t.Errorf("event %d: the upstream received %d queries, want %d", i, got, e.queries)
				}
			}
		})
	}
}

// TestPrefetchFails checks that a failed prefetch does not replace the answer, and is not repeated by each hit.
func TestPrefetchFails(t *testing.T) {
	for _, reply := range []string{"fail", "SERVFAIL", "REFUSED"} {
		inBubble(t, reply, func(t *testing.T) {
			b := newTestCache(t, "cache {\nprefetch 1\n}")
			b.replies("NOERROR; " + a("w.", 100))
			b.query("w. A")
			b.replies("SERVFAIL")
			if reply == "fail" {
				b.fails()
			}
			time.Sleep(95 * time.Second)
			for range 3 {
				b.want("w. A", "NOERROR; "+a("w.", 5))
				synctest.Wait()
			}
			b.wantQueries(2)
			time.Sleep(prefetchRetry + 1)
			b.want("w. A", "NOERROR; "+a("w.", 4))
			synctest.Wait()
			b.wantQueries(3)
		})
	}
}

// TestPrefetchDenial has a name deleted: a prefetch replaces the answer by the denial.
func TestPrefetchDenial(t *testing.T) {
	inBubble(t, "NXDOMAIN", func(t *testing.T) {
		b := newTestCache(t, "cache {\nprefetch 1\n}")
		b.replies("NOERROR; " + a("w.", 100))
		b.query("w. A")
		const gone = "NXDOMAIN; authority; example. 60 IN SOA ns.example. root.example. 1 2 3 4 60"
		b.replies(gone)
		time.Sleep(95 * time.Second)
		b.want("w. A", "NOERROR; "+a("w.", 5))
		synctest.Wait()
		b.want("w. A", gone)
		// a failure does not replace the denial
		b.fails()
		time.Sleep(55 * time.Second)
		b.query("w. A")
		synctest.Wait()
		b.want("w. A", "NXDOMAIN; authority; example. 5 IN SOA ns.example. root.example. 1 2 3 4 60")
		b.wantQueries(3)
	})
}

// TestPrefetchJoined has an answer expire during its prefetch: a query waits for the prefetch.
func TestPrefetchJoined(t *testing.T) {
	inBubble(t, "expires during a prefetch", func(t *testing.T) {
		b := newTestCache(t, "cache {\nprefetch 1\nserve_stale off\n}")
		b.replies("NOERROR; " + a("w.", 100))
		b.query("w. A")
		b.slowly(6*time.Second, "NOERROR; w. 100 IN A 192.0.2.2")
		time.Sleep(95 * time.Second)
		for range 3 {
			b.want("w. A", "NOERROR; "+a("w.", 5))
		}
		time.Sleep(5 * time.Second)
		b.want("w. A", "NOERROR; w. 100 IN A 192.0.2.2")
		b.wantQueries(2)
	})
}
