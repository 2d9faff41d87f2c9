package kernel

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// root is the module's folder.
const root = "../.."

// nodelocal is the path in the module of the packages that change the kernel's state.
const nodelocal = "plugin/nodelocal"

// kernelTests is the prefix of the names of tests that need a kernel.
const kernelTests = "TestKernel"

// kernelTestPackages returns the packages below a folder of the module that have such tests.
func kernelTestPackages(t *testing.T, folder string) (all []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		if bytes.Contains(text, []byte("\nfunc "+kernelTests)) && !slices.Contains(all, pkg) {
			all = append(all, pkg)
		}
		return nil
	})
	kit.Must(t, err)
	return all
}

// references is the module of named counters in rules, which is a part of nf_tables since Linux 6.2.
const references = "nft_objref"

// leftOut are tests of the iptables backend: they start iptables hundreds of times, which takes more than a minute on an
// emulated processor, and cover no more of the kernel than those of nft.
const leftOut = kernelTests + "IPTables"

// TestKernelTests runs the tests of the interface and the rules on Debian's kernel, which has the dummy driver.
func TestKernelTests(t *testing.T) {
	Require(t, Job{})
	packages := kernelTestPackages(t, nodelocal)
	if len(packages) == 0 {
		t.Fatalf("no package below %s has a test that begins with %s", nodelocal, kernelTests)
	}
	job := Job{Host: []string{"ip", "nft"}, Modules: []string{references}, Timeout: 5 * time.Minute}
	for _, pkg := range packages {
		testdata := filepath.Join(root, pkg, "testdata")
		if _, err := os.Stat(testdata); err != nil {
			testdata = ""
		}
		job.Programs = append(job.Programs, Program{
			Name:   strings.ReplaceAll(pkg, "/", "-"),
			Path:   BuildTest(t, pkg),
			Args:   []string{"-test.v", "-test.run", "^" + kernelTests, "-test.skip", "^" + leftOut},
			Folder: testdata,
		})
	}
	console := Run(t, job)
	for _, pkg := range packages {
		t.Log(pkg)
	}
	if n := strings.Count(console, "--- PASS: "+kernelTests); n < len(packages) {
		t.Errorf("%d tests ran in %d packages; the console:\n%s", n, len(packages), console)
	}
}

// inside has the tests that are only run in a machine.
const inside = "test/kernel/inside"

// TestInside runs nodecache itself, with a kill, a restart and a graceful end, and with pods that query it and cluster
// DNS behind it: on a kernel with all features that it uses, and on one without the optional ones.
func TestInside(t *testing.T) {
	Require(t, Job{})
	test := BuildTest(t, inside)
	nodecache := File{Path: "/bin/nodecache", From: BuildProgram(t, "cmd/nodecache"), Mode: 0o755}
	for name, c := range map[string]struct {
		carrier string
		without []string
		passes  []string
	}{
		"all modules of Debian": {"dummy", nil, []string{"TestDummy", "TestNodecache", "TestFallback"}},
		"required modules only": {"lo", []string{"dummy", "bridge", "nft_socket", "nft_fib_inet", references}, []string{"TestNodecache", "TestFallback"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"-test.v", "-test.run", "^(" + strings.Join(c.passes, "|") + ")$", "-carrier", c.carrier}
			console := Run(t, Job{
				Programs: []Program{{Name: "inside", Path: test, Args: args}},
				Files:    []File{nodecache},
				Host:     []string{"ip"},
				Modules:  []string{references},
				Without:  c.without,
				Timeout:  5 * time.Minute,
			})
			for _, name := range c.passes {
				if !strings.Contains(console, "--- PASS: "+name+" (") {
					t.Errorf("%s did not pass; the console:\n%s", name, console)
				}
			}
		})
	}
}

// TestPrograms runs programs in one machine that end in different ways.
func TestPrograms(t *testing.T) {
	parts := Require(t, Job{})
	shell := func(name, script string) Program { // busybox runs the applet with the name of its file
		return Program{Name: name, Path: parts.Busybox, Args: []string{"-c", script}}
	}
	hello := kit.File(t, "hello", "from the host\n")
	console, err := run(parts, Job{
		Programs: []Program{
			shell("sh", "exit 3"),
			shell("ash", `cat "/it's/hello" /it/is/given; uname -r`),
			shell("busybox", ""),
		},
		Files: []File{{Path: "/it's/hello", From: hello}, {Path: "/it/is/given", Text: "from the job\n"}},
	}, t.TempDir())
	if err == nil || err.Error() != "in the machine sh ended with code 3, busybox ended with code 127" {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"from the host\nfrom the job\n", "-cloud-amd64\n"} {
		if !strings.Contains(console, want) {
			t.Errorf("the console lacks %q:\n%s", want, console)
		}
	}
}

// TestMachineFailures ends machines before their programs end.
func TestMachineFailures(t *testing.T) {
	parts := Require(t, Job{})
	for name, c := range map[string]struct {
		script  string
		timeout time.Duration
		want    string
	}{
		"panic":   {"echo c > /proc/sysrq-trigger", defaultTimeout, "in the machine sh did not end"},
		"timeout": {"while :; do :; done", time.Second, "the machine did not end within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			job := Job{Programs: []Program{{Name: "sh", Path: parts.Busybox, Args: []string{"-c", c.script}}}, Timeout: c.timeout}
			console, err := run(parts, job, t.TempDir())
			if err == nil || err.Error() != c.want {
				t.Errorf("error %v, want %q; the console:\n%s", err, c.want, console)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	programs := []Program{{Name: "one"}, {Name: "two"}}
	for name, c := range map[string]struct{ console, want string }{
		"both ended well":    {"x\nmachine: program 0 ended with code 0;\nmachine: program 1 ended with code 0;\n", ""},
		"the first failed":   {"machine: program 0 ended with code 1;\nmachine: program 1 ended with code 0;\n", "in the machine one ended with code 1"},
		"killed":             {"machine: program 0 ended with code 0;\nmachine: program 1 ended with code 137;\n", "in the machine two ended with code 137"},
		"nothing":            {"", "in the machine one did not end, two did not end"},
		"the line is cut":    {"machine: program 0 ended with code 0;\nmachine: program 1 ended with code ", "in the machine two ended with code "},
		"the kernel between": {"machine: program 0 ended with code 0;[  1.0] x\nmachine: program 1 ended with code 0;[  1.1] y", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := failures(c.console, programs); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("error %q, want %q", got, c.want)
			}
		})
	}
}
