package kernel

import (
	"strings"
	"testing"
	"time"
)

// answers is the path in the module of the package whose program answers queries in the kernel.
const answers = "plugin/fastpath/kernel"

// notInside are tests of the package that need a compiler or many programs, or that take long on an emulated processor and
// depend less on the kernel than the others.
const notInside = "^(TestGenerated|TestFindEngine|TestPodsComeAndGo|TestFlood|TestManyChains)$"

// TestAnswers runs the tests of answers in the kernel, and nodecache with them, on kernels with other verifiers than that of
// the host. Linux has tcx since 6.6; before, nodecache uses clsact.
func TestAnswers(t *testing.T) {
	Require(t, Job{})
	nodecache := File{Path: "/bin/nodecache", From: BuildProgram(t, "cmd/nodecache"), Mode: 0o755}
	test, testInside := BuildTest(t, answers), BuildTest(t, inside)
	for release, way := range map[Release]string{Linux61: "clsact", Linux612: "tcx"} {
		t.Run(string(release), func(t *testing.T) {
			t.Parallel() // one machine uses one processor
			console := Run(t, Job{
				Kernel: release,
				Programs: []Program{
					{Name: "sh", Path: Require(t, Job{}).Busybox, Args: []string{"-c", `echo "kernel $(uname -r)"`}},
					{Name: "answers", Path: test, Args: []string{"-test.v", "-test.skip", notInside}},
					{Name: "inside", Path: testInside, Args: []string{"-test.v", "-test.run", "^TestAnswers$", "-way", way}},
				},
				Files:   []File{nodecache},
				Host:    []string{"ip", "nft", "setpriv"},
				Modules: []string{"cls_bpf", "cls_u32", "sch_ingress", "nfnetlink_queue"},
				Timeout: 15 * time.Minute,
			})
			want := []string{"kernel " + string(release) + "."}
			for _, name := range []string{"TestParity", "TestPassed", "TestMutations", "TestEnds", "TestClose", "TestInterfaces",
				"TestProcessEnd", "TestCapabilities", "TestPolicyEngine", "TestAnswers"} {
				want = append(want, "--- PASS: "+name+" (")
			}
			for _, text := range want {
				if !strings.Contains(console, text) {
					t.Errorf("the console lacks %q:\n%s", text, console)
				}
			}
		})
	}
}
