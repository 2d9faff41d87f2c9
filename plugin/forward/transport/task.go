package transport

import "sync"

// tasks are the calls of a carrier that has a goroutine for each query. The goroutine has a copy of the query, so that a
// cancelled call can be reused before the goroutine has ended.
type tasks struct{ mu sync.Mutex }

// task is the goroutine's part of a call.
type task struct {
	query []byte // a copy
	stop  func() // makes the goroutine end soon; may be nil
	call  *Call  // nil after it was cancelled
}

// begin returns the task of a call.
func (ts *tasks) begin(call *Call) *task {
	t := &task{query: append(make([]byte, 0, len(call.Query)), call.Query...), call: call}
	call.task = t
	return t
}

// end ends the call of a task, and calls its owner unless it was cancelled.
func (ts *tasks) end(t *task, reply []byte, err error) {
	ts.mu.Lock()
	call := t.call
	if call != nil {
		call.task, t.call = nil, nil
		call.end(reply, err)
	}
	ts.mu.Unlock()
	if call != nil {
		endOwners(call)
	}
}

// cancel implements Cancel of a Carrier.
func (ts *tasks) cancel(call *Call) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := call.task
	if t == nil {
		return false
	}
	call.ended, call.task, t.call = true, nil, nil
	if t.stop != nil {
		t.stop()
	}
	return true
}
