//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/kernel"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// checkPolicies looks for chains of others that drop what nodecache has accepted: a packet that one
// table accepts can still be dropped by another.
func (n *node) checkPolicies(ctx context.Context) []Line {
	const name = "rules of others"
	there, err := n.rules()
	if err != nil && !errors.Is(err, errNoTables) {
		return skipped(name, err, adviceFor(err))
	}
	if len(n.setup().addresses) == 0 {
		return one(name, "the addresses are not known", Skip, "name them with -localip")
	}
	var lines []Line
	for _, chain := range there.Chains {
		_, ours := chain.Table.Own()
		if chain.Drops && !ours && (chain.Hook == "input" || chain.Hook == "output") && n.concerns(chain.Table.Family) {
			lines = append(lines, n.checkPolicy(ctx, chain))
		}
	}
	legacy, err := n.legacy()
	known, _ := n.predecessors() // what could not be read is said by checkLeftovers
	for _, chain := range legacy.Drops {
		family, _, _ := strings.Cut(chain, " ")
		if n.concerns(family) && (strings.HasSuffix(chain, "INPUT") || strings.HasSuffix(chain, "OUTPUT")) {
			lines = append(lines, n.legacyPolicy(chain, known))
		}
	}
	if err != nil {
		lines = append(lines, skipped(name, err, adviceFor(err))...)
	}
	if len(lines) == 0 {
		return one(name, "none drops by policy", OK, "")
	}
	return lines
}

// concerns says whether a table of a family sees packets to any of the addresses.
func (n *node) concerns(family string) bool {
	return len(unaccepted(n.setup().addresses, family, nil)) > 0 && slices.Contains([]string{"ip", "ip6", "inet"}, family)
}

// checkPolicy says whether a chain whose policy is drop lets DNS to the addresses through.
func (n *node) checkPolicy(ctx context.Context, chain kernel.Chain) Line {
	line := Line{Check: "rules of others", Value: fmt.Sprintf("chain %s %s drops by policy", chain.Table, chain.Name)}
	accepted, err := n.accepted(ctx, chain)
	missing := unaccepted(n.setup().addresses, chain.Table.Family, accepted.Addresses)
	switch {
	case err != nil:
		line.Value += ", its rules cannot be read"
	case accepted.Everything:
		line.Value, line.Verdict = line.Value+", and has a rule that accepts everything", OK
		return line
	case len(missing) == 0:
		line.Value, line.Verdict = line.Value+", and accepts the addresses", OK
		return line
	}
	line.Verdict = Warn
	line.Advice = "an accept of nodecache does not count there; unless a rule of it lets port " + fmt.Sprint(n.options.port) +
		" through: " + strings.Join(n.acceptCommands(chain, missing), "; ")
	return line
}

// unaccepted returns the addresses of a table's family that are not among the accepted ones.
func unaccepted(addresses []netip.Addr, family string, accepted []netip.Addr) (missing []netip.Addr) {
	for _, a := range addresses {
		if family == "ip" && !a.Is4() || family == "ip6" && !a.Is6() || slices.Contains(accepted, a) {
			continue
		}
		missing = append(missing, a)
	}
	return missing
}

// acceptCommands are the commands that let DNS to addresses through a chain. A table that iptables
// made is changed with iptables, which does not understand all that nft can write there.
func (n *node) acceptCommands(chain kernel.Chain, missing []netip.Addr) []string {
	tool := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[chain.Table.Family]
	if tool != "" && chain.Table.Name == "filter" && chain.Name == strings.ToUpper(chain.Hook) {
		return n.iptablesCommands(tool, chain.Name, missing)
	}
	direction, port := "daddr", "dport"
	if chain.Hook == "output" {
		direction, port = "saddr", "sport"
	}
	var commands []string
	for _, family := range []string{"ip", "ip6"} {
		var texts []string
		for _, a := range missing {
			if a.Is4() == (family == "ip") {
				texts = append(texts, a.String())
			}
		}
		if len(texts) > 0 {
			commands = append(commands, fmt.Sprintf("nft insert rule %s %s %s %s { %s } meta l4proto { tcp, udp } th %s %d accept",
				chain.Table, chain.Name, family, direction, strings.Join(texts, ", "), port, n.options.port))
		}
	}
	return commands
}

// iptablesCommands are the same for iptables: one command for each protocol.
func (n *node) iptablesCommands(tool, chain string, missing []netip.Addr) []string {
	address, port := "-d", "--dport"
	if chain == "OUTPUT" {
		address, port = "-s", "--sport"
	}
	texts := make([]string, len(missing))
	for i, a := range missing {
		texts[i] = a.String()
	}
	var commands []string
	for _, protocol := range []string{"udp", "tcp"} {
		commands = append(commands, fmt.Sprintf("%s -I %s %s %s -p %s %s %d -j ACCEPT",
			tool, chain, address, strings.Join(texts, ","), protocol, port, n.options.port))
	}
	return commands
}

// legacyPolicy is checkPolicy for a chain of the old iptables, such as "ip filter INPUT".
func (n *node) legacyPolicy(chain string, known []rules.PredecessorRule) Line {
	line := Line{Check: "rules of others", Value: "iptables-legacy, " + chain + " drops by policy"}
	parts := strings.Fields(chain)
	var accepted []netip.Addr
	for _, r := range known {
		if r.Legacy() && strings.Join([]string{r.Family, r.Table, r.Chain}, " ") == chain {
			accepted = append(accepted, r.Addresses...)
		}
	}
	missing := unaccepted(n.setup().addresses, parts[0], accepted)
	if len(missing) == 0 {
		line.Value, line.Verdict = line.Value+", and accepts the addresses", OK
		return line
	}
	tool := map[string]string{"ip": "iptables-legacy", "ip6": "ip6tables-legacy"}[parts[0]]
	line.Verdict = Warn
	line.Advice = "unless a rule of it lets port " + fmt.Sprint(n.options.port) + " through: " +
		strings.Join(n.iptablesCommands(tool, parts[2], missing), "; ")
	return line
}
