//go:build linux

package forward

import (
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestMetrics compares the metrics of a load with the counts of the clients and the upstream.
func TestMetrics(t *testing.T) {
	t.Parallel()
	const queries = 300
	for proto, option := range map[string]string{"tcp": "force_tcp", "udp": "prefer_udp"} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, rogue.Behaviour{Delay: 5 * delay})
			s := start(t, zone(forward(r.Addr, option)))
			end := load{queries: queries}.begin(s)
			kit.Within(t, bounded, "queries in flight by the metric", func() bool { return s.scrape(t).Sum(inFlight, "to", r.Addr, "proto", proto) > 0 })
			end().wantRight(t)
			all := s.scrape(t)
			counts := r.Counts()
			minPackets, maxPackets := counts.Queries(), counts.Queries()
			if proto == "tcp" { // a segment has several messages, or only acknowledges some
				minPackets, maxPackets = 1, 4*maxPackets
			}
			for _, c := range []struct {
				metric string
				got    float64
				lo, hi int
			}{
				{"requests", all.Sum(requestCount, "proxy_name", "forward", "to", r.Addr, "rcode", "NOERROR"), queries, queries},
				{"packets sent", all.Sum(packets, "to", r.Addr, "proto", proto, "direction", "sent"), minPackets, maxPackets},
				{"packets received", all.Sum(packets, "to", r.Addr, "proto", proto, "direction", "received"), minPackets, maxPackets},
				{"in flight", all.Sum(inFlight), 0, 0},
				{"late answers", all.Sum(lateAnswers), 0, second},
				{"dropped answers", all.Sum(dropped), 0, 0},
				{"fallbacks", all.Sum(fallbacks), 0, 0},
				{"failed checks", all.Sum(checkFailed), 0, 0},
			} {
				if int(c.got) < c.lo || int(c.got) > c.hi {
					t.Errorf("%s: %v, want %d to %d", c.metric, c.got, c.lo, c.hi)
				}
			}
			if proto == "tcp" {
				streamMetrics(t, all, r)
			}
		})
	}
}

// streamMetrics checks the metrics of connections.
func streamMetrics(t *testing.T, all daemon.Samples, r *rogue.Server) {
	t.Helper()
	counts := r.Counts()
	if got := all.Sum(connections, "to", r.Addr, "proto", "tcp"); int(got) != counts.Open {
		t.Errorf("connections: %v, want %d as counted by the upstream", got, counts.Open)
	}
	if got := all.Sum(depthCount, "to", r.Addr, "proto", "tcp"); got == 0 {
		t.Error("pipelining depth is not counted")
	}
	hits, misses := all.Sum(cacheHits, "to", r.Addr, "proto", "tcp"), all.Sum(cacheMisses, "to", r.Addr, "proto", "tcp")
	if misses == 0 || int(misses) > counts.Connections || int(hits+misses) != len(counts.Names) {
		t.Errorf("%v hits and %v misses of connections, of %d queries and %d connections", hits, misses, len(counts.Names), counts.Connections)
	}
}
