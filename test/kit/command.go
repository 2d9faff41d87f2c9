package kit

import (
	"os/exec"
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
