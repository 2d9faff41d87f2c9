//go:build linux

package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// answerWith answers every question with an address.
func answerWith(address string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300},
			A:   net.ParseIP(address).To4(),
		}}
		_ = w.WriteMsg(m) // the client may have closed its socket
	}
}

// TestStorePerServerBlock queries a name that two server blocks may have, on the listener of either. One of them has no cache,
// and must not be answered from the other one's store.
func TestStorePerServerBlock(t *testing.T) {
	inside, outside := startUpstream(t, answerWith("192.0.2.1")), startUpstream(t, answerWith("192.0.2.2"))
	s := start(t, "clusterdns", fmt.Sprintf(`internal.test:PORT {
    bind 127.0.0.1
    forward . %s
}
.:PORT {
    bind 127.0.0.1 127.0.0.2
    prometheus METRICS
    cache
    forward . %s
}
`, inside.address, outside.address))
	kit.Eventually(t, "the start lines", func() bool { return strings.Count(s.Output(), "fast path for .") == 2 })
	query := pack(t, newQuery("x.internal.test.", dns.TypeA))
	for _, host := range []string{"127.0.0.2", "127.0.0.1", "127.0.0.2", "127.0.0.1"} {
		want := "192.0.2.1"
		if host == "127.0.0.2" {
			want = "192.0.2.2"
		}
		m := new(dns.Msg)
		kit.Must(t, m.Unpack(dial(t, "udp", host, s).ask(t, query)))
		if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != want {
			t.Errorf("%s answers %v, want %s", host, m.Answer, want)
		}
	}
	if s.scrape(t).Sum(answeredTotal) == 0 {
		t.Error("nothing was answered from the store")
	}
}

// TestQueuePerServerBlock has an upstream that holds back every reply, and names that do not need it: those of another server
// block, and those of the cluster in the same one, as in the stock Corefiles.
func TestQueuePerServerBlock(t *testing.T) {
	g := newGate(t)
	defer g.open() // its server ends after its answers
	held := startUpstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		g.pass(r.Question[0].Name)
		answerAddress(w, r)
	})
	healthy := startUpstream(t, answerAddress)
	const block = `%s:PORT {
    bind 127.0.0.1
    prometheus METRICS
    fastpath {
        max_concurrent 5
    }
    cache
    kubernetes cluster.local {
        manifests %s
    }
    forward . %s
}
`
	folder := newCluster(t)
	s := start(t, "clusterdns", fmt.Sprintf(block, "example.org", folder, healthy.address)+fmt.Sprintf(block, ".", folder, held.address))
	cookie := func(name string) []byte { // this query is never answered from the store
		m := newQuery(name, dns.TypeA).SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}}
		return pack(t, m)
	}
	conn := dial(t, "udp", "127.0.0.1", s)
	filled := 0
	fill := func() { // a query that is held back fails after some seconds, so the chain has to be filled again and again
		for range 20 {
			filled++
			conn.send(t, pack(t, newQuery(fmt.Sprintf("q%d.test.", filled), dns.TypeA)))
			conn.send(t, cookie(fmt.Sprintf("c%d.test.", filled)))
		}
	}
	dropped := func() float64 { return s.scrape(t).Sum(droppedTotal, "reason", "overload") }
	kit.Eventually(t, "the queue of the one block is full", func() bool {
		fill()
		return dropped() > 0
	})
	other := dial(t, "udp", "127.0.0.1", s)
	for i := range 20 {
		for _, zone := range []string{"example.org.", "shop.svc.cluster.local."} {
			before := dropped()
			fill()
			other.ask(t, pack(t, newQuery(fmt.Sprintf("q%d.%s", i, zone), dns.TypeA)))
			other.ask(t, cookie(fmt.Sprintf("c%d.%s", i, zone)))
			probe := newQuery(fmt.Sprintf("p%d.test.", i), dns.TypeNS).SetEdns0(1232, false)
			probe.IsEdns0().SetVersion(1) // refused before the plugin chain
			other.send(t, pack(t, probe))
			fill() // the query that waited longest is dropped
			if other.receive(t, bounded) == nil {
				t.Fatal("no reply to a query of another version of EDNS")
			}
			kit.Eventually(t, "the queue of the one block is still full", func() bool { return dropped() > before })
		}
	}
}

