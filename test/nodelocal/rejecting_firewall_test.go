//go:build linux

package nodelocal

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// firewalld is a table of firewalld for a node on which DNS was not allowed: it rejects by a rule, and its policy is
// accept.
const firewalld = `add table inet firewalld; add chain inet firewalld filter_INPUT { type filter hook input priority filter + 10; policy accept; }; ` +
	`add rule inet firewalld filter_INPUT ct state { established, related } accept; ` +
	`add rule inet firewalld filter_INPUT iifname "lo" accept; ` +
	`add rule inet firewalld filter_INPUT icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; ` +
	`add rule inet firewalld filter_INPUT reject with icmpx admin-prohibited`

// TestFirewallThatAcceptsPods has a firewall that accepts DNS from pods, by their addresses, on a node that drops
// packets whose source is routed elsewhere. With a source that the firewall accepts, nodecache acquires the lease.
func TestFirewallThatAcceptsPods(t *testing.T) {
	n := newNode(t)
	for _, iface := range []string{"all", "default"} {
		n.Node.Sysctl(t, "net/ipv4/conf/"+iface+"/rp_filter", "1")
	}
	n.Node.Run(t, "nft", firewalld+"; insert rule inet firewalld filter_INPUT ip saddr 10.1.0.0/16 accept; insert rule inet firewalld filter_INPUT ip6 saddr fd01::/32 accept; "+
		"add chain inet firewalld filter_PREROUTING { type filter hook prerouting priority filter + 10; }; "+
		"add rule inet firewalld filter_PREROUTING meta nfproto ipv6 fib saddr . mark . iif oif missing drop")
	n.run(t, cache{who: "local", addresses: both, options: []string{"question from 10.1.255.254 fd01:0:ffff::53"}})
	for _, a := range both {
		for _, network := range []string{"udp", "tcp"} {
			if record, err := n.Pod[0].Ask(network, a, "a.test.", startTimeout); err != nil || record[0] != "local" {
				t.Errorf("%v over %s: %q, %v", a, network, record, err)
			}
		}
	}
}

