package fastpath

import (
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
)

// Limits of the queries that wait for names. Beyond them, a query is answered at once.
const (
	maxHeld = 100_000 // of the process
	// maxHeldPerSource limits the queries of a source address. A node's cache is one source for all pods of the node, and sends equal
	// queries once.
	maxHeldPerSource = 1000
	// heldFraction is the divisor for the share of the free places that a source may have, so that a new source finds places
	// however many others there are.
	heldFraction = 16
	// maxHeldQuery is the maximum length in bytes of a query that waits.
	maxHeldQuery = 512
)

// held is a query that waits for a name, without a goroutine: it has no place in the queue of the process. It counts in the
// references of its server. Fields without another guard are guarded by the table's mutex.
type held struct {
	wheel.Deadline

	server   *server     // immutable
	to       destination // immutable
	query    string      // immutable, in wire form
	client   netip.Addr  // immutable
	counters *block.WaitCounters

	name         *heldName // nil after the query was released
	newer, older *held     // of the name

	connection               *connection // over TCP
	newerOnConn, olderOnConn *held

	result prometheus.Counter // incremented when a released query is answered, nil for none
	next   *held              // in the list of released queries
}

// heldName is a name with the queries that wait for it.
type heldName struct {
	key         heldKey
	waiter      push.Waiter
	first, last *held // in the order of their arrival
	changed     bool  // the name is in heldTable.changed
}

// heldKey is the key of a heldName.
type heldKey struct {
	plugin block.NameAwaiter
	name   string // in wire form and lower case, then the search list of its queries
	length int    // of the name without the list
}

// heldTable has the queries that wait for names.
type heldTable struct {
	max       int
	perSource int

	mu      sync.Mutex
	total   int
	sources map[netip.Addr]int32
	names   map[heldKey]*heldName

	changed   []*heldName // to be looked up again
	checking  bool        // a goroutine looks them up
	released  heldList    // to be answered
	answering int         // number of goroutines that answer
}

func newHeldTable(limit, perSource int) *heldTable {
	return &heldTable{
		max: limit, perSource: perSource, sources: map[netip.Addr]int32{}, names: map[heldKey]*heldName{},
	}
}

// awaitsNames reports whether queries of a type wait for names. Queries of other types are rare, and answered at once.
func awaitsNames(qtype uint16) bool {
	return qtype == dns.TypeA || qtype == dns.TypeAAAA || qtype == dns.TypeSRV
}

// hold makes the query of the last lookup wait if the route's plugin awaits its name, and reports whether the query waits. The
// request is released then.
func (t *heldTable) hold(l *lookup, r *request) bool {
	if len(r.query) > maxHeldQuery {
		return false
	}
	name := store.KeyName(l.key[:l.keyLen])
	const attempts = 3 // the name may change in between
	for range attempts {
		w, ok := l.route.awaiter.AwaitName(name, l.query.Search)
		if !ok || l.route.rewrites != nil && changesName(l.route.rewrites, name, l.query.Type) {
			return false
		}
		if held, retry := t.add(l, r, name, w); !retry {
			return held
		}
	}
	return false
}

// add adds a query to those that wait for a name. It returns retry if the name has changed meanwhile.
func (t *heldTable) add(l *lookup, r *request, name []byte, w block.NameWait) (added, retry bool) {
	key := heldKey{l.route.awaiter, string(name) + string(l.query.Search), len(name)}
	end := time.Now().Add(w.Timeout)
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.server.answersAtOnce || !r.awaits() {
		return false, false
	}
	if !t.admits(r.Client) {
		l.route.waits.Refused.Inc()
		return false, false
	}
	n := t.names[key]
	if n == nil {
		n = t.newName(key)
		if !push.Process.Wait(w.Generation, w.Number, &n.waiter) {
			return false, true
		}
		t.names[key] = n
	}
	h := newHeld(r, &l.route.waits)
	t.link(n, h)
	wheel.Process.Set(&h.Deadline, end)
	if c := h.connection; c != nil && c.closed.Load() { // after link has incremented heldCount: see releaseConnection
		t.release(h, nil)
	}
	return true, false
}

