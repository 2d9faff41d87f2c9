// Package filewatch notices changes of files and directories. Input: paths; output: calls of a function after a change
// has settled. It imports nothing of nodecache.
package filewatch

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/fsnotify/fsnotify"
)

// Settle is the time after the first notification of a change until it counts as complete: an editor and the kubelet
// change several names.
const Settle = 250 * time.Millisecond

// Watcher calls a function after changes of files and directories.
//
// It watches directories, since a replaced file is a new inode: the kubelet writes a ConfigMap into a new directory and
// renames the symbolic link ..data. It watches files too, since one that is mounted over another, such as a container's
// resolv.conf, changes in a directory that is not visible. File systems without notifications are polled.
type Watcher struct {
	Paths   func() []string // called again after each change
	Every   time.Duration   // between two calls of Changed without a notification
	Settle  time.Duration   // between the first notification of a change and the call of Changed
	Changed func()

	resolved map[string]bool // the paths without symbolic links, at the last check
}

// Run watches until the context ends. It calls Changed at once: the files may have changed since they were read.
func (w *Watcher) Run(ctx context.Context) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		clog.Warningf("No notification of changed files (%s), they are read every %s", err, w.Every)
		notify = &fsnotify.Watcher{} // its channels are nil: no notification arrives
	} else {
		defer func() {
			if err := notify.Close(); err != nil {
				clog.Warningf("Watch of files: %s", err)
			}
		}()
	}
	check := func() {
		w.resolve()
		if err == nil {
			w.add(notify)
		}
		w.Changed()
	}
	check()
	w.await(ctx, notify.Events, notify.Errors, check)
}

// await checks some time after each event, and periodically.
func (w *Watcher) await(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error, check func()) {
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if settled == nil && w.concerns(e) {
				settled = time.After(w.Settle)
			}
		case err := <-errs:
			clog.Warningf("Watch of files: %s", err)
			if settled == nil {
				settled = time.After(w.Settle) // events were lost
			}
		case <-settled:
			settled = nil
			check()
		case <-tick.C:
			check()
		}
	}
}

// add watches the paths, their directories, and those of the targets of symbolic links. A path that cannot be watched,
// mostly because it does not exist, is seen through its directory or at the next check.
func (w *Watcher) add(notify *fsnotify.Watcher) {
	watched := notify.WatchList()
	for _, path := range w.Paths() {
		for _, p := range []string{filepath.Dir(path), filepath.Dir(resolved(path)), path} {
			if !slices.Contains(watched, p) {
				if err := notify.Add(p); err == nil {
					watched = append(watched, p)
				}
			}
		}
	}
}

// concerns reports whether an event is about one of the paths.
func (w *Watcher) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	if strings.HasPrefix(filepath.Base(e.Name), "..") {
		return true // a name that the kubelet writes, such as ..data
	}
	return slices.ContainsFunc(w.Paths(), func(path string) bool {
		return e.Name == filepath.Clean(path) || filepath.Dir(e.Name) == filepath.Clean(path)
	}) || w.resolved[e.Name]
}

// resolve resolves the paths. It is not called at each event: a directory in which other programs write has many.
func (w *Watcher) resolve() {
	w.resolved = map[string]bool{}
	for _, path := range w.Paths() {
		w.resolved[resolved(path)] = true
	}
}

// resolved returns the path without symbolic links, or the path itself if its target does not exist.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}
