package daemon

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	_, file, _, _ := runtime.Caller(0)
	folder, args := fmt.Sprintf("%x", sha256.Sum256([]byte(file)))[:8], []string{"build", "-ldflags=-w"}
	if race {
		folder, args = folder+"-race", append(args, "-race")
	}
	path := filepath.Join(cache, "nearside", "test", folder, filepath.Base(name))
	if built.paths[path] {
		return path
	}
	if !strings.Contains(name, "/") {
		name = "cmd/" + name
	}
	defer lock(t, filepath.Dir(path))()
	kit.Output(t, exec.Command("go", append(args, "-o", path, "github.com/nearside-dns/nearside/"+name)...))
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
