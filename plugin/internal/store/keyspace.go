package store

import (
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Keyspace separates the answers of one server block from those of others.
type Keyspace struct {
	// ByGeneration is set if answers that are valid by Generations alone are stored: a fast path serves them, and no
	// plugin answers before the plugin that makes them.
	ByGeneration atomic.Bool

	store *Store
	id    uint32

	entries [kinds]atomic.Int64 // of each kind
	// cached is the number of entries of each kind with Cached. Gauges export it, and capacity limits it; a capacity of 0 is
	// no limit except the budget. Guarded by the store's mutex.
	cached   [kinds]int64
	gauges   [kinds][]Gauge
	capacity [kinds]int64
	evicted  [kinds]func()
	// invalidated is called for each entry that its session has invalidated, after it was removed.
	invalidated func(*Entry)
	dropped     bool
}

// Gauge is a metric of a number.
type Gauge interface{ Add(change float64) }

// NewKeyspace returns a keyspace without entries.
func (s *Store) NewKeyspace() *Keyspace {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keyspaces++
	return &Keyspace{store: s, id: s.keyspaces}
}

// Drop removes the keyspace with its entries. From then on, Put stores nothing in it.
func (k *Keyspace) Drop() {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	k.dropped = true
	for e := range k.store.ring() {
		if e.keyspace == k {
			k.store.unlink(e)
		}
	}
}

// ID returns the number that keys of the keyspace begin with.
func (k *Keyspace) ID() uint32 { return k.id }

// Len returns the number of entries of a kind.
func (k *Keyspace) Len(kind Kind) int { return int(k.entries[kind].Load()) }

// AddGauge adds the number of Cached entries of a kind to a gauge, and each change of it from now on.
func (k *Keyspace) AddGauge(kind Kind, g Gauge) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	g.Add(float64(k.cached[kind]))
	k.gauges[kind] = append(k.gauges[kind], g)
}

// Limit sets the maximum number of Cached entries of a kind, 0 for no limit except the budget, and the function that is
// called at each eviction.
func (k *Keyspace) Limit(kind Kind, entries int, evicted func()) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	k.capacity[kind], k.evicted[kind] = int64(entries), evicted
}

// OnInvalidated sets the function that is called for each entry that the session of its Voucher has invalidated: it was
// stored until then, and is removed. The function is called by the reader of the session's connection, and must not block.
func (k *Keyspace) OnInvalidated(f func(*Entry)) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	k.invalidated = f
}

// Key appends the key of a question in this keyspace to buf.
func (k *Keyspace) Key(buf, query []byte, q *wire.Query) []byte {
	return AppendKey(buf, k.id, query, q)
}

// PutReply stores the reply to a query for as long as its validity by Generations lasts, if a fast path serves it from
// the store. The reply has no OPT record; the message may be changed afterwards. Replies to questions with upper-case
// letters are not stored: other clients would get that case. A reply without the option of package searchlist is stored
// as the reply to the name alone.
func (k *Keyspace) PutReply(query, reply *dns.Msg, p *Properties) {
	if !k.ByGeneration.Load() || !p.ByGeneration() || reply.Truncated {
		return
	}
	var packedBuf [wire.MaxQuery]byte
	var q wire.Query
	packed, ok := QueryFromMsg(&q, packedBuf[:0], query)
	if !ok || q.Upper {
		return
	}
	if !searchlist.InOptions(p.Options) {
		q.Search = nil
	}
	var buf [MaxKey]byte
	key := k.Key(buf[:0], packed, &q)
	byGeneration := validity.Validity{Bounds: p.Bounds}
	if p.Views != nil {
		k.putNew(key, &Entry{Validity: byGeneration, Views: p.Views})
		key = appendKeyView(key, &p.View)
	}
	if p.View.Private || k.has(key, false) {
		return
	}
	e := &Entry{Options: p.Options, Validity: byGeneration, Serial: p.Serial, AnyCase: p.AnyCase, Waits: p.Waits}
	if reply.Rcode != dns.RcodeSuccess || len(reply.Answer) == 0 {
		e.Kind = Denial
	}
	if e.Fill(reply) == nil {
		k.putNew(key, e)
	}
}

// putNew stores an entry, unless there is a fresh one already.
func (k *Keyspace) putNew(key []byte, e *Entry) {
	if !k.has(key, e.Views != nil) {
		e.Stored = k.store.now()
		k.store.Put(k, key, e)
	}
}

// has reports whether a key has a fresh entry, with Views or with an answer.
func (k *Keyspace) has(key []byte, views bool) bool {
	e := k.store.find(k.store.hash(key), key)
	return e != nil && (e.Views != nil) == views && e.Fresh(k.store.now())
}
