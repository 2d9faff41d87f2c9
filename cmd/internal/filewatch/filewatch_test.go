package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// patience bounds every wait.
const patience = 10 * time.Second

// mount is a directory as the kubelet mounts a ConfigMap: the files are symbolic links through ..data to a directory that
// each change replaces.
type mount struct {
	path    string
	version int
}

func newMount(t testing.TB, files map[string]string) *mount {
	t.Helper()
	m := &mount{path: filepath.Join(t.TempDir(), "mount")}
	kit.Must(t, os.Mkdir(m.path, 0o700))
	m.swap(t, files)
	return m
}

// swap changes all files at once.
func (m *mount) swap(t testing.TB, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		kit.Must(t, err)
	}
	m.version++
	before, now := ".."+strconv.Itoa(m.version-1), ".."+strconv.Itoa(m.version)
	must(os.Mkdir(filepath.Join(m.path, now), 0o700))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(m.path, now, name), []byte(text), 0o600))
	}
	must(os.Symlink(now, filepath.Join(m.path, "..data_tmp")))
	must(os.Rename(filepath.Join(m.path, "..data_tmp"), filepath.Join(m.path, "..data")))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(m.path, name)); err != nil {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(m.path, name)))
		}
	}
	must(os.RemoveAll(filepath.Join(m.path, before)))
}

// startWatch watches paths and returns a channel of calls of Changed after the first one.
func startWatch(t *testing.T, every time.Duration, paths ...string) <-chan struct{} {
	t.Helper()
	calls := make(chan struct{}, 100)
	kit.Background(t, func(ctx context.Context) {
		w := &Watcher{Paths: func() []string { return paths }, Every: every, Settle: 20 * time.Millisecond, Changed: func() { calls <- struct{}{} }}
		w.Run(ctx)
	})
	awaitCall(t, calls)
	return calls
}

func awaitCall(t *testing.T, calls <-chan struct{}) {
	t.Helper()
	select {
	case <-calls:
	case <-time.After(patience):
		t.Fatal("not called")
	}
}

// drain waits until there is no call for a while.
func drain(calls <-chan struct{}) {
	for {
		select {
		case <-calls:
		case <-time.After(200 * time.Millisecond):
			return
		}
	}
}

// TestWatch changes files in the ways in which they change on nodes. Polling is too slow to notice it.
func TestWatch(t *testing.T) {
	write := func(t *testing.T, path, text string) {
		t.Helper()
		kit.Write(t, path, text)
	}
	t.Run("written", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "f")
		write(t, file, "a")
		calls := startWatch(t, time.Hour, file)
		for i := range 3 {
			write(t, file, strconv.Itoa(i))
			awaitCall(t, calls)
			drain(calls)
		}
	})
	t.Run("replaced", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "f")
		write(t, file, "a")
		calls := startWatch(t, time.Hour, file)
		for range 3 {
			write(t, file+".new", "b")
			kit.Must(t, os.Rename(file+".new", file))
			awaitCall(t, calls)
			drain(calls)
		}
	})
	t.Run("created, removed and created", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "f")
		calls := startWatch(t, time.Hour, file)
		write(t, file, "a")
		awaitCall(t, calls)
		drain(calls)
		kit.Must(t, os.Remove(file))
		awaitCall(t, calls)
		drain(calls)
		write(t, file, "b")
		awaitCall(t, calls)
	})
	t.Run("ConfigMap swapped", func(t *testing.T) {
		m := newMount(t, map[string]string{"Corefile.base": "a"})
		calls := startWatch(t, time.Hour, filepath.Join(m.path, "Corefile.base"))
		for range 3 {
			m.swap(t, map[string]string{"Corefile.base": "b"})
			awaitCall(t, calls)
			drain(calls)
		}
	})
	t.Run("ConfigMap directory, empty at first", func(t *testing.T) {
		m := newMount(t, nil)
		calls := startWatch(t, time.Hour, m.path)
		m.swap(t, map[string]string{"stubDomains": "{}"})
		awaitCall(t, calls)
	})
	t.Run("directory created", func(t *testing.T) {
		directory := filepath.Join(t.TempDir(), "kube-dns")
		calls := startWatch(t, time.Hour, directory)
		kit.Must(t, os.Mkdir(directory, 0o700))
		awaitCall(t, calls)
		drain(calls)
		write(t, filepath.Join(directory, "stubDomains"), "{}")
		awaitCall(t, calls)
	})
	t.Run("behind a link elsewhere", func(t *testing.T) {
		target, link := filepath.Join(t.TempDir(), "stub.conf"), filepath.Join(t.TempDir(), "resolv.conf")
		write(t, target, "a")
		kit.Must(t, os.Symlink(target, link))
		calls := startWatch(t, time.Hour, link)
		write(t, target+".new", "b")
		kit.Must(t, os.Rename(target+".new", target))
		awaitCall(t, calls)
	})
	t.Run("another file", func(t *testing.T) {
		directory := t.TempDir()
		calls := startWatch(t, time.Hour, filepath.Join(directory, "f"))
		write(t, filepath.Join(directory, "g"), "a")
		select {
		case <-calls:
			t.Error("called for a file that is not watched")
		case <-time.After(300 * time.Millisecond):
		}
	})
	t.Run("poll", func(t *testing.T) {
		calls := startWatch(t, 20*time.Millisecond, "/none/such")
		for range 3 {
			awaitCall(t, calls)
		}
	})
}
