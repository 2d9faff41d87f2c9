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

// Run fills the index with what New has read and keeps it in step with the directory until ctx ends.
func (s *Source) Run(ctx context.Context, ix *index.Index) {
	s.ix = ix
	s.serve()
	w := s.openWatch()
	defer w.close()
	c := clock{wait: s.wait}
	timer := time.NewTimer(0) // something may have changed since New
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.events():
			if !ok {
				w.fail(errWatchClosed)
			} else if !w.concerns(e) {
				continue
			}
			c.event(s.now())
		case err, ok := <-w.errors():
			if !ok {
				w.fail(errWatchClosed)
				continue
			}
			s.log.Warningf("watching %s: %v; looking for what was missed", s.show(""), err)
			c.event(s.now())
		case <-timer.C:
			all := c.look(s.now())
			again := s.look(w, all)
			c.looked(s.now(), again)
		}
		timer.Reset(c.due().Sub(s.now()))
	}
}

// clock says when to look at the directory.
type clock struct {
	wait timing
	// first and last are the times of the events since the last look.
	first, last time.Time
	reread      time.Time // when everything is read again
	soon        time.Time // when to look again without an event, zero for none
}

func (c *clock) event(now time.Time) {
	if c.first.IsZero() {
		c.first = now
	}
	c.last = now
}

// look begins a look and returns whether it must read everything.
func (c *clock) look(now time.Time) (all bool) {
	c.first, c.last, c.soon = time.Time{}, time.Time{}, time.Time{}
	return !now.Before(c.reread)
}

// looked ends a look, with the time after which to look again without an event, 0 for none.
func (c *clock) looked(now time.Time, again time.Duration) {
	if !now.Before(c.reread) {
		c.reread = now.Add(c.wait.reread)
	}
	if again > 0 {
		c.soon = now.Add(again)
	}
}

// due returns when to look next.
func (c *clock) due() time.Time {
	due := c.reread
	if !c.soon.IsZero() && c.soon.Before(due) {
		due = c.soon
	}
	if c.first.IsZero() {
		return due
	}
	event := c.last.Add(c.wait.settle)
	if most := c.first.Add(c.wait.settleMost); most.Before(event) {
		event = most
	}
	if event.Before(due) {
		due = event
	}
	return due
}

// watch hears of changes in directories. It may be nil or broken: then nothing is heard.
type watch struct {
	root   string
	log    logger
	show   string
	notify *fsnotify.Watcher
	failed error // why changes may go unheard
}

func (s *Source) openWatch() *watch {
	w := &watch{root: s.root, log: s.log, show: s.show("")}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.fail(err)
		return w
	}
	w.notify = notify
	w.followParent()
	return w
}

// followParent watches the directory in which the root stands: that tells when the root itself goes,
// comes back or is replaced. Where the parent cannot be read, that is seen later.
func (w *watch) followParent() { _ = w.notify.Add(filepath.Dir(w.root)) }

var errWatchClosed = errors.New("the watch ended")

func (w *watch) close() {
	if w.notify != nil {
		_ = w.notify.Close() // it fails only where it is closed already
	}
}

// fail notes that changes may go unheard, and says so once.
func (w *watch) fail(err error) {
	if w.failed == nil {
		w.log.Warningf("cannot watch %s: %v; changes are looked for every few seconds instead", w.show, err)
	}
	w.failed = err
	if err == errWatchClosed {
		w.notify = nil
	}
}

func (w *watch) broken() bool { return w != nil && w.failed != nil }

// events is nil, and so never ready, where there is no watch.
func (w *watch) events() <-chan fsnotify.Event {
	if w.notify == nil {
		return nil
	}
	return w.notify.Events
}

func (w *watch) errors() <-chan error {
	if w.notify == nil {
		return nil
	}
	return w.notify.Errors
}

// follow makes dirs the directories that are watched, beside the parent. It adds those that are watched
// already too, since a path may lead to another directory than before.
func (w *watch) follow(dirs []string) {
	if w == nil || w.notify == nil {
		return
	}
	parent := filepath.Dir(w.root)
	for _, dir := range w.notify.WatchList() {
		if _, ok := slices.BinarySearch(dirs, dir); !ok && dir != parent {
			_ = w.notify.Remove(dir) // it fails where the directory is gone, and the watch with it
		}
	}
	w.followParent()
	var failed error
	for _, dir := range dirs {
		if err := w.notify.Add(dir); err != nil && failed == nil && !errors.Is(err, fs.ErrNotExist) {
			failed = fmt.Errorf("%s: %w", filepath.Base(dir), err)
		}
	}
	if failed != nil {
		w.fail(failed)
	} else {
		w.failed = nil
	}
}

// concerns tells whether an event may be one of a manifest.
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
