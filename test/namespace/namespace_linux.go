// Package namespace runs a test in an empty network namespace with only lo: on a thread (Enter), or in a process (Inside).
// Interfaces and rules of the test end with the namespace. Package netns has networks of several named namespaces.
package namespace

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// Enter moves the test's goroutine to a thread with an empty network namespace, with lo up. The thread ends with the test.
// Other goroutines of the test are not in the namespace. Enter skips the test without root.
func Enter(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacking(t, "root, for a network namespace")
	}
	runtime.LockOSThread() // never unlocked: no other goroutine may run in the namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		Lacking(t, "the right to make a network namespace: "+err.Error())
	}
	loopbackUp(t)
}

func loopbackUp(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	kit.Must(t, err)
	kit.Must(t, netlink.LinkSetUp(lo))
}

// Lacking skips a test that needs a program or a right, or fails it if the environment variable NEARSIDE_REQUIRE_ALL is "1".
func Lacking(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("NEARSIDE_REQUIRE_ALL") == "1" {
		t.Fatal("needs " + what)
	}
	t.Skip("needs " + what)
}

// Run runs a program in the namespace and returns its output. It skips the test if the program is not installed.
func Run(t *testing.T, program string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		Lacking(t, program)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}