// TestQuestionOverLo starts nodecache with queries to itself over lo: `question lo` is configured, or nodecache cannot
// create its pair of devices, since a bridge has the name of one. Then nodecache holds the lease although a firewall
// rejects the queries of pods.
func TestQuestionOverLo(t *testing.T) {
	for _, c := range []struct{ name, option, line string }{
		{"configured", "question lo", ""},
		{"no devices", "question from 192.0.2.1", "Self-queries use lo: a firewall that rejects queries of pods is not detected: " +
			"interfaces nodelocaldns-q0 and nodelocaldns-q1: interface nodelocaldns-q1 exists and is a bridge, not a veth: choose another name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			if c.line != "" {
				n.Node.Run(t, "ip", "link", "add", "nodelocaldns-q1", "type", "bridge")
			}
			before := n.kernelState(t)
			n.Node.Run(t, "nft", firewalld)
			p := n.start(t, cache{who: "local", addresses: both, options: []string{c.option}, more: []string{"prometheus :9253"}})
			for _, a := range both {
				kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(a) })
			}
			if !strings.Contains(p.Output(), c.line) {
				t.Errorf("no line %q", c.line)
			}
			if page, err := get(n.Node, "http://127.0.0.1:9253/metrics"); err != nil || !strings.Contains(page, `question="lo"} 1`) {
				t.Errorf("no metric with the question lo: %v", err)
			}
			n.Node.Run(t, "nft", "delete", "table", "inet", "firewalld")
			p.Stop(t)
			if after := n.kernelState(t); after != before {
				t.Errorf("after the end:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// TestQuestionRepair removes devices and routes of nodecache's self-queries. They are repaired soon, and the lease is
// acquired again.
func TestQuestionRepair(t *testing.T) {
	n := newNode(t)
	n.run(t, n.withFallback("local"))
	devices := func() string {
		return n.Node.Run(t, "ip", "route", "show", "dev", "nodelocaldns-q0") + n.Node.Run(t, "ip", "route", "show", "dev", "nodelocaldns-q1")
	}
	want := devices()
	for _, damage := range []string{"link del nodelocaldns-q0", "link set nodelocaldns-q1 down", "route del 169.254.253.53 dev nodelocaldns-q0"} {
		n.Node.Run(t, "ip", strings.Fields(damage)...)
		kit.Succeeds(t, startTimeout, "the repair after "+damage, func() error {
			if links := n.Node.Run(t, "ip", "link"); !strings.Contains(links, "nodelocaldns-q1") {
				return errors.New(links)
			}
			if got := devices(); got != want {
				return fmt.Errorf("%s, want %s", got, want)
			}
			return n.leased(local4)
		})
		n.waitAnswer(t, startTimeout, local4, "local")
	}
}

// TestFirewallThatRejects has a firewall that rejects queries of pods on every interface but lo. Then cluster DNS
// answers the pods, as forwarded packets do not pass the input chain: before nodecache has a lease, and while it has
// one.
func TestFirewallThatRejects(t *testing.T) {
	n := newNode(t)
	configured := cache{who: "local", addresses: both, options: []string{n.fallbacks()}, more: []string{"ready 127.0.0.1:8181"}}
	logs := func(p *netns.Process, text string, address netip.Addr) {
		t.Helper()
		kit.Succeeds(t, startTimeout, "the log to name the interface", func() error {
			for line := range strings.Lines(p.Output()) {
				if strings.Contains(line, fmt.Sprintf(text, address)) && strings.Contains(line, "interface nodelocaldns-q1") {
					return nil
				}
			}
			return errors.New(p.Output())
		})
	}
	n.Node.Run(t, "nft", firewalld)
	p := n.start(t, configured)
	for _, a := range both {
		logs(p, "Address %v not in service", a)
		if err := n.leased(a); err == nil {
			t.Errorf("%v has a lease behind the firewall", a)
		}
		n.waitAnswer(t, bounded, a, "upstream")
	}
	if err := n.ready("8181"); err != nil {
		t.Errorf("an update would wait for a lease here: %v", err)
	}
	// doctor fails: its exit code is 1.
	out, err := n.Node.Try(program(t), "doctor", "-localip", strings.ReplaceAll(addressList(both), " ", ","))
	if want := "answers over lo, and not on interface nodelocaldns-q1"; err == nil || strings.Count(out, want) != len(both) {
		t.Errorf("doctor does not name the interface: %v\n%s", err, out)
	}
	n.Node.Run(t, "nft", "delete", "table", "inet", "firewalld")
	for _, a := range both {
		n.waitAnswer(t, startTimeout, a, "local")
	}
	n.Node.Run(t, "nft", firewalld)
	for _, a := range both {
		n.waitAnswer(t, bounded, a, "upstream")
		logs(p, "Lease of %v expired", a)
	}
	n.Node.Run(t, "nft", "delete", "table", "inet", "firewalld")
	for _, a := range both {
		n.waitAnswer(t, startTimeout, a, "local")
	}
}

// fallbacks is the option that directs the queries of both families to cluster DNS without a lease.
func (n *node) fallbacks() string {
	return fmt.Sprintf("fallback %v %v", n.Upstream.IPv4, n.Upstream.IPv6)
}

// ready returns an error unless /ready on a port of the node answers 200.
func (n *node) ready(port string) error {
	_, err := kit.Get(n.Node.Client(), "http://127.0.0.1:"+port+"/ready")
	return err
}

// TestOverlapOfUnlikeQuestions replaces an instance by one whose self-queries have another route or another source.
// Either receives queries that only the other one answers. The new one must be ready ten times in a row meanwhile, as
// the old one would not be stopped otherwise, and acquires the lease when it is alone.
func TestOverlapOfUnlikeQuestions(t *testing.T) {
	n := newNode(t)
	const byDefault, otherSources = "question from 192.0.0.8 100:0:0:1::8", "question from 192.0.2.8 2001:db8::8"
	for _, c := range []struct{ name, before, after string }{
		{"from lo to devices", "question lo", byDefault},
		{"from devices to lo", byDefault, "question lo"},
		{"to other sources", byDefault, otherSources},
	} {
		t.Run(c.name, func(t *testing.T) {
			configured := cache{who: "first", addresses: both, options: []string{n.fallbacks(), c.before}, more: []string{"ready 127.0.0.1:8281"}}
			first := n.run(t, configured)
			configured = cache{who: "second", addresses: both, options: []string{n.fallbacks(), c.after}, more: []string{"ready 127.0.0.1:8282"}}
			second := n.start(t, configured)
			const probes, pause = 10, 300 * time.Millisecond
			inARow := 0
			kit.Succeeds(t, startTimeout, "second instance ready for a while", func() error {
				for err := n.ready("8282"); inARow < probes; err = n.ready("8282") {
					if inARow++; err != nil {
						inARow = 0
						return err
					}
					time.Sleep(pause)
				}
				return nil
			})
			first.Stop(t)
			for _, a := range both {
				n.waitAnswer(t, 2*startTimeout, a, "second") // an expired lease is acquired after at most 30 s
			}
			second.Stop(t)
		})
	}
}
