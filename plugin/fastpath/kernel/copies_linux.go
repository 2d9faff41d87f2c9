//go:build amd64 || arm64

package kernel

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// Counter counts answers of the kernel for the metrics of the entry's plugins.
type Counter interface{ Count(Answered) }

// Offer is an entry that was served to a client, and may be copied.
type Offer struct {
	Entry    *store.Entry
	Question Question
	Listener int
	Epoch    uint32 // of the listener, see Clear
	Shuffle  bool   // addresses are in random order
	Counter  Counter
	// Client is the client whose search list the question has; Lists returns the list. Both are unused without a list.
	Client netip.Addr
	Lists  Lists
}

// Lists has the search lists of clients.
type Lists interface {
	// ListOf returns the ID of a client's search list, 0 if it is unknown. It does not block.
	ListOf(client netip.Addr) uint32
}

// sessionCopy is the copy of a session's validity.
type sessionCopy struct{ number, records int }

// record is a copy of an entry.
type record struct {
	entry   *store.Entry
	key     answerKey
	memory  *answerRecord
	version uint32  // while it is served
	slot    *uint64 // of the key
	first   int     // granule
	len     int     // in granules
	session *vouch.Session
	counter Counter
	counted [countKinds]uint64
	seen    uint64 // answers until the last call of Used, guarded by the store's mutex
	idle    int    // ticks without an answer
	over    atomic.Bool
	grace   int // ticks since over was set
}

// Offer offers an entry that was served. It does not block.
func (t *Table) Offer(o Offer) {
	select {
	case t.offers <- o:
	default:
		t.refused.Add(1)
	}
}

// Clear ends all copies of entries for a listener, and returns its next epoch: offers of earlier ones are refused.
func (t *Table) Clear(listener int) (epoch uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.records {
		if int(r.key.Listener) == listener {
			t.end(r)
		}
	}
	// The search lists are those of the previous configuration. The next offers bring those of the present one.
	t.control.Searches[listener] = 0
	t.endClients()
	t.epochs[listener]++
	return t.epochs[listener]
}

// Used implements store.Copy.
func (r *record) Used() bool {
	var all uint64
	for kind := range countKinds {
		all += atomic.LoadUint64(&r.memory.Counts[kind])
	}
	used := all != r.seen
	r.seen = all
	return used
}

// Serve implements store.Copy.
func (r *record) Serve() { atomic.StoreUint32(&r.memory.Version, r.version) }

// Remove implements store.Copy: when it returns, no packet that arrives is answered from the record.
func (r *record) Remove() {
	r.over.Store(true)
	atomic.SwapUint32(&r.memory.Version, 0)
}

// errFull is the error for an entry that is not copied because there is no room for it, its session or its client.
var errFull = errors.New("no room for the entry")

// copy makes a copy of an entry, unless there is one. A copy that replaces another one needs room beside it: the old one is freed
// later.
func (t *Table) copy(o *Offer, now time.Duration) error {
	key, ok := keyOf(&o.Question, o.Listener)
	if !ok {
		return errUnfit
	}
	if o.Epoch != t.epochs[o.Listener] {
		return nil
	}
	if o.Question.List != 0 {
		if err := t.setClient(o); err != nil {
			return err
		}
	}
	old := t.byKey[key]
	if old != nil && old.entry == o.Entry && !old.over.Load() || !o.Entry.Fresh(now) || !t.store.Has(o.Entry) {
		return nil
	}
	if old == nil && len(t.byKey) >= maxEntries {
		t.missingEntries++
		return errFull
	}
	var session *vouch.Session
	s := source{entry: o.Entry, key: key, name: len(o.Question.Name), shuffle: o.Shuffle, clock: t.clock, session: func(one *vouch.Session) (int, bool) {
		session = one
		return t.numberOf(one)
	}}
	var buf [maxRecord]byte
	encoded, err := s.encode(buf[:0])
	if err != nil {
		return err
	}
	n := (len(encoded) + granule - 1) / granule
	at, ok := t.allocate(n, old != nil)
	if !ok {
		t.missingGranules += n
		return errFull
	}
	hash := key.hash(t.control.Seed, len(o.Question.Name))
	slot := t.slotOf(hash, old)
	if slot == nil {
		t.freeGranules(at, n)
		t.endIdle(hash)
		return errFull
	}
	if t.version = (t.version + 1) % (1 << versionBits); t.version == 0 {
		t.version = 1
	}
	r := &record{
		entry: o.Entry, key: key, slot: slot, len: n, session: session, counter: o.Counter,
		version: t.version, first: at,
		memory: (*answerRecord)(unsafe.Pointer(&t.arena[at*granule])),
	}
	copy(t.arena[at*granule:], encoded)
	atomic.StoreUint64(slot, r.slotValue(hash))
	if old != nil {
		t.end(old)
	}
	t.byKey[key], t.records[r] = r, struct{}{}
	t.store.Reserve(copyBytes)
	if session != nil {
		t.sessions[session].records++
	}
	if !t.store.AddCopy(o.Entry, r) {
		r.over.Store(true)
	}
	return nil
}

