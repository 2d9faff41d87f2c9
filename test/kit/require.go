package kit

import (
	"os"
	"os/exec"
	"testing"
)

// RequireAll is the name of an environment variable: with "1", no test is skipped for a missing requirement.
const RequireAll = "NEARSIDE_REQUIRE_ALL"

// Lacking skips a test without one of its requirements. If RequireAll is set, it fails the test.
func Lacking(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv(RequireAll) == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// Require is Lacking for programs.
func Require(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			Lacking(t, p+" is missing; run test/install.sh")
		}
	}
}
