package firewall

import (
	"fmt"
	"strings"
)

// firewalldTable is the table that firewalld creates and replaces: only firewalld can add a lasting rule.
const firewalldTable = "firewalld"

// Remedy returns the commands that let the packets through the chain.
func (f Finding) Remedy() []string {
	if len(f.Packets) == 0 {
		return nil
	}
	port := f.Packets[0].Port
	switch {
	case f.Chain.Table == firewalldTable:
		return f.firewalldCommands(port)
	case f.Chain.Legacy || f.Chain.Name == strings.ToUpper(f.Chain.Hook) && f.Chain.Family != "inet":
		return f.iptablesCommands(port)
	}
	return f.nftCommands(port)
}

// side is d where packets have the node-local address as destination, s where they have it as source.
func (f Finding) side() string {
	if f.Packets[0].Reply {
		return "s"
	}
	return "d"
}

// nftCommands insert one rule for each family.
func (f Finding) nftCommands(port uint16) (all []string) {
	for _, family := range []string{"ip", "ip6"} {
		if addresses := f.texts(family); len(addresses) > 0 {
			all = append(all, fmt.Sprintf("nft insert rule %s %s %s %s %saddr { %s } meta l4proto { tcp, udp } th %sport %d accept",
				f.Chain.Family, f.Chain.Table, f.Chain.Name, family, f.side(), strings.Join(addresses, ", "), f.side(), port))
		}
	}
	return all
}

// iptablesCommands insert one rule for each protocol. A table of iptables is changed with iptables, which
// does not understand all that nft can write there.
func (f Finding) iptablesCommands(port uint16) (all []string) {
	tool := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[f.Chain.Family]
	if f.Chain.Legacy {
		tool += "-legacy"
	}
	if f.Chain.Table != "filter" {
		tool += " -t " + f.Chain.Table
	}
	for _, protocol := range []string{"udp", "tcp"} {
		all = append(all, fmt.Sprintf("%s -I %s -%s %s -p %s --%sport %d -j ACCEPT",
			tool, f.Chain.Name, f.side(), strings.Join(f.texts(f.Chain.Family), ","), protocol, f.side(), port))
	}
	return all
}

// firewalldCommands add rules to the default zone.
func (f Finding) firewalldCommands(port uint16) (all []string) {
	const dns = 53
	what := []string{`service name="dns"`}
	if port != dns {
		what = []string{fmt.Sprintf(`port port="%d" protocol="udp"`, port), fmt.Sprintf(`port port="%d" protocol="tcp"`, port)}
	}
	for _, family := range []string{"ip", "ip6"} {
		for _, a := range f.texts(family) {
			for _, w := range what {
				all = append(all, fmt.Sprintf(`firewall-cmd --permanent --add-rich-rule='rule family="%s" destination address="%s" %s accept'`,
					map[string]string{"ip": "ipv4", "ip6": "ipv6"}[family], a, w))
			}
		}
	}
	return append(all, "firewall-cmd --reload")
}

// texts returns the addresses of a family.
func (f Finding) texts(family string) (all []string) {
	for _, a := range f.addresses() {
		if a.Is4() == (family == "ip") {
			all = append(all, a.String())
		}
	}
	return all
}
