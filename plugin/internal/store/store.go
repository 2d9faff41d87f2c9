package store

import (
	"hash/maphash"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// DefaultBudget is the budget in bytes without a setting.
const DefaultBudget = 32 << 20

// Store has the entries of all keyspaces in one budget. Readers take no lock; writers are serialized.
type Store struct {
	seed    maphash.Seed
	now     func() time.Duration
	buckets []atomic.Pointer[Entry]
	bytes   atomic.Int64
	budget  atomic.Int64

	mu        sync.Mutex
	hand      *Entry // in the ring: the next candidate for eviction; nil without entries
	keyspaces uint32
}

// Entries have some 500 bytes, so that a bucket has one or two when the budget is used up.
const (
	bytesPerBucket = 512
	minBuckets     = 1 << 10
	maxBuckets     = 1 << 20
)

// NewStore returns a store with a budget in bytes. A change of the budget does not change the number of buckets.
func NewStore(budget int64) *Store {
	n := min(max(budget/bytesPerBucket, minBuckets), maxBuckets)
	s := &Store{
		seed:    maphash.MakeSeed(),
		now:     validity.Now,
		buckets: make([]atomic.Pointer[Entry], 1<<bits.Len64(uint64(n-1))), // #nosec G115 -- positive
	}
	s.budget.Store(budget)
	return s
}

// SetBudget sets the budget in bytes, and evicts entries that exceed it.
func (s *Store) SetBudget(budget int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.Store(budget)
	s.shrink(nil)
}

// Reserve charges bytes of memory outside of the store to the budget; a negative number releases them.
func (s *Store) Reserve(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes.Add(bytes)
	s.shrink(nil)
}

// Budget returns the budget in bytes.
func (s *Store) Budget() int64 { return s.budget.Load() }

// Bytes returns the memory of all entries with their keys and buckets, and the reserved memory, in bytes.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Shared is the store of the process.
var Shared = NewStore(DefaultBudget)

// hash returns the hash of a key.
func (s *Store) hash(key []byte) uint64 { return maphash.Bytes(s.seed, key) }

// Get returns the entry of a key, fresh or not, or nil. It counts as a hit for eviction.
func (s *Store) Get(key []byte) *Entry {
	e := s.find(s.hash(key), key)
	if e != nil {
		e.use()
	}
	return e
}

// GetView returns the entry of a caller's view, given the entry of the key, which has Views: nil if there is none, or if
// the entry with Views is not fresh. key has room for the number of a view.
func (s *Store) GetView(e *Entry, key []byte, now time.Duration, from netip.Addr, option []byte) (*Entry, View) {
	if !e.Fresh(now) {
		return nil, View{}
	}
	return s.FindView(e, key, from, option)
}

// FindView is GetView for an entry with Views that may have ended.
func (s *Store) FindView(e *Entry, key []byte, from netip.Addr, option []byte) (*Entry, View) {
	v := e.Views.View(from, option)
	if v.Private {
		return nil, v
	}
	return s.Get(appendKeyView(key, &v)), v
}

func (s *Store) find(hash uint64, key []byte) *Entry {
	for e := s.bucket(hash).Load(); e != nil; e = e.next.Load() {
		if e.hash == hash && e.key == string(key) {
			return e
		}
	}
	return nil
}

func (s *Store) bucket(hash uint64) *atomic.Pointer[Entry] {
	return &s.buckets[hash&uint64(len(s.buckets)-1)]
}

// The memory of an entry besides its answer and key, in bytes, as measured on a 64-bit machine: the structure with its
// share of the buckets, and the structures that not every entry has.
const (
	entryOverhead      = 528
	compressedOverhead = 96
	popularityOverhead = 64
	sourceOverhead     = 32 // with the link of an answer that is not stored any more
)

// memory returns the memory of an entry in bytes. The allocator rounds each part up by a twelfth or less.
func (e *Entry) memory() int64 {
	n := len(e.key) + cap(e.Options) + e.StateSize + e.Plain.Size() + e.Voucher.Memory()
	if e.compressed != nil {
		n += compressedOverhead + e.compressed.Size()
	}
	if e.Popularity != nil {
		n += popularityOverhead
	}
	for s := e.Sources; s != nil; s = s.Next {
		n += sourceOverhead
	}
	return int64(entryOverhead + n + n/12)
}

// Put stores an entry under a key of its keyspace and replaces the entry that is there. An entry larger than the budget,
// or of a dropped keyspace, is not stored; the old one is removed all the same. An entry that the session of its Voucher
// invalidates is removed, also if that happened before.
func (s *Store) Put(keyspace *Keyspace, key []byte, e *Entry) {
	s.PutDetached(keyspace, key, e)
	e.Attach()
}

// PutDetached is Put without Attach, which the caller calls.
func (s *Store) PutDetached(keyspace *Keyspace, key []byte, e *Entry) {
	e.keyspace, e.key, e.hash = keyspace, string(key), s.hash(key)
	e.size = e.memory()
	e.linkEntry()
	s.put(key, e)
}

// Attach makes the session of the entry's Voucher remove the entry when the answer ends, at once if it has ended. It is called
// without a lock: the function of OnInvalidated may fetch the answer again.
func (e *Entry) Attach() {
	if e.Dependent != nil && e.Dependent.Stored() {
		e.Voucher.Attach(e.Dependent)
	}
}

func (s *Store) put(key []byte, e *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keyspace := e.keyspace
	old := s.find(e.hash, key)
	stored := !keyspace.dropped && e.size <= s.budget.Load()
	if stored {
		s.link(e) // before the old one is unlinked, so that readers find one of them
	}
	if old != nil {
		e.inheritCopy(old)
		s.unlink(old)
	}
	if !stored {
		e.unlinkEntry()
		return
	}
	if capacity := keyspace.capacity[e.Kind]; capacity > 0 && e.Cached {
		for keyspace.cached[e.Kind] > capacity && s.evict(func(o *Entry) bool {
			return o != e && o.keyspace == keyspace && o.Kind == e.Kind && o.Cached
		}) {
		}
	}
	s.shrink(e)
}

// Remove removes an entry if it is still there.
func (s *Store) Remove(e *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.newer != nil {
		s.unlink(e)
	}
}

// link adds an entry to its bucket, and to the ring just behind the hand.
func (s *Store) link(e *Entry) {
	b := s.bucket(e.hash)
	e.next.Store(b.Load())
	b.Store(e)
	if s.hand == nil {
		s.hand, e.newer, e.older = e, e, e
	} else {
		e.newer, e.older = s.hand, s.hand.older
		e.older.newer, e.newer.older = e, e
	}
	s.bytes.Add(e.size)
	e.count(1)
}

// unlink removes an entry. A reader at the entry still finds the rest of the bucket.
func (s *Store) unlink(e *Entry) {
	at := s.bucket(e.hash)
	for at.Load() != e {
		at = &at.Load().next
	}
	at.Store(e.next.Load())
	if e.newer == e {
		s.hand = nil
	} else {
		if s.hand == e {
			s.hand = e.newer
		}
		e.older.newer, e.newer.older = e.newer, e.older
	}
	e.newer, e.older = nil, nil
	e.unlinkEntry()
	e.removeCopies()
	s.bytes.Add(-e.size)
	e.count(-1)
}

// count adds n to the number of entries.
func (e *Entry) count(n int64) {
	e.keyspace.entries[e.Kind].Add(n)
	if e.Cached {
		e.keyspace.cached[e.Kind] += n
		for _, g := range e.keyspace.gauges[e.Kind] {
			g.Add(float64(n))
		}
	}
}

// ring yields every entry. The loop may unlink it.
func (s *Store) ring() func(func(*Entry) bool) {
	return func(yield func(*Entry) bool) {
		var all []*Entry
		for e := s.hand; e != nil; {
			all = append(all, e)
			if e = e.newer; e == s.hand {
				break
			}
		}
		for _, e := range all {
			if !yield(e) {
				return
			}
		}
	}
}
