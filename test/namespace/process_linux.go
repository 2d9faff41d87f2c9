package namespace

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
)

// inside is the environment variable that tells the second process from the first.
const inside = "NEARSIDE_TEST_NAMESPACE"

// limit bounds the second process.
const limit = 2 * time.Minute

// Inside runs the test again in a process that has a network namespace of its own, so that what it tests
// may use any thread. It returns true in that second process, where lo is up and nothing else is there. In the first it
// runs the second, passes its outcome on, and returns false: the test is to return then. The test is
// skipped without root.
func Inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		loopbackUp(t)
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
