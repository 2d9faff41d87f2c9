package apiserver

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// largeList is the number of objects of a list from which its garbage is returned to the operating system.
	largeList = 1000
	// releaseAfter is the time after the last of several lists.
	releaseAfter = 3 * time.Second
)

// garbage returns the memory of decoded lists to the operating system, once after the last of them: the runtime would keep it for
// minutes, and a process with many records needs it only then.
type garbage struct {
	mu      sync.Mutex
	timer   *time.Timer
	release func() // debug.FreeOSMemory, except in a test
}

func newGarbage() *garbage { return &garbage{release: debug.FreeOSMemory} }

// listed is called after a list of n objects.
func (g *garbage) listed(n int) {
	if n < largeList {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer == nil {
		g.timer = time.AfterFunc(releaseAfter, g.release)
		return
	}
	g.timer.Reset(releaseAfter)
}
