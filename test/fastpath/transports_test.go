//go:build linux

package fastpath

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// keyOrders are the keys of a server block with several transports. CoreDNS applies settings of the first one to all.
var keyOrders = map[string]string{
	"DNS first":  ".:PORT tls://.:TLSPORT https://.:HTTPSPORT",
	"TLS first":  "tls://.:TLSPORT .:PORT",
	"gRPC first": "grpc://.:HTTPSPORT .:PORT tls://.:TLSPORT",
}

// encrypted is a program that answers over TLS as well.
type encrypted struct {
	*server
	tlsPort int
	fill    *strings.Replacer
	client  *tls.Config
}

// startEncrypted starts clusterdns with a Corefile in which TLSPORT, HTTPSPORT, CERT and KEY are replaced.
func startEncrypted(t *testing.T, corefile string) *encrypted {
	t.Helper()
	c := rogue.NewCertificate(t, "127.0.0.1")
	authority, err := os.ReadFile(c.CA)
	kit.Must(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		t.Fatal("no certificate of the authority")
	}
	e := &encrypted{tlsPort: daemon.FreePort(t), client: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	e.fill = strings.NewReplacer("TLSPORT", strconv.Itoa(e.tlsPort), "HTTPSPORT", strconv.Itoa(daemon.FreePort(t)), "CERT", c.Cert, "KEY", c.Key)
	e.server = start(t, "clusterdns", e.fill.Replace(corefile))
	return e
}

// dialTLS returns a client over TLS.
func (e *encrypted) dialTLS(t *testing.T) *wire {
	t.Helper()
	w := &wire{network: "tls", address: net.JoinHostPort("127.0.0.1", strconv.Itoa(e.tlsPort)), tls: e.client}
	t.Cleanup(func() { w.hangUp(t) })
	return w
}

// encryptedBlock is clusterBlock with other keys and a certificate.
func encryptedBlock(folder, keys string, more ...string) string {
	return strings.Replace(clusterBlock(folder, slices.Concat([]string{"tls CERT KEY"}, more)...), ".:PORT", keys, 1)
}

// TestTransports has server blocks with several transports: ordinary DNS has the fast path whatever the order of the keys, and
// replies over TLS are those of a program without it.
func TestTransports(t *testing.T) {
	folder := newCluster(t)
	queries := slices.Concat(
		plain(t, clusterNames[:4]),
		variants(t, "many12.shop.svc.cluster.local.", dns.TypeA),
		variants(t, "www.example.org.shop.svc.cluster.local.", dns.TypeA),
	)
	for name, keys := range keyOrders {
		t.Run(name, func(t *testing.T) {
			var cache string
			if name == "TLS first" {
				cache = "cache 30"
			}
			corefile := encryptedBlock(folder, keys, cache)
			fast := startEncrypted(t, strings.ReplaceAll(corefile, "FASTPATH", ""))
			slow := startEncrypted(t, strings.ReplaceAll(corefile, "FASTPATH", "fastpath off"))
			for _, host := range []string{"127.0.0.1", "[::1]"} {
				line := fmt.Sprintf("dns://%s:%d: fast path for .", host, fast.Port)
				kit.Eventually(t, line, func() bool { return strings.Count(fast.Output(), line+"\n") == 1 })
			}
			if n := strings.Count(fast.Output(), ": fast path for "); n != 2 {
				t.Errorf("%d lines about a fast path, want one for each address of ordinary DNS", n)
			}
			p := pair{fast.server, slow.server}
			compare := comparison{ttl: 1}
			before := fast.scrape(t)
			sent := compare.checkAll(t, p, queries, 2)
			answered, _ := p.counted(t, before, sent)
			if percent := 100 * answered / sent; percent < 40 {
				t.Errorf("%d of %d queries were answered by the fast path, want 40%%", answered, sent)
			}
			before = fast.scrape(t)
			secure := wires{fast.dialTLS(t), slow.dialTLS(t)}
			for _, q := range queries {
				compare.check(t, secure, q)
			}
			if n := fast.settled(t).Since(before).Sum(answeredTotal); n != 0 {
				t.Errorf("the fast path has answered %v queries over TLS", n)
			}
		})
	}
}

// TestReloadOfTransports changes the keys of a server block under load.
func TestReloadOfTransports(t *testing.T) {
	folder := newCluster(t)
	corefile := func(order, fastpath string) string {
		return strings.ReplaceAll(encryptedBlock(folder, keyOrders[order]), "FASTPATH", fastpath)
	}
	s := startEncrypted(t, corefile("DNS first", ""))
	next := func(worker, i int) question {
		if i%2 == 0 {
			return question{fmt.Sprintf("x%d-%d.shop.svc.cluster.local.", worker, i), dns.TypeA, isRcode(dns.RcodeNameError)}
		}
		return question{"web.shop.svc.cluster.local.", dns.TypeA, isAddress("10.96.12.34")}
	}
	loads := life{server: s.server, next: next}.startLoads(t)
	tcp := startLoadOver(t, "tcp", s.Addr, 2, next)
	for _, step := range []struct {
		order, fastpath string
		hits            bool
	}{
		{"TLS first", "", true},
		{"DNS first", "", true},
		{"gRPC first", "", true},
		{"TLS first", "fastpath off", false},
		{"DNS first", "fastpath off", false},
		{"TLS first", "", true},
	} {
		s.reload(t, s.fill.Replace(corefile(step.order, step.fastpath)))
		before := s.scrape(t).Sum(answeredTotal)
		awaitQueries(t, loads)
		if grown := s.scrape(t).Sum(answeredTotal) - before; (grown > 0) != step.hits {
			t.Errorf("%s %s: the fast path has answered %v queries", step.order, step.fastpath, grown)
		}
		if got := brief(t, s.dialTLS(t).ask(t, pack(t, newQuery("web.shop.svc.cluster.local.", dns.TypeA)))); got != "NOERROR 10.96.12.34" {
			t.Errorf("%s %s: %q over TLS", step.order, step.fastpath, got)
		}
	}
	tcp.end(t)
	endLoads(t, loads)
}
