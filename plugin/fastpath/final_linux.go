package fastpath

import (
	"net/netip"
	"sync"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// maxFinalWorkers limits the goroutines that answer queries with a final result. Such a query waits for no other server, and
// its reply for no client.
const maxFinalWorkers = 16

// finalQueue has the queries whose result is final: the plugin chain adapts the reply to the client, or logs an error. They
// retain their places in the queue of the process, so that none is dropped when thousands fail at the same time. The clients take
// turns.
type finalQueue struct {
	mu      sync.Mutex
	waiting map[netip.Addr]*requestList // by client
	turns   []netip.Addr                // the clients in waiting, the next one first
	workers int
}

// finals is the queue of the process.
var finals = finalQueue{waiting: map[netip.Addr]*requestList{}}

// add appends a query.
func (f *finalQueue) add(r *request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.waiting[r.Client]
	if l == nil {
		l = new(requestList)
		f.waiting[r.Client] = l
		f.turns = append(f.turns, r.Client)
	}
	l.add(r)
	if f.workers < maxFinalWorkers {
		f.workers++
		go f.work()
	}
}

// next removes and returns the first query of the client whose turn it is. Without one, the calling worker ends.
func (f *finalQueue) next() *request {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.turns) == 0 {
		f.workers--
		return nil
	}
	client := f.turns[0]
	f.turns = f.turns[1:]
	l := f.waiting[client]
	r := l.first
	if l.first = r.next; l.first != nil {
		f.turns = append(f.turns, client)
	} else {
		delete(f.waiting, client)
	}
	r.next = nil
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
