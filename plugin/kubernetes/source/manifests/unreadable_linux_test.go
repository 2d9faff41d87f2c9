package manifests

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// TestUnreadableDirectory takes the right to read a subdirectory away: its objects stay served.
func TestUnreadableDirectory(t *testing.T) {
	s, ix, log := load(t, source.Options{}, map[string]string{"a.yaml": service("shop", "a", "None"), "sub/b.yaml": service("shop", "b", "None")})
	const want = "service shop/a headless\nservice shop/b headless"
	sub := filepath.Join(s.root, "sub")
	kit.Must(t, errors.Join(os.Chmod(filepath.Dir(s.root), 0o755), os.Chmod(s.root, 0o755), os.Chmod(sub, 0)))
	// Root can read it; its thread with another user for files cannot.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	kit.Must(t, unix.Setfsuid(65534))
	for range 2 {
		if pause := s.refresh(nil); pause != s.wait.poll {
			t.Errorf("reads again after %v", pause)
		}
	}
	kit.Must(t, unix.Setfsuid(os.Geteuid()))
	if got := dump(ix); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := log.with("error ", "sub: permission denied; the last valid state of the directory is served"); len(got) != 1 {
		t.Errorf("logged %q", log.lines)
	}
	kit.Must(t, os.Chmod(sub, 0o755))
	s.refresh(nil)
	if got := log.with("info ", ": valid again and served"); len(got) != 1 {
		t.Errorf("logged %q", log.lines)
	}
}
