package firewall

import (
	"net/netip"
	"strings"
	"testing"
)

func TestRemedy(t *testing.T) {
	both := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::10")}
	for _, c := range []struct {
		name    string
		chain   Chain
		packets []Packet
		want    string
	}{
		{"nftables", Chain{false, "inet", "fw", "in", "input"}, queriesTo(both, 53),
			"nft insert rule inet fw in ip daddr { 169.254.20.10 } meta l4proto { tcp, udp } th dport 53 accept; nft insert rule inet fw in ip6 daddr { fd00::10 } meta l4proto { tcp, udp } th dport 53 accept"},
		{"answers", Chain{false, "ip", "fw", "out", "output"}, Packets(both[:1], 53, false)[2:],
			"nft insert rule ip fw out ip saddr { 169.254.20.10 } meta l4proto { tcp, udp } th sport 53 accept"},
		{"iptables in nftables", Chain{false, "ip", "filter", "INPUT", "input"}, queriesTo(both[:1], 53),
			"iptables -I INPUT -d 169.254.20.10 -p udp --dport 53 -j ACCEPT; iptables -I INPUT -d 169.254.20.10 -p tcp --dport 53 -j ACCEPT"},
		{"iptables-legacy", Chain{true, "ip6", "raw", "PREROUTING", "prerouting"}, queriesTo(both[1:], 1053),
			"ip6tables-legacy -t raw -I PREROUTING -d fd00::10 -p udp --dport 1053 -j ACCEPT; ip6tables-legacy -t raw -I PREROUTING -d fd00::10 -p tcp --dport 1053 -j ACCEPT"},
		{"firewalld", Chain{false, "inet", "firewalld", "filter_INPUT", "input"}, queriesTo(both[:1], 53),
			`firewall-cmd --permanent --add-rich-rule='rule family="ipv4" destination address="169.254.20.10" service name="dns" accept'; firewall-cmd --reload`},
		{"firewalld, and another port", Chain{false, "inet", "firewalld", "filter_INPUT", "input"}, queriesTo(both[1:], 1053),
			`firewall-cmd --permanent --add-rich-rule='rule family="ipv6" destination address="fd00::10" port port="1053" protocol="udp" accept'; firewall-cmd --permanent --add-rich-rule='rule family="ipv6" destination address="fd00::10" port port="1053" protocol="tcp" accept'; firewall-cmd --reload`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join((Finding{Chain: c.chain, Packets: c.packets}).Remedy(), "; "); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
