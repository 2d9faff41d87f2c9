package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// tree lists the directory at one moment.
type tree struct {
	files map[string]fs.FileInfo // manifests by path below the directory; for a link, its target
	dirs  []string               // directories in which a change matters, absolute
	seen  map[string]struct{}    // directories by their path without links: a link may lead upwards
	bytes int64
}

func (t *tree) same(o *tree) bool {
	return maps.EqualFunc(t.files, o.files, sameInfo) && slices.Equal(t.dirs, o.dirs)
}

// sameInfo reports whether a file seems not to have been written or replaced.
func sameInfo(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// isManifest reports whether a file is read, by its name.
func isManifest(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return name != "kustomization.yaml" && name != "kustomization.yml" // may have no kind
	}
	return false
}

// isLeftover reports whether a file is hidden, as the links of a mounted ConfigMap are, or left behind by an editor.
func isLeftover(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasPrefix(name, "~") ||
		strings.HasSuffix(name, "~")
}

// list lists the directory. With an error, the tree contains the part that was listed before it.
func (s *Source) list() (*tree, error) {
	t := &tree{files: map[string]fs.FileInfo{}, seen: map[string]struct{}{}}
	err := s.addDirectory(t, "")
	slices.Sort(t.dirs)
	t.dirs = slices.Compact(t.dirs)
	return t, err
}

func (s *Source) addDirectory(t *tree, rel string) error {
	path := filepath.Join(s.root, rel)
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		if _, ok := t.seen[real]; ok {
			return nil
		}
		t.seen[real] = struct{}{}
		t.dirs = append(t.dirs, path)
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(path)
	}
	switch {
	case rel == "" && err != nil:
		return s.directoryError(reason(err))
	case errors.Is(err, fs.ErrNotExist):
		return nil // deleted since its parent was read
	case err != nil:
		return s.fileError(rel, reason(err))
	}
	for _, e := range entries {
		if isLeftover(e.Name()) || e.Type().IsRegular() && !isManifest(e.Name()) {
			continue
		}
		if err := s.addEntry(t, filepath.Join(rel, e.Name()), e.Type()&fs.ModeSymlink != 0); err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) addEntry(t *tree, rel string, isLink bool) error {
	path := filepath.Join(s.root, rel)
	info, err := os.Stat(path)
	switch {
	case err != nil && (!isManifest(rel) || !isLink && errors.Is(err, fs.ErrNotExist)):
		return nil // not a manifest, or deleted since the directory was read
	case err != nil && isLink:
		return s.fileError(rel, "the link cannot be followed: "+reason(err))
	case err != nil:
		return s.fileError(rel, reason(err))
	case info.IsDir():
		err = s.addDirectory(t, rel)
	case !isManifest(rel):
		return nil
	case !info.Mode().IsRegular():
		return s.fileError(rel, "not a regular file")
	default:
		t.files[rel] = info
		t.bytes += info.Size()
	}
	if isLink && !info.IsDir() {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			t.dirs = append(t.dirs, filepath.Dir(real)) // the file may be edited there
		}
	}
	switch {
	case err != nil:
		return err
	case len(t.files)+len(t.seen) > s.bounds.files:
		return s.directoryError(fmt.Sprintf("more than %d manifests and directories", s.bounds.files))
	case t.bytes > s.bounds.allBytes:
		return s.directoryError(fmt.Sprintf("more than %d MiB of manifests", s.bounds.allBytes>>20))
	}
	return nil
}

// reason returns the text of an error without the path, which the messages have already.
func reason(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// show returns a path below the directory as it is in messages, which are one line.
func (s *Source) show(rel string) string {
	path := filepath.Join(s.dir, rel)
	if strings.ContainsFunc(path, unicode.IsControl) {
		return strconv.Quote(path)
	}
	return path
}

func (s *Source) fileError(rel, text string) error { return fmt.Errorf("%s: %s", s.show(rel), text) }

func (s *Source) directoryError(text string) error {
	return fmt.Errorf("manifests directory %s: %s", s.show(""), text)
}
