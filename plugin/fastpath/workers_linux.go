package fastpath

import "sync"

// maxIdleWorkers limits the idle goroutines, which are for short changes of the load.
const maxIdleWorkers = 64

// workers reuses goroutines: their stacks have grown to the size that the plugin chain needs. With a new goroutine for each query,
// a miss costs 10 percent more.
type workers struct {
	mu   sync.Mutex
	idle []chan *request // the last one was busy last
}

// do answers a query in a goroutine.
func (w *workers) do(d *request) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		worker := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		worker <- d // the channel has a buffer: this does not wait
		return
	}
	w.mu.Unlock()
	go w.work(d)
}

// work answers queries until maxIdleWorkers others are idle.
func (w *workers) work(d *request) {
	next := make(chan *request, 1)
	for {
		work(d)
		w.mu.Lock()
		if len(w.idle) >= maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, next)
		w.mu.Unlock()
		d = <-next
	}
}
