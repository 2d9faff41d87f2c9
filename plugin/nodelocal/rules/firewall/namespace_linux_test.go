package firewall

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/namespace"
)

var (
	four = netip.MustParseAddr("169.254.20.10")
	six  = netip.MustParseAddr("fd00::10")
)

// queries are the packets of most tests.
var queries = queriesTo([]netip.Addr{four, six}, 53)

// queriesTo returns the packets of queries to addresses.
func queriesTo(addrs []netip.Addr, port uint16) []Packet {
	all := Packets(addrs, port, false)
	return all[:len(all)/2]
}

// format adds the line ends that nft needs.
func format(text string) string {
	return strings.NewReplacer(" }", "\n}", "policy accept; ", "policy accept;\n", "policy drop; ", "policy drop;\n").Replace(text)
}

// load applies text of nft in the namespace.
func load(t *testing.T, text string) {
	t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		namespace.Lacking(t, "nft")
	}
	c := exec.Command(path, "-f", "-")
	c.Stdin = strings.NewReader(format(text))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("nft -f: %v\n%s\n%s", err, out, text)
	}
}

// brief is a finding as the tests write it.
func brief(f Finding) string {
	text := fmt.Sprintf("%s | %s | %s", f.Chain, f.Rule, f.Traffic())
	if !f.Certain() {
		text += " | unless " + strings.Join(f.Unless, "; ")
	}
	return text
}

