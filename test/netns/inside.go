//go:build linux

package netns

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// inside is the environment variable of the second process, the name of the test.
const inside = "NEARSIDE_TEST_NAMESPACE"

// limit bounds the time of the second process.
const limit = 2 * time.Minute

// Inside runs the test again in a process with an empty network namespace and its own mounts, so that the tested code may use any thread. It
// returns true in that second process, with lo up. In the first process it waits for the second, fails or skips the test as
// the second did, and returns false: the test must return then. Inside skips the test without root.
func Inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		loopbackUp(t)
		return true
	}
	Require(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	c.Env = append(os.Environ(), inside+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	out, err := c.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM):
		kit.Lacking(t, "the test may not make a network namespace: "+err.Error())
	case err != nil:
		t.Fatalf("in the process with a network namespace: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("in the process with a network namespace:\n%s", out)
	}
	return false
}
