//go:build linux

package nodelocal

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// withFallback is nodecache on the link-local address, with cluster DNS as fallback without a lease.
func (n *node) withFallback(who string) cache {
	return cache{who: who, addresses: []netip.Addr{local4}, options: []string{"fallback " + n.Upstream.IPv4.String()}}
}

// servers sends a number of queries from a pod and counts the answers by server.
func (n *node) servers(t *testing.T, queries int) map[string]int {
	t.Helper()
	by := map[string]int{}
	for i := range queries {
		record, err := n.Pod[0].Ask("udp", local4, fmt.Sprintf("%d.test.", i), time.Second)
		if err != nil {
			record = []string{err.Error()}
		}
		by[record[0]]++
	}
	return by
}

// TestHungInstance freezes one of two instances. The kernel delivers every second TCP connection to it, so that the
// answers of the other one must not renew the lease. Over UDP, the frozen one receives every second query as well, or (seen
// with Linux 6.18) none: detached sockets in between divide the sockets of both into two groups, and the younger group
// receives all. Then the lease expires by its self-queries over TCP, one in 3 s, of which every second one is lost.
func TestHungInstance(t *testing.T) {
	n := newNode(t)
	first := n.run(t, n.withFallback("first"))
	n.start(t, n.withFallback("second"))
	kit.Succeeds(t, startTimeout, "the second instance to answer", func() error {
		if by := n.servers(t, 20); by["second"] == 0 {
			return fmt.Errorf("answers by %v", by)
		}
		return nil
	})
	first.Freeze(t)
	n.waitAnswer(t, 2*startTimeout, local4, "upstream")
	const queries, limit = 100, 5
	if by := n.servers(t, queries); by["upstream"]+by["second"] < queries-limit {
		t.Errorf("with one instance frozen: answers by %v", by)
	}
	first.Thaw(t)
	kit.Succeeds(t, bounded, "the lease", func() error { return n.leased(local4) })
}

// TestPredecessor has leftover rules of a killed node-local-dns: they would keep packets from cluster DNS when nodecache
// is killed as well.
func TestPredecessor(t *testing.T) {
	n := newNode(t)
	for _, protocol := range []string{"udp", "tcp"} {
		for _, rule := range []string{"PREROUTING -d %s -p %s --dport 53", "OUTPUT -s %s -p %s --sport 53", "OUTPUT -d %s -p %s --dport 53"} {
			args := strings.Fields(fmt.Sprintf("-t raw -A "+rule+" -j NOTRACK", local4, protocol))
			n.Node.Run(t, "iptables", append(args, "-m", "comment", "--comment", "NodeLocal DNS Cache: skip conntrack")...)
		}
	}
	p := n.run(t, n.withFallback("local"))
	kit.Succeeds(t, bounded, "the rules to be removed", func() error {
		if rules := n.iptables(t); len(rules) > 0 {
			return fmt.Errorf("%q", rules)
		}
		return nil
	})
	p.Kill(t)
	n.waitAnswer(t, bounded, local4, "upstream")
}

// TestOtherBackend reloads from iptables, whose rules direct traffic to nodecache unconditionally, to nftables.
func TestOtherBackend(t *testing.T) {
	n := newNode(t)
	path := filepath.Join(t.TempDir(), "Corefile")
	configured := n.withFallback("local")
	configured.options = append(configured.options, "backend iptables")
	kit.Write(t, path, configured.text())
	p := n.Node.Start(t, program(t), "-conf", path)
	n.waitAnswer(t, startTimeout, local4, "local")
	kit.Succeeds(t, startTimeout, "the rules", func() error {
		if len(n.iptables(t)) == 0 {
			return errors.New("none")
		}
		return nil
	})
	kit.Write(t, path, n.withFallback("local").text())
	p.Signal(t, syscall.SIGUSR1)
	kit.Succeeds(t, startTimeout, "removal of iptables rules except those that accept", func() error {
		accepts := 0
		for _, r := range n.iptables(t) {
			if strings.Contains(r, "NOTRACK") {
				return fmt.Errorf("%q", r)
			}
			accepts++
		}
		if accepts != 4 {
			return fmt.Errorf("%d rules accept DNS", accepts)
		}
		return nil
	})
	kit.Succeeds(t, bounded, "the lease", func() error { return n.leased(local4) })
	p.Kill(t)
	n.waitAnswer(t, bounded, local4, "upstream")
}

