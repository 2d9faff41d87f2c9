//go:build linux

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// checkRules reports the rules, the leases, and the server that answers without a lease.
func (n *node) checkRules(context.Context) []Line {
	s := n.setup()
	matched, err := n.matched()
	if err != nil && !s.noRules {
		return skipped("rules", err)
	}
	if matched == nil {
		return n.checkWithoutTable(s)
	}
	lines := []Line{checkTable(s, matched)}
	if s.noRules {
		lines[0].Verdict = Warn
		lines[0].Advice = "the configuration has no rules: nodecache cleanup removes these while nodecache is stopped"
	}
	lines = append(lines, n.checkLeases(s)...)
	return append(lines, n.checkFallback(s, matched[rules.ChainFallback])...)
}

// tableOf names nodecache's table for an interface.
func tableOf(s setup) string { return "table inet " + rules.TableName(s.iface) }

// checkWithoutTable reports the rules where nodecache's table is missing.
func (n *node) checkWithoutTable(s setup) []Line {
	const name = "rules"
	found, err := n.predecessors()
	switch {
	case len(found) > 0:
		return one(name, fmt.Sprintf("%d of iptables; no lease", len(found)), Warn,
			"a nodecache that hangs or is killed leaves the node without DNS: use backend nftables, which needs nf_tables, nft_ct, nft_nat and nft_masq in the kernel")
	case s.noRules:
		return one(name, "none, as configured", OK, "")
	case err != nil:
		return skipped(name, err)
	}
	return one(name, "none: no "+tableOf(s), Fail,
		"packets to the addresses are tracked, and those to a Service's address go to cluster DNS: start nodecache, or read its log")
}

// checkTable reports whether nodecache's table has all chains and addresses.
func checkTable(s setup, matched map[string][]netip.Addr) Line {
	line := Line{Check: "rules", Value: "nftables, " + tableOf(s), Verdict: OK}
	var missing []string
	for _, chain := range []string{rules.ChainPods, rules.ChainNode} {
		if _, ok := matched[chain]; !ok {
			missing = append(missing, "chain "+chain)
		}
	}
	if len(missing) == 0 {
		for _, a := range s.addresses {
			if !slices.Contains(matched[rules.ChainNode], a) {
				missing = append(missing, a.String())
			}
		}
	}
	if len(missing) > 0 {
		line.Value += " without " + strings.Join(missing, ", ")
		line.Verdict, line.Advice = Fail, "nodecache repairs it within its interval; if not, restart it and read its log"
	}
	return line
}

// checkLeases reports which addresses receive queries now.
func (n *node) checkLeases(s setup) (lines []Line) {
	leases, err := n.leases(s.iface)
	if err != nil {
		return skipped("lease", err)
	}
	for _, a := range s.addresses {
		line := Line{Check: "lease " + a.String(), Verdict: OK}
		if left, in := leases[a]; in {
			line.Value = fmt.Sprintf("in, %s left", left.Round(10*time.Millisecond))
		} else {
			line.Value, line.Verdict = "out", Fail
			line.Advice = "nodecache does not answer itself here: read its log; until then packets are routed as without nodecache"
			if n.translated(a) {
				line.Advice = "the network plugin's load balancing of Services at sockets, as of Cilium without kube-proxy, sends queries to cluster DNS before they reach nodecache: " +
					"use deploy/overlays/cilium, or the address 169.254.20.10"
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// checkFallback reports the server that answers on each address without a lease: cluster DNS for addresses
// with a fallback, the pods behind kube-proxy for a Service's address, or none.
func (n *node) checkFallback(s setup, withFallback []netip.Addr) (lines []Line) {
	proxy, unread := n.proxy()
	for _, a := range s.addresses {
		name := "fallback " + a.String()
		switch {
		case slices.Contains(withFallback, a):
			lines = append(lines, n.checkTarget(name, s, a, proxy, unread))
		case slices.Contains(proxy.Services, a):
			lines = append(lines, Line{name, "kube-proxy, while the lease is out", OK, ""})
		case unread != nil:
			lines = append(lines, skipped(name, unread)...)
		case n.translated(a):
			lines = append(lines, Line{name, "cluster DNS, by load balancing at sockets", OK, ""})
		default:
			lines = append(lines, Line{name, "none", Warn,
				"kube-proxy does not know this address: while nodecache is down pods get no answer there; " + rules.FallbackAdvice(a)})
		}
	}
	return lines
}

// checkTarget reports whether the address to which the rules send queries without a lease leads to cluster DNS. It does not if
// it is a Service's address that the network plugin translates only for sockets, and not in packets of pods.
func (n *node) checkTarget(name string, s setup, a netip.Addr, proxy rules.KubeProxy, unread error) Line {
	line := Line{name, "cluster DNS, while the lease is out", OK, ""}
	i := slices.IndexFunc(s.fallback, func(to netip.Addr) bool { return to.Is4() == a.Is4() })
	if unread != nil || i < 0 || slices.Contains(proxy.Services, s.fallback[i]) || !n.translated(s.fallback[i]) {
		return line
	}
	line.Value, line.Verdict = "queries to "+s.fallback[i].String()+" are lost", Fail
	line.Advice = "it is a Service's address that only sockets are translated for, as by Cilium without kube-proxy, and nodecache has not found a replica of it: " +
		"read its log; until then pods get no answer while nodecache is down"
	return line
}

// checkLeftovers reports rules that node-local-dns left behind.
func (n *node) checkLeftovers(context.Context) []Line {
	const name = "rules of node-local-dns"
	matched, err := n.matched()
	if err != nil {
		return skipped(name, err)
	}
	found, err := n.predecessors()
	switch own := matched != nil; {
	case own && slices.ContainsFunc(found, rules.PredecessorRule.Untracks):
		return one(name, fmt.Sprintf("%d, beside the table of nodecache", len(found)), Warn,
			"they keep packets from cluster DNS while nodecache is down: nodecache cleanup -only iptables")
	case len(found) > 0 && own:
		return one(name, fmt.Sprintf("%d, which only accept DNS", len(found)), OK, "")
	case len(found) > 0 && len(n.setup().running) == 0:
		return one(name, fmt.Sprint(len(found)), Warn, "left behind, if neither node-local-dns nor nodecache runs here: nodecache cleanup")
	case len(found) > 0:
		return one(name, fmt.Sprintf("%d, in use", len(found)), OK, "")
	case err != nil:
		return skipped(name, err)
	}
	return one(name, "none", OK, "")
}
