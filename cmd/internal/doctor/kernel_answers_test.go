//go:build linux

package doctor

import (
	"context"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/plugin/fastpath/kernel"
)

// linux returns the files of a kernel with a release and functions.
func linux(release string, symbols ...string) map[string]string {
	files := map[string]string{"sys/kernel/osrelease": release + "\n", "kallsyms": ""}
	for _, s := range symbols {
		files["kallsyms"] += "0000000000000000 T " + s + "\n"
	}
	return files
}

func TestCheckKernelAnswers(t *testing.T) {
	configured, forced := setup{corefile: true, kernel: "on"}, setup{corefile: true, kernel: "force"}
	running := setup{corefile: true, kernel: "on", running: []proc.Command{{Process: proc.Process{PID: 7, Name: "nodecache"}}}}
	withStatus := func(capabilities string) map[string]string {
		files := linux("6.12.1", tcxSymbol)
		files["7/status"] = "CapEff:\t" + capabilities + "\n"
		return files
	}
	policy := kernel.Obstacle{Reason: kernel.ReasonPolicy, Text: "Calico (chain cali-FORWARD of table ip filter)"}
	program := func(name string) kernel.Obstacle {
		return kernel.Obstacle{Interface: name, Reason: kernel.ReasonProgram, Text: "program of " + name + " is attached"}
	}
	narrow := kernel.Obstacle{Interface: "veth9", Reason: kernel.ReasonMTU, Text: "its MTU is below 1280"}
	const tcx = "ok | kernel answers | 6.12.1 with tcx\n"
	without := linux("6.1.0", "cls_bpf_classify")
	for name, text := range map[string]string{"modules": "", "lib/modules/6.1.0/modules.builtin": "", "lib/modules/6.1.0/modules.dep": ""} {
		without[name] = text
	}
	loadable := linux("6.1.0", "clsact_init")
	for name, text := range map[string]string{"modules": "", "lib/modules/6.1.0/modules.builtin": "", "lib/modules/6.1.0/modules.dep": "kernel/net/sched/cls_bpf.ko.xz:\n"} {
		loadable[name] = text
	}
	for _, c := range []struct {
		name    string
		machine machine
		want    string
		advice  string // part of the last line's
	}{
		{"no Corefile", machine{}, "", ""},
		{"off", machine{setup: setup{corefile: true}}, "ok | kernel answers | not configured: nodecache answers\n", ""},
		{"tcx", machine{setup: configured, files: linux("6.12.1", tcxSymbol)}, tcx + "ok | kernel answers obstacles | none\n", ""},
		{"ported tcx", machine{setup: configured, files: linux("5.14.0-503.el9", tcxSymbol)}, "ok | kernel answers | 5.14.0-503.el9 with tcx\nok | kernel answers obstacles | none\n", ""},
		{"clsact", machine{setup: configured, files: linux("6.1.0", "clsact_init", "cls_bpf_classify")}, "ok | kernel answers | 6.1.0 with clsact\nok | kernel answers obstacles | none\n", ""},
		{"clsact by a module", machine{setup: configured, files: loadable}, "ok | kernel answers | 6.1.0 with clsact\nok | kernel answers obstacles | none\n", ""},
		{"no clsact", machine{setup: configured, files: without}, "warn | kernel answers | 6.1.0 without tcx and sch_ingress | advice\nok | kernel answers obstacles | none\n", ""},
		{"too old", machine{setup: configured, files: linux("5.10.9", "clsact_init", "cls_bpf_classify")}, "warn | kernel answers | 5.10.9 without tcx | advice\nok | kernel answers obstacles | none\n", ""},
		{"functions that are not visible", machine{setup: configured, files: map[string]string{"sys/kernel/osrelease": "6.6\n"}}, "ok | kernel answers | 6.6 with tcx\nok | kernel answers obstacles | none\n", ""},
		{"release without a number", machine{setup: configured, files: linux("next")}, "skip | kernel answers | next | advice\nok | kernel answers obstacles | none\n", ""},

		{"capabilities", machine{setup: running, files: withStatus("0000008000001000")}, tcx + "ok | kernel answers privileges | nodecache (pid 7) with CAP_BPF and CAP_NET_ADMIN\nok | kernel answers obstacles | none\n", ""},
		{"privileged", machine{setup: running, files: withStatus("000001ffffffffff")}, tcx + "ok | kernel answers privileges | nodecache (pid 7) with CAP_BPF and CAP_NET_ADMIN\nok | kernel answers obstacles | none\n", ""},
		{"no CAP_BPF", machine{setup: running, files: withStatus("0000000000001400")}, tcx + "warn | kernel answers privileges | nodecache (pid 7) without CAP_BPF | advice\nok | kernel answers obstacles | none\n", ""},
		{"no capabilities", machine{setup: running, files: withStatus("0000000000000000")}, tcx + "warn | kernel answers privileges | nodecache (pid 7) without CAP_BPF and CAP_NET_ADMIN | advice\nok | kernel answers obstacles | none\n", ""},

		{"policy engine", machine{setup: configured, files: linux("6.12.1", tcxSymbol), obstacles: []kernel.Obstacle{policy, program("veth1"), narrow}}, tcx +
			"warn | kernel answers obstacles | Calico (chain cali-FORWARD of table ip filter) | advice\n" +
			"warn | kernel answers obstacles | veth1: program of veth1 is attached | advice\n" +
			"warn | kernel answers obstacles | veth9: its MTU is below 1280 | advice\n", "raise the MTU"},
		{"forced", machine{setup: forced, files: linux("6.12.1", tcxSymbol), obstacles: []kernel.Obstacle{policy, program("veth1"), narrow}}, tcx +
			"ok | kernel answers obstacles | Calico (chain cali-FORWARD of table ip filter); overridden by kernel force\n" +
			"ok | kernel answers obstacles | veth1: program of veth1 is attached; overridden by kernel force\n" +
			"warn | kernel answers obstacles | veth9: its MTU is below 1280 | advice\n", ""},
		{"programs at many interfaces", machine{setup: configured, files: linux("6.12.1", tcxSymbol), obstacles: []kernel.Obstacle{program("lo"), program("a"), program("b"), program("c"), program("d")}}, tcx +
			"warn | kernel answers obstacles | lo, a, b and 2 more: program of lo is attached | advice\n", "kernel force"},
		{"programs that cannot be read", machine{setup: configured, files: linux("6.12.1", tcxSymbol), obstacles: []kernel.Obstacle{policy}, unread: fs.ErrPermission}, tcx +
			"warn | kernel answers obstacles | Calico (chain cali-FORWARD of table ip filter) | advice\nskip | kernel answers obstacles | permission denied | advice\n", "as root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := c.machine.node(t).checkKernelAnswers(context.Background())
			if got := briefs(lines); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
			if c.advice != "" && !strings.Contains(lines[len(lines)-1].Advice, c.advice) {
				t.Errorf("advice %q has no %q", lines[len(lines)-1].Advice, c.advice)
			}
		})
	}
}

