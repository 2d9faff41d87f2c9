package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// programs are the binaries built for the tests of a package, in a temporary folder.
var programs builtPrograms

type builtPrograms struct {
	mu     sync.Mutex
	folder string
	built  map[string]bool // by path
}

// Program returns the path of a program of the module, built once for all tests of a package. The package's TestMain
// removes it with Main.
func Program(t testing.TB, name string) string {
	t.Helper()
	return programs.path(t, name, RaceDetector)
}

// ProgramWithoutRace is Program without the race detector, for tests that measure memory, or compare many answers, one at a time.
func ProgramWithoutRace(t testing.TB, name string) string {
	t.Helper()
	return programs.path(t, name, false)
}

func (p *builtPrograms) path(t testing.TB, name string, race bool) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.folder == "" {
		folder, err := os.MkdirTemp("", "nearside-test-")
		if err != nil {
			t.Fatal(err)
		}
		p.folder, p.built = folder, map[string]bool{}
	}
	path := filepath.Join(p.folder, filepath.Base(name))
	if race != RaceDetector {
		path += "-without-race"
	}
	if !p.built[path] {
		build(t, path, name, race)
		p.built[path] = true
	}
	return path
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
