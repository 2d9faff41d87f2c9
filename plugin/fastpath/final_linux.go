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
// retain their places, so that none is dropped when thousands fail at the same time. The clients take
// turns.
type finalQueue struct {
	mu      sync.Mutex
	waiting map[netip.Addr][]*request // by client, the next one first
	turns   []netip.Addr              // the clients in waiting, the next one first
	workers int
}

func newFinalQueue() finalQueue { return finalQueue{waiting: map[netip.Addr][]*request{}} }

// add appends a query, and starts a worker for it below maxFinalWorkers.
func (f *finalQueue) add(r *request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.waiting[r.Client]
	if len(own) == 0 {
		f.turns = append(f.turns, r.Client)
	}
	f.waiting[r.Client] = append(own, r)
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
	own := f.waiting[client]
	if len(own) > 1 {
		f.waiting[client], f.turns = own[1:], append(f.turns, client)
	} else {
		delete(f.waiting, client)
	}
	return own[0]
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
