//go:build linux

package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/fastpath/kernel"
)

// The first kernel in which the program for answers in the kernel can be loaded, and the first one with tcx. Distributions have
// ported both to older kernels.
const (
	answersMajor, answersMinor = 5, 15
	tcxMajor, tcxMinor         = 6, 6
)

// tcxSymbol is a function of kernels with tcx.
const tcxSymbol = "tcx_prog_attach"

// clsactFeatures are the features by which the program is attached without tcx.
var clsactFeatures = []feature{
	{"sch_ingress", "clsact_init", "the kernel has no tcx, and the program is attached by a clsact qdisc"},
	{"cls_bpf", "cls_bpf_classify", "the kernel has no tcx, and the program is attached by a filter of clsact"},
}

// checkKernelAnswers reports whether the kernel, the capabilities of nodecache and the interfaces permit answers in the kernel
// (option kernel of fastpath).
func (n *node) checkKernelAnswers(context.Context) []Line {
	s := n.setup()
	switch {
	case !s.corefile:
		return nil
	case s.kernel == "":
		return one("kernel answers", "not configured: nodecache answers", OK, "")
	}
	lines := append(n.answersSupport(), n.answersPrivileges(s)...)
	return append(lines, n.answersObstacles(s.kernel == "force")...)
}

// answersSupport judges the kernel.
func (n *node) answersSupport() []Line {
	const name = "kernel answers"
	release, major, minor, err := n.release()
	if err != nil {
		return skipped(name, err)
	}
	before := func(m, i int) bool { return major < m || major == m && minor < i }
	known := []string{tcxSymbol}
	for _, f := range clsactFeatures {
		known = append(known, f.symbol)
	}
	symbols, err := n.kernelSymbols(known...)
	tcx := symbols[tcxSymbol]
	if err != nil {
		tcx = !before(tcxMajor, tcxMinor)
	}
	switch {
	case major == 0:
		return one(name, release, Skip, "its number cannot be read; the program needs 5.15 or later")
	case tcx:
		return one(name, release+" with tcx", OK, "")
	case before(answersMajor, answersMinor):
		return one(name, release+" without tcx", Warn, "the program needs Linux 5.15 or later, or the BPF of one: update it, or remove kernel from fastpath in the Corefile; until then nodecache answers")
	}
	present, complete := n.kernelModules()
	for _, f := range clsactFeatures {
		if complete && !symbols[f.symbol] && !slices.Contains(present, f.module) {
			return one(name, release+" without tcx and "+f.module, Warn, f.without+": use a kernel with "+f.module+", or remove kernel from fastpath in the Corefile; until then nodecache answers")
		}
	}
	return one(name, release+" with clsact", OK, "")
}

// answersPrivileges judges the capabilities of the running nodecache.
func (n *node) answersPrivileges(s setup) []Line {
	const name = "kernel answers privileges"
	if len(s.running) == 0 {
		return nil
	}
	running := s.running[len(s.running)-1]
	process, err := n.proc.Proc(running.PID)
	if err != nil {
		return skipped(name, err)
	}
	status, err := process.NewStatus()
	if err != nil {
		return skipped(name, err)
	}
	has := func(capability int) bool { return status.CapEff&(1<<capability) != 0 }
	var missing []string
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if len(missing) > 0 {
		return one(name, running.String()+" without "+strings.Join(missing, " and "), Warn,
			"the program cannot be loaded, and nodecache answers: add BPF and NET_ADMIN to the capabilities of its container")
	}
	return one(name, running.String()+" with CAP_BPF and CAP_NET_ADMIN", OK, "")
}

// answersObstacles reports why the program may not be attached to interfaces, with one line for each reason.
func (n *node) answersObstacles(forced bool) []Line {
	const name = "kernel answers obstacles"
	all, err := n.obstacles()
	var lines []Line
	for _, reason := range []kernel.Reason{kernel.ReasonPolicy, kernel.ReasonProgram, kernel.ReasonMTU} {
		value := obstacleValue(all, reason)
		switch {
		case value == "":
		case reason == kernel.ReasonMTU:
			lines = append(lines, Line{name, value, Warn, "nodecache answers there: for answers in the kernel, raise the MTU to 1280 or more"})
		case forced:
			lines = append(lines, Line{name, value + "; overridden by kernel force", OK, ""})
		default:
			lines = append(lines, Line{name, value, Warn, "nodecache answers there. Network policies do not apply to queries that the kernel answers: if all pods may query the node-local addresses, set kernel force in fastpath, otherwise remove kernel"})
		}
	}
	if err != nil {
		return append(lines, skipped(name, err)...)
	}
	if len(lines) == 0 {
		return one(name, "none", OK, "")
	}
	return lines
}

