//go:build linux

package nodelocal

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestPodsThatAreDropped has packet filters that drop queries of pods, and not the server's own: of IPv4 by the address
// of the pod, of IPv6 by its interface. Until then, more packets than the server reads do not end the lease. Then pods
// have no answer for some seconds, and cluster DNS answers. A rule of routing before the table local sends queries out
// of the node; then cluster DNS answers at once, as without nodecache.
func TestPodsThatAreDropped(t *testing.T) {
	n := newNode(t)
	p := n.run(t, cache{who: "local", addresses: both, options: []string{n.fallbacks()}, more: []string{"prometheus :9253"}})

	for _, c := range []struct {
		family                 string
		address, gateway, from netip.Addr
	}{
		{"-4", local4, n.Upstream.IPv4, n.Pod[0].IPv4},
		{"-6", local6, n.Upstream.IPv6, n.Pod[0].IPv6},
	} {
		run := func(args string) {
			t.Helper()
			n.Node.Run(t, "ip", append([]string{c.family}, strings.Fields(args)...)...)
		}
		run("rule add pref 100 lookup local")
		run("rule del pref 0")
		run(fmt.Sprintf("route add default via %v table 77", c.gateway))
		run(fmt.Sprintf("rule add pref 10 from %v lookup 77", c.from))
		for range 4 {
			if record, err := n.Pod[0].Ask("udp", c.address, "routed.test.", bounded); err != nil || record[0] != "upstream" {
				t.Errorf("%v with a rule of routing: %q, %v", c.address, record, err)
			}
		}
		if err := n.leased(c.address); err != nil {
			t.Error(err)
		}
		run("rule del pref 10")
	}

	flood := n.flood(t)
	for end := time.Now().Add(notReachedAfter + time.Second); time.Now().Before(end); {
		flood()
		time.Sleep(2 * time.Millisecond)
	}
	for _, a := range both {
		n.waitAnswer(t, startTimeout, a, "local")
		kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(a) })
	}
	if text := p.Output(); strings.Contains(text, "ended: the rules let in") {
		t.Errorf("a flood ends the lease:\n%s", text)
	}

	n.Node.Run(t, "nft", "add table inet guard; add chain inet guard in { type filter hook input priority 0; policy accept; }; "+
		`add rule inet guard in ip saddr 10.1.0.0/16 th dport 53 drop; add rule inet guard in iifname "pod*" meta nfproto ipv6 udp dport 53 drop`)
	start := time.Now()
	waiting := slices.Clone(both)
	kit.Succeeds(t, startTimeout, "the leases to end", func() error {
		waiting = slices.DeleteFunc(waiting, func(a netip.Addr) bool {
			_, err := n.Pod[0].Ask("udp", a, "dropped.test.", 100*time.Millisecond)
			return err == nil && strings.Contains(p.Output(), fmt.Sprintf("Lease of %v ended: the rules let in ", a))
		})
		if len(waiting) > 0 {
			return fmt.Errorf("no answer on %v", waiting)
		}
		return nil
	})
	if took := time.Since(start); took > 2*notReachedAfter+bounded {
		t.Errorf("pods had no answer for %v", took)
	}
	for _, a := range both {
		n.waitAnswer(t, bounded, a, "upstream")
		waitLog(t, bounded, p, "Packet filter: chain inet guard in, rule with handle ")
		page, err := get(n.Node, "http://127.0.0.1:9253/metrics")
		for _, line := range []string{"nearside_nodelocal_leases_not_reached_total{address=%q} 1\n", "nearside_nodelocal_lease{address=%q} 0\n"} {
			if line = fmt.Sprintf(line, a); err != nil || !strings.Contains(page, line) {
				t.Errorf("no metric %s: %v", line, err)
			}
		}
		if n.leased(a) == nil {
			t.Errorf("%v has a lease again", a)
		}
	}
}

// notReachedAfter is the time for which no packet arrives before the lease ends.
const notReachedAfter = 2 * time.Second

// flood returns a function that sends datagrams, which are no queries, from a pod to both addresses.
func (n *node) flood(t *testing.T) func() {
	t.Helper()
	var sockets []net.Conn
	for _, a := range both {
		c, err := n.Pod[1].Dial(net.Dialer{}, "udp", netip.AddrPortFrom(a, 53).String())
		kit.Must(t, err)
		sockets = append(sockets, c)
	}
	t.Cleanup(func() {
		for _, c := range sockets {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return func() {
		for _, c := range sockets {
			for range 20 {
				if _, err := c.Write([]byte{0}); err != nil && !errors.Is(err, net.ErrClosed) {
					continue // an ICMP error of an earlier one
				}
			}
		}
	}
}
