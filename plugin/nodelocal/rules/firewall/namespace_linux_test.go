package firewall

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

var (
	four = netip.MustParseAddr("169.254.20.10")
	six  = netip.MustParseAddr("fd00::10")
)

// queries are the packets of most tests.
var queries = Packets([]netip.Addr{four, six}, 53)

// format adds the line ends that nft needs.
func format(text string) string {
	return strings.NewReplacer(" }", "\n}", "policy accept; ", "policy accept;\n", "policy drop; ", "policy drop;\n").Replace(text)
}

// load applies text of nft in the namespace.
func load(t *testing.T, text string) {
	t.Helper()
	kit.Require(t, "nft")
	c := exec.Command("nft", "-f", "-")
	c.Stdin = strings.NewReader(format(text))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("nft -f: %v\n%s\n%s", err, out, text)
	}
}

// found returns the suspects as the tests write them.
func found(t *testing.T, packets []Packet) string {
	t.Helper()
	suspects, err := Suspects(context.Background(), packets, true)
	kit.Must(t, err)
	var all []string
	for _, s := range suspects {
		all = append(all, fmt.Sprintf("%s | %s | %s", s.Chain, s.Rule, s.Traffic()))
	}
	return strings.Join(all, "\n")
}

// firewalld returns a ruleset as firewalld makes it: pods has rules for a zone of pods, dns those of the default
// zone.
func firewalld(pods, dns string) string {
	return `table inet firewalld {
	chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; policy accept; jump mangle_PREROUTING_ZONES; }
	chain mangle_PREROUTING_ZONES { iifname "eth0" goto mangle_PRE_public; goto mangle_PRE_public; }
	chain mangle_PRE_public { }
	chain raw_PREROUTING { type filter hook prerouting priority raw + 10; policy accept; icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept; meta nfproto ipv6 fib saddr . mark . iif oif missing drop; }
	chain filter_INPUT { type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state { invalid } drop
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_ZONES { ` + pods + `
		iifname "eth0" goto filter_IN_public
		goto filter_IN_public
	}
	chain filter_IN_public { jump filter_IN_public_allow; meta l4proto { icmp, ipv6-icmp } accept; }
	chain filter_IN_public_allow { tcp dport 22 ct state { new, untracked } accept; ` + dns + ` }
	chain filter_IN_trusted { accept; }
}`
}

