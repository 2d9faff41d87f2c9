package firewall

import (
	"fmt"
	"strings"
)

// firewalldTable is the table that firewalld creates and replaces: only firewalld can add a lasting rule.
const firewalldTable = "firewalld"

// Remedy returns the commands that let the packets through the chain.
func (s Suspect) Remedy() (all []string) {
	tool, chain := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[s.Chain.Family], s.Chain
	if chain.Legacy {
		tool += "-legacy"
	}
	if chain.Table != "filter" {
		tool += " -t " + chain.Table
	}
	for _, p := range s.Packets {
		family, rich, protocol := "ip", "ipv4", "udp"
		if p.To.Addr().Is6() {
			family, rich = "ip6", "ipv6"
		}
		if p.Protocol == TCP {
			protocol = "tcp"
		}
		switch a := p.To.Addr(); {
		case chain.Table == firewalldTable: // a rule of the default zone
			all = append(all, fmt.Sprintf(`firewall-cmd --permanent --add-rich-rule='rule family="%s" destination address="%s" port port="%d" protocol="%s" accept'`, rich, a, p.To.Port(), protocol))
		case chain.Legacy || chain.Name == strings.ToUpper(chain.Hook) && chain.Family != "inet": // iptables does not read all that nft can write there
			all = append(all, fmt.Sprintf("%s -I %s -d %s -p %s --dport %d -j ACCEPT", tool, chain.Name, a, protocol, p.To.Port()))
		default:
			all = append(all, fmt.Sprintf("nft insert rule %s %s %s %s daddr %s %s dport %d accept", chain.Family, chain.Table, chain.Name, family, a, protocol, p.To.Port()))
		}
	}
	if chain.Table == firewalldTable {
		all = append(all, "firewall-cmd --reload")
	}
	return all
}