// obstacleValue returns the obstacles with a reason in one line: the interfaces, and the text of the first obstacle; "" for none.
// If an obstacle applies to all interfaces, the line is its text alone.
func obstacleValue(all []kernel.Obstacle, reason kernel.Reason) string {
	const shown = 3
	var interfaces []string
	text := ""
	for _, o := range all {
		switch {
		case o.Reason != reason:
			continue
		case o.Interface == "":
			return o.Text
		case text == "":
			text = o.Text
		}
		interfaces = append(interfaces, o.Interface)
	}
	if more := len(interfaces) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more: %s", strings.Join(interfaces[:shown], ", "), more, text)
	}
	if text == "" {
		return ""
	}
	return strings.Join(interfaces, ", ") + ": " + text
}

// probeKernelAnswers reports the interfaces with the program, and the queries that it has answered, from nodecache's metrics.
func (n *node) probeKernelAnswers(ctx context.Context) []Line {
	const name = "kernel answers interfaces"
	s := n.setup()
	switch {
	case !s.corefile || s.kernel == "":
		return nil
	case !s.metrics.IsValid():
		return one(name, "nodecache exports no metrics", Skip, "add prometheus to a server block")
	}
	metrics, err := n.scrape(ctx, s.metrics)
	if err != nil {
		return one(name, "metrics of nodecache at "+s.metrics.String()+": "+reason(err), Skip, "read the log of nodecache: it may not run, or another process has the port")
	}
	return judgeKernelAnswers(metrics)
}

// judgeKernelAnswers judges the answers in the kernel by the metrics of nodecache.
func judgeKernelAnswers(metrics families) []Line {
	const interfaces = "nearside_kernel_interfaces"
	line := Line{Check: "kernel answers interfaces", Verdict: OK}
	if _, ok := metrics.value("nearside_kernel_loaded", nil); !ok {
		line.Value, line.Verdict = "not in the configuration that nodecache runs", Warn
		line.Advice = "nodecache has not loaded this Corefile: its log has the reason, or it is an older version"
		return []Line{line}
	}
	attached, loaded := metrics.value(interfaces, map[string]string{"state": "attached"})
	if !loaded {
		line.Value, line.Verdict = "the program is not loaded", Warn
		line.Advice = `nodecache answers; its log has the reason in a line with "kernel answers no queries": see the lines above`
		return []Line{line}
	}
	states := metrics.byLabel(interfaces, nil, "state")
	delete(states, "attached")
	line.Value = fmt.Sprintf("%.0f attached", attached)
	if len(states) > 0 {
		line.Value += "; refused: " + counts(states)
	}
	switch {
	case states[string(kernel.ReasonError)] > 0:
		line.Verdict = Warn
		line.Advice = `nodecache answers on those with an error, and tries again every 30 s; its log has the error of the kernel once: "No answers in the kernel"`
	case attached == 0:
		line.Verdict, line.Advice = Warn, "nodecache answers: see the lines on obstacles"
	}
	entries, _ := metrics.value("nearside_kernel_entries", nil)
	answered, _ := metrics.value("nearside_kernel_answered_total", nil)
	passed := metrics.byLabel("nearside_kernel_passed_total", nil, "reason")
	queries := Line{Check: "kernel answers queries", Value: fmt.Sprintf("%s, %.0f answered", count(entries, "stored answer"), answered), Verdict: OK}
	if len(passed) > 0 {
		queries.Value += "; passed on: " + counts(passed)
	}
	if answered == 0 && passed["no_lease"] > 0 {
		queries.Verdict = Warn
		queries.Advice = "the program answers while nodecache has the lease of an address: see the lines on leases; without nodelocal in the Corefile, or -localip, there is none"
	}
	return []Line{line, queries}
}
