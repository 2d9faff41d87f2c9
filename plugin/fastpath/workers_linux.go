package fastpath

import "sync"

// stackBase is how much of its stack a worker occupies for nothing, in bytes. The garbage collector halves
// stacks of which less than a quarter is in use: with this much, it leaves them at the 32 KiB that the chain
// needs, and they are made as long while there is nothing on them to be moved.
const stackBase = 16 << 10

// maxIdleWorkers bounds the goroutines that wait for work. They come and go with the queries on their way;
// what is kept is for the changes from one moment to the next.
const maxIdleWorkers = 64

// workers are goroutines whose stacks have grown to what a query needs, for the next query: to grow it
// costs as much as a quarter of a query that goes to an upstream.
type workers struct {
	mu   sync.Mutex
	idle []chan *datagram // the one that was busy last is the last
}

// pool is that of the process.
var pool workers

// do has a query answered, without waiting for the answer.
func (w *workers) do(d *datagram) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		worker := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		worker <- d // which has room
		return
	}
	w.mu.Unlock()
	go w.work(d)
}

// work works until too many others wait for work.
func (w *workers) work(d *datagram) {
	var base [stackBase]byte
	next := make(chan *datagram, 1)
	for base[len(next)] == 0 { // always; the compiler has to keep the array
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
