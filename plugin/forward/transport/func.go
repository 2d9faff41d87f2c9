package transport

import (
	"context"
	"sync"
)

// Func sends queries by a function that waits for the answer and checks it.
type Func struct {
	// Exchange returns the answer to a packed query.
	Exchange func(ctx context.Context, query []byte) ([]byte, error)
	// Closed is called by Close.
	Closed func()

	mu sync.Mutex
}

// Send implements Carrier.
func (f *Func) Send(call *Call) {
	ctx, cancel := context.WithDeadline(context.Background(), call.Deadline)
	call.cancel = cancel
	go func() {
		defer cancel()
		reply, err := f.Exchange(ctx, call.Query)
		f.mu.Lock()
		defer f.mu.Unlock()
		call.finish(reply, err)
	}()
}

// Cancel implements Carrier.
func (f *Func) Cancel(call *Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	call.ended = true
	call.cancel()
}

// Late implements Carrier.
func (f *Func) Late(*Call) {}

// Close implements Carrier.
func (f *Func) Close() { f.Closed() }
