//go:build linux

package forward

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
)

// allHosts is a load for all hosts of the zone.
var allHosts = load{queries: hosts, host: hostName, tcp: 4, edns: true}

// closing is the max number of connections to servers that close a connection after a number of queries: dnsmasq after
// 100, CoreDNS after 128. Connections that are being closed count in addition to their replacements.
var closing = map[string]int{"dnsmasq": 30, "coredns": 30}

// maxConnections returns the max number of connections to a server. nsd processes one query of a connection at a time, and
// on a busy machine it is classified as one query per connection.
func maxConnections(server string) int {
	if server == "nsd" {
		return single
	}
	if limit, ok := closing[server]; ok {
		return limit
	}
	return few
}

// eachReal runs a test against each of the servers.
func eachReal(t *testing.T, test func(t *testing.T, r *realServer)) {
	t.Parallel()
	for name := range realServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, startReal(t, name))
		})
	}
}

// TestRealTCP queries hundreds of names at the same time, over few connections.
func TestRealTCP(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone(forward(r.address(r.port), "force_tcp")))
		watch := watchConnections(t, r.address(r.port))
		for range 3 {
			allHosts.run(s).wantRight(t)
		}
		watch.want(t, maxConnections(r.name))
		if all := s.scrape(t); all.Sum(packets, "proto", "udp") > 0 || all.Sum(dropped) > 0 {
			t.Errorf("queries over UDP or dropped answers, want none:\n%s", like(all, "nearside_forward_"))
		}
	})
}

// TestRealCoherent has the option coherent towards servers without DSO sessions: this is detected once for the upstream, and
// no query is lost.
func TestRealCoherent(t *testing.T) {
	const counted = "nearside_forward_coherence_fallbacks_total"
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone(forward(r.address(r.port), "coherent")))
		for end := time.Now().Add(30 * time.Second); ; {
			allHosts.run(s).wantRight(t)
			all := s.scrape(t)
			if n := all.Sum(counted, "reason", "unsupported"); n == 1 {
				break
			} else if n > 1 || time.Now().After(end) {
				t.Fatalf("%v servers without sessions, want 1:\n%s", n, like(all, "coherence"))
			}
		}
		for range 3 {
			allHosts.run(s).wantRight(t)
		}
		all := s.scrape(t)
		if all.Sum(counted) != 1 || all.Sum("nearside_forward_coherence_sessions") != 0 || all.Sum(dropped) > 0 ||
			all.Sum("nearside_forward_up") != 1 {
			t.Errorf("fallbacks, sessions, dropped answers or failures:\n%s", like(all, "_forward_"))
		}
	})
}

// TestRealUDP uses the protocol of the client's query.
func TestRealUDP(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone(forward(r.address(r.port))))
		watch := watchConnections(t, r.address(r.port))
		for range 2 {
			allHosts.run(s).wantRight(t)
		}
		watch.want(t, maxConnections(r.name))
	})
}

// TestRealTruncation queries more records than fit in a datagram.
func TestRealTruncation(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone(forward(r.address(r.port), "prefer_udp")))
		for range 20 {
			query := new(dns.Msg).SetQuestion(anyCase(large), dns.TypeA)
			reply, err := exchange("tcp", s.Addr, query, time.Now().Add(budget+margin))
			kit.Must(t, err)
			wantLarge(t, reply)
		}
		all := s.scrape(t)
		if got := all.Sum(fallbacks, "reason", "truncated"); got != 20 {
			t.Errorf("%v fallbacks for truncation, want 20:\n%s", got, like(all, "nearside_forward_"))
		}
		if all.Sum(packets, "proto", "udp", "direction", "sent") != 20 {
			t.Errorf("want 20 queries over UDP first:\n%s", like(all, "nearside_forward_"))
		}
	})
}

// wantLarge fails the test unless a reply has all addresses of the large name.
func wantLarge(t *testing.T, reply *dns.Msg) {
	t.Helper()
	found := map[string]bool{}
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			found[a.A.String()] = true
		}
	}
	for i := range largeAddresses {
		if !found[largeAddress(i).String()] {
			t.Fatalf("rcode %s, TC %t, %d records, without %s", dns.RcodeToString[reply.Rcode], reply.Truncated, len(reply.Answer), largeAddress(i))
		}
	}
}

// TestRealCache enables the cache: each name is forwarded once.
func TestRealCache(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone("cache 30", forward(r.address(r.port), "force_tcp")))
		for range 2 {
			allHosts.run(s).wantRight(t)
		}
		forwarded := s.scrape(t).Sum(requestCount, "proxy_name", "forward")
		if forwarded != hosts {
			t.Errorf("%v queries to the upstream, want %d", forwarded, hosts)
		}
	})
}

