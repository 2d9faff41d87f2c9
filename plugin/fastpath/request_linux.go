package fastpath

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// datagramLen is the maximum length of a query over UDP in bytes, the rest is cut off: a packet of the Internet is not
// longer.
const datagramLen = 1536

// shortQuery is the maximum length in bytes of a query, with its key, that is stored in its request.
const shortQuery = 256

// request is a query without a stored answer. The plugin chain works on it, or the wire handlers of its server block, or
// it waits for a free place.
type request struct {
	server *server
	to     destination
	origin datagram // to points to it for a query over UDP
	query  []byte
	buf    [shortQuery]byte // of query and the key, unless they are longer

	// route and wire are set for a query in wire form: wire is the first handler.
	route *route
	wire  wirechain.Handler
	wirechain.Request
	received time.Duration   // on the clock of validity.Now
	result   any             // of the wire handlers, for the plugin chain
	unnamed  bool            // the stored answer depends on the address of the client, not on the caller option
	ended    chan<- struct{} // closed when the query was answered or dropped, nil for none

	ticket admission.Ticket

	// turn is odd from the end of the work in the wire handlers until recycle, which makes it even. With it, the recovery from
	// a panic detects whether a handler has ended the work.
	turn *atomic.Uint32
}

// destination is the sender of a query, to which the reply is sent.
type destination interface {
	// send sends a reply of the plugin chain. Over TCP, it may wait until the client has read others.
	send(reply []byte, mayWait bool) error
	// answer appends the answer of an entry to the output of the batch, and reports whether the entry has a form for the
	// client. The request may be released afterwards.
	answer(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) bool
	// dropped is called before ended for a query that is dropped for overload. The destination may answer.
	dropped(b *batch.Batch, query []byte)
	// ended is called when the query was answered or dropped.
	ended(query []byte)
	localAddr() net.Addr
	remoteAddr() net.Addr
	// close closes a connection after the replies in progress.
	close()
}

var requests = sync.Pool{New: func() any { return &request{turn: new(atomic.Uint32)} }}

// newRequest returns the request of a query.
func newRequest(s *server, query []byte) *request {
	r, _ := requests.Get().(*request)
	s.references.Add(1)
	s.metrics.inFlight.Inc()
	r.server = s
	r.query = append(r.buf[:0], query...)
	return r
}

// done releases a query that was answered or dropped.
func (r *request) done() {
	r.end()
	r.recycle()
}

// end ends the references of a query to its destination and to its server.
func (r *request) end() {
	r.to.ended(r.query)
	r.server.metrics.inFlight.Dec()
	r.server.release()
	if r.ended != nil {
		close(r.ended)
	}
}

// recycle makes the memory of a query available for the next one.
func (r *request) recycle() {
	turn := r.turn
	turn.Store((turn.Load() + 1) &^ 1)
	*r = request{turn: turn}
	requests.Put(r)
}

// handOver queues the request.
func (r *request) handOver(b *batch.Batch, q *admission.Queue) {
	q.HandOver(b, &r.ticket, r, r.Client, r.wire != nil)
}

// Run implements admission.Query.
func (r *request) Run(b *batch.Batch) {
	if r.wire != nil {
		r.runWire(b)
		return
	}
	r.server.process.workers.do(r)
}

// Drop implements admission.Query.
func (r *request) Drop(b *batch.Batch) {
	r.server.metrics.droppedOverload.Inc()
	r.to.dropped(b, r.query)
	r.done()
}
