package upstream

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

const (
	// variable is the environment variable that runs the tests: it is set to a mode. The test compiles five packages of CoreDNS.
	variable = "NEARSIDE_UPSTREAM"
	// everything runs all tests and writes the results. Another mode than these is a pattern of folders and tests.
	everything = "all"
)

// Addresses on lo in the namespace of the test: those that CoreDNS's tests forward to, and those of the server in its tests of
// zone transfers.
var (
	publicResolvers = []string{"8.8.8.8", "8.8.4.4"}
	serverAddresses = []string{"10.0.0.10", "fd00::10"}
)

func TestUpstream(t *testing.T) {
	mode := os.Getenv(variable)
	if mode == "" {
		t.Skip("set " + variable + "=" + everything + ", or run make upstream")
	}
	programs := programFolder(t)
	root := copyModule(t)
	var suites []suite
	for _, f := range folders {
		suites = append(suites, compile(t, root, f.path))
	}
	netns.Enter(t)
	resolve(t, programs)
	all := run(t, suites, programs, mode)
	explained, problems := judge(all, reasons, mode == everything)
	for _, p := range problems {
		t.Error(p)
	}
	if strings.HasPrefix(mode, control) {
		return
	}
	rerun(t, suites, programs, all)
	if mode != everything {
		return
	}
	version := strings.TrimPrefix(filepath.Base(module(t)), "coredns@v")
	kit.Write(t, "RESULTS.md", report(version, all, explained))
}

// run runs the tests of all folders with their programs, or those that the mode selects. In mode "coredns" CoreDNS's program
// takes the place of ours: a test that fails then too fails for a reason of the harness.
func run(t *testing.T, suites []suite, programs, mode string) (all []result) {
	t.Helper()
	selected := regexp.MustCompile(".")
	own := true
	switch rest, ok := strings.CutPrefix(mode, control); {
	case ok:
		own = false
		selected = regexp.MustCompile(strings.TrimSpace(rest))
	case mode != everything:
		selected = regexp.MustCompile(mode)
	}
	for i, s := range suites {
		names := folders[i].programs
		if !own {
			names = []string{control}
		}
		for _, program := range names {
			for _, test := range s.tests {
				if !selected.MatchString(s.folder + " " + test) {
					continue
				}
				begin := time.Now()
				all = append(all, s.run(t, test, programs, program)...)
				t.Logf("%s %s %s: %s", program, s.folder, test, time.Since(begin).Round(time.Millisecond))
			}
		}
	}
	return all
}

// rerun runs the tests of failures whose reason is that they cannot use the public interface with CoreDNS's program, which has to
// fail them, too.
func rerun(t *testing.T, suites []suite, programs string, all []result) {
	t.Helper()
	var failures, controls []result
	done := map[string]bool{}
	for _, r := range all {
		if !slices.ContainsFunc(unusable, func(reason reason) bool { return reason.matches(r) }) {
			continue
		}
		failures = append(failures, r)
		test := topName(r.test)
		if done[r.folder+" "+test] {
			continue
		}
		done[r.folder+" "+test] = true
		i := slices.IndexFunc(suites, func(s suite) bool { return s.folder == r.folder })
		controls = append(controls, suites[i].run(t, test, programs, control)...)
	}
	for _, name := range passing(failures, controls) {
		t.Errorf("CoreDNS's program passes %s: its reason is wrong", name)
	}
}

// programFolder returns a folder with the programs, and CoreDNS's for comparison.
func programFolder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	paths := map[string]string{control: controlplane.RequireBinary(t, control)}
	for _, name := range []string{"clusterdns", "nodecache"} {
		paths[name] = daemon.ProgramWithoutRace(t, name)
	}
	for name, path := range paths {
		kit.Must(t, os.Symlink(path, filepath.Join(folder, name)))
	}
	return folder
}

// resolver answers each name with an address, in place of the public resolvers.
const resolver = `.:53 {
    bind ADDRESSES
    template IN A . {
        answer "{{ .Name }} 60 IN A 192.0.2.1"
    }
    template ANY ANY . {
        rcode NOERROR
        authority "example.org. 60 IN SOA ns.example.org. hostmaster.example.org. 1 7200 3600 1209600 60"
    }
}
`

// resolve runs CoreDNS on the addresses of public resolvers in the namespace.
func resolve(t *testing.T, programs string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	kit.Must(t, err)
	for _, address := range slices.Concat(publicResolvers, serverAddresses) {
		bits := "/32"
		if strings.Contains(address, ":") {
			bits = "/128"
		}
		parsed, err := netlink.ParseAddr(address + bits)
		kit.Must(t, err)
		kit.Must(t, netlink.AddrAdd(lo, parsed))
	}
	daemon.Launch(t, filepath.Join(programs, control), strings.Replace(resolver, "ADDRESSES", strings.Join(publicResolvers, " "), 1))
}
