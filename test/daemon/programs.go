package daemon

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// programs are those that the tests of a package have built, in a folder of their own.
var programs struct {
	mu     sync.Mutex
	folder string
	paths  map[string]string
}

// Program returns the path of a program of the module, which is built once for all tests of a package. The
// package's TestMain runs them by Main.
func Program(t testing.TB, name string) string {
	t.Helper()
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if path := programs.paths[name]; path != "" {
		return path
	}
	if programs.folder == "" {
		folder, err := os.MkdirTemp("", "nearside-test-")
		if err != nil {
			t.Fatal(err)
		}
		programs.folder, programs.paths = folder, map[string]string{}
	}
	programs.paths[name] = BuildIn(t, programs.folder, name)
	return programs.paths[name]
}

// Main runs the tests of a package, removes what Program has built, and returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if programs.folder == "" {
		return code
	}
	if err := os.RemoveAll(programs.folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