// TestMarksCleared has another table remove marks, as network plugins do: after the table of nodecache, which is
// harmless, and before it, so that renewals do not reach the rules, which is logged.
func TestMarksCleared(t *testing.T) {
	n := newNode(t)
	p := n.run(t, n.withFallback("local"))
	marks := func(priority int, rule string) {
		n.Node.Run(t, "nft", fmt.Sprintf("add table inet marks; delete table inet marks; add table inet marks; "+
			"add chain inet marks output { type filter hook output priority %d; }; add rule inet marks output %s", priority, rule))
	}
	marks(-300, "meta mark set 0")
	time.Sleep(2 * time.Second) // longer than a lease
	if err := n.leased(local4); err != nil {
		t.Errorf("with marks cleared at raw: %v", err)
	}
	marks(-320, "meta mark set 0")
	n.waitAnswer(t, bounded, local4, "upstream")
	waitLog(t, startTimeout, p, "renewals of its lease do not reach the rules")
	// Another mark on the renewals alone: queries are answered, and the lease expires.
	p.Stop(t)
	marks(-320, "meta mark 0x37 meta mark set 0x34")
	p = n.start(t, n.withFallback("local"))
	waitLog(t, startTimeout, p, "renewals of its lease do not reach the rules")
	n.waitAnswer(t, bounded, local4, "upstream")
}

// TestSetupNone starts an instance that sets up nothing beside one that does.
func TestSetupNone(t *testing.T) {
	n := newNode(t)
	n.run(t, n.withFallback("local"))
	bystander := cache{who: "bystander", addresses: []netip.Addr{kubeDNS4}, options: []string{"setup none"}}
	n.Node.Run(t, "ip", "addr", "add", kubeDNS4.String()+"/32", "dev", "lo")
	n.start(t, bystander)
	n.waitAnswer(t, startTimeout, kubeDNS4, "bystander")
	n.Node.Run(t, "ip", "link", "del", device)
	n.Node.Run(t, "nft", "delete", "table", "inet", table)
	n.waitAnswer(t, bounded, local4, "local")
	kit.Succeeds(t, bounded, "the lease", func() error { return n.leased(local4) })
}

// TestForeignAddressOnLo starts nodecache on an address that an administrator has added to lo.
func TestForeignAddressOnLo(t *testing.T) {
	n := newNode(t)
	n.Node.Run(t, "ip", "addr", "add", kubeDNS4.String()+"/32", "dev", "lo")
	p := n.start(t, cache{who: "local", addresses: []netip.Addr{local4, kubeDNS4}})
	select {
	case <-p.Ended():
	case <-time.After(startTimeout):
		t.Fatal("nodecache runs on an address that lo has")
	}
	if want := "address 10.96.0.10 is held by interface lo"; !strings.Contains(p.Output(), want) {
		t.Errorf("output %q, want %q", p.Output(), want)
	}
	if out := n.Node.Run(t, "ip", "addr", "show", "dev", "lo"); !strings.Contains(out, kubeDNS4.String()) || len(n.links(t)) != 0 {
		t.Errorf("afterwards: %v\n%s", n.links(t), out)
	}
}

// TestOwnPort has nodecache on another port than 53.
func TestOwnPort(t *testing.T) {
	n := newNode(t)
	path := filepath.Join(t.TempDir(), "Corefile")
	text := strings.Replace(n.withFallback("local").text(), ".:53", ".:1053", 1)
	kit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	n.Node.Start(t, program(t), "-conf", path)
	kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(local4) })
	if out := n.Pod[0].Dig(t, "+short", "-p", "1053", "@"+local4.String(), "x.test", "TXT"); !strings.Contains(out, "local") {
		t.Errorf("from a pod: %q", out)
	}
	if rules := n.rules(); strings.Contains(rules, "port 53 ") {
		t.Errorf("rules for port 53:\n%s", rules)
	}
}

