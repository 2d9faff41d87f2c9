package nodelocaldns

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/fsnotify/fsnotify"
)

// settle is the time after the first notification of a change until it counts as complete: an editor and the kubelet
// change several names.
const settle = 250 * time.Millisecond

// watcher calls a function after changes of files and directories.
//
// It watches directories, since a replaced file is a new inode: the kubelet writes a ConfigMap into a new directory and
// renames the symbolic link ..data. It watches files too, since one that is mounted over another, such as a container's
// resolv.conf, changes in a directory that is not visible. File systems without notifications are polled.
type watcher struct {
	paths         func() []string // called again after each change
	every, settle time.Duration
	changed       func()

	resolved map[string]bool // the paths without symbolic links, at the last check
}

func (w *watcher) run(ctx context.Context) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		clog.Warningf("No notification of changed files (%s), they are read every %s", err, w.every)
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
		w.changed()
	}
	check() // the files may have changed since they were read
	w.await(ctx, notify.Events, notify.Errors, check)
}

// await checks some time after each event, and periodically.
func (w *watcher) await(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error, check func()) {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if settled == nil && w.concerns(e) {
				settled = time.After(w.settle)
			}
		case err := <-errs:
			clog.Warningf("Watch of files: %s", err)
			if settled == nil {
				settled = time.After(w.settle) // events were lost
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
func (w *watcher) add(notify *fsnotify.Watcher) {
	watched := notify.WatchList()
	for _, path := range w.paths() {
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
func (w *watcher) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	if strings.HasPrefix(filepath.Base(e.Name), "..") {
		return true // of the kubelet
	}
	return slices.ContainsFunc(w.paths(), func(path string) bool {
		return e.Name == filepath.Clean(path) || filepath.Dir(e.Name) == filepath.Clean(path)
	}) || w.resolved[e.Name]
}

// resolve resolves the paths. Not at each event: a directory in which others write has many.
func (w *watcher) resolve() {
	w.resolved = map[string]bool{}
	for _, path := range w.paths() {
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