// TestRealTLS queries hundreds of names at the same time over TLS, over few connections.
func TestRealTLS(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"unbound", "nsd", "named", "coredns"} {
		for how, options := range map[string]func(r *realServer) (to string, options []string){
			"tls_servername": func(r *realServer) (string, []string) {
				return "tls://" + r.address(r.tls), []string{"tls " + r.cert.CA, "tls_servername " + serverName}
			},
			"name in the address": func(r *realServer) (string, []string) {
				return fmt.Sprintf("tls://%s%%%s:%d", r.host, serverName, r.tls), []string{"tls " + r.cert.CA}
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				r := startReal(t, name)
				to, lines := options(r)
				s := start(t, zone(forward(to, lines...)))
				watch := watchConnections(t, r.address(r.tls))
				for range 2 {
					allHosts.run(s).wantRight(t)
				}
				watch.want(t, maxConnections(r.name))
			})
		}
	}
}

// TestRealTLSDistrust checks that a server is not used if its certificate is for another name or from an unknown authority.
func TestRealTLSDistrust(t *testing.T) {
	t.Parallel()
	r := startReal(t, "unbound")
	for name, options := range map[string][]string{
		"another name":      {"tls " + r.cert.CA, "tls_servername other.test"},
		"unknown authority": {"tls_servername " + serverName},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, zone(forward("tls://"+r.address(r.tls), append(options, "timeout 1s")...)))
			l := load{queries: 20, host: hostName, wait: time.Second + margin}
			if right, _ := l.run(s).wantRcode(t, dns.RcodeServerFailure); right > 0 {
				t.Errorf("%d right answers from a server without a valid certificate", right)
			}
		})
	}
}

// TestRealHTTPS and TestRealQUIC query the servers that support DNS over HTTPS and over QUIC.
func TestRealHTTPS(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"coredns", "named", "unbound"} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(name+", "+method, func(t *testing.T) {
				t.Parallel()
				r := startReal(t, name)
				s := start(t, zone(forward("https://"+r.address(r.https), "tls "+r.cert.CA, "tls_servername "+serverName, "doh_method "+method)))
				allHosts.run(s).wantRight(t)
			})
		}
	}
}

func TestRealQUIC(t *testing.T) {
	t.Parallel()
	r := startReal(t, "coredns")
	s := start(t, zone(forward("quic://"+r.address(r.quic), "tls "+r.cert.CA, "tls_servername "+serverName)))
	allHosts.run(s).wantRight(t)
}

// TestRealBesideDown has two upstreams, of which one is down.
func TestRealBesideDown(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		down := r.address(daemon.FreePort(t))
		s := start(t, zone(forward(down+" "+r.address(r.port), "force_tcp")))
		for range 2 {
			allHosts.run(s).wantRight(t)
		}
	})
}

// watch counts the connections to an address in /proc/net/tcp.
type watch struct {
	address string
	stop    chan struct{}
	ended   chan struct{}
	err     error
	max     atomic.Int64
}

// watchConnections starts a watch.
func watchConnections(t *testing.T, address string) *watch {
	t.Helper()
	w := &watch{address: address, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for w.err == nil {
			select {
			case <-ticker.C:
				w.count()
			case <-w.stop:
				return
			}
		}
	}()
	t.Cleanup(w.end)
	return w
}

func (w *watch) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	<-w.ended
}

// want fails the test if there were no connections, or more than a limit at one time.
func (w *watch) want(t *testing.T, limit int) {
	t.Helper()
	w.end()
	if w.err != nil {
		t.Fatal(w.err)
	}
	t.Logf("%d connections at one time", w.max.Load())
	if got := int(w.max.Load()); got > limit || got == 0 {
		t.Errorf("%d connections at one time, want 1 to %d", got, limit)
	}
}

// established is the state of a connection in /proc/net/tcp.
const established = "01"

// count counts the established connections.
func (w *watch) count() {
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		w.err = err
		return
	}
	to, n := kernelAddress(netip.MustParseAddrPort(w.address)), int64(0)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 3 && f[2] == to && f[3] == established {
			n++
		}
	}
	w.max.Store(max(w.max.Load(), n))
}

// kernelAddress returns an address in the form of /proc/net/tcp: its bytes as a number in host byte order.
func kernelAddress(a netip.AddrPort) string {
	b := a.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}