// TestFirewall has a firewall of iptables that drops unknown packets.
func TestFirewall(t *testing.T) {
	n := newNode(t)
	n.Node.Run(t, "iptables", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
	n.Node.Run(t, "iptables", "-P", "INPUT", "DROP")
	before := n.iptables(t)
	p := n.run(t, n.withFallback("local"))
	if by := n.servers(t, 20); by["local"] != 20 {
		t.Errorf("answers by %v", by)
	}
	n.Node.Run(t, "iptables", "-F", "INPUT")
	n.waitAnswer(t, bounded, local4, "local") // the rules that accept DNS are back
	n.Node.Run(t, "iptables", "-F", "INPUT")
	p.Signal(t, syscall.SIGTERM)
	select {
	case <-p.Ended():
	case <-time.After(startTimeout):
		t.Fatal("nodecache does not end")
	}
	n.Node.Run(t, "iptables", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
	if after := n.iptables(t); !slices.Equal(after, before) {
		t.Errorf("left: %q, before: %q", after, before)
	}
}

// TestFirewallIsReported has a firewall of nftables whose last rule rejects packets of pods, while its policy is accept.
// The log names the firewall while queries do not arrive, and that they arrive again.
func TestFirewallIsReported(t *testing.T) {
	n := newNode(t)
	n.Node.Run(t, "nft", `add table inet firewalld; add chain inet firewalld filter_INPUT { type filter hook input priority filter + 10; policy accept; }
add rule inet firewalld filter_INPUT ct state { established, related } accept
add rule inet firewalld filter_INPUT iifname "lo" accept
add rule inet firewalld filter_INPUT reject with icmpx admin-prohibited`)
	configured := n.withFallback("local")
	configured.options = append(configured.options, "interval 1s")
	p := n.start(t, configured)
	const line = "Packet filter: chain inet firewalld filter_INPUT, rule with handle 5 rejects: UDP and TCP to 169.254.20.10: queries do not arrive, and this may be the reason; to let DNS through: firewall-cmd"
	waitLog(t, startTimeout, p, line)
	n.Node.Run(t, "nft", "insert rule inet firewalld filter_INPUT ip daddr 169.254.20.10 meta l4proto { tcp, udp } th dport 53 accept")
	n.Node.Run(t, "nft", "add table netdev guard; add chain netdev guard in { type filter hook ingress device pod0 priority 0; policy drop; }")
	waitLog(t, startTimeout, p, "Packet filter: chain netdev guard in, hook ingress of pod0, its policy drops")
	n.Node.Run(t, "nft", "delete table netdev guard")
	waitLog(t, startTimeout, p, "No other packet filter is suspected any more of dropping DNS to the node-local addresses")
	n.waitAnswer(t, startTimeout, local4, "local")
	if count := strings.Count(p.Output(), line); count != 1 {
		t.Errorf("the log has the line %d times:\n%s", count, p.Output())
	}
}

// TestFirewallThatAccepts has firewalls that accept DNS, one of them by a set, which is not read. Since queries arrive, they
// are not logged, and doctor does not warn.
func TestFirewallThatAccepts(t *testing.T) {
	n := newNode(t)
	n.Node.Run(t, "nft", `add table inet fw; add chain inet fw in { type filter hook input priority 0; policy drop; }
add rule inet fw in ct state vmap { established : accept, related : accept, invalid : drop }
add rule inet fw in iifname "lo" accept
add rule inet fw in ip daddr 169.254.20.10 meta l4proto . th dport { udp . 53, tcp . 53 } accept
add rule inet fw in meta mark & 0x8000 == 0x8000 drop
add rule inet fw in reject`)
	n.Node.Run(t, "iptables", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
	n.Node.Run(t, "iptables", "-P", "INPUT", "DROP") // nodecache accepts DNS here by itself
	p := n.run(t, n.withFallback("local"))
	kit.Succeeds(t, startTimeout, "the verification", func() error {
		if rules := n.iptables(t); len(rules) < 4 {
			return fmt.Errorf("%q", rules)
		}
		return nil
	})
	kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(local4) })
	out, _ := n.Node.Try(program(t), "doctor", "-localip", local4.String()) // other checks may fail on this node
	if !regexp.MustCompile(`(?m)^ok +rules of others +chain inet fw in, rule with handle \d+ rejects: UDP and TCP to 169.254.20.10; queries arrive`).MatchString(out) {
		t.Errorf("doctor does not rate the firewall by the arrival of queries:\n%s", out)
	}
	p.Stop(t)
	if strings.Contains(p.Output(), "acket filter") {
		t.Error("the log names a firewall that accepts DNS")
	}
}
