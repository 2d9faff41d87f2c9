//go:build linux

package netns

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// Require skips the test without root or one of the programs, or fails it (see kit.Lacking).
func Require(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		kit.Lacking(t, "network namespaces need root")
	}
	kit.Require(t, programs...)
}

// Enter moves the test's goroutine to a thread with an empty network namespace, with lo up. The thread ends with the test.
// Other goroutines of the test are not in the namespace. Enter skips the test without root.
func Enter(t *testing.T) {
	t.Helper()
	Require(t)
	runtime.LockOSThread() // never unlocked: no other goroutine may run in the namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		kit.Lacking(t, "the test may not make a network namespace: "+err.Error())
	}
	loopbackUp(t)
}

func loopbackUp(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	kit.Must(t, err)
	kit.Must(t, netlink.LinkSetUp(lo))
}

// Run runs a program in the namespace of Enter or Inside and returns its output. It skips the test if the program is not installed.
func Run(t *testing.T, program string, args ...string) string {
	t.Helper()
	kit.Require(t, program)
	return kit.Output(t, exec.Command(program, args...))
}
