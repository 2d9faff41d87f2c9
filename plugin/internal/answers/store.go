package answers

import (
	"hash/maphash"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultBudget is how many bytes answers take if nothing else is said.
const DefaultBudget = 32 << 20

// Epoch is the beginning of time here. It has a monotonic reading, so that setting the clock of the
// machine neither expires an answer nor keeps it.
var epoch = time.Now()

// Now returns the time since Epoch.
func Now() time.Duration { return time.Since(epoch) }

// Store holds entries of many spaces. Reading takes no lock; writes follow each other.
type Store struct {
	seed    maphash.Seed
	now     func() time.Duration
	buckets []atomic.Pointer[Entry]
	bytes   atomic.Int64
	budget  atomic.Int64

	mu        sync.Mutex
	hand      *Entry // of the ring: what is looked at next for eviction; nil if there is no entry
	keyspaces uint32
}

// Entries have some 500 bytes, so that a bucket holds one or two when the budget is used up.
const (
	bytesPerBucket = 512
	minBuckets     = 1 << 10
	maxBuckets     = 1 << 20
)

// New returns a store for so many bytes. The number of buckets stays as it is when the budget is changed.
func NewStore(budget int64) *Store {
	n := min(max(budget/bytesPerBucket, minBuckets), maxBuckets)
	s := &Store{
		seed:    maphash.MakeSeed(),
		now:     Now,
		buckets: make([]atomic.Pointer[Entry], 1<<bits.Len64(uint64(n-1))), // #nosec G115 -- positive
	}
	s.budget.Store(budget)
	return s
}

// SetBudget sets how many bytes answers may take, and evicts what is too much.
func (s *Store) SetBudget(budget int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.Store(budget)
	s.shrink(nil)
}

// Budget returns how many bytes answers may take.
func (s *Store) Budget() int64 { return s.budget.Load() }

// Bytes returns how many bytes answers take, with what is needed to find them.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Shared is the store of the process.
var Shared = NewStore(DefaultBudget)

// Hash returns the hash of a key.
func (s *Store) Hash(key []byte) uint64 { return maphash.Bytes(s.seed, key) }

// Get returns the entry of a key, fresh or not, or nil. It counts as use.
func (s *Store) Get(key []byte) *Entry {
	e := s.find(s.Hash(key), key)
	if e != nil {
		e.use()
	}
	return e
}

// GetView returns the entry of a caller's view, given the entry of the key, which tells that the answer
// depends on who asks: nil if there is none, or if that one does not hold. There is room for a view behind the
// key.
func (s *Store) GetView(e *Entry, key []byte, now time.Duration, from netip.Addr, option []byte) (*Entry, View) {
	if !e.Fresh(now) {
		return nil, View{}
	}
	v := e.Views.View(from, option)
	if v.Private {
		return nil, v
	}
	return s.Get(AppendKeyView(key, v.Number)), v
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

// Credit is how often the hand passes an entry by before it evicts it. What costs another server's time
// stays longer than what is made in a microsecond, and what is large less long.
const (
	creditCostly = 3
	creditOwn    = 2
	largeEntry   = 4 << 10
)

func (e *Entry) most() int32 {
	credit := int32(creditOwn)
	if e.Costly {
		credit = creditCostly
	}
	if e.size > largeEntry {
		credit--
	}
	return credit
}

// use gives the entry its credit back. It is written only where it changes: readers share it.
func (e *Entry) use() {
	if most := e.most(); e.credit.Load() != most {
		e.credit.Store(most)
	}
}

// What an entry takes besides the bytes of its answer and key, in bytes, as measured on a 64-bit machine:
// the structure with its share of the buckets, and the structures that not every entry has.
const (
	entryOverhead      = 512
	compressedOverhead = 96
	popularityOverhead = 64
)

// memory returns how many bytes the entry takes. The allocator rounds each part up, by a twelfth or
// less.
func (e *Entry) memory() int64 {
	n := len(e.key) + cap(e.Options) + e.StateSize + e.Plain.Size()
	if e.Compressed != nil {
		n += compressedOverhead + e.Compressed.Size()
	}
	if e.Popularity != nil {
		n += popularityOverhead
	}
	return int64(entryOverhead + n + n/12)
}

// Put puts an entry under a key of its space, in the place of what is there. It is not kept if it is
// larger than the budget, or if the space is dropped.
func (s *Store) Put(keyspace *Keyspace, key []byte, e *Entry) {
	e.keyspace, e.key, e.hash = keyspace, string(key), s.Hash(key)
	e.size = e.memory()
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.find(e.hash, key)
	kept := !keyspace.dropped && e.size <= s.budget.Load()
	if kept {
		s.link(e) // before the old one goes, so that readers find one of them
	}
	if old != nil {
		s.unlink(old)
	}
	if !kept {
		return
	}
	if most := keyspace.capacity[e.Kind]; most > 0 && e.Cached {
		for keyspace.cached[e.Kind] > most && s.evict(func(o *Entry) bool {
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

// shrink evicts until the budget is kept; not the entry that has just come.
func (s *Store) shrink(fresh *Entry) {
	for s.bytes.Load() > s.budget.Load() && s.evict(func(o *Entry) bool { return o != fresh }) {
	}
}

// evict removes one of the entries that may go: the first that the hand finds without credit, or that is
// of no use. It takes credit from those that it passes by. It reports whether there was one.
func (s *Store) evict(may func(*Entry) bool) bool {
	if s.hand == nil {
		return false
	}
	now := s.now()
	// With each round everyone has less credit, but for what is used meanwhile: the last round asks for none.
	start, rounds := s.hand, 0
	for e := s.hand; rounds <= creditCostly; {
		next := e.newer
		if may(e) {
			if e.credit.Load() <= 0 || rounds == creditCostly || e.useless(now) {
				s.hand = next
				s.unlink(e)
				if evicted := e.keyspace.evicted[e.Kind]; evicted != nil && e.Cached && !e.useless(now) {
					evicted()
				}
				return true
			}
			e.credit.Add(-1)
		}
		if e = next; e == start {
			rounds++
		}
	}
	return false
}

// useless reports whether nobody can be given the answer any more.
func (e *Entry) useless(now time.Duration) bool {
	return !e.Current() || e.Expires != 0 && now >= max(e.Expires, e.Gone)
}

// link puts an entry into its bucket, and into the ring at the end of the hand's way.
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

// unlink takes an entry out. A reader that stands on it finds the rest of the bucket.
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
	s.bytes.Add(-e.size)
	e.count(-1)
}

// count counts an entry that has come or gone.
func (e *Entry) count(n int64) {
	e.keyspace.entries[e.Kind].Add(n)
	if e.Cached {
		e.keyspace.cached[e.Kind] += n
		for _, g := range e.keyspace.gauges[e.Kind] {
			g.Add(float64(n))
		}
	}
}

// ring yields every entry. The one that is yielded may be unlinked.
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
