// Package namespace gives a test a network namespace of its own, in which nothing is but lo: on a thread
// (Enter), or in a process (Inside). What the test does to interfaces and rules is gone with it. A bed of
// several namespaces with names is in package netns.
package namespace

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Enter moves the test's goroutine to a thread with an empty network namespace, with lo up. The
// thread ends with the test. Sockets of other goroutines are elsewhere. The test is skipped without
// root.
func Enter(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacking(t, "root, for a network namespace")
	}
	runtime.LockOSThread() // and never unlocked: the thread is not to be used by anybody else
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		Lacking(t, "the right to make a network namespace: "+err.Error())
	}
	loopbackUp(t)
}

func loopbackUp(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

// Lacking skips the test, or fails it if NEARSIDE_REQUIRE_ALL says that everything is to be there.
func Lacking(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("NEARSIDE_REQUIRE_ALL") == "1" {
		t.Fatal("needs " + what)
	}
	t.Skip("needs " + what)
}

// Run runs a program in the namespace and returns what it printed. The test is skipped if the program
// is not installed.
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
