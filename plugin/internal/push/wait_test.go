package push

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestWait(t *testing.T) {
	r, g := NewRegistry(), new(generation)
	calls := make([]int, 4)
	waiters := make([]Waiter, len(calls))
	for i := range waiters {
		waiters[i].Func = func() { calls[i]++ }
		if !r.Wait(g, 0, &waiters[i]) {
			t.Fatalf("%d does not wait", i)
		}
	}
	r.Cancel(&waiters[1])
	r.Cancel(&waiters[1]) // it waits no more
	g.Advance()
	g.Advance()
	for i, want := range []int{1, 0, 1, 1} {
		if calls[i] != want {
			t.Errorf("waiter %d was called %d times, want %d", i, calls[i], want)
		}
	}
	if r.Wait(g, 1, &waiters[0]) {
		t.Error("waits for an advance that has occurred")
	}
	if !r.Wait(g, 2, &waiters[0]) {
		t.Error("does not wait again")
	}
	g.Advance()
	if calls[0] != 2 {
		t.Errorf("%d calls, want 2", calls[0])
	}
	if NewRegistry().Wait(g, 3, &waiters[1]) {
		t.Error("waits for a Generation that another registry watches")
	}
}

// TestWaitConcurrently: each Waiter that waits is called once, whenever the Generation advances.
func TestWaitConcurrently(t *testing.T) {
	r := NewRegistry()
	for range 200 {
		g := new(generation)
		var called, waits atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				w := &Waiter{Func: func() { called.Add(1) }}
				if r.Wait(g, 0, w) {
					waits.Add(1)
				}
			})
		}
		all.Go(g.Advance)
		all.Wait()
		if called.Load() != waits.Load() {
			t.Fatalf("%d calls of %d waiters", called.Load(), waits.Load())
		}
	}
}
