package image

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

const root = "../.."

// Programs that build the images.
const (
	version  = "v0.0.0-test"
	revision = "0123456789abcdef0123456789abcdef01234567"
	epoch    = "1700000000"
	created  = "2023-11-14T22:13:20Z"
)

// sources returns the paths that .dockerignore does not exclude.
func sources(t *testing.T) (paths []string) {
	t.Helper()
	for line := range strings.Lines(kit.Read(t, filepath.Join(root, ".dockerignore"))) {
		if path, is := strings.CutPrefix(strings.TrimSpace(line), "!"); is {
			paths = append(paths, path)
		}
	}
	return paths
}

// plant copies paths of a tree into a folder, with a time of their own.
func plant(t *testing.T, from, to string, paths []string, modified time.Time) {
	t.Helper()
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(from, path), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(from, file)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			target := filepath.Join(to, name)
			return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, text, 0o644), os.Chtimes(target, modified, modified))
		})
		kit.Must(t, err)
	}
}

// inModule returns a command in a module's folder, without the workspace and flags of this shell.
func inModule(folder, program string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Dir = folder
	c.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	return c
}

// makeImage runs `make image` in a tree and returns the output folder.
func makeImage(t *testing.T, tree, umask string, environment ...string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "made")
	c := exec.Command("sh", "-c", `umask "$0" && exec make image "$@"`, umask,
		"IMAGES="+folder, "VERSION="+version, "REVISION="+revision, "SOURCE_DATE_EPOCH="+epoch)
	c.Dir = tree
	c.Env = slices.Concat(os.Environ(), environment)
	kit.Output(t, c)
	return folder
}

// openFile reads an archive.
func openFile(t *testing.T, path string) (archive, []entry) {
	t.Helper()
	f, err := os.Open(path)
	kit.Must(t, err)
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	entries, err := readTar(f)
	kit.Must(t, err)
	a, err := openArchive(entries)
	kit.Must(t, err)
	return a, entries
}