// TestReloadOverIPv6 disables the fast path of a listener, and enables it again: queries over IPv6, to a socket of both
// families, are answered under every configuration.
func TestReloadOverIPv6(t *testing.T) {
	for _, bind := range []string{"", "bind 0.0.0.0 ::", "bind eth0"} {
		t.Run(bind, func(t *testing.T) { testReloadOverIPv6(t, bind) })
	}
}

func testReloadOverIPv6(t *testing.T, bind string) {
	t.Helper()
	bed := netns.New(t)
	path := filepath.Join(t.TempDir(), "Corefile")
	const behind = "\n.:5300 {\n    bind 127.0.0.1\n    template IN ANY . {\n        answer \"{{ .Name }} 300 IN A 192.0.2.1\"\n    }\n}\n"
	configure := func(plugins ...string) {
		t.Helper()
		text := ".:53 {\n    " + strings.Join(append(append([]string{bind}, plugins...), "forward . 127.0.0.1:5300"), "\n    ") + "\n}\n" + behind
		kit.Write(t, path, text)
	}
	configure("cache")
	p := bed.Upstream.Start(t, daemon.Program(t, "clusterdns"), "-conf", path)
	kit.Eventually(t, "the start line", func() bool { return strings.Contains(p.Output(), "fast path for .") })
	check := func(when string) {
		t.Helper()
		for range 4 { // each from another port, so that every socket receives some
			for _, a := range []netip.Addr{bed.Upstream.IPv6, bed.Upstream.IPv4} {
				server := netip.AddrPortFrom(a, 53)
				if from := askFrom(t, bed.Pod[0], server, "www.example.org."); from != server {
					t.Errorf("%s: asked %v, %v answers", when, server, from)
				}
			}
		}
	}
	check("at the start")
	for i, plugins := range [][]string{{"cache", "log"}, {"cache", "fastpath off"}, {}, {"cache"}, {}} {
		configure(plugins...)
		p.Signal(t, syscall.SIGUSR1)
		kit.Eventually(t, "the reload", func() bool { return strings.Count(p.Output(), "Reloading complete") == i+1 })
		check(fmt.Sprintf("with %q", plugins))
	}
	if code := p.Stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestSameAddressOnTwoLinks has one link-local address on two interfaces, with a server on each.
func TestSameAddressOnTwoLinks(t *testing.T) {
	host := netns.New(t).Upstream
	for _, device := range []string{"one", "two"} {
		host.Run(t, "ip", "link", "add", device, "type", "veth", "peer", "name", device+"-peer")
		for _, end := range []string{device, device + "-peer"} {
			host.Run(t, "ip", "link", "set", end, "addrgenmode", "none")
			host.Run(t, "ip", "link", "set", end, "up")
		}
		host.Run(t, "ip", "addr", "add", "fe80::53/64", "dev", device, "nodad")
	}
	p := startIn(t, host, fmt.Sprintf(".:53 {\nbind one two\nkubernetes cluster.local {\nmanifests %s\n}\n}\n", newCluster(t)))
	kit.Eventually(t, "both start lines", func() bool { return strings.Count(p.Output(), "fast path for .") == 2 })
	for _, device := range []string{"one", "two"} {
		index, _, _ := strings.Cut(host.Run(t, "ip", "-o", "link", "show", "dev", device), ":")
		server := netip.AddrPortFrom(netip.MustParseAddr("fe80::53").WithZone(index), 53)
		for range 4 {
			if from := askFrom(t, host, server, "web.shop.svc.cluster.local."); from.Addr().WithZone("") != server.Addr().WithZone("") {
				t.Errorf("asked on %s, %v answers", device, from)
			}
		}
	}
	if code := p.Stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
