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
	idle []chan task // the one that was busy last is the last
}

// task is a query, and the chain that bounds how many there are.
type task struct {
	chain *chain
	query *datagram
}

// pool is that of the process.
var pool workers

// do works on a task, without waiting for the end of it.
func (w *workers) do(t task) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		worker := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		worker <- t // which has room
		return
	}
	w.mu.Unlock()
	go w.work(t)
}

// work works until too many others wait for work.
func (w *workers) work(t task) {
	var base [stackBase]byte
	next := make(chan task, 1)
	for base[len(next)] == 0 { // always; the compiler has to keep the array
		t.chain.work(t.query)
		w.mu.Lock()
		if len(w.idle) >= maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, next)
		w.mu.Unlock()
		t = <-next
	}
}
