package cache

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// event is a query at a time, and what is to be seen then.
type event struct {
	at      time.Duration
	want    string
	queries int // that the upstream has got after what the query has set going
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
		{"a gap ends the count", "prefetch 3 10s", "100", []event{
			{0, address("100", "1"), 1}, {sec, address("99", "1"), 1}, {2 * sec, address("98", "1"), 1},
			{90 * sec, address("10", "1"), 1}, {91 * sec, address("9", "1"), 1}, {92 * sec, address("8", "1"), 2},
		}},
		{"a percentage", "prefetch 1 1m 50%", "100", []event{
			{0, address("100", "1"), 1}, {49 * sec, address("51", "1"), 1}, {50 * sec, address("50", "1"), 2}, {51 * sec, address("99", "2"), 2},
		}},
		{"at the last second of few", "prefetch 1", "5", []event{
			{0, address("5", "1"), 1}, {3 * sec, address("2", "1"), 1}, {4 * sec, address("1", "1"), 2},
		}},
		{"popularity is inherited", "prefetch 3 1h", "100", []event{
			{0, address("100", "1"), 1}, {sec, address("99", "1"), 1}, {2 * sec, address("98", "1"), 1}, {95 * sec, address("5", "1"), 2},
			{190 * sec, address("5", "2"), 3},
		}},
		{"never", "prefetch 0", "100", []event{{0, address("100", "1"), 1}, {99 * sec, address("1", "1"), 1}}},
	} {
		beds(t, c.name, func(t *testing.T) {
			b := newBed(t, "cache {\n"+c.option+"\n}")
			start := time.Now()
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				return 0, w.WriteMsg(replyTo(t, r, address(c.ttl, string(rune('0'+b.queries())))))
			})
			for i, e := range c.events {
				time.Sleep(time.Until(start.Add(e.at)))
				if got := brief(b.ask("w. A")); got != e.want {
					t.Errorf("event %d: got %s, want %s", i, got, e.want)
				}
				synctest.Wait()
				if got := b.queries(); got != e.queries {
					t.Errorf("event %d: the upstream has got %d queries, want %d", i, got, e.queries)
				}
			}
		})
	}
}

// A prefetch that fails leaves the answer alone, and is not repeated with each hit.
func TestPrefetchFails(t *testing.T) {
	for _, reply := range []string{"fail", "SERVFAIL", "REFUSED"} {
		beds(t, reply, func(t *testing.T) {
			b := newBed(t, "cache {\nprefetch 1\n}")
			b.replies("NOERROR; " + a("w.", 100))
			b.ask("w. A")
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

// A name that is gone is learnt by a prefetch.
func TestPrefetchDenial(t *testing.T) {
	beds(t, "NXDOMAIN", func(t *testing.T) {
		b := newBed(t, "cache {\nprefetch 1\n}")
		b.replies("NOERROR; " + a("w.", 100))
		b.ask("w. A")
		const gone = "NXDOMAIN; authority; example. 60 IN SOA ns.example. root.example. 1 2 3 4 60"
		b.replies(gone)
		time.Sleep(95 * time.Second)
		b.want("w. A", "NOERROR; "+a("w.", 5))
		synctest.Wait()
		b.want("w. A", gone)
		// A failure does not hide it.
		b.fails()
		time.Sleep(55 * time.Second)
		b.ask("w. A")
		synctest.Wait()
		b.want("w. A", "NXDOMAIN; authority; example. 5 IN SOA ns.example. root.example. 1 2 3 4 60")
		b.wantQueries(3)
	})
}

// Who has to wait joins a prefetch that is under way.
func TestPrefetchJoined(t *testing.T) {
	beds(t, "expires meanwhile", func(t *testing.T) {
		b := newBed(t, "cache {\nprefetch 1\nserve_stale off\n}")
		b.replies("NOERROR; " + a("w.", 100))
		b.ask("w. A")
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