func (t *heldTable) newName(key heldKey) *heldName {
	n := &heldName{key: key}
	n.waiter.Func = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lookUpAgain(n)
	}
	return n
}

// admits reports whether another query of a source may wait. The mutex is locked.
func (t *heldTable) admits(source netip.Addr) bool {
	free := t.max - t.total
	return free > 0 && int(t.sources[source]) < min(t.perSource, 1+free/heldFraction)
}

// newHeld returns the query of a request, which is released. It inherits the reference to the server.
func newHeld(r *request, counters *block.WaitCounters) *held {
	h := &held{server: r.server, to: r.to, query: string(r.query), client: r.Client, counters: counters}
	h.Owner = h
	if r.to == &r.origin {
		to := r.origin
		h.to = &to
	}
	h.connection = connectionOf(r.to)
	r.server.metrics.inFlight.Dec()
	r.recycle()
	return h
}

// request returns the request of a query that does not wait any more.
func (h *held) request() *request {
	r, _ := requests.Get().(*request)
	r.server, r.to, r.Client = h.server, h.to, h.client
	r.query = append(r.buf[:0], h.query...)
	if d, ok := h.to.(*datagram); ok {
		r.origin = *d
		r.to = &r.origin
	} else {
		r.TCP = true
	}
	h.server.metrics.inFlight.Inc()
	return r
}

// connectionOf returns the connection of a destination, nil over UDP.
func connectionOf(to destination) *connection {
	if s, ok := to.(interface{ stream() *connection }); ok {
		return s.stream()
	}
	return nil
}

// stream returns the connection. All destinations over TCP embed one.
func (c *connection) stream() *connection { return c }

// awaits reports whether the client of a request still waits for the answer.
func (r *request) awaits() bool {
	c := connectionOf(r.to)
	return c == nil || !c.closed.Load()
}

// link adds a query to a name, to its source and to its connection. The mutex is locked.
func (t *heldTable) link(n *heldName, h *held) {
	h.name, h.older = n, n.last
	if h.older != nil {
		h.older.newer = h
	} else {
		n.first = h
	}
	n.last = h
	if c := h.connection; c != nil {
		if h.olderOnConn = c.firstHeld; h.olderOnConn != nil {
			h.olderOnConn.newerOnConn = h
		}
		c.firstHeld = h
		c.heldCount.Add(1)
	}
	t.sources[h.client]++
	t.total++
	h.counters.Waiting.Inc()
}

// unlink removes a query from its name and its connection; answered removes it from its source. The mutex is locked.
func (t *heldTable) unlink(h *held) {
	n := h.name
	if h.older != nil {
		h.older.newer = h.newer
	} else {
		n.first = h.newer
	}
	if h.newer != nil {
		h.newer.older = h.older
	} else {
		n.last = h.older
	}
	h.name, h.newer, h.older = nil, nil, nil
	if n.first == nil {
		delete(t.names, n.key)
		push.Process.Cancel(&n.waiter)
	}
	t.unlinkConnection(h)
	h.counters.Waiting.Dec()
}

// answered ends the counting of a query for the limits, when it is answered or counts in the queue. Until then a released query
// counts as well: an event releases many.
func (t *heldTable) answered(h *held) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sources[h.client]--; t.sources[h.client] == 0 {
		delete(t.sources, h.client)
	}
	t.total--
}

func (t *heldTable) unlinkConnection(h *held) {
	c := h.connection
	if c == nil {
		return
	}
	if h.olderOnConn != nil {
		h.olderOnConn.newerOnConn = h.newerOnConn
	}
	if h.newerOnConn != nil {
		h.newerOnConn.olderOnConn = h.olderOnConn
	} else {
		c.firstHeld = h.olderOnConn
	}
	h.newerOnConn, h.olderOnConn = nil, nil
	c.heldCount.Add(-1)
}
