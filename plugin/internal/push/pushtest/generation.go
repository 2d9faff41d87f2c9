// Package pushtest has a Generation that tests of both ends of sessions change. Input is calls of Advance; output is the
// number, and calls of the watcher. Only tests import it; it imports nothing of this module.
package pushtest

import (
	"sync"
	"sync/atomic"
)

// Generation implements push.Generation. The zero value is ready for use.
type Generation struct {
	number  atomic.Uint64
	mu      sync.Mutex
	watcher interface{ Advanced() } // guarded by mu
}

// Load implements push.Generation.
func (g *Generation) Load() uint64 { return g.number.Load() }

// Watch implements push.Generation. Without a watcher, Watch(nil) returns nil.
func (g *Generation) Watch(w interface{ Advanced() }) interface{ Advanced() } {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watcher == nil {
		g.watcher = w
	}
	return g.watcher
}

// Advance makes a change, and calls the watcher.
func (g *Generation) Advance() {
	g.number.Add(1)
	if w := g.Watch(nil); w != nil {
		w.Advanced()
	}
}
