package manifests

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

var hashSeed = maphash.MakeSeed()

// file is one manifest.
type file struct {
	info       fs.FileInfo // of the last reading at readAt; nil if it must be read again
	readAt     time.Time
	sum        uint64    // of the content that was parsed last
	contents   *contents // the last valid ones
	err        error     // of the present content
	emptySince time.Time // when a file with objects became empty; zero once that is accepted
}

// maxTries is the maximum number of times that a directory is read while it changes.
const maxTries = 4

// readFiles reads the files that seem to have changed, and all of them from time to time. All of them were in the
// directory at one moment: it lists the directory again at the end and starts over if the list has changed, so that half of a
// swap of links is never read. A directory that changes all the time is accepted as it is, and stable is false.
//
// Directories are watched before they are read, so that no change is missed in between.
func (s *Source) readFiles(w *watch) (stable bool, err error) {
	if now := s.now(); !now.Before(s.rereadAt) {
		s.rereadAt = now.Add(s.wait.reread)
		for _, f := range s.files {
			f.info = nil
		}
	}
	t, err := s.list()
	for range maxTries {
		w.follow(t.dirs)
		if err == nil {
			maps.DeleteFunc(s.files, func(path string, _ *file) bool { return t.files[path] == nil })
			for path, info := range t.files {
				s.readFile(path, info)
			}
		}
		again, errAgain := s.list()
		if t.same(again) && fmt.Sprint(err) == fmt.Sprint(errAgain) {
			return true, err
		}
		t, err = again, errAgain
	}
	return false, err
}

func (s *Source) readFile(path string, info fs.FileInfo) {
	f := s.files[path]
	if f == nil {
		f = &file{}
		s.files[path] = f
	}
	if f.info != nil && sameInfo(f.info, info) && f.readAt.Sub(info.ModTime()) > s.wait.grain {
		return
	}
	f.info, f.readAt = nil, s.now()
	content, err := s.content(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return // deleted since it was listed, which the next list shows
	case err != nil:
		f.sum, f.err, f.emptySince = 0, s.fileError(path, reason(err)), time.Time{}
		return
	}
	if len(bytes.TrimSpace(content)) == 0 && f.contents != nil && len(f.contents.objects) > 0 {
		f.emptySince = cmp.Or(f.emptySince, s.now())
		if s.now().Sub(f.emptySince) < s.wait.empty {
			return
		}
	}
	f.info, f.emptySince = info, time.Time{}
	sum := maphash.Bytes(hashSeed, content)
	if f.sum == sum {
		return
	}
	parsed, err := s.parser.parse(path, content)
	if f.sum, f.err = sum, err; err != nil {
		f.err = fmt.Errorf("%s%w", s.show(path), err)
		return
	}
	f.contents = parsed
}

func (s *Source) content(path string) ([]byte, error) {
	r, err := os.Open(filepath.Join(s.root, path))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, s.bounds.fileBytes+1))
	if err == nil && int64(len(content)) > s.bounds.fileBytes {
		return nil, fmt.Errorf("larger than %d MiB; split it", s.bounds.fileBytes>>20)
	}
	return content, err
}

// errBeingWritten is returned while a file that had objects is empty: writers truncate first.
var errBeingWritten = errors.New("a file is being written")

// update reads the directory and accepts its state, or returns the first error in it. It reports whether the state has
// changed, and returns the pause until the next reading if no change is reported.
func (s *Source) update(w *watch) (changed bool, pause time.Duration, err error) {
	stable, err := s.readFiles(w)
	if err != nil {
		s.setStatus(time.Time{}, w.broken())
		return false, s.wait.poll, err
	}
	s.setStatus(s.now(), false)
	for _, f := range s.files {
		if !f.emptySince.IsZero() {
			return false, s.wait.empty / 4, errBeingWritten
		}
	}
	switch pause = s.wait.reread; {
	case !stable:
		pause = s.wait.empty / 4
	case w.broken():
		pause = s.wait.poll
	}
	next, err := s.combine()
	if err != nil {
		return false, pause, err
	}
	if maps.Equal(next.files, s.cluster.files) {
		return false, pause, nil
	}
	next.complete(s.cluster, s.parser.strip)
	for _, path := range slices.Sorted(maps.Keys(next.files)) {
		if next.files[path] != s.cluster.files[path] {
			s.logWarnings(path, next.files[path])
		}
	}
	s.cluster = next
	return true, pause, nil
}

// combine returns the state of all files, or the first error in them.
func (s *Source) combine() (*cluster, error) {
	c := newCluster()
	var failures []error
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[path]
		err := f.err
		if err == nil && f.contents != nil {
			if first, again := c.add(path, f.contents); again != nil {
				err = fmt.Errorf("%s: %s: already in %s; delete one of the two", s.at(again.file, again.line), again.key, s.at(first.file, first.line))
			}
		}
		if err != nil {
			failures = append(failures, err)
		}
	}
	if len(failures) > 1 {
		return nil, fmt.Errorf("%w (the first of %d broken files)", failures[0], len(failures))
	}
	return c, errors.Join(failures...)
}

// at returns the file and the line of an object for messages.
func (s *Source) at(file string, line int) string { return fmt.Sprintf("%s:%d", s.show(file), line) }

// refresh updates the index from the directory, and returns the pause until the next reading if no change is reported.
func (s *Source) refresh(w *watch) (pause time.Duration) {
	changed, pause, err := s.update(w)
	switch {
	case errors.Is(err, errBeingWritten):
	case err != nil && err.Error() != s.failure:
		s.failure = err.Error()
		s.log.Errorf("%s; the last valid state of the directory is served", s.failure)
	case err == nil && s.failure != "":
		s.failure = ""
		s.log.Infof("manifests directory %s: valid again and served", s.show(""))
	}
	if changed {
		s.serve()
	}
	s.setFailed(s.failure != "")
	return pause
}

// maxWarnings is the maximum number of warnings about one file, and maxKinds of lines about kinds.
const (
	maxWarnings = 5
	maxKinds    = 50
)

// logWarnings logs the warnings about an accepted file, and the kinds in it that are not read.
func (s *Source) logWarnings(path string, c *contents) {
	for _, text := range c.warnings[:min(len(c.warnings), maxWarnings)] {
		s.log.Warningf("%s:%s", s.show(path), text)
	}
	if more := len(c.warnings) - maxWarnings; more > 0 {
		s.log.Warningf("%s: %d more warnings", s.show(path), more)
	}
	for _, u := range c.unread {
		if s.isFirst(u.kind) {
			s.log.Infof("%s: %s is not read: DNS needs %s", s.at(path, u.line), u.kind, kindNames())
		}
	}
	if s.opts.Imports || s.opts.PodsOnly {
		return
	}
	for _, o := range c.objects {
		if o.key.kind == "ServiceImport" && s.isFirst(o.key.kind) {
			s.log.Infof("%s: a kubernetes block without zones of multicluster does not answer for ServiceImports", s.at(path, o.line))
		}
	}
}

// isFirst reports whether a line about a kind is to be logged: for its first object, and for at most maxKinds kinds.
func (s *Source) isFirst(kind string) bool {
	if s.kinds[kind] || len(s.kinds) >= maxKinds {
		return false
	}
	s.kinds[kind] = true
	return true
}