// end ends a copy of an entry that may remain in the store.
func (t *Table) end(r *record) {
	r.Remove()
	t.store.DropCopies(r.entry, func(c store.Copy) bool { return c == r })
}

// forget frees a record.
func (t *Table) forget(r *record) {
	if t.byKey[r.key] == r {
		delete(t.byKey, r.key)
		atomic.StoreUint64(r.slot, 0)
	}
	delete(t.records, r)
	t.store.Reserve(-copyBytes)
	if s := t.sessions[r.session]; s != nil {
		s.records--
	}
	t.freeGranules(r.first, r.len)
}

// slotOf returns the slot of a key in the index: the slot of the record that had the key, or a free one. It returns nil without one.
func (t *Table) slotOf(hash uint64, old *record) *uint64 {
	if old != nil {
		return old.slot
	}
	first := hash % slots
	for i := range t.places.Slots[first : first+probes] {
		if slot := &t.places.Slots[int(first)+i]; *slot == 0 { // #nosec G115 -- within the index
			return slot
		}
	}
	return nil
}

// endIdle ends the copies in the slots of a hash that were not used lately. Later offers can use these slots.
func (t *Table) endIdle(hash uint64) {
	first := &t.places.Slots[hash%slots]
	for r := range t.records {
		if at := uintptr(unsafe.Pointer(r.slot)) - uintptr(unsafe.Pointer(first)); at < probes*8 && r.idle >= idleTicks && !r.over.Load() {
			t.end(r)
		}
	}
}

// slotValue returns the value of the record's slot, given the hash of its key.
func (r *record) slotValue(hash uint64) uint64 {
	return (hash>>tagShift|1)<<tagShift | uint64(r.first)<<versionBits | uint64(r.version) // #nosec G115 -- not negative
}

// numberOf returns the number of a session, whose validity is copied from then on.
func (t *Table) numberOf(s *vouch.Session) (number int, ok bool) {
	if known := t.sessions[s]; known != nil {
		return known.number, true
	}
	switch n := len(t.freed); {
	case n > 0:
		number, t.freed = t.freed[n-1], t.freed[:n-1]
	case t.last < maxSessions-1:
		t.last++
		number = t.last
	default:
		return 0, false
	}
	t.sessions[s] = &sessionCopy{number: number}
	copied := &t.control.Sessions[number]
	s.Mirror(func(until time.Duration, lapsed bool) {
		var end uint64
		if until != 0 {
			end = t.clock.kernel(until)
		}
		if lapsed {
			atomic.StoreUint64(&copied.Lapsed, 1)
		} else {
			atomic.StoreUint64(&copied.Lapsed, 0)
		}
		atomic.StoreUint64(&copied.Until, end)
	})
	return number, true
}

// collect counts the answers since the last tick, ends the copies that are not fresh any more or make room for others, and frees
// those that ended.
func (t *Table) collect(now time.Duration) {
	t.ticks++
	t.verifyClients(now)
	t.measure()
	for r := range t.records {
		n := t.count(r)
		if n > 0 {
			r.idle = 0
			t.successor(r).CountCopied(int64(min(n, 1<<32)), now) // #nosec G115 -- bounded
		} else {
			r.idle++
		}
		if r.over.Load() {
			if r.grace++; r.grace > graceTicks {
				t.forget(r)
			}
			continue
		}
		if r.idle >= idleTicks && (t.missingEntries > 0 || t.missingGranules > 0 || !r.entry.Fresh(now)) {
			t.end(r)
			t.missingEntries--
			t.missingGranules -= r.len
		}
	}
	t.missingEntries, t.missingGranules = 0, 0
	for s, c := range t.sessions {
		if c.records == 0 {
			s.Mirror(nil)
			delete(t.sessions, s)
			t.freed = append(t.freed, c.number)
		}
	}
}

// successor returns the entry of the copy that has replaced a record, or the record's entry: hits of the last tick before the
// replacement count for the prefetch of the new answer.
func (t *Table) successor(r *record) *store.Entry {
	if next := t.byKey[r.key]; next != nil {
		return next.entry
	}
	return r.entry
}