// TestFirewallOfNftables names the suspects of rulesets in the kernel for queries of pods to the node-local addresses.
func TestFirewallOfNftables(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	const (
		all       = "UDP and TCP to 169.254.20.10, fd00::10"
		rejects   = "chain inet firewalld filter_INPUT | rule with handle %d rejects | "
		reverse   = "chain inet firewalld raw_PREROUTING | rule with handle %d drops some packets | UDP and TCP to fd00::10\n"
		ruleDrops = "chain inet fw in | rule with handle %d drops | "
		somePart  = "chain inet fw in | rule with handle %d drops some packets | "
		policy    = "chain inet fw in | its policy drops | "
	)
	input := func(rules string) string {
		return "table inet fw { chain in { type filter hook input priority 0; policy accept; " + rules + " } }"
	}
	closed := func(rules string) string {
		return "table inet fw { chain in { type filter hook input priority 0; policy drop; " + rules + " } }"
	}
	for _, c := range []struct{ name, rules, want string }{
		{"nothing", "", ""},
		{"firewalld that rejects at its end", "table inet firewalld { chain filter_INPUT { type filter hook input priority filter + 10; policy accept; ct state established,related accept; iifname lo accept; reject with icmpx admin-prohibited } }", rejects + all},
		{"firewalld without DNS", firewalld("", ""), reverse + rejects + all},
		{"firewalld with DNS", firewalld("", "udp dport 53 accept; tcp dport 53 accept"), strings.TrimSpace(reverse)},
		{"firewalld with DNS of one family", firewalld("", "ip daddr 169.254.20.10 tcp dport 53 accept; ip daddr 169.254.20.10 udp dport 53 accept"), reverse + rejects + "UDP and TCP to fd00::10"},
		{"firewalld with a zone of pods", firewalld(`iifname "cni0" goto filter_IN_trusted`, ""), reverse + rejects + all},

		{"a drop policy", closed("ct state established accept"), policy + all},
		{"a drop policy after accepts that test more", closed(`iifname "cni0" accept; ip saddr 10.0.0.0/8 accept; udp dport { 22, 53 } accept; meta mark 1 accept; fib daddr type local accept; limit rate 5/second accept`), policy + all},
		{"a drop policy and DNS", closed("udp dport 53 accept; tcp dport 53 accept"), ""},
		{"a drop policy and DNS to the addresses", closed("ip daddr 169.254.0.0/16 accept; ip6 daddr fd00::10 meta l4proto udp accept; ip6 daddr fd00::10 ip6 nexthdr tcp accept"), ""},
		{"a drop policy and DNS to other addresses", closed("ip daddr 10.0.0.0/8 accept; ip6 daddr != fd00::10 accept"), policy + all},
		{"a drop policy and all but another port", closed("udp dport != 54 accept; tcp dport != 53 accept"), policy + "TCP to 169.254.20.10, fd00::10"},
		{"DNS over UDP alone", closed("udp dport 53 accept"), policy + "TCP to 169.254.20.10, fd00::10"},
		{"one family alone", closed("meta nfproto ipv4 accept"), policy + "UDP and TCP to fd00::10"},
		{"a chain of the other family", "table ip6 fw { chain in { type filter hook input priority 0; policy drop; } }", "chain ip6 fw in | its policy drops | UDP and TCP to fd00::10"},

		{"a rule that drops all", input("counter log drop"), ruleDrops + all},
		{"a rule that rejects", input(`counter log prefix "in: " ; reject with tcp reset`), "chain inet fw in | rule with handle %d rejects | TCP to 169.254.20.10, fd00::10"},
		{"rules that drop other packets", input("tcp dport 22 drop; udp dport 123 drop; meta l4proto icmp drop; ip daddr 10.1.2.3 drop; ip6 daddr fe80::/10 reject; ct state invalid drop; ct state established,related drop"), ""},
		{"a drop after an accept of DNS", input("th dport 53 accept; drop"), ""},
		{"rules that drop some packets", input(`iifname "cni0" drop; ip saddr 10.0.0.0/8 udp dport 53 drop; ct state new drop; meta mark 1 drop; accept`),
			"chain inet fw in | rule with handle %d drops some packets, rule with handle %d drops some packets, rule with handle %d drops some packets | UDP to 169.254.20.10\n" +
				"chain inet fw in | rule with handle %d drops some packets, rule with handle %d drops some packets, rule with handle %d drops some packets | UDP to fd00::10; TCP to 169.254.20.10, fd00::10"},
		{"a rate limit", input("limit rate over 500/second drop"), somePart + all},
		{"untracked packets", input("ct state untracked drop"), somePart + all},
		{"all but tracked packets", input("ct state != { established, related } drop"), somePart + all},
		{"before routing", "table inet fw { chain pre { type filter hook prerouting priority -350; policy accept; udp dport 53 drop; } }", "chain inet fw pre | rule with handle %d drops | UDP to 169.254.20.10, fd00::10"},
		{"two chains", "table inet a { chain in { type filter hook input priority -1; policy accept; accept; } }\ntable inet fw { chain in { type filter hook input priority 1; policy accept; drop; } }", ruleDrops + all},

		{"a chain that is called", "table inet fw { chain dns { th dport 53 drop; }\nchain in { type filter hook input priority 0; policy accept; jump dns; } }", "chain inet fw in | rule with handle %d of chain dns drops | " + all},
		{"a chain that is called for some packets", "table inet fw { chain pods { drop; }\nchain in { type filter hook input priority 0; policy accept; iifname cni0 goto pods; } }", "chain inet fw in | rule with handle %d of chain pods drops some packets | " + all},
		{"a chain that is called for other packets", "table inet fw { chain ssh { drop; }\nchain in { type filter hook input priority 0; policy accept; tcp dport 22 jump ssh; } }", ""},
		{"a chain that no rule calls", "table inet fw { chain unused { drop; }\nchain in { type filter hook input priority 0; policy accept; } }", ""},
		{"a chain that accepts", "table inet fw { chain dns { th dport 53 accept; }\nchain in { type filter hook input priority 0; policy drop; jump dns; } }", ""},
		{"a chain that does not return", "table inet fw { chain a { }\nchain in { type filter hook input priority 0; policy accept; goto a; drop; } }", ""},
		{"a chain that some packets leave", "table inet fw { chain check { iifname \"veth*\" return; drop; }\nchain in { type filter hook input priority 0; policy accept; jump check; } }", "chain inet fw in | rule with handle %d of chain check drops some packets | " + all},
		{"a chain that some packets leave before it accepts", "table inet fw { chain check { iifname \"veth*\" return; accept; }\nchain in { type filter hook input priority 0; policy drop; jump check; } }", policy + all},
		{"a map of verdicts", input("udp dport vmap { 53 : drop, 123 : accept }"), somePart + "UDP to 169.254.20.10, fd00::10"},
		{"a map of ranges and chains", "table inet fw { chain low { reject; }\nchain in { type filter hook input priority 0; policy accept; th dport vmap { 1-100 : jump low, 200-300 : accept } } }",
			"chain inet fw in | rule with handle %d of chain low rejects some packets | " + all},
		{"a map of states", input("ct state vmap { established : accept, related : accept, invalid : drop }; reject"), "chain inet fw in | rule with handle %d rejects | " + all},

		{"forwarded packets", "table inet fw { chain f { type filter hook forward priority 0; policy drop; } }", ""},
		{"packets of the node", "table inet fw { chain o { type filter hook output priority 0; policy drop; } }", ""},
		{"nodecache", "table inet nearside-nodelocaldns { chain in { type filter hook input priority 0; policy drop; } }", ""},
		{"kube-proxy", "table ip kube-proxy { chain services { ip daddr { 10.96.0.0/12 } drop; }\nchain filter-input { type filter hook input priority 0; policy accept; ct state new jump services; } }", ""},
		{"the kubelet", "table ip filter { chain KUBE-FIREWALL { ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 drop; meta mark & 0x8000 == 0x8000 drop; }\nchain INPUT { type filter hook input priority 0; policy accept; jump KUBE-FIREWALL; } }", ""},
		{"Calico", "table ip filter { chain cali-INPUT { iifname \"cali*\" counter goto cali-wl-to-host; meta mark & 0x10000 == 0x10000 accept; }\n" +
			"chain cali-wl-to-host { jump cali-from-wl; accept; }\nchain cali-from-wl { iifname \"cali12\" goto cali-fw; counter drop; }\nchain cali-fw { ct state invalid drop; meta mark & 0x10000 == 0x10000 return; drop; }\n" +
			"chain INPUT { type filter hook input priority 0; policy accept; jump cali-INPUT; } }",
			"chain ip filter INPUT | rule with handle %d of chain cali-fw drops some packets, rule with handle %d of chain cali-from-wl drops some packets | UDP and TCP to 169.254.20.10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			netns.Run(t, "nft", "flush", "ruleset")
			load(t, c.rules)
			if got := digits(found(t, queries)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s\nrules\n%s", got, c.want, netns.Run(t, "nft", "-a", "list", "ruleset"))
			}
		})
	}
}

