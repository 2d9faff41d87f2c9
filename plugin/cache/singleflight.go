package cache

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// result is the result of a query to the next plugin.
type result struct {
	reply      *dns.Msg          // without an OPT record; nil if the plugin has written none
	options    []byte            // of the reply in wire form, for clients with EDNS
	entry      *store.Entry      // the stored reply, nil if it was not stored
	properties *store.Properties // of the reply; nil without one
	code       int               // returned by the next plugin
	err        error
	forAll     bool // all callers get the same reply
	private    bool // the reply is valid only for this query: it was not stored, and depends on more than its TTL
	renews     bool // the reply replaces a stale answer
	abandoned  bool // there is no reply because the client is gone
	once       bool // the reply is a denial with the TTL 0
}

// FinalResult implements wirechain.FinalResult.
func (*result) FinalResult() {}

// flight is a query to the next plugin whose result is shared with all queries for the same question that wait for it.
type flight struct {
	key     string
	started time.Duration
	limit   int           // of a reply over UDP, in bytes
	edns    bool          // the query has an OPT record
	waiting int           // number of waiting queries; guarded by flights.mu
	done    chan struct{} // closed at the end; made for the first waiting query, guarded by flights.mu until then
	result  result        // set before done is closed, and read-only afterwards
	wire    []*wireWaiter // nil for waiters that have left; guarded by flights.mu
	client  netip.Addr    // of the leader in wire form that has a stale entry
}

// flights are the flights of a server block. A question has one or two: one for UDP, and one for TCP, whose reply is not
// truncated and serves both.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight

	// The numbers of flights in wire form for stale entries: of all clients, and by client.
	verifying int
	byClient  map[netip.Addr]int
}

// flightKey appends the key of a flight to dst: the key of the answer, the transport, and the RD flag, since a resolver may
// refuse a query without it.
func (q *clientQuery) flightKey(dst []byte, udp bool) []byte {
	transport := byte('t')
	if udp {
		transport = 'u'
	}
	if q.RD {
		transport -= 'a' - 'A'
	}
	return append(append(dst, q.key...), transport)
}

// join returns the flight for a query, and whether the caller leads it: a leader must call finish. Other queries are
// counted as waiting.
func (f *flights) join(q *clientQuery, now time.Duration) (joined *flight, leader bool) {
	var buf [store.MaxKey + 1]byte
	f.mu.Lock()
	defer f.mu.Unlock()
	joined, leader = f.joinLocked(q, now, buf[:0])
	if !leader {
		joined.addWaiterLocked()
	}
	return joined, leader
}

// maxVerifying limits the flights in wire form for stale entries: their clients get the stale answer when the client
// response timer expires, after which the limits of clients' queries do not limit the flights. A flight has some 2
// KB, and ends with the timeout of forward.
const maxVerifying = 4096

// verifies counts a flight for a stale entry. It returns false if the client has at least as many flights as are free,
// or none is free (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
func (f *flights) verifies(client netip.Addr) bool {
	if f.byClient[client] >= maxVerifying-f.verifying {
		return false
	}
	if f.byClient == nil {
		f.byClient = map[netip.Addr]int{}
	}
	f.byClient[client]++
	f.verifying++
	return true
}

// verified ends the count of a flight for a stale entry.
func (f *flights) verified(client netip.Addr) {
	f.verifying--
	if f.byClient[client]--; f.byClient[client] == 0 {
		delete(f.byClient, client)
	}
}

// joinWire returns the flight for a query in wire form, which waits for it, and sets leader of the waiter. It returns nil
// if the query would lead a flight for a stale entry, and verifies returns false.
func (f *flights) joinWire(q *clientQuery, now time.Duration, w *wireWaiter) (joined *flight) {
	var buf [store.MaxKey + 1]byte
	f.mu.Lock()
	defer f.mu.Unlock()
	joined, w.leader = f.joinLocked(q, now, buf[:0])
	if w.leader && w.stale != nil {
		if !f.verifies(w.q.Client) {
			delete(f.all, joined.key)
			return nil
		}
		joined.client = w.q.Client
	}
	w.joined = now
	joined.addWireLocked(w)
	return joined
}

// begin returns a new flight that a waiter leads, nil if there is one for the question already.
func (f *flights) begin(q *clientQuery, now time.Duration, w *wireWaiter) (begun *flight) {
	var buf [store.MaxKey + 1]byte
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[string(q.flightKey(buf[:0], true))] != nil {
		return nil
	}
	if begun, w.leader = f.joinLocked(q, now, buf[:0]); !w.leader {
		return nil
	}
	begun.addWireLocked(w)
	return begun
}

