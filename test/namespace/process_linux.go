//go:build linux

// Package netnstest runs a test again in a process that has a network namespace of its own: what such
// a test does to interfaces and rules is gone with the process, and what it tests may use any thread.
package netnstest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside is the environment variable that tells the second process from the first.
const inside = "NEARSIDE_TEST_NAMESPACE"

// limit bounds the second process.
const limit = 2 * time.Minute

// Inside returns true in the second process, where lo is up and nothing else is there. In the first it
// runs the second, passes its outcome on, and returns false: the test is to return then. The test is
// skipped without root.
func Inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Geteuid() != 0 {
		Lacking(t, "root, for a network namespace")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	c.Env = append(os.Environ(), inside+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := c.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM):
		Lacking(t, "the right to make a network namespace")
	case err != nil:
		t.Fatalf("in a network namespace of its own: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("in a network namespace of its own:\n%s", out)
	}
	return false
}

// Lacking skips the test, or fails it where NEARSIDE_REQUIRE_ALL says that everything is to be there.
func Lacking(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("NEARSIDE_REQUIRE_ALL") == "1" {
		t.Fatal("needs " + what)
	}
	t.Skip("needs " + what)
}

// Run runs a program and returns what it printed. The test is skipped if it is not installed.
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
