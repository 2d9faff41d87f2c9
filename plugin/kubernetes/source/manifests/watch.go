package manifests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Run implements source.Source: it fills the index with the state that New has read, and updates it from the directory.
func (s *Source) Run(ctx context.Context, ix *index.Index) {
	s.ix = ix
	s.serve()
	w := s.openWatch()
	defer w.close()
	planned := s.now()       // the next reading without an event: now, since changes after New were not watched
	var firstEvent time.Time // since the last reading
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.events:
			if w.isOpen(ok) && !w.concerns(e) {
				continue
			}
		case err, ok := <-w.errors:
			if w.isOpen(ok) {
				s.log.Warningf("%s: changes may have been missed, reading it again: %v", s.show(""), err)
			}
		case <-timer.C:
			firstEvent = time.Time{}
			planned = s.now().Add(s.refresh(w))
			timer.Reset(planned.Sub(s.now()))
			continue
		}
		now := s.now()
		if firstEvent.IsZero() {
			firstEvent = now
		}
		timer.Reset(min(s.wait.settle, firstEvent.Add(s.wait.maxSettle).Sub(now), planned.Sub(now)))
	}
}

// watch reports changes in directories.
type watch struct {
	root    string
	log     logger
	show    string
	watcher *fsnotify.Watcher // nil if there is none
	events  <-chan fsnotify.Event
	errors  <-chan error
	failed  bool // changes may be missed
}

func (s *Source) openWatch() *watch {
	w := &watch{root: s.root, log: s.log, show: s.show("")}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.fail(err)
		return w
	}
	w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	return w
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close() // it fails if it is closed already
	}
}

// isOpen returns ok, which is false after the end of the watch.
func (w *watch) isOpen(ok bool) bool {
	if !ok {
		w.fail(errors.New("the watch has ended"))
		w.watcher, w.events, w.errors = nil, nil, nil
	}
	return ok
}

// fail logs once that changes may be missed.
func (w *watch) fail(err error) {
	if !w.failed {
		w.log.Warningf("%s: cannot be watched, read every few seconds instead: %v", w.show, err)
	}
	w.failed = true
}

func (w *watch) broken() bool { return w != nil && w.failed }

// follow makes dirs the directories that are watched, and the parent of the root, which reports that the root is
// replaced. It adds watched ones again: their paths may lead to other directories than before.
func (w *watch) follow(dirs []string) {
	if w == nil || w.watcher == nil {
		return
	}
	parent := filepath.Dir(w.root)
	_ = w.watcher.Add(parent) // if it cannot be read, a later reading finds the change
	for _, dir := range w.watcher.WatchList() {
		if _, ok := slices.BinarySearch(dirs, dir); !ok && dir != parent {
			_ = w.watcher.Remove(dir) // it fails if the directory is gone, and the watch with it
		}
	}
	var failures []error
	for _, dir := range dirs {
		if err := w.watcher.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, fmt.Errorf("%s: %w", filepath.Base(dir), err))
		}
	}
	if len(failures) > 0 {
		w.fail(failures[0])
		return
	}
	w.failed = false
}

// concerns reports whether an event may be one of a manifest.
func (w *watch) concerns(e fsnotify.Event) bool {
	if e.Name == w.root {
		return true
	}
	name := filepath.Base(e.Name)
	if strings.HasPrefix(name, "..") {
		return true // the links of a mounted ConfigMap
	}
	return !isLeftover(name) && filepath.Dir(e.Name) != filepath.Dir(w.root)
}
