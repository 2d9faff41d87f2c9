//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// checkPolicies looks for chains of others that drop or reject DNS of pods: a packet that one table
// accepts can still be dropped by another.
func (n *node) checkPolicies(ctx context.Context) []Line {
	const name = "rules of others"
	s := n.setup()
	if len(s.addresses) == 0 {
		return one(name, "the addresses are not known", Skip, "name them with -localip")
	}
	_, err := n.rules()
	withTables := err == nil
	if errors.Is(err, errNoTables) {
		err = nil
	}
	findings, unread := n.firewall(ctx, firewall.Packets(s.addresses, n.options.port, s.noRules), withTables)
	var lines []Line
	for _, f := range findings {
		lines = append(lines, filterLine(f))
	}
	for _, err := range []error{err, unread} {
		if err != nil {
			lines = append(lines, skipped(name, err, adviceFor(err))...)
		}
	}
	if len(lines) == 0 {
		return one(name, "none rejects DNS to the addresses", OK, "")
	}
	return lines
}

// filterLine is the line of a chain that drops or rejects DNS of pods.
func filterLine(f firewall.Finding) Line {
	line := Line{Check: "rules of others", Value: fmt.Sprintf("%s, %s: %s", f.Chain, f.Rule, f.Traffic()), Verdict: Fail}
	commands := strings.Join(f.Remedy(), "; ")
	if f.Certain() {
		line.Advice = "pods get no answer, and an accept of nodecache does not count there: " + commands
		return line
	}
	line.Verdict = Warn
	line.Advice = "pods get an answer only by " + strings.Join(f.Unless, "; ") + ": see that this is true of all pods, or: " + commands
	return line
}