// answersMetrics is a page of nodecache's metrics with answers in the kernel.
const answersMetrics = `# TYPE nearside_kernel_loaded gauge
nearside_kernel_loaded 1
# TYPE nearside_kernel_entries gauge
nearside_kernel_entries 240
# TYPE nearside_kernel_answered_total counter
nearside_kernel_answered_total 1.2345e+06
# TYPE nearside_kernel_passed_total counter
nearside_kernel_passed_total{reason="expired"} 4
nearside_kernel_passed_total{reason="no_entry"} 20
nearside_kernel_passed_total{reason="no_lease"} 0
# TYPE nearside_kernel_interfaces gauge
nearside_kernel_interfaces{state="attached"} 14
`

func TestProbeKernelAnswers(t *testing.T) {
	const queries = "ok | kernel answers queries | 240 stored answers, 1234500 answered; passed on: expired 4, no_entry 20\n"
	for _, c := range []struct{ name, page, want string }{
		{"at work", answersMetrics, "ok | kernel answers interfaces | 14 attached\n" + queries},
		{"some refused", answersMetrics + "nearside_kernel_interfaces{state=\"mtu\"} 1\nnearside_kernel_interfaces{state=\"program\"} 2\n",
			"ok | kernel answers interfaces | 14 attached; refused: mtu 1, program 2\n" + queries},
		{"an error of the kernel", answersMetrics + "nearside_kernel_interfaces{state=\"error\"} 1\n", "warn | kernel answers interfaces | 14 attached; refused: error 1 | advice\n" + queries},
		{"all refused", strings.Replace(answersMetrics, `"attached"} 14`, `"attached"} 0`, 1) + "nearside_kernel_interfaces{state=\"policy\"} 15\n",
			"warn | kernel answers interfaces | 0 attached; refused: policy 15 | advice\n" + queries},
		{"no lease", "# TYPE nearside_kernel_loaded gauge\nnearside_kernel_loaded 1\n# TYPE nearside_kernel_interfaces gauge\nnearside_kernel_interfaces{state=\"attached\"} 1\n# TYPE nearside_kernel_passed_total counter\nnearside_kernel_passed_total{reason=\"no_lease\"} 7\n",
			"ok | kernel answers interfaces | 1 attached\nwarn | kernel answers queries | 0 stored answers, 0 answered; passed on: no_lease 7 | advice\n"},
		{"another configuration", "up 1\n", "warn | kernel answers interfaces | not in the configuration that nodecache runs | advice\n"},
		{"not loaded", "# TYPE nearside_kernel_loaded gauge\nnearside_kernel_loaded 0\n", "warn | kernel answers interfaces | the program is not loaded | advice\n"},
		{"not metrics", "<html>\n", "skip | kernel answers interfaces | metrics of nodecache at ADDRESS: text format parsing error in line 1: invalid metric name | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := metricsServer(t, c.page)
			n := machine{setup: setup{corefile: true, kernel: "on", metrics: at}}.node(t)
			got := briefs(n.probeKernelAnswers(context.Background()))
			if got = strings.ReplaceAll(got, at.String(), "ADDRESS"); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
	for _, c := range []struct {
		name  string
		setup setup
		want  string
	}{
		{"no Corefile", setup{}, ""},
		{"off", setup{corefile: true, metrics: netip.MustParseAddrPort("127.0.0.1:1")}, ""},
		{"no metrics", setup{corefile: true, kernel: "on"}, "skip | kernel answers interfaces | nodecache exports no metrics | advice\n"},
		{"metrics cannot be read", setup{corefile: true, kernel: "on", metrics: netip.MustParseAddrPort("127.0.0.1:1")},
			"skip | kernel answers interfaces | metrics of nodecache at 127.0.0.1:1: connection refused | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := briefs(machine{setup: c.setup}.node(t).probeKernelAnswers(context.Background())); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}
