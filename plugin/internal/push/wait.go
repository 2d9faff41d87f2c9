package push

import "sync/atomic"

// Waiter waits for a Generation to advance. Its fields are guarded by the registry's mutex, except for Func.
type Waiter struct {
	// Func is called once, soon after the Generation has advanced, by the writer of the data: it must not block, nor read the
	// data with a lock that the writer has.
	Func func()

	topic      *topic // nil while it does not wait
	next, prev *Waiter
}

// waiters are the Waiters of a topic.
type waiters struct {
	number atomic.Int32 // length of the list; without Waiters, callWaiters does not lock the registry
	first  *Waiter      // guarded by the registry's mutex
}

// Wait makes a Waiter, which does not wait yet, wait until a Generation advances beyond a number. It returns false if the
// Generation has advanced already, or has a watcher that is not the registry's: Func is not called then.
func (r *Registry) Wait(g Generation, number uint64, w *Waiter) bool {
	t := r.topicOf(g)
	if t == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.topic, w.prev, w.next = t, nil, t.waiters.first
	if w.next != nil {
		w.next.prev = w
	}
	t.waiters.first = w
	t.waiters.number.Add(1) // before the Generation is loaded: a later advance sees the Waiter
	if g.Load() != number {
		w.remove()
		return false
	}
	return true
}

// Cancel ends the waiting of a Waiter, if it waits. Func may be called nevertheless, for an advance at the same time.
func (r *Registry) Cancel(w *Waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.topic != nil {
		w.remove()
	}
}

// remove removes a Waiter from its topic. The mutex is locked.
func (w *Waiter) remove() {
	t := w.topic
	if w.prev == nil {
		t.waiters.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.topic, w.next, w.prev = nil, nil, nil
	t.waiters.number.Add(-1)
}

// callWaiters calls the Waiters of a topic that has advanced, and removes them.
func (t *topic) callWaiters() {
	if t.waiters.number.Load() == 0 {
		return
	}
	var calls []func()
	t.registry.mu.Lock()
	for w := t.waiters.first; w != nil; w = t.waiters.first {
		calls = append(calls, w.Func)
		w.remove()
	}
	t.registry.mu.Unlock()
	for _, call := range calls {
		call()
	}
}
