//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// checkFirewall reports the packet filters of other programs that may drop queries of pods: a warning, unless packets prove
// that queries arrive, and a failure for a chain at the hook ingress.
func (n *node) checkFirewall(ctx context.Context) []Line {
	const name = "rules of others"
	s := n.setup()
	if len(s.addresses) == 0 {
		return one(name, "the addresses are not known", Skip, "name them with -localip")
	}
	if s.noIface && s.noRules && !slices.ContainsFunc(s.addresses, func(a netip.Addr) bool { return !a.IsLoopback() }) {
		return one(name, "not read: pods do not query these addresses", OK, "")
	}
	packets := firewall.Packets(s.addresses, n.options.port)
	suspects, err := n.suspects(ctx, packets)
	arrive := n.queriesArrive(s)
	var lines []Line
	for _, f := range suspects {
		line := Line{name, fmt.Sprintf("%s, %s: %s", f.Chain, f.Rule, f.Traffic()), Warn,
			"it may drop queries of pods, and an accept of nodecache does not count there; to let DNS through: " + strings.Join(f.Remedy(), "; ")}
		if arrive {
			line.Value, line.Verdict, line.Advice = line.Value+"; queries arrive, so that it drops at most those of some pods", OK, ""
		}
		lines = append(lines, line)
	}
	ingresses, e := n.ingresses(ctx, packets)
	for _, i := range ingresses {
		lines = append(lines, Line{name, i.String(), Fail, fmt.Sprintf("it comes before nodecache's rules, so that a query of a pod that it drops gets no answer and does not end the lease: "+
			"see that it accepts UDP and TCP port %d to the addresses: nft -a list chain %s %s %s", n.options.port, i.Family, i.Table, i.Chain)})
	}
	if err = errors.Join(err, e); err != nil {
		return append(lines, skipped(name, err)...)
	}
	if len(lines) == 0 {
		return one(name, "none rejects DNS to the addresses", OK, "")
	}
	return lines
}

// queriesArrive returns whether packets prove that queries to each address pass the filters of the node: the address has a
// lease, and either self-queries arrive on the veth pair, as queries of pods do, or packets of pods have arrived.
func (n *node) queriesArrive(s setup) bool {
	if matched, err := n.matched(); matched == nil || err != nil {
		return false
	}
	leases, err := n.leases(s.iface)
	traffic, err2 := n.traffic(s.iface)
	if err = errors.Join(err, err2); err != nil {
		return false
	}
	return !slices.ContainsFunc(s.addresses, func(a netip.Addr) bool {
		_, leased := leases[a]
		family, byPair := "4", n.hasLink(link.PairOf(s.iface).In)
		if a.Is6() {
			family, byPair = "6", byPair && !a.IsLinkLocalUnicast()
		}
		return !leased || !byPair && traffic["udp"+family].Arrived+traffic["tcp"+family].Arrived == 0
	})
}
