package apiserver

import (
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/internal/memory"
)

const (
	// largeList is the minimum number of objects of a list whose garbage is returned to the operating system.
	largeList = 1000
	// releaseAfter is the time from the last of several lists to the release of their garbage.
	releaseAfter = 3 * time.Second
	// listingPercent is the growth of the heap, in percent of the live records, at which garbage is collected while objects of lists
	// are decoded: nearly all of these objects are garbage.
	listingPercent = 20
)

// garbage bounds the memory that lists of objects take beside their records. It is shared by the sources of the process, as is the
// garbage collector.
type garbage struct {
	release    func() error        // memory.Release, except in a test
	setPercent func(int) (old int) // debug.SetGCPercent, except in a test

	mu      sync.Mutex
	timer   *time.Timer
	listing map[*resource]struct{} // resources whose objects are being listed
	percent int                    // that of the process before, while a resource is listed
}

var processGarbage = &garbage{release: memory.Release, setPercent: debug.SetGCPercent, listing: map[*resource]struct{}{}}

// begin is called when objects of a list begin to arrive.
func (g *garbage) begin(r *resource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.listing) == 0 && os.Getenv("GOGC") == "" {
		g.percent = g.setPercent(listingPercent)
		if g.percent < listingPercent { // negative without a collector
			g.setPercent(g.percent)
		}
	}
	g.listing[r] = struct{}{}
}

// end is called when a list is complete or has failed.
func (g *garbage) end(r *resource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.listing[r]; !ok {
		return
	}
	delete(g.listing, r)
	if len(g.listing) == 0 && os.Getenv("GOGC") == "" {
		g.setPercent(g.percent)
	}
}

// listed is called after a list of n objects. Memory is released once after the last of several lists: the runtime would retain it for
// minutes.
func (g *garbage) listed(r *resource, n int) {
	g.end(r)
	if n < largeList {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer == nil {
		g.timer = time.AfterFunc(releaseAfter, func() {
			if err := g.release(); err != nil {
				log.Debugf("Memory is not released: %v", err)
			}
		})
		return
	}
	g.timer.Reset(releaseAfter)
}
