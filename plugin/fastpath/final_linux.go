package fastpath

import (
	"sync"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// maxFinalWorkers limits the goroutines that answer queries with a final result. Such a query waits for no other server, and
// its reply for no client.
const maxFinalWorkers = 16

// finalQueue has the queries whose result is final: the plugin chain adapts the reply to the client, or logs an error. They
// retain their places in the queue of the process, so that none is dropped when thousands fail at the same time.
type finalQueue struct {
	mu      sync.Mutex
	waiting requestList
	workers int
}

// finals is the queue of the process.
var finals finalQueue

// add appends a query.
func (f *finalQueue) add(r *request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting.add(r)
	if f.workers < maxFinalWorkers {
		f.workers++
		go f.work()
	}
}

// next removes and returns the first query. Without one, the calling worker ends.
func (f *finalQueue) next() *request {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.waiting.first
	if r == nil {
		f.waiting.last = nil
		f.workers--
		return nil
	}
	f.waiting.first, r.next = r.next, nil
	return r
}

// work answers queries until none is left.
func (f *finalQueue) work() {
	var output batch.Batch
	for r := f.next(); r != nil; r = f.next() {
		r.serve(false)
		r.finish(&output)
		output.Flush()
	}
}
