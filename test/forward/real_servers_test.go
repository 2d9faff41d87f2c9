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

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
)

// anyOf is what TestReal sends to each server.
var anyOf = load{queries: hosts, host: hostName, tcp: 4, edns: true}

// closing are the servers that close connections after a number of queries: dnsmasq after 100, CoreDNS after
// 128. Those that are being closed are counted besides those that take their place.
var closing = map[string]int{"dnsmasq": 30, "coredns": 30}

// mostTo returns how many connections a server may get. nsd works on one query of a connection at a time, and gets one
// on each where the machine is so busy that this is found out.
func mostTo(server string) int {
	if server == "nsd" {
		return single
	}
	if most, ok := closing[server]; ok {
		return most
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

// TestRealTCP asks hundreds of names at the same time, over few connections.
func TestRealTCP(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone(forward(r.address(r.port), "force_tcp")))
		watch := watchConnections(t, r.address(r.port))
		for range 3 {
			anyOf.run(s).wantRight(t)
		}
		watch.want(t, mostTo(r.name))
		if all := s.scrape(t); all.Sum(packets, "proto", "udp") > 0 || all.Sum(dropped) > 0 {
			t.Errorf("not only right answers over TCP:\n%s", like(all, "nearside_forward_"))
		}
	})
}

// TestRealUDP asks as the clients ask.
func TestRealUDP(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone(forward(r.address(r.port))))
		watch := watchConnections(t, r.address(r.port))
		for range 2 {
			anyOf.run(s).wantRight(t)
		}
		watch.want(t, mostTo(r.name))
	})
}

// TestRealTruncation asks for more records than a datagram has room for.
func TestRealTruncation(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone(forward(r.address(r.port), "prefer_udp")))
		for range 20 {
			query := new(dns.Msg).SetQuestion(anyCase(large), dns.TypeA)
			reply, err := exchange("tcp", s.Addr, query, time.Now().Add(budget+margin))
			if err != nil {
				t.Fatal(err)
			}
			wantLarge(t, reply)
		}
		all := s.scrape(t)
		if got := all.Sum(fallbacks, "reason", "truncated"); got != 20 {
			t.Errorf("%v fallbacks for truncation, want 20:\n%s", got, like(all, "nearside_forward_"))
		}
		if all.Sum(packets, "proto", "udp", "direction", "sent") != 20 {
			t.Errorf("not every query went over UDP first:\n%s", like(all, "nearside_forward_"))
		}
	})
}

// wantLarge fails the test if a reply has not all the addresses of the large name.
func wantLarge(t *testing.T, reply *dns.Msg) {
	t.Helper()
	have := map[string]bool{}
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			have[a.A.String()] = true
		}
	}
	for i := range largeAddresses {
		if !have[largeAddress(i).String()] {
			t.Fatalf("rcode %s, TC %t, %d records, without %s", dns.RcodeToString[reply.Rcode], reply.Truncated, len(reply.Answer), largeAddress(i))
		}
	}
}

// TestRealCache has a cache in front.
func TestRealCache(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		s := start(t, zone("cache 30", forward(r.address(r.port), "force_tcp")))
		for range 2 {
			anyOf.run(s).wantRight(t)
		}
		asked := s.scrape(t).Sum(requestCount, "proxy_name", "forward")
		if asked != hosts {
			t.Errorf("%v queries to the upstream, want %d", asked, hosts)
		}
	})
}

// TestRealTLS asks over TLS, hundreds of names at the same time, over few connections.
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
				to, more := options(r)
				s := start(t, zone(forward(to, more...)))
				watch := watchConnections(t, r.address(r.tls))
				for range 2 {
					anyOf.run(s).wantRight(t)
				}
				watch.want(t, mostTo(r.name))
			})
		}
	}
}

// TestRealTLSDistrust sees that a server is not asked whose certificate is for another name, or by an
// unknown authority.
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
				t.Errorf("%d right answers from a server that is not to be believed", right)
			}
		})
	}
}

// TestRealHTTPS and TestRealQUIC ask servers that have these.
func TestRealHTTPS(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"coredns", "named", "unbound"} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(name+", "+method, func(t *testing.T) {
				t.Parallel()
				r := startReal(t, name)
				s := start(t, zone(forward("https://"+r.address(r.https), "tls "+r.cert.CA, "tls_servername "+serverName, "doh_method "+method)))
				anyOf.run(s).wantRight(t)
			})
		}
	}
}

func TestRealQUIC(t *testing.T) {
	t.Parallel()
	r := startReal(t, "coredns")
	s := start(t, zone(forward("quic://"+r.address(r.quic), "tls "+r.cert.CA, "tls_servername "+serverName)))
	anyOf.run(s).wantRight(t)
}

// TestRealBesideDown has one of two servers down.
func TestRealBesideDown(t *testing.T) {
	eachReal(t, func(t *testing.T, r *realServer) {
		nobody := r.address(daemon.FreePort(t))
		s := start(t, zone(forward(nobody+" "+r.address(r.port), "force_tcp")))
		for range 2 {
			anyOf.run(s).wantRight(t)
		}
	})
}

// watch counts the connections to an address, as the kernel has them.
type watch struct {
	address string
	stop    chan struct{}
	ended   chan struct{}
	err     error
	most    atomic.Int64
}

// watchConnections begins to count.
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

// want fails the test if there were more connections at one time.
func (w *watch) want(t *testing.T, most int) {
	t.Helper()
	w.end()
	if w.err != nil {
		t.Fatal(w.err)
	}
	t.Logf("%d connections at one time", w.most.Load())
	if got := int(w.most.Load()); got > most || got == 0 {
		t.Errorf("%d connections at one time, want 1 to %d", got, most)
	}
}

// established is the state of a connection in /proc/net/tcp.
const established = "01"

// count counts the connections that are established now.
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
	w.most.Store(max(w.most.Load(), n))
}

// kernelAddress is an address as /proc/net/tcp has it: a number of the machine, of the bytes as they are.
func kernelAddress(a netip.AddrPort) string {
	b := a.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}