// found checks the packets and returns the findings as the tests write them.
func found(t *testing.T, packets []Packet) string {
	t.Helper()
	findings, err := Check(context.Background(), packets, true)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range findings {
		all = append(all, brief(f))
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

// TestFirewallOfNftables evaluates rulesets in the kernel for queries of pods to the node-local addresses.
func TestFirewallOfNftables(t *testing.T) {
	if !namespace.Inside(t) {
		return
	}
	const all = "UDP and TCP to 169.254.20.10, fd00::10"
	input := func(rules string) string {
		return "table inet fw { chain in { type filter hook input priority 0; policy accept; " + rules + " } }"
	}
	for _, c := range []struct {
		name, rules string
		want        string // %d is a handle
	}{
		{"nothing", "", ""},
		{"the firewall that rejects by a rule at its end", `table inet firewalld { chain filter_INPUT { type filter hook input priority filter + 10; policy accept; ct state { established, related } accept; iifname "lo" accept; reject with icmpx admin-prohibited } }`,
			"chain inet firewalld filter_INPUT | rule with handle %d rejects | " + all},
		{"firewalld without DNS", firewalld("", ""), "chain inet firewalld filter_INPUT | rule with handle %d rejects | " + all},
		{"firewalld with DNS", firewalld("", "tcp dport 53 ct state { new, untracked } accept; udp dport 53 ct state { new, untracked } accept"), ""},
		{"firewalld with DNS of one family", firewalld("", "ip daddr 169.254.20.10 tcp dport 53 accept; ip daddr 169.254.20.10 udp dport 53 accept"),
			"chain inet firewalld filter_INPUT | rule with handle %d rejects | UDP and TCP to fd00::10"},
		{"firewalld with a zone of pods", firewalld(`iifname "cni0" goto filter_IN_trusted`, ""),
			"chain inet firewalld filter_INPUT | rule with handle %d rejects | " + all + " | unless rule with handle %d of chain filter_INPUT_ZONES, by the interface"},
		{"firewalld with a zone of pods by their addresses", firewalld(`ip saddr 10.0.0.0/8 goto filter_IN_trusted; ip6 saddr fd01::/16 goto filter_IN_trusted`, ""),
			"chain inet firewalld filter_INPUT | rule with handle %d rejects | UDP and TCP to 169.254.20.10 | unless rule with handle %d of chain filter_INPUT_ZONES, by the address of the pod\n" +
				"chain inet firewalld filter_INPUT | rule with handle %d rejects | UDP and TCP to fd00::10 | unless rule with handle %d of chain filter_INPUT_ZONES, by the address of the pod"},
		{"a drop policy", "table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established accept; } }", "chain inet fw in | its policy drops | " + all},
		{"a drop policy and DNS", "table inet fw { chain in { type filter hook input priority 0; policy drop; udp dport 53 accept; tcp dport { 22, 53 } accept; } }", ""},
		{"DNS over UDP alone", "table inet fw { chain in { type filter hook input priority 0; policy drop; udp dport 53 accept; } }",
			"chain inet fw in | its policy drops | TCP to 169.254.20.10; TCP to fd00::10"},
		{"new packets, which untracked ones are not", input("ct state new udp dport 53 accept; ct state new tcp dport 53 accept; drop"), "chain inet fw in | rule with handle %d drops | " + all},
		{"invalid packets, which untracked ones are not", input("ct state invalid drop"), ""},
		{"all but tracked ones", input("ct state != { established, related } drop"), "chain inet fw in | rule with handle %d drops | " + all},
		{"untracked packets dropped", input("ct state untracked drop"), "chain inet fw in | rule with handle %d drops | " + all},
		{"a verdict map of ports", input("meta l4proto . th dport vmap { udp . 53 : accept, tcp . 53 : accept, tcp . 22 : accept }; drop"), ""},
		{"a verdict map that drops", input("udp dport vmap { 53 : drop, 123 : accept }"), "chain inet fw in | rule with handle %d drops | UDP to 169.254.20.10; UDP to fd00::10"},
		{"a verdict map of interfaces", input(`iifname vmap { "lo" : accept, "cni0" : accept }; drop`),
			"chain inet fw in | rule with handle %d drops | " + all + " | unless rule with handle %d, by the interface"},
		{"a verdict map of states", input("ct state vmap { established : accept, related : accept, invalid : drop }; reject"), "chain inet fw in | rule with handle %d rejects | " + all},
		{"a map that jumps", "table inet fw { chain dns { th dport 53 accept; }\nchain in { type filter hook input priority 0; policy drop; meta l4proto vmap { udp : jump dns, tcp : goto dns } } }", ""},
		{"a set of addresses", "table inet fw { set own { type ipv4_addr; flags interval; elements = { 169.254.0.0/16 } }\nset own6 { type ipv6_addr; elements = { fd00::10 } }\n" +
			"chain in { type filter hook input priority 0; policy drop; ip daddr @own accept; ip6 daddr @own6 accept; } }", ""},
		{"a set of other addresses", "table inet fw { set own { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.168.1.1-192.168.1.9 } }\n" +
			"chain in { type filter hook input priority 0; policy drop; ip daddr @own accept; meta nfproto ipv6 accept; } }", "chain inet fw in | its policy drops | UDP and TCP to 169.254.20.10"},
		{"ranges of ports", input("th dport 1-52 accept; th dport 54-65535 accept; drop"), "chain inet fw in | rule with handle %d drops | " + all},
		{"a range of ports", input("th dport 1-1023 accept; drop"), ""},
		{"a set of addresses and ranges of ports", input("ip daddr . udp dport { 169.254.0.0/16 . 50-60, 10.0.0.0/8 . 0-65535 } accept; ip daddr . tcp dport { 169.254.20.10 . 53 } accept; meta nfproto ipv6 accept; drop"), ""},
		{"a set of addresses and other ports", input("ip daddr . udp dport { 169.254.0.0/16 . 54-60, 10.0.0.0/8 . 0-65535 } accept; meta l4proto tcp accept; meta nfproto ipv6 accept; drop"),
			"chain inet fw in | rule with handle %d drops | UDP to 169.254.20.10"},
		{"addresses of the node", input("fib daddr type local accept; drop"), ""},
		{"marked packets dropped", input("meta mark & 0x8000 == 0x8000 drop"), ""},
		{"marked packets accepted", input("meta mark 0x1 accept; drop"), "chain inet fw in | rule with handle %d drops | " + all + " | unless rule with handle %d, by the packet's mark"},
		{"a rate limit", input("limit rate 5/second accept; drop"), "chain inet fw in | rule with handle %d drops | " + all + " | unless rule with handle %d, by a rate limit"},
		{"a rate limit for what is too much", input("limit rate over 500/second drop"), ""},
		{"pods that return early", "table inet fw { chain check { iifname \"veth*\" return; drop; }\nchain in { type filter hook input priority 0; policy accept; jump check; } }",
			"chain inet fw in | rule with handle %d of chain check drops | " + all + " | unless the policy, by the interface"},
		{"a chain of the other family", "table ip6 fw { chain in { type filter hook input priority 0; policy drop; } }", "chain ip6 fw in | its policy drops | UDP and TCP to fd00::10"},
		{"forwarded packets", "table inet fw { chain f { type filter hook forward priority 0; policy drop; } }", ""},
		{"answers", "table inet fw { chain o { type filter hook output priority 0; policy drop; } }", ""},
		{"before routing", "table inet fw { chain pre { type filter hook prerouting priority -350; policy accept; udp dport 53 drop; } }",
			"chain inet fw pre | rule with handle %d drops | UDP to 169.254.20.10; UDP to fd00::10"},
		{"two chains", "table inet a { chain in { type filter hook input priority -1; policy accept; accept; } }\ntable inet b { chain in { type filter hook input priority 1; policy accept; drop; } }",
			"chain inet b in | rule with handle %d drops | " + all},
		{"counters and logs", input(`counter log prefix "in: " ; counter packets 0 bytes 0 reject with tcp reset`), "chain inet fw in | rule with handle %d rejects | TCP to 169.254.20.10; TCP to fd00::10"},
		{"policies for pods", "table ip filter { chain KUBE-ROUTER-INPUT { ip daddr 10.96.0.0/12 return; meta mark & 0x10000 == 0x10000 return; }\n" +
			"chain cali-INPUT { iifname \"cali*\" counter goto cali-wl-to-host; meta mark & 0x10000 == 0x10000 accept; }\nchain cali-wl-to-host { jump cali-from-wl; accept; }\nchain cali-from-wl { iifname \"cali12\" meta mark set 0; }\n" +
			"chain KUBE-FIREWALL { ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 drop; meta mark & 0x8000 == 0x8000 drop; }\n" +
			"chain INPUT { type filter hook input priority 0; policy accept; jump cali-INPUT; jump KUBE-ROUTER-INPUT; jump KUBE-FIREWALL; } }", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			namespace.Run(t, "nft", "flush", "ruleset")
			load(t, c.rules)
			if got := digits(found(t, queries)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s\nrules\n%s", got, c.want, namespace.Run(t, "nft", "-a", "list", "ruleset"))
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

// TestFirewallOfIPTables evaluates chains of both kinds of iptables.
func TestFirewallOfIPTables(t *testing.T) {
	if !namespace.Inside(t) {
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
		{"accepted of a source", "-A INPUT -s 10.0.0.0/8 -j ACCEPT\n-A INPUT -j DROP", "CHAIN | RULE drops | " + both + " | unless UNLESS, by the address of the pod", "-A INPUT -j DROP"},
		{"accepted of an interface", "-A INPUT -i cni+ -j ACCEPT\n-A INPUT -j DROP", "CHAIN | RULE drops | " + both + " | unless UNLESS, by the interface", "-A INPUT -j DROP"},
		{"accepted except on lo", "-A INPUT ! -i lo -j ACCEPT\n-A INPUT -j DROP", "", ""},
		{"several ports", "-A INPUT -p udp -m multiport --dports 22,50:60 -j ACCEPT\n-A INPUT -p tcp -m multiport --dports 53,80 -j ACCEPT\n-A INPUT -j DROP", "", ""},
		{"several other ports", "-A INPUT -p udp -m multiport --dports 22,54:60 -j ACCEPT\n-A INPUT -p tcp -m multiport ! --dports 54 -j ACCEPT\n-A INPUT -j DROP", "CHAIN | RULE drops | UDP to 169.254.20.10", "-A INPUT -j DROP"},
		{"untracked packets", "-A INPUT -m conntrack --ctstate NEW,UNTRACKED -j ACCEPT\n-A INPUT -j DROP", "", ""},
		{"packets that are not tracked", "-A INPUT -m conntrack ! --ctstate NEW -j DROP", "CHAIN | RULE drops | " + both, "-A INPUT -m conntrack ! --ctstate NEW -j DROP"},
		{"marks of kube-proxy", "-N KUBE-FIREWALL\n-A INPUT -j KUBE-FIREWALL\n-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP", "", ""},
		{"ufw", ufw, "CHAIN | its policy drops | " + both, ""},
		{"ufw that allows DNS", ufw + "-A ufw-user-input -p tcp --dport 53 -j ACCEPT\n-A ufw-user-input -p udp --dport 53 -j ACCEPT", "", ""},
		{"ufw, and accepted by nodecache before", ufw + accepts, "", ""},
		{"first segments", "-A INPUT -p tcp --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT\n-A INPUT -p tcp -j DROP", "", ""},
	} {
		for _, program := range []string{"iptables-nft", "iptables-legacy"} {
			t.Run(c.name+" "+program, func(t *testing.T) {
				namespace.Run(t, program, "-P", "INPUT", "ACCEPT")
				namespace.Run(t, program, "-F")
				namespace.Run(t, program, "-X")
				for line := range strings.Lines(c.rules) {
					if line = strings.TrimSpace(line); line != "" {
						namespace.Run(t, program, strings.Fields(line)...)
					}
				}
				want := strings.NewReplacer("CHAIN", "chain ip filter INPUT", "RULE", "rule with handle %d", "UNLESS", "rule with handle %d").Replace(c.want)
				if program == "iptables-legacy" {
					first, _, _ := strings.Cut(c.rules, "\n")
					want = strings.NewReplacer("CHAIN", "iptables-legacy, chain ip filter INPUT", "RULE", fmt.Sprintf("rule %q", c.rule), "UNLESS", fmt.Sprintf("rule %q", first)).Replace(c.want)
				}
				if got := digits(found(t, queries)); got != want {
					t.Errorf("got\n%s\nwant\n%s\nrules\n%s", got, want, namespace.Run(t, program, "-S"))
				}
				namespace.Run(t, program, "-P", "INPUT", "ACCEPT")
				namespace.Run(t, program, "-F")
				namespace.Run(t, program, "-X")
			})
		}
	}
}
