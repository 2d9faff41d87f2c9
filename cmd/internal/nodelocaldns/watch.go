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

// settle is how long a change is left to complete: an editor and the kubelet change several names.
const settle = 250 * time.Millisecond

// watcher tells of changes of files and of what is in directories.
//
// It watches directories, since a file that is replaced is another file: the kubelet puts a ConfigMap
// into a new directory and renames the symbolic link ..data. It watches the files too, since one that is
// mounted over another, such as a container's resolv.conf, changes in a directory that is not seen. And
// it looks from time to time without being told, for file systems that tell nothing.
type watcher struct {
	paths         func() []string // asked again after each change
	every, settle time.Duration
	changed       func()

	resolved map[string]bool // where the paths led when they were last looked at
}

func (w *watcher) run(ctx context.Context) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		clog.Warningf("No notification of changed files (%s), they are read every %s", err, w.every)
		notify = &fsnotify.Watcher{} // its channels are nil: nothing is ever notified
	} else {
		defer func() {
			if err := notify.Close(); err != nil {
				clog.Warningf("Watch of files: %s", err)
			}
		}()
	}
	look := func() {
		w.resolve()
		if err == nil {
			w.add(notify)
		}
		w.changed()
	}
	look() // what changed since the files were read
	w.await(ctx, notify.Events, notify.Errors, look)
}

// await looks some time after each event, and from time to time.
func (w *watcher) await(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error, look func()) {
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
			look()
		case <-tick.C:
			look()
		}
	}
}

// add watches the paths and their directories, and where symbolic links lead. A name that cannot be
// watched, mostly because it is not there, is seen by its directory or by the next look.
func (w *watcher) add(notify *fsnotify.Watcher) {
	seen := notify.WatchList()
	for _, path := range w.paths() {
		for _, p := range []string{filepath.Dir(path), filepath.Dir(resolved(path)), path} {
			if !slices.Contains(seen, p) {
				if err := notify.Add(p); err == nil {
					seen = append(seen, p)
				}
			}
		}
	}
}

// concerns tells if an event is about one of the paths.
func (w *watcher) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	if strings.HasPrefix(filepath.Base(e.Name), "..") {
		return true // the kubelet's
	}
	return slices.ContainsFunc(w.paths(), func(path string) bool {
		return e.Name == filepath.Clean(path) || filepath.Dir(e.Name) == filepath.Clean(path)
	}) || w.resolved[e.Name]
}

// resolve follows the paths. Not at each event: in a directory where others write there are many.
func (w *watcher) resolve() {
	w.resolved = map[string]bool{}
	for _, path := range w.paths() {
		w.resolved[resolved(path)] = true
	}
}

// resolved is the path without symbolic links, or as it is if it leads nowhere.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}
