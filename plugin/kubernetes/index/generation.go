package index

import "sync/atomic"

// Generation is a counter that advances with every change of the records that an answer is made from. A writer publishes
// new records before it advances the counter, and both before the event that brought the change counts as processed.
//
// A stored answer is never older than the last processed event, if its reader (1) finds the Generation, (2) loads the
// number, (3) looks up the Generation again and continues only if it is the same one, and (4) makes the answer from the
// records of the second lookup: an object that was deleted and created again has another Generation, and the old one
// never advances again.
//
// An answer about a Service depends on the Generation of its Entry, or of its namespace if there is no Entry; a PTR record
// on the one of the address; and every answer on NamespacesGeneration, since the names of a namespace end with it while its
// objects are still being deleted.
type Generation struct {
	n       atomic.Uint64
	watcher atomic.Pointer[watcher]
}

// watcher is called after each change.
type watcher struct{ advanced interface{ Advanced() } }

// Load returns the current number.
func (g *Generation) Load() uint64 { return g.n.Load() }

// Watch sets the watcher, whose Advanced is called after each change, unless there is one already. It returns the watcher.
func (g *Generation) Watch(w interface{ Advanced() }) interface{ Advanced() } {
	if set := g.watcher.Load(); set != nil {
		return set.advanced
	}
	g.watcher.CompareAndSwap(nil, &watcher{w})
	return g.watcher.Load().advanced
}

func (g *Generation) advance() {
	g.n.Add(1)
	if w := g.watcher.Load(); w != nil {
		w.advanced.Advanced()
	}
}
