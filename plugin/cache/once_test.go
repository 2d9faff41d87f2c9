package cache

import (
	"sync"
	"testing"
	"time"
)

const noTTL = "NOERROR; w. 0 IN A 192.0.2.1"

// TestDenialForOnce has an upstream that makes each query wait for 4 seconds, and denies the name then: all queries wait that long,
// whenever they arrive, and queries that were late for one reply share the next one.
func TestDenialForOnce(t *testing.T) {
	const wait = 4 * time.Second
	denied, late := denial("NXDOMAIN", 0, 0), []time.Duration{0, 3 * time.Second}
	for name, tt := range map[string]struct {
		corefile string
		before   string // the reply that has expired
		reply    string
		arrivals []time.Duration
		ends     []time.Duration
		received int
	}{
		"one after the other": {"cache", "", denied, []time.Duration{0, wait}, []time.Duration{wait, 2 * wait}, 2},
		"at the same time":    {"cache", "", denied, []time.Duration{0, 10 * time.Millisecond}, []time.Duration{wait, wait}, 1},
		"late": {
			"cache", "", denied, []time.Duration{0, time.Second, 3 * time.Second, wait + time.Second},
			[]time.Duration{wait, 2 * wait, 2 * wait, 3 * wait}, 3,
		},
		"late, with a stale answer": {
			"cache {\nserve_stale 1h verify\n}", "NOERROR; " + a("w.", 60), denied, late, []time.Duration{wait, 2 * wait}, 2,
		},
		"late, for a denial with a TTL": {"cache", "", denial("NXDOMAIN", 5, 5), late, []time.Duration{wait, wait}, 1},
		"late, for data with the TTL 0": {"cache", "", noTTL, late, []time.Duration{wait, wait}, 1},
		"late, for a failure":           {"cache {\nservfail 0\n}", "", "SERVFAIL", late, []time.Duration{wait, wait}, 1},
	} {
		inBubble(t, name, func(t *testing.T) {
			b, former := newTestCache(t, tt.corefile), 0
			if tt.before != "" {
				b.replies(tt.before)
				b.query("w. A")
				time.Sleep(2 * time.Minute)
				former = 1
			}
			b.slowly(wait, tt.reply)
			var clients sync.WaitGroup
			for i, arrival := range tt.arrivals {
				clients.Go(func() {
					time.Sleep(arrival)
					begin := time.Now()
					b.want("w. A", tt.reply)
					if got := arrival + time.Since(begin); got != tt.ends[i] {
						t.Errorf("query %d is answered at %s, want %s", i, got, tt.ends[i])
					}
				})
			}
			clients.Wait()
			b.wantQueries(former + tt.received)
			if n := len(b.flights.all); n != 0 {
				t.Errorf("%d flights remain", n)
			}
		})
	}
}

// TestDenialEndsStale: a denial with the TTL 0 ends the answer before it, which is not served stale either, unless data are
// preferred.
func TestDenialEndsStale(t *testing.T) {
	const preferring = "cache {\nserve_stale 1h verify\nserve_stale_policy prefer_positive\n}"
	denied := denial("NXDOMAIN", 0, 0)
	for name, tt := range map[string]struct {
		corefile string
		after    time.Duration
		replies  [2]string // to the first two queries after the answer has expired
	}{
		"default":           {"cache", 2 * time.Minute, [2]string{denied, "nothing"}},
		"serve_stale":       {"cache {\nserve_stale 1h immediate\n}", 2 * time.Minute, [2]string{noTTL, "nothing"}},
		"verify":            {"cache {\nserve_stale 1h verify\n}", 2 * time.Minute, [2]string{denied, "nothing"}},
		"data preferred":    {preferring, 2 * time.Minute, [2]string{noTTL, noTTL}},
		"before it expires": {"cache {\nprefetch 1 1h 90%\n}", 30 * time.Second, [2]string{"NOERROR; w. 30 IN A 192.0.2.1", "nothing"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			b := newTestCache(t, tt.corefile)
			b.replies("NOERROR; " + a("w.", 60))
			b.query("w. A")
			time.Sleep(tt.after)
			b.replies(denied)
			b.want("w. A", tt.replies[0])
			time.Sleep(time.Second)
			b.fails()
			b.want("w. A", tt.replies[1])
		})
	}
}
