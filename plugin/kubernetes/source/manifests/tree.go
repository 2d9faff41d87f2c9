package manifests

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// tree is what stands in the directory at one moment.
type tree struct {
	// files are the manifests by path below the directory.
	files map[string]entry
	// unreadable are directories that exist and cannot be read, by path, with the reason.
	unreadable map[string]string
	// dirs are the directories in which a change matters, absolute.
	dirs []string
	// restless tells that the directory changed each time that it was read.
	restless bool
}

// entry is one manifest as the directory shows it.
type entry struct {
	info    fs.FileInfo // of the file itself where the manifest is a link
	problem string      // why it cannot be read, and info is nil then
}

func (e entry) same(o entry) bool {
	return e.problem == o.problem && (e.info == nil) == (o.info == nil) && (e.info == nil || sameInfo(e.info, o.info))
}

// sameInfo tells whether a file seems not to have been written or replaced.
func sameInfo(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (t *tree) same(o *tree) bool {
	return maps.EqualFunc(t.files, o.files, entry.same) &&
		maps.Equal(t.unreadable, o.unreadable) && slices.Equal(t.dirs, o.dirs)
}

// isManifest tells manifests from other files by name.
func isManifest(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return name != "kustomization.yaml" && name != "kustomization.yml" // may be without a kind
	}
	return false
}

// isLeftover tells hidden files, among them the machinery of a mounted ConfigMap, and what editors
// leave behind.
func isLeftover(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasPrefix(name, "~") ||
		strings.HasSuffix(name, "~")
}

// lister makes a tree.
type lister struct {
	root   string
	bounds bounds
	tree   *tree
	seen   map[string]struct{} // directories by their path without links: a link may lead upwards
	bytes  int64
}

// list returns what stands in root now.
func list(root string, b bounds) (*tree, error) {
	l := lister{root: root, bounds: b, seen: map[string]struct{}{}, tree: &tree{
		files:      map[string]entry{},
		unreadable: map[string]string{},
	}}
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, errors.New("not a directory")
	}
	if err := l.directory(""); err != nil {
		return nil, err
	}
	slices.Sort(l.tree.dirs)
	l.tree.dirs = slices.Compact(l.tree.dirs)
	return l.tree, nil
}

// directory adds what stands in a directory. Its error ends the whole list: the root cannot be read,
// or there is too much.
func (l *lister) directory(rel string) error {
	path := filepath.Join(l.root, rel)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return l.unreadable(rel, err)
	}
	if _, ok := l.seen[real]; ok {
		return nil
	}
	l.seen[real] = struct{}{}
	l.tree.dirs = append(l.tree.dirs, path)
	entries, err := readNames(path)
	if err != nil {
		return l.unreadable(rel, err)
	}
	for _, e := range entries {
		if err := l.entry(filepath.Join(rel, e.Name()), e); err != nil {
			return err
		}
		if len(l.tree.files)+len(l.seen) > l.bounds.files {
			return fmt.Errorf("more than %d manifests and directories", l.bounds.files)
		}
		if l.bytes > l.bounds.allBytes {
			return fmt.Errorf("more than %d MiB of manifests", l.bounds.allBytes>>20)
		}
	}
	return nil
}

// readNames returns the entries of a directory that may matter, ordered by name. It reads them in
// parts, so that those that don't matter take no memory.
func readNames(path string) ([]fs.DirEntry, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var all []fs.DirEntry
	for {
		some, err := d.ReadDir(1000)
		for _, e := range some {
			if !isLeftover(e.Name()) && (!e.Type().IsRegular() || isManifest(e.Name())) {
				all = append(all, e)
			}
		}
		if errors.Is(err, io.EOF) {
			slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// unreadable notes a directory below the root that cannot be read. One that is gone meanwhile is
// none.
func (l *lister) unreadable(rel string, err error) error {
	if rel == "" {
		return err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		l.tree.unreadable[rel] = reason(err)
	}
	return nil
}

func (l *lister) entry(rel string, e fs.DirEntry) error {
	info, err := os.Stat(filepath.Join(l.root, rel))
	link := e.Type()&fs.ModeSymlink != 0
	switch {
	case err != nil && link && isManifest(rel):
		l.tree.files[rel] = entry{problem: "the link cannot be followed: " + reason(err)}
	case err != nil && (link || errors.Is(err, fs.ErrNotExist)):
		// Of no interest, or gone between two steps.
	case err != nil && isManifest(rel):
		l.tree.files[rel] = entry{problem: reason(err)}
	case err != nil:
	case info.IsDir():
		return l.directory(rel)
	case !isManifest(rel):
	case !info.Mode().IsRegular():
		l.tree.files[rel] = entry{problem: "not a regular file"}
	default:
		l.file(rel, info, link)
	}
	return nil
}

func (l *lister) file(rel string, info fs.FileInfo, link bool) {
	l.bytes += info.Size()
	l.tree.files[rel] = entry{info: info}
	if !link {
		return
	}
	// What the link leads to may be edited in its own place.
	if real, err := filepath.EvalSymlinks(filepath.Join(l.root, rel)); err == nil {
		l.tree.dirs = append(l.tree.dirs, filepath.Dir(real))
	}
}

// reason returns what is wrong without the path, which the messages have already.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// show returns a path below the directory as messages have it.
func (s *Source) show(rel string) string {
	path := filepath.Join(s.dir, rel)
	if strings.IndexFunc(path, unicode.IsControl) >= 0 {
		return strconv.Quote(path) // a line of the log is one line
	}
	return path
}

// directoryError is the line about the directory itself.
func (s *Source) directoryError(err error) error {
	return fmt.Errorf("manifests directory %s: %s", s.show(""), reason(err))
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
