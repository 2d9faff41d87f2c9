//go:build linux

package nodelocal

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/netns"
)

// TestInterface reads the interface from the kernel and queries every address with dig.
func TestInterface(t *testing.T) {
	n := newNode(t)
	n.run(t, cache{who: "local", addresses: everywhere})
	t.Run("kernel", func(t *testing.T) {
		all := n.links(t)
		if len(all) != 1 {
			t.Fatalf("interfaces called %s: %v", device, all)
		}
		l := all[0]
		if !slices.Contains([]string{"dummy", "bridge"}, l.Info.Kind) || !slices.Contains(l.Flags, "UP") {
			t.Errorf("interface: kind %s, flags %q", l.Info.Kind, l.Flags)
		}
		want := []string{local4.String() + "/32", kubeDNS4.String() + "/32", local6.String() + "/128", kubeDNS6.String() + "/128"}
		slices.Sort(want)
		if got := l.prefixes(); !slices.Equal(got, want) {
			t.Errorf("addresses %q, want %q", got, want)
		}
		for _, a := range l.Addresses {
			if a.Tentative {
				t.Errorf("%v is tentative", a.Local)
			}
		}
	})
	for _, a := range everywhere {
		for _, option := range []string{"+notcp", "+tcp"} {
			for i, from := range append(slices.Clone(n.Pod[:]), n.Node) {
				t.Run(fmt.Sprintf("%v %s from %d", a, option, i), func(t *testing.T) {
					got := from.Dig(t, "@"+a.String(), option, "+short", "TXT", "a.test")
					if !strings.HasPrefix(got, `"local" "`) {
						t.Errorf("dig says %q", got)
					}
				})
			}
		}
	}
}

// TestUntracked sends a thousand queries over UDP and as many over TCP to each address of nodecache,
// and a few to a control address that the node forwards to.
func TestUntracked(t *testing.T) {
	const queries, controls = 1000, 10
	n := newNode(t)
	addresses := []netip.Addr{local4, local6}
	n.run(t, cache{
		who: "local", addresses: addresses, options: []string{"health 8080"},
		more: []string{fmt.Sprintf("health %v", netip.AddrPortFrom(local4, 8080))},
	})
	n.Node.Run(t, "conntrack", "-F")
	for i, a := range addresses {
		for _, network := range []string{"udp", "tcp"} {
			ask(t, n.Pod[i], network, a, queries)
			ask(t, n.Node, network, a, controls)
		}
	}
	// The kubelet queries from the node as well.
	if page, err := get(n.Node, "http://"+netip.AddrPortFrom(local4, 8080).String()+"/health"); err != nil || page != "OK" {
		t.Errorf("health: %q, %v", page, err)
	}
	for _, a := range []netip.Addr{n.Upstream.IPv4, n.Upstream.IPv6} {
		for _, network := range []string{"udp", "tcp"} {
			ask(t, n.Pod[0], network, a, controls)
		}
		if got := n.tracked(t, a); len(got) != 2*controls {
			t.Errorf("%v, the control: %d connections are tracked, want %d:\n%s", a, len(got), 2*controls, strings.Join(got, ""))
		}
	}
	for _, a := range addresses {
		if got := n.tracked(t, a); len(got) != 0 {
			t.Errorf("%v: %d connections are tracked:\n%s", a, len(got), strings.Join(got, ""))
		}
	}
}

// ask sends a number of queries, a few at a time, each of which must be answered.
func ask(t *testing.T, from *netns.Namespace, network string, to netip.Addr, count int) {
	t.Helper()
	const workers = 8
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < count; i += workers {
				if _, err := from.Ask(network, to, fmt.Sprintf("q%d.test.", i), 5*time.Second); err != nil {
					t.Errorf("query %d over %s: %v", i, network, err)
				}
			}
		})
	}
	all.Wait()
}

// TestLargeAnswersThroughSmallerMTU queries answers of 1,408 bytes from a host behind a router with a smaller MTU. The node's firewall
// accepts ICMP only for tracked connections, and queries to nodecache are untracked, so that no message about the MTU arrives. Over
// IPv6 it is accepted (RFC 4890 section 4.3.1), and the first answer is lost.
func TestLargeAnswersThroughSmallerMTU(t *testing.T) {
	const size = 1408 // of a message with the strings below
	n := newNode(t)
	far := netns.Add(t, "far")
	n.Upstream.Forwards(t)
	far.Join(t, n.Upstream, "far", "10.3.0.%d/24", "fd03::%d/64")
	for _, end := range []struct {
		in     *netns.Namespace
		device string
	}{{n.Upstream, "far"}, {far, "eth0"}} {
		end.in.Run(t, "ip", "link", "set", end.device, "mtu", "1280")
	}
	n.Node.Run(t, "nft", "add table inet filter; add chain inet filter in { type filter hook input priority 0; }; "+
		"add rule inet filter in ct state established,related accept; "+
		"add rule inet filter in ip protocol icmp drop")
	large := "template IN TXT large.test {\n        answer \"{{ .Name }} 60 IN TXT" + strings.Repeat(" "+strings.Repeat("x", 255), 5) + " " + strings.Repeat("x", 76) + "\"\n    }"
	for _, fastPath := range []string{"on", "off"} {
		t.Run("fast path "+fastPath, func(t *testing.T) {
			addresses := []netip.Addr{local4, local6}
			p := n.run(t, cache{who: "local", addresses: addresses, more: []string{"fastpath " + fastPath, large}})
			for _, a := range addresses {
				if a.Is6() {
					_, _ = exchangeLarge(far, a) // lost, unless the path is known from the subtest before
				}
				for i := range 3 { // the first from the plugins, the others from the fast path
					if length, err := exchangeLarge(far, a); err != nil || length != size {
						t.Fatalf("answer %d of %v: %d bytes, %v", i, a, length, err)
					}
				}
			}
			p.Stop(t)
		})
	}
}

// exchangeLarge queries large.test over UDP, with room for 4,096 bytes, and returns the length of the answer.
func exchangeLarge(from *netns.Namespace, server netip.Addr) (length int, err error) {
	err = from.Do(func() error {
		m := new(dns.Msg).SetQuestion("large.test.", dns.TypeTXT).SetEdns0(4096, false)
		c := dns.Client{Timeout: time.Second}
		reply, _, err := c.Exchange(m, netip.AddrPortFrom(server, 53).String())
		if err == nil {
			reply.Compress = true
			length = reply.Len()
		}
		return err
	})
	return length, err
}

// TestAddressInUse starts nodecache where another interface has its address.
func TestAddressInUse(t *testing.T) {
	n := newNode(t)
	n.Node.Run(t, "ip", "link", "add", "kept0", "type", "bridge")
	n.Node.Run(t, "ip", "addr", "add", local4.String()+"/32", "dev", "kept0")
	before := n.kernelState(t)
	p := n.start(t, cache{who: "local", addresses: []netip.Addr{local4}})
	if code := p.Wait(t); code == 0 {
		t.Error("nodecache ended without an error")
	}
	if out := p.Output(); !strings.Contains(out, "kept0") || !strings.Contains(out, local4.String()) {
		t.Errorf("the error names neither interface nor address:\n%s", out)
	}
	if after := n.kernelState(t); after != before {
		t.Errorf("it left something:\n%s\nbefore:\n%s", after, before)
	}
}
