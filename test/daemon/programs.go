package daemon

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// built are the programs that are up to date, by path.
var built struct {
	sync.Mutex
	paths map[string]bool
}

// Program returns the path of a program of the module. It has the race detector if the test has it. A program outside of
// cmd is named by its folder.
func Program(t testing.TB, name string) string {
	t.Helper()
	return program(t, name, RaceDetector)
}

// ProgramWithoutRace is Program without the race detector, for tests that measure memory, or start many servers, one at a time.
func ProgramWithoutRace(t testing.TB, name string) string {
	t.Helper()
	return program(t, name, false)
}

// program builds into a folder of the user's cache, where the tests of all packages of a checkout share the programs: to
// link them takes seconds, and go build does it only for a program that is not up to date.
func program(t testing.TB, name string, race bool) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	cache, err := os.UserCacheDir()
	kit.Must(t, err)
	folder, build := fmt.Sprintf("%x", sha256.Sum256([]byte(kit.Module(t))))[:8], kit.Go("build", "-ldflags=-w")
	if race {
		folder, build = folder+"-race", exec.Command("go", "build", "-ldflags=-w", "-race")
	}
	path := filepath.Join(cache, "nearside", "test", folder, filepath.Base(name))
	if built.paths[path] {
		return path
	}
	if !strings.Contains(name, "/") {
		name = "cmd/" + name
	}
	defer lock(t, filepath.Dir(path))()
	build.Args = append(build.Args, "-o", path, "github.com/nearside-dns/nearside/"+name)
	kit.Output(t, build)
	if built.paths == nil {
		built.paths = map[string]bool{}
	}
	built.paths[path] = true
	return path
}

// lock waits until no other process builds into a folder, and returns a function that ends the lock.
func lock(t testing.TB, folder string) (unlock func()) {
	t.Helper()
	kit.Must(t, os.MkdirAll(folder, 0o755))
	f, err := os.Open(folder)
	kit.Must(t, err)
	kit.Must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	return func() { _ = f.Close() } // which ends the lock
}
