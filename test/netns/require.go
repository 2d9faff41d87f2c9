//go:build linux

package netns

import (
	"os"
	"os/exec"
	"testing"
)

// Require skips the test if it does not run as root or one of the programs is missing, with one line
// that says what. If the environment variable NEARSIDE_REQUIRE_ALL is "1", it fails the test.
func Require(t testing.TB, programs ...string) {
	t.Helper()
	give := t.Skipf
	if os.Getenv("NEARSIDE_REQUIRE_ALL") == "1" {
		give = t.Fatalf
	}
	if os.Getuid() != 0 {
		give("network namespaces need root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			give("%s is missing; run test/install.sh", p)
		}
	}
}
