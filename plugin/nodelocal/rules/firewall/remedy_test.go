package firewall

import (
	"net/netip"
	"strings"
	"testing"
)

func TestRemedy(t *testing.T) {
	only4, only6 := []netip.Addr{netip.MustParseAddr("169.254.20.10")}, []netip.Addr{netip.MustParseAddr("fd00::10")}
	for _, c := range []struct {
		name    string
		chain   Chain
		packets []Packet
		want    string
	}{
		{"nftables", Chain{false, "inet", "fw", "in", "input"}, append(Packets(only4, 53), Packets(only6, 53)[1]),
			"nft insert rule inet fw in ip daddr 169.254.20.10 udp dport 53 accept; nft insert rule inet fw in ip daddr 169.254.20.10 tcp dport 53 accept; nft insert rule inet fw in ip6 daddr fd00::10 tcp dport 53 accept"},
		{"iptables in nftables", Chain{false, "ip", "filter", "INPUT", "input"}, Packets(only4, 53),
			"iptables -I INPUT -d 169.254.20.10 -p udp --dport 53 -j ACCEPT; iptables -I INPUT -d 169.254.20.10 -p tcp --dport 53 -j ACCEPT"},
		{"iptables-legacy", Chain{true, "ip6", "raw", "PREROUTING", "prerouting"}, Packets(only6, 1053),
			"ip6tables-legacy -t raw -I PREROUTING -d fd00::10 -p udp --dport 1053 -j ACCEPT; ip6tables-legacy -t raw -I PREROUTING -d fd00::10 -p tcp --dport 1053 -j ACCEPT"},
		{"firewalld", Chain{false, "inet", "firewalld", "filter_INPUT", "input"}, Packets(only4, 53),
			`firewall-cmd --permanent --add-rich-rule='rule family="ipv4" destination address="169.254.20.10" port port="53" protocol="udp" accept'; firewall-cmd --permanent --add-rich-rule='rule family="ipv4" destination address="169.254.20.10" port port="53" protocol="tcp" accept'; firewall-cmd --reload`},
		{"firewalld, IPv6 and another port", Chain{false, "inet", "firewalld", "filter_INPUT", "input"}, Packets(only6, 1053)[:1],
			`firewall-cmd --permanent --add-rich-rule='rule family="ipv6" destination address="fd00::10" port port="1053" protocol="udp" accept'; firewall-cmd --reload`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join(Suspect{Chain: c.chain, Packets: c.packets}.Remedy(), "; "); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