// digits replaces the handles of rules, which differ between runs.
func digits(text string) string {
	const before = "with handle "
	parts := strings.Split(text, before)
	for i, p := range parts[1:] {
		parts[i+1] = "%d" + strings.TrimLeft(p, "0123456789")
	}
	return strings.Join(parts, before)
}

// TestFirewallOfIPTables names the suspects among the chains of both kinds of iptables.
func TestFirewallOfIPTables(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	const accepts = "-I INPUT -d 169.254.20.10 -p udp --dport 53 -j ACCEPT -m comment --comment allow\n-I INPUT -d 169.254.20.10 -p tcp --dport 53 -j ACCEPT -m comment --comment allow\n"
	const ufw = `-N ufw-before-input
-N ufw-user-input
-N ufw-not-local
-N ufw-reject-input
-P INPUT DROP
-A INPUT -j ufw-before-input
-A INPUT -j ufw-reject-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp --icmp-type 3 -j ACCEPT
-A ufw-before-input -p udp --sport 67 --dport 68 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -d 224.0.0.251/32 -p udp --dport 5353 -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -j DROP
-A ufw-reject-input -m addrtype --dst-type BROADCAST -j RETURN
`
	const both = "UDP and TCP to 169.254.20.10"
	for _, c := range []struct {
		name, rules string
		want        string // CHAIN is the chain, RULE its rule
		rule        string // as iptables-legacy prints it
	}{
		{"accepted", "-A INPUT -i lo -j ACCEPT", "", ""},
		{"a policy", "-P INPUT DROP\n-A INPUT -i lo -j ACCEPT", "CHAIN | its policy drops | " + both, ""},
		{"rejected at the end", "-A INPUT -i lo -j ACCEPT\n-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT\n-A INPUT -j REJECT --reject-with icmp-host-prohibited",
			"CHAIN | RULE rejects | " + both, "-A INPUT -j REJECT --reject-with icmp-host-prohibited"},
		{"dropped at the end", "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -j LOG\n-A INPUT -j DROP", "CHAIN | RULE drops | " + both, "-A INPUT -j DROP"},
		{"rejected, and accepted by nodecache before", "-A INPUT -j REJECT\n" + accepts, "", ""},
		{"accepted from a source", "-A INPUT -s 10.0.0.0/8 -j ACCEPT\n-A INPUT -j DROP", "CHAIN | RULE drops | " + both, "-A INPUT -j DROP"},
		{"accepted on an interface", "-A INPUT -i cni+ -j ACCEPT\n-A INPUT -j DROP", "CHAIN | RULE drops | " + both, "-A INPUT -j DROP"},
		{"dropped in a range of ports", "-A INPUT -p udp --dport 50:60 -j DROP", "CHAIN | RULE drops some packets | UDP to 169.254.20.10", "-A INPUT -p udp -m udp --dport 50:60 -j DROP"},
		{"other packets dropped", "-A INPUT -p tcp --dport 22 -j DROP\n-A INPUT -p icmp -j DROP\n-A INPUT -d 10.0.0.0/8 -j DROP\n-A INPUT -m conntrack --ctstate INVALID -j DROP", "", ""},
		{"packets that are not tracked", "-A INPUT -m conntrack ! --ctstate NEW -j DROP", "CHAIN | RULE drops some packets | " + both, "-A INPUT -m conntrack ! --ctstate NEW -j DROP"},
		{"chains that are called", "-N POLICY\n-N DNS\n-A INPUT -p udp -j POLICY\n-A POLICY -m comment --comment pods -g DNS\n-A DNS -p udp -m udp --dport 53 -j ACCEPT\n-A INPUT -j DROP", "CHAIN | RULE drops | TCP to 169.254.20.10", "-A INPUT -j DROP"},
		{"marks of kube-proxy", "-N KUBE-FIREWALL\n-A INPUT -j KUBE-FIREWALL\n-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP", "", ""},
		{"ufw", ufw, "CHAIN | its policy drops | " + both, ""},
		{"ufw, and accepted by nodecache before", ufw + accepts, "", ""},
	} {
		for _, program := range []string{"iptables-nft", "iptables-legacy"} {
			t.Run(c.name+" "+program, func(t *testing.T) {
				netns.Run(t, program, "-P", "INPUT", "ACCEPT")
				netns.Run(t, program, "-F")
				netns.Run(t, program, "-X")
				for line := range strings.Lines(c.rules) {
					if line = strings.TrimSpace(line); line != "" {
						netns.Run(t, program, strings.Fields(line)...)
					}
				}
				want := strings.NewReplacer("CHAIN", "chain ip filter INPUT", "RULE", "rule with handle %d").Replace(c.want)
				if program == "iptables-legacy" {
					want = strings.NewReplacer("CHAIN", "iptables-legacy, chain ip filter INPUT", "RULE", fmt.Sprintf("rule %q", c.rule)).Replace(c.want)
				}
				if got := digits(found(t, queries)); got != want {
					t.Errorf("got\n%s\nwant\n%s\nrules\n%s", got, want, netns.Run(t, program, "-S"))
				}
				netns.Run(t, program, "-P", "INPUT", "ACCEPT")
				netns.Run(t, program, "-F")
				netns.Run(t, program, "-X")
			})
		}
	}
}
