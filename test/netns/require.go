//go:build linux

package netns

import (
	"os"
	"os/exec"
	"testing"
)

// Require skips the test without root or one of the programs, and logs which is missing. If the environment variable
// NEARSIDE_REQUIRE_ALL is "1", it fails the test.
func Require(t testing.TB, programs ...string) {
	t.Helper()
	end := t.Skipf
	if os.Getenv("NEARSIDE_REQUIRE_ALL") == "1" {
		end = t.Fatalf
	}
	if os.Getuid() != 0 {
		end("network namespaces need root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			end("%s is missing; run test/install.sh", p)
		}
	}
}
