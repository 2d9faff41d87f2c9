// Package coherencetest has a Generation whose changes are made by tests of sessions, on both sides of package coherence. Input is
// calls of Advance; output is the number, and calls of the watcher. Only tests import it; it imports nothing of this module.
package coherencetest

import (
	"sync"
	"sync/atomic"
)

// Generation implements coherence.Generation. The zero value is ready for use.
type Generation struct {
	number  atomic.Uint64
	mu      sync.Mutex
	watcher interface{ Advanced() } // guarded by mu
}

// Load implements coherence.Generation.
func (g *Generation) Load() uint64 { return g.number.Load() }

// Watch implements coherence.Generation. Without a watcher, Watch(nil) returns nil.
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
