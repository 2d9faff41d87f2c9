//go:build linux

package fastpath

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
)

// exact returns the samples that must be the same with and without the fast path: CoreDNS's metrics of queries, except
// durations.
func exact(all daemon.Samples) daemon.Samples {
	selected := daemon.Samples{}
	for key, value := range all {
		name, _, _ := strings.Cut(key, "{")
		counts := strings.HasPrefix(name, "coredns_dns_") || strings.HasPrefix(name, "coredns_cache_") || name == "coredns_panics_total"
		timed := name == "coredns_dns_request_duration_seconds_bucket" || name == "coredns_dns_request_duration_seconds_sum"
		if counts && !timed {
			selected[key] = value
		}
	}
	return selected
}

// sameMetrics sends the queries to both programs and compares their metrics.
func sameMetrics(t *testing.T, p pair, queries []query) {
	t.Helper()
	beforeOn, beforeOff := p.on.scrape(t), p.off.scrape(t)
	replies := 0
	for _, way := range []struct {
		network, host string
		times         int
	}{{"udp", "127.0.0.1", 2}, {"udp", "::1", 1}, {"tcp", "127.0.0.1", 1}} {
		w := p.dial(t, way.network, way.host)
		for range way.times {
			for _, q := range queries {
				if reply, _ := w.ask(t, q.packet); reply != nil {
					replies++
				}
			}
		}
	}
	var on, off daemon.Samples
	counted := func() bool { // a reply is counted as it is sent
		on, off = p.on.scrape(t).Since(beforeOn), p.off.scrape(t).Since(beforeOff)
		return len(differences(exact(on), exact(off))) == 0
	}
	if !soon(counted) {
		t.Errorf("with the fast path and without:\n%s", strings.Join(differences(exact(on), exact(off)), "\n"))
	}
	if on.Sum(answeredTotal) == 0 || off.Sum(answeredTotal) != 0 {
		t.Errorf("the fast path answered %v queries, and %v where it is off", on.Sum(answeredTotal), off.Sum(answeredTotal))
	}
	// Lookups of the plugins themselves are counted as well.
	if n := on.Sum("coredns_dns_requests_total"); int(n) < replies {
		t.Errorf("%v queries are counted, and there were %d replies", n, replies)
	}
}

func TestMetricsOfClusterNames(t *testing.T) {
	some := slices.Concat(
		plain(t, clusterNames[:5]),
		variants(t, "web.shop.svc.cluster.local.", dns.TypeA),
		variants(t, "34.12.96.10.in-addr.arpa.", dns.TypePTR),
		variants(t, "many12.shop.svc.cluster.local.", dns.TypeA),
		variants(t, "no.shop.svc.cluster.local.", dns.TypeA),
	)
	all := slices.Concat(plain(t, clusterNames), some)
	folder := newCluster(t)
	const long = "success 9984 3600 600\ndenial 9984 1800 600" // so that nothing expires while the test runs
	for _, tc := range []struct {
		name     string
		corefile string
		queries  []query
	}{
		{"prometheus", clusterBlock(folder), all},
		{"loadbalance", clusterBlock(folder, "loadbalance"), some},
		{"zones of their own", strings.Replace(clusterBlock(folder), ".:PORT", "cluster.local:PORT in-addr.arpa:PORT", 1), some},
		{"cache", clusterBlock(folder, "cache {\n"+long+"\n}"), some},
		{"cache of the reverse zones alone", clusterBlock(folder, "cache {\n"+long+"\ndisable success cluster.local\ndisable denial cluster.local\n}"), some},
		{"two blocks", clusterBlock(folder) + strings.Replace(clusterBlock(folder), ".:PORT", "svc.cluster.local:PORT", 1), some},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sameMetrics(t, startPair(t, "clusterdns", tc.corefile), tc.queries)
		})
	}
}
