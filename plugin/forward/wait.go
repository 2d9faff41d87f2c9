package forward

import (
	"context"
	"fmt"
	"sync"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// invalidQuery is the error of a query that cannot be forwarded.
type invalidQuery struct{ error }

// Unwrap returns the reason.
func (q invalidQuery) Unwrap() error { return q.error }

// waiter is the receiver of a query of the plugin chain, whose goroutine waits.
type waiter struct {
	done  chan struct{}
	reply []byte
	from  *upstream
	err   error

	voucher *vouch.Voucher // of the reply's session, or nil
}

// waiters are reused.
var waiters = sync.Pool{New: func() any { return &waiter{done: make(chan struct{}, 1)} }}

// replied implements receiver.
func (w *waiter) replied(_ *batch.Batch, reply message, from *upstream, err error) {
	if w.from, w.err = from, err; err == nil {
		w.reply, w.voucher = append(w.reply[:0], reply.Message...), reply.voucher
	}
	w.done <- struct{}{}
}

func (w *waiter) release() {
	*w = waiter{done: w.done, reply: spare(w.reply)}
	waiters.Put(w)
}

// forwarded is the result of a query of the plugin chain.
type forwarded struct {
	*dns.Msg
	voucher *vouch.Voucher
	from    *upstream // may be nil after an error
}

// forwardMessage forwards a query of the plugin chain. trace is the trace of ctx, or nil.
func (f *Forward) forwardMessage(ctx context.Context, state *request.Request, trace *explain.Trace) (forwarded, error) {
	w, _ := waiters.Get().(*waiter)
	defer w.release()
	x := f.newExchange(state.Proto() == protoTCP, w)
	if err := x.setMessage(state); err != nil {
		x.receiver = nil
		x.leave()
		return forwarded{}, invalidQuery{err}
	}
	if d, ok := ctx.Deadline(); ok && d.Before(x.deadline) {
		x.deadline = d
	}
	x.users++ // until the wait is over, since x may be cancelled
	defer x.leave()
	x.span, x.explained = ot.SpanFromContext(ctx), trace
	var b batch.Batch
	x.run(&b)
	b.Flush()
	select {
	case <-w.done:
	case <-ctx.Done():
		x.cancel(ctx.Err())
		<-w.done
	}
	if w.err != nil {
		return forwarded{from: w.from}, w.err
	}
	reply, err := store.Unpack(w.reply)
	if err != nil { // readReply has checked it
		return forwarded{from: w.from}, fmt.Errorf("unpack the reply: %w", err)
	}
	reply.Id = state.Req.Id
	return forwarded{reply, w.voucher, w.from}, nil
}
