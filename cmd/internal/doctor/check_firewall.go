//go:build linux

package doctor

import (
	"context"
	"fmt"
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
	if err != nil {
		return append(lines, skipped(name, err)...)
	}
	if len(lines) == 0 {
		return one(name, "none rejects DNS to the addresses", OK, "")
	}
	return lines
}
