package manifests

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// TestUnreadableDirectory takes the right to read a subdirectory away: its objects stay served.
func TestUnreadableDirectory(t *testing.T) {
	s, ix, log := load(t, source.Options{}, map[string]string{"a.yaml": service("shop", "a", "None"), "sub/b.yaml": service("shop", "b", "None")})
	const want = "service shop/a headless\nservice shop/b headless"
	sub := filepath.Join(s.root, "sub")
	if err := errors.Join(os.Chmod(filepath.Dir(s.root), 0o755), os.Chmod(s.root, 0o755), os.Chmod(sub, 0)); err != nil {
		t.Fatal(err)
	}
	// Root can read it; its thread with another user for files cannot.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(65534); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if pause := s.refresh(nil); pause != s.wait.poll {
			t.Errorf("reads again after %v", pause)
		}
	}
	if err := unix.Setfsuid(os.Geteuid()); err != nil {
		t.Fatal(err)
	}
	if got := dump(ix); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := log.with("error ", "sub: permission denied; the last valid state of the directory is served"); len(got) != 1 {
		t.Errorf("logged %q", log.lines)
	}
	if err := os.Chmod(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	s.refresh(nil)
	if got := log.with("info ", ": valid again and served"); len(got) != 1 {
		t.Errorf("logged %q", log.lines)
	}
}
