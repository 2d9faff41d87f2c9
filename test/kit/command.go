package kit

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Output runs a command and returns its output. It ends the test if the command fails.
func Output(t testing.TB, c *exec.Cmd) string {
	t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	return string(out)
}

// Go returns a command of go without C and without the paths of this machine, as "make build" runs it: Go's cache has one build of a
// package for all programs without the race detector.
func Go(args ...string) *exec.Cmd {
	c := exec.Command("go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	return c
}

// Module returns the folder of the module that has the current folder, "" outside of a module.
func Module(t testing.TB) string {
	t.Helper()
	folder, err := os.Getwd()
	Must(t, err)
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder
		}
		parent := filepath.Dir(folder)
		if parent == folder {
			return ""
		}
		folder = parent
	}
}
