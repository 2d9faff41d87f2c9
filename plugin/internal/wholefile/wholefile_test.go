package wholefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestReplace replaces a file, and leaves the present one after each failure.
func TestReplace(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "file")
	errTest := errors.New("no space")
	text := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	for _, step := range []struct {
		name  string
		path  string
		write func(io.Writer) error
		err   error
		want  string
	}{
		{"new", path, text("first"), nil, "first"},
		{"replaced", path, text("second"), nil, "second"},
		{"failure", path, func(w io.Writer) error { return errors.Join(text("th")(w), errTest) }, errTest, "second"},
		{"no folder", filepath.Join(folder, "none", "file"), text("other"), fs.ErrNotExist, "second"},
	} {
		if err := Replace(step.path, step.write); !errors.Is(err, step.err) {
			t.Errorf("%s: error %v, want %v", step.name, err, step.err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != step.want {
			t.Errorf("%s: %q, %v, want %q", step.name, got, err, step.want)
		}
		wantFiles(t, folder, "file")
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func wantFiles(t *testing.T, folder string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	kit.Must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}

// TestCheck has temporary files of processes that have ended, and of one that is writing.
func TestCheck(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a[b]")
	old := time.Now().Add(-2 * leftover)
	for _, name := range []string{"a[b].1.tmp", "a[b].2.tmp", "ab.3.tmp", "a[b]"} {
		name = filepath.Join(folder, name)
		kit.Must(t, errors.Join(os.WriteFile(name, nil, 0o600), os.Chtimes(name, old, old)))
	}
	kit.Must(t, os.Chtimes(filepath.Join(folder, "a[b].2.tmp"), time.Time{}, time.Now()))
	if err := Check(path); err != nil {
		t.Error(err)
	}
	wantFiles(t, folder, "a[b]", "a[b].2.tmp", "ab.3.tmp")
	if err := Check(filepath.Join(folder, "none", "file")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: error %v", err)
	}
}
