//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// checkFirewall reports other packet filters that drop or reject DNS of pods: a packet that one table
// accepts can still be dropped by another.
func (n *node) checkFirewall(ctx context.Context) []Line {
	const name = "rules of others"
	s := n.setup()
	if len(s.addresses) == 0 {
		return one(name, "the addresses are not known", Skip, "name them with -localip")
	}
	if s.noIface && s.noRules && !slices.ContainsFunc(s.addresses, func(a netip.Addr) bool { return !a.IsLoopback() }) {
		return one(name, "not read: pods do not query these addresses", OK, "")
	}
	findings, err := n.firewall(ctx, firewall.Packets(s.addresses, n.options.port, s.noRules))
	var lines []Line
	for _, f := range findings {
		line := Line{name, fmt.Sprintf("%s, %s: %s", f.Chain, f.Rule, f.Traffic()), Fail, "pods get no answer, and an accept of nodecache does not count there: "}
		if !f.Certain() {
			line.Verdict = Warn
			line.Advice = "pods get an answer only by " + strings.Join(f.Unless, "; ") + ": see that this is true of all pods, or: "
		}
		line.Advice += strings.Join(f.Remedy(), "; ")
		lines = append(lines, line)
	}
	ingresses, e := n.ingresses(ctx)
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
