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
