//go:build linux

package fastpath

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// comparison has the permitted differences between the replies of two programs.
type comparison struct {
	ttl uint32 // by which TTLs may differ in seconds, more after slow replies
	// slowest is the longest time for the replies of both programs to one query: one may have stored its answer so much later.
	slowest time.Duration
}

// check sends a packet to both programs and compares the replies.
func (c *comparison) check(t *testing.T, w wires, q query) {
	t.Helper()
	began := time.Now()
	on, off := w.ask(t, q.packet)
	took := time.Since(began)
	apart := max(c.ttl, uint32(math.Ceil((c.slowest + took).Seconds())))
	c.slowest = max(c.slowest, took)
	if w.on.network == "tcp" && q.name == keepAliveQuery { // CoreDNS does not support the option
		var found bool
		if on, found = bytes.CutSuffix(on, []byte{0, 11, 0, 2, 0, 100}); !found {
			t.Errorf("%s over TCP: no idle timeout of 10 seconds in\n%s", q.name, describe(on))
		}
		on[len(on)-1] -= 6 // the length of the options
	}
	if bytes.Equal(on, off) {
		return
	}
	maskSerials(on)
	maskSerials(off)
	if c.ttl > 0 {
		matchTTLs(off, on, apart)
	}
	if !bytes.Equal(on, off) {
		t.Errorf("%s over %s %s: with the fast path\n%s\n% x\nwithout\n%s\n% x", q.name, w.on.network, w.on.address,
			describe(on), on, describe(off), off)
	}
}

// checkAll sends every packet a number of times over UDP in both families, so that the later ones are answered from the
// store, and once over TCP. It returns the number of queries.
func (c *comparison) checkAll(t *testing.T, p pair, queries []query, again int) (sent int) {
	t.Helper()
	for _, host := range []string{"127.0.0.1", "::1"} {
		udp := p.dial(t, "udp", host)
		for _, q := range queries {
			for range again {
				c.check(t, udp, q)
				sent++
			}
		}
	}
	tcp := p.dial(t, "tcp", "127.0.0.1")
	for _, q := range queries {
		c.check(t, tcp, q)
		sent++
	}
	return sent
}

// counted returns the increase of the fast path's counters, once it has received all queries.
func (p pair) counted(t *testing.T, before daemon.Samples, sent int) (answered, handedOver int) {
	t.Helper()
	kit.Eventually(t, "all queries are counted", func() bool {
		now := p.on.scrape(t).Since(before)
		answered, handedOver = int(now.Sum(answeredTotal)), int(now.Sum(handedOverTotal))
		return answered+handedOver >= sent
	})
	if answered+handedOver != sent {
		t.Errorf("%d queries answered and %d handed over, that is more than the %d that were sent", answered, handedOver, sent)
	}
	return answered, handedOver
}

func TestParityOfClusterNames(t *testing.T) {
	p := startPair(t, "clusterdns", clusterBlock(newCluster(t)))
	for _, tc := range []struct {
		name    string
		queries []query
		again   int
		minimum int // percentage that is answered by the fast path
		maximum int
	}{
		// Left to the chain are the first query of each kind, queries that are not stored (SOA, NS, DS, aliases with
		// addresses), answers that are too long for the client, and denials in upper case.
		{"all names and types", plain(t, clusterNames), 3, 40, 83},
		{"ClusterIP as asked by different clients", variants(t, "web.shop.svc.cluster.local.", dns.TypeA), 2, 40, 100},
		{"headless as asked by different clients", variants(t, "db.shop.svc.cluster.local.", dns.TypeAAAA), 2, 50, 100},
		{"compressed as asked by different clients", variants(t, "many12.shop.svc.cluster.local.", dns.TypeA), 2, 40, 100},
		{"too long for some clients", variants(t, "many60.shop.svc.cluster.local.", dns.TypeA), 2, 10, 90},
		{"too long for most clients", variants(t, "many120.shop.svc.cluster.local.", dns.TypeA), 2, 5, 60},
		{"SRV as asked by different clients", variants(t, "_http._tcp.many12.shop.svc.cluster.local.", dns.TypeSRV), 2, 10, 90},
		{"PTR as asked by different clients", variants(t, "34.12.96.10.in-addr.arpa.", dns.TypePTR), 2, 50, 100},
		{"NXDOMAIN as asked by different clients", variants(t, "www.example.org.shop.svc.cluster.local.", dns.TypeA), 2, 25, 90},
		{"NODATA as asked by different clients", variants(t, "kubernetes.default.svc.cluster.local.", dns.TypeAAAA), 2, 25, 90},
		{"odd queries", odd(t, "web.shop.svc.cluster.local."), 1, 0, 0},
		{"malformed packets", malformed(t), 1, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := p.on.scrape(t)
			sent := new(comparison).checkAll(t, p, tc.queries, tc.again)
			answered, _ := p.counted(t, before, sent)
			if percent := 100 * answered / sent; percent < tc.minimum || percent > tc.maximum {
				t.Errorf("%d of %d queries were answered by the fast path, want %d%% to %d%%", answered, sent, tc.minimum, tc.maximum)
			}
			t.Logf("%d of %d", answered, sent)
		})
	}
}
