//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/kernel"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// checkRules says which rules take the traffic, and whether they take it now.
func (n *node) checkRules(ctx context.Context) []Line {
	const name = "rules"
	s := n.setup()
	there, err := n.rules()
	if err != nil && !errors.Is(err, errNoTables) {
		return skipped(name, err, adviceFor(err))
	}
	table := kernel.OwnTable(s.iface)
	if !there.Has(table.Family, table.Name) {
		return n.withoutTable(s)
	}
	lines := []Line{n.checkTable(ctx, s, there)}
	if s.noRules {
		lines[0].Verdict = Warn
		lines[0].Advice = "the configuration asks for no rules: nodecache cleanup removes these while it is stopped"
	}
	lines = append(lines, n.checkLeases(ctx, s)...)
	return append(lines, n.checkFallback(ctx, s, there)...)
}

// withoutTable says what takes the traffic where nodecache's table is missing.
func (n *node) withoutTable(s setup) []Line {
	const name = "rules"
	found, err := n.predecessors()
	switch {
	case len(found) > 0:
		return one(name, fmt.Sprintf("%d of iptables; no lease", len(found)), Warn,
			"a nodecache that hangs or is killed takes the node's DNS along: use backend nftables")
	case s.noRules:
		return one(name, "none, as the configuration says", OK, "")
	case err != nil:
		return skipped(name, err, adviceFor(err))
	}
	return one(name, "none: no table "+kernel.OwnTable(s.iface).String(), Fail,
		"packets to the addresses are tracked, and a Service's go to cluster DNS: start nodecache, or read its log")
}

// checkTable says whether nodecache's table is whole.
func (n *node) checkTable(ctx context.Context, s setup, there kernel.Ruleset) Line {
	table := kernel.OwnTable(s.iface)
	line := Line{Check: "rules", Value: "nftables, table " + table.String(), Verdict: OK}
	const repair = "nodecache repairs it within its interval; if not, restart it and read its log"
	for _, chain := range []string{rules.ChainPods, rules.ChainNode} {
		if !there.HasChain(table.Family, table.Name, chain) {
			line.Value, line.Verdict, line.Advice = line.Value+" without chain "+chain, Fail, repair
			return line
		}
	}
	compared, err := n.compared(ctx, kernel.Chain{Table: table, Name: rules.ChainNode})
	if err != nil {
		line.Value, line.Verdict, line.Advice = err.Error(), Skip, adviceFor(err)
		return line
	}
	var missing []string
	for _, a := range s.addresses {
		if !slices.Contains(compared, a) {
			missing = append(missing, a.String())
		}
	}
	if len(missing) > 0 {
		line.Value, line.Verdict, line.Advice = line.Value+" without "+strings.Join(missing, ", "), Fail, repair
	}
	return line
}

// checkLeases says which addresses take traffic now.
func (n *node) checkLeases(ctx context.Context, s setup) []Line {
	lease, err := n.leases(ctx, s.iface)
	if err != nil {
		return skipped("lease", err, adviceFor(err))
	}
	var lines []Line
	for _, a := range s.addresses {
		line := Line{Check: "lease " + a.String(), Verdict: OK}
		if left, in := lease[a]; in {
			line.Value = fmt.Sprintf("in, %s left", left.Round(10*time.Millisecond))
		} else {
			line.Value, line.Verdict = "out", Fail
			line.Advice = "nodecache does not answer itself here: read its log; until then packets go the way that they go without it"
		}
		lines = append(lines, line)
	}
	return lines
}

// checkFallback reports what answers on each address without a lease: the fallback, kube-proxy where the
// address is one of a Service, or nothing.
func (n *node) checkFallback(ctx context.Context, s setup, there kernel.Ruleset) []Line {
	const name = "fallback"
	table := kernel.OwnTable(s.iface)
	var known []netip.Addr
	if there.HasChain(table.Family, table.Name, rules.ChainFallback) {
		var err error
		if known, err = n.compared(ctx, kernel.Chain{Table: table, Name: rules.ChainFallback}); err != nil {
			return skipped(name, err, adviceFor(err))
		}
	}
	lacking := slices.DeleteFunc(slices.Clone(s.addresses), func(a netip.Addr) bool { return slices.Contains(known, a) })
	var proxied []netip.Addr
	var unread error
	if len(lacking) > 0 {
		proxied, unread = n.proxied(ctx, lacking)
	}
	var lines []Line
	for _, a := range s.addresses {
		line := Line{Check: name + " " + a.String(), Verdict: OK}
		switch {
		case slices.Contains(known, a):
			line.Value = "cluster DNS, while the lease is out"
		case slices.Contains(proxied, a):
			line.Value = "kube-proxy, while the lease is out"
		case unread != nil:
			line = skipped(line.Check, unread, adviceFor(unread))[0]
		default:
			line.Value, line.Verdict = "none", Warn
			line.Advice = "kube-proxy does not know this address: while nodecache is down pods get no answer there; " + rules.FallbackAdvice(a)
		}
		lines = append(lines, line)
	}
	return lines
}

// checkLeftovers looks for rules that node-local-dns left behind.
func (n *node) checkLeftovers(context.Context) []Line {
	const name = "rules of node-local-dns"
	s := n.setup()
	there, err := n.rules()
	if err != nil && !errors.Is(err, errNoTables) {
		return skipped(name, err, adviceFor(err))
	}
	found, err := n.predecessors()
	table := kernel.OwnTable(s.iface)
	switch own := there.Has(table.Family, table.Name); {
	case own && slices.ContainsFunc(found, rules.PredecessorRule.Untracks):
		return one(name, fmt.Sprintf("%d, beside the table of nodecache", len(found)), Warn,
			"they keep packets from cluster DNS while nodecache is down: nodecache cleanup -only iptables")
	case len(found) > 0 && own:
		return one(name, fmt.Sprintf("%d, which only accept DNS", len(found)), OK, "")
	case len(found) > 0 && len(s.running) == 0:
		return one(name, fmt.Sprintf("%d", len(found)), Warn, "left behind, if neither node-local-dns nor nodecache runs here: nodecache cleanup")
	case len(found) > 0:
		return one(name, fmt.Sprintf("%d, in use", len(found)), OK, "")
	case err != nil:
		return skipped(name, err, adviceFor(err))
	}
	return one(name, "none", OK, "")
}
