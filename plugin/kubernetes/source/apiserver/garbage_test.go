package apiserver

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestGarbage releases memory once after several large lists, and never after small ones.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released atomic.Int32
		g := &garbage{release: func() { released.Add(1) }}
		g.listed(largeList - 1)
		time.Sleep(2 * releaseAfter)
		if n := released.Load(); n != 0 {
			t.Errorf("%d releases after a small list", n)
		}
		for round := range int32(2) {
			for range 3 {
				g.listed(largeList)
				time.Sleep(releaseAfter / 2)
			}
			if n := released.Load(); n != round {
				t.Errorf("%d releases before the last list is settled, want %d", n, round)
			}
			time.Sleep(releaseAfter)
			if n := released.Load(); n != round+1 {
				t.Errorf("%d releases, want %d", n, round+1)
			}
		}
	})
}