// startTimer starts the client response timer of a waiter, unless its flight has ended.
func (c *Cache) startTimer(joined *flight, w *wireWaiter, wait time.Duration) {
	f := &c.flights
	f.mu.Lock()
	defer f.mu.Unlock()
	if joined.hasWireLocked(w) {
		w.cache, w.flight, w.deadline.Owner = c, joined, w
		c.wheel.Set(&w.deadline, time.Now().Add(wait))
	}
}

// leave removes a query from its flight, which does not answer it then, and reports whether the query still waited.
func (f *flights) leave(joined *flight, w *wireWaiter) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	waits := joined.hasWireLocked(w)
	if waits {
		joined.wire[w.place] = nil
	}
	return waits
}

// addWireLocked adds a waiter in wire form. The caller holds flights.mu.
func (f *flight) addWireLocked(w *wireWaiter) {
	w.place, f.wire = len(f.wire), append(f.wire, w)
}

// hasWireLocked reports whether a waiter in wire form still waits. The caller holds flights.mu.
func (f *flight) hasWireLocked(w *wireWaiter) bool {
	return w.place < len(f.wire) && f.wire[w.place] == w
}

func (f *flights) joinLocked(q *clientQuery, now time.Duration, buf []byte) (joined *flight, leader bool) {
	key := q.flightKey(buf, false)
	joined = f.all[string(key)]
	if joined == nil && q.udp {
		key = q.flightKey(buf, true)
		joined = f.all[string(key)]
	}
	if joined != nil {
		return joined, false
	}
	if f.all == nil {
		f.all = map[string]*flight{}
	}
	joined = &flight{key: string(key), started: now, limit: q.Limit(), edns: q.EDNS}
	f.all[joined.key] = joined
	return joined, true
}

// finish ends a flight, unless a panic has ended it. The waiting queries share a copy of the reply; the original is the
// leader's.
func (c *Cache) finish(b *batch.Batch, ended *flight, res result) {
	f := &c.flights
	f.mu.Lock()
	if f.all[ended.key] != ended {
		f.mu.Unlock()
		return
	}
	delete(f.all, ended.key)
	waiting, done := ended.waiting, ended.done
	requests := ended.wire
	ended.wire = nil
	if ended.client.IsValid() {
		f.verified(ended.client)
	}
	f.mu.Unlock()
	if waiting+len(requests) > 0 && res.entry == nil && res.reply != nil {
		res.reply = res.reply.Copy()
	}
	ended.result = res
	if done != nil {
		close(done)
	}
	for _, w := range requests {
		if w == nil {
			continue
		}
		if w.deadline.Owner != nil {
			c.wheel.Stop(&w.deadline)
		}
		c.deliverWire(b, w, ended)
	}
}

// addWaiterLocked counts a waiting query. The caller holds flights.mu.
func (f *flight) addWaiterLocked() {
	f.waiting++
	if f.done == nil {
		f.done = make(chan struct{})
	}
}

// addWaiter counts the leader as a waiting query, for a flight that another goroutine finishes.
func (f *flights) addWaiter(led *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	led.addWaiterLocked()
}

// errPanicked is the error of queries that waited for a flight that ended in a panic.
var errPanicked = errors.New("next plugin panicked")

// panicked returns the result of a flight that ended in a panic.
func panicked() result {
	return result{code: dns.RcodeServerFailure, err: fmt.Errorf("plugin/%s: %w", pluginName, errPanicked)}
}

// ended reports whether the reply is not valid any more: the data have changed.
func (r *result) ended() bool {
	return r.entry != nil && !r.entry.Current() || r.properties != nil && r.properties.Voucher.Ended()
}

// sameTime is the time in which queries for one question are one transaction: a denial with the TTL 0 is for all of them.
const sameTime = 100 * time.Millisecond

// isLate reports whether a query has joined the flight too late for the result. A server that makes queries wait for a name
// denies it to the query that has waited: a query that has joined since must wait, too.
func (f *flight) isLate(joined time.Duration) bool {
	return f.result.once && joined-f.started > sameTime
}

// shares reports whether a query may be answered with the result of an ended flight.
func (f *flight) shares(q *wire.Query) bool {
	res := &f.result
	if res.abandoned || res.private || res.ended() {
		return false
	}
	switch {
	case res.reply == nil:
		return true
	case res.reply.Truncated:
		return q.Limit() == f.limit
	case res.reply.Rcode == dns.RcodeFormatError: // of a server without EDNS, RFC 6891 section 7
		return q.EDNS == f.edns
	}
	return true
}
