//go:build linux

package nodelocal

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestPodsThatAreDropped has packet filters that drop queries of pods, and not the server's own: of IPv4 by the address
// of the pod, of IPv6 by its interface. Until then, more packets than the server reads do not end the lease. Then pods
// have no answer for some seconds, and cluster DNS answers. A rule of routing before the table local sends queries out
// of the node; then cluster DNS answers at once, as without nodecache.
func TestPodsThatAreDropped(t *testing.T) {
	n := newNode(t)
	p := n.run(t, cache{who: "local", addresses: both, options: []string{n.fallbacks()}, more: []string{"prometheus :9253"}})

	for _, a := range both {
		ip := []string{map[bool]string{true: "-4", false: "-6"}[a.Is4()]}
		run := func(args ...string) { t.Helper(); n.Node.Run(t, "ip", append(ip, args...)...) }
		gateway := map[bool]netip.Addr{true: n.Upstream.IPv4, false: n.Upstream.IPv6}[a.Is4()]
		run("rule", "add", "pref", "100", "lookup", "local")
		run("rule", "del", "pref", "0")
		run("route", "add", "default", "via", gateway.String(), "table", "77")
		run("rule", "add", "pref", "10", "to", a.String(), "lookup", "77")
		for range 4 {
			if record, err := n.Pod[0].Ask("udp", a, "routed.test.", bounded); err != nil || record[0] != "upstream" {
				t.Errorf("%v with a rule of routing: %q, %v", a, record, err)
			}
		}
		run("rule", "del", "pref", "10")
	}

	flood := n.flood(t)
	for end := time.Now().Add(notReachedAfter + time.Second); time.Now().Before(end); {
		flood()
	}
	for _, a := range both {
		n.waitAnswer(t, bounded, a, "local")
	}
	if text := p.Output(); strings.Contains(text, "ended") || strings.Contains(text, "expired") {
		t.Errorf("a flood ends the lease:\n%s", text)
	}

	n.Node.Run(t, "nft", "add table inet guard; add chain inet guard in { type filter hook input priority 0; policy accept; }; "+
		`add rule inet guard in ip saddr 10.1.0.0/16 th dport 53 drop; add rule inet guard in iifname "pod*" meta nfproto ipv6 udp dport 53 drop`)
	start := time.Now()
	waiting := map[netip.Addr]bool{local4: true, local6: true}
	waitFor(t, startTimeout, "cluster DNS to answer pods whose queries are dropped", func() error {
		for a := range waiting {
			if record, err := n.Pod[0].Ask("udp", a, "dropped.test.", 100*time.Millisecond); err == nil && record[0] == "upstream" {
				t.Logf("%v: after %v", a, time.Since(start).Round(time.Millisecond))
				delete(waiting, a)
			}
		}
		if len(waiting) > 0 {
			return fmt.Errorf("no answer on %v", waiting)
		}
		return nil
	})
	if took := time.Since(start); took > 2*notReachedAfter+bounded {
		t.Errorf("pods had no answer for %v", took)
	}
	for _, a := range both {
		waitLog(t, bounded, p, fmt.Sprintf("Lease of %v ended: the rules let in ", a))
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
		err := n.Pod[1].Do(func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(a, 53).String())
			sockets = append(sockets, c)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
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
			for range 100 {
				if _, err := c.Write([]byte{0}); err != nil && !errors.Is(err, net.ErrClosed) {
					continue // an ICMP error of an earlier one
				}
			}
		}
	}
}
