package transport

import (
	"context"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// Func sends queries by a function that waits for the answer and checks it.
type Func struct {
	// Exchange returns the answer to a packed query.
	Exchange func(ctx context.Context, query []byte) ([]byte, error)
	// Closed is called by Close.
	Closed func()

	tasks tasks
}

// Send implements Carrier.
func (f *Func) Send(_ *batch.Batch, call *Call) error {
	ctx, cancel := context.WithDeadline(context.Background(), call.Deadline)
	t := f.tasks.begin(call)
	t.stop = cancel
	go func() {
		defer cancel()
		reply, err := f.Exchange(ctx, t.query)
		f.tasks.end(t, reply, err)
	}()
	return nil
}

// Cancel implements Carrier.
func (f *Func) Cancel(call *Call) bool { return f.tasks.cancel(call) }

// maxTasks is the Capacity of a Func: each query has a goroutine.
const maxTasks = 512

// Capacity implements Carrier.
func (f *Func) Capacity() int { return maxTasks }

// Late implements Carrier.
func (f *Func) Late(*Call) {}

// Close implements Carrier.
func (f *Func) Close() { f.Closed() }
