package apiserver

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// newTestGarbage returns one for a process with a percentage, which it changes, and the number of releases.
func newTestGarbage(percent int) (g *garbage, present *int, released *atomic.Int32) {
	present, released = &percent, new(atomic.Int32)
	return &garbage{
		release:    func() error { released.Add(1); return nil },
		setPercent: func(n int) int { old := percent; percent = n; return old },
		listing:    map[*resource]struct{}{},
	}, present, released
}

// TestRelease releases memory once after several large lists, and never after small ones.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, released := newTestGarbage(50)
		g.listed(nil, largeList-1)
		time.Sleep(2 * releaseAfter)
		if n := released.Load(); n != 0 {
			t.Errorf("%d releases after a small list", n)
		}
		for round := range int32(2) {
			for range 3 {
				g.listed(nil, largeList)
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

// TestListing collects garbage more often while one of two resources is listed.
func TestListing(t *testing.T) {
	t.Setenv("GOGC", "")
	one, two := new(resource), new(resource)
	for _, tc := range []struct{ process, want int }{{50, listingPercent}, {10, 10}, {-1, -1}} {
		g, percent, _ := newTestGarbage(tc.process)
		for i, step := range []struct {
			do   func()
			want int
		}{
			{func() { g.end(one) }, tc.process},
			{func() { g.begin(one) }, tc.want},
			{func() { g.begin(one) }, tc.want}, // another page
			{func() { g.begin(two) }, tc.want},
			{func() { g.listed(one, 1) }, tc.want},
			{func() { g.end(one) }, tc.want},
			{func() { g.end(two) }, tc.process},
			{func() { g.end(two) }, tc.process},
		} {
			step.do()
			if *percent != step.want {
				t.Errorf("process with %d, step %d: %d percent, want %d", tc.process, i, *percent, step.want)
			}
		}
	}
	t.Setenv("GOGC", "100")
	g, percent, _ := newTestGarbage(100)
	if g.begin(one); *percent != 100 {
		t.Errorf("%d percent, where the environment has 100", *percent)
	}
}
