package store

import (
	"math"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// sized returns a store with a budget for n empty entries.
func sized(n int) (*Store, *clock, *Keyspace) {
	s, c := newStore(1<<20, false)
	ks := s.NewKeyspace()
	e := put(ks, -1, &Entry{})
	s.SetBudget(int64(n) * e.size)
	s.Remove(e)
	return s, c, ks
}

func TestScanSparesUsedEntries(t *testing.T) {
	s, _, ks := sized(100)
	const used = 20
	for n := range used {
		put(ks, n, &Entry{})
	}
	for n := range 5000 {
		put(ks, 1000+n, &Entry{})
		if n%40 == 0 { // at least once in a round of the hand
			for n := range used {
				if s.Get(key(ks, n)) == nil {
					t.Fatalf("entry %d was evicted by a scan", n)
				}
			}
		}
	}
	check(t, s, ks)
	if ks.Len(Success) != 100 {
		t.Errorf("%d entries, want 100", ks.Len(Success))
	}
}

func TestScanEvictsUnusedEntries(t *testing.T) {
	s, _, ks := sized(100)
	for n := range 20 {
		put(ks, n, &Entry{Costly: true})
		for range 1000 {
			s.Get(key(ks, n))
		}
	}
	for n := range 2000 {
		put(ks, 1000+n, &Entry{})
	}
	for n := range 20 {
		if s.find(s.hash(key(ks, n)), key(ks, n)) != nil {
			t.Errorf("entry %d is stored long after its last hit", n)
		}
	}
}

// lifetimes returns for each entry, after one hit, the number of new entries until its eviction.
func lifetimes(t *testing.T, entries ...*Entry) (rounds []int) {
	t.Helper()
	s, _, ks := sized(100)
	for n, e := range entries {
		put(ks, n, e)
		s.Get(key(ks, n))
	}
	rounds = make([]int, len(entries))
	for n := range 5000 {
		put(ks, 1000+n, &Entry{})
		for i, e := range entries {
			if e.newer == nil && rounds[i] == 0 {
				rounds[i] = n
			}
		}
	}
	for i, n := range rounds {
		if n == 0 {
			t.Fatalf("entry %d was not evicted", i)
		}
	}
	return rounds
}

func TestCostAndSize(t *testing.T) {
	got := lifetimes(t,
		&Entry{}, &Entry{Costly: true},
		&Entry{StateSize: largeEntry}, &Entry{Costly: true, StateSize: largeEntry})
	own, costly, large, costlyLarge := got[0], got[1], got[2], got[3]
	if large >= own || own >= costly || costlyLarge >= costly || large >= costlyLarge {
		t.Errorf("evicted after: own %d, costly %d, large %d, costly and large %d", own, costly, large, costlyLarge)
	}
}

func TestUselessIsEvictedFirst(t *testing.T) {
	g := new(generation)
	tests := map[string]struct {
		entry   *Entry
		useless bool
	}{
		"advanced":                     {&Entry{Validity: until(g, 0)}, true},
		"advanced in the last":         {&Entry{Validity: validity.Validity{Bounds: [validity.MaxBounds]validity.Bound{{Generation: g, Number: 1}, {Generation: g, Number: 1}, {Generation: g, Number: 1}, {Generation: g, Number: 0}}}}, true},
		"current":                      {&Entry{Validity: until(g, 1)}, false},
		"expired":                      {&Entry{Validity: validity.Validity{Expires: 10}}, true},
		"gone":                         {&Entry{Validity: validity.Validity{Expires: 5}, Gone: 10}, true},
		"expired, not gone":            {&Entry{Validity: validity.Validity{Expires: 5}, Gone: 11}, false},
		"not expired, Gone is earlier": {&Entry{Validity: validity.Validity{Expires: 11}, Gone: 5}, false},
		"advanced, not expired":        {&Entry{Validity: validity.Validity{Expires: 20, Bounds: [validity.MaxBounds]validity.Bound{{Generation: g, Number: 0}}}}, true},
		"without an end":               {&Entry{}, false},
	}
	g.Store(1)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, c, ks := sized(10)
			c.Store(10)
			evictions := 0
			ks.Limit(Success, 0, func() { evictions++ })
			tt.entry.Costly, tt.entry.Cached = true, true
			for n := range 9 {
				put(ks, n, &Entry{Costly: true, Cached: true})
			}
			e := put(ks, 9, tt.entry)
			for n := range 10 {
				if s.Get(key(ks, n)) == nil {
					t.Fatalf("entry %d is not stored", n)
				}
			}
			put(ks, 10, &Entry{})
			if evicted := e.newer == nil; evicted != tt.useless {
				t.Errorf("evicted: %v, want %v", evicted, tt.useless)
			}
			if e.useless(10) != tt.useless {
				t.Errorf("useless: %v, want %v", e.useless(10), tt.useless)
			}
			if tt.useless != (evictions == 0) || evictions > 1 {
				t.Errorf("%d evictions counted", evictions)
			}
			check(t, s, ks)
		})
	}
}

func TestFreshEntryStays(t *testing.T) {
	s, _, ks := sized(10)
	for n := range 10 {
		put(ks, n, &Entry{Costly: true})
	}
	for n := range 10 {
		s.Get(key(ks, n))
	}
	large := put(ks, 20, &Entry{StateSize: int(s.Budget()) * 12 / 13 * 9 / 10}) // nearly the whole budget
	if s.Get(key(ks, 20)) != large {
		t.Error("the new entry was evicted")
	}
	check(t, s, ks)
}

// hot is the Generation of an entry with a hit at each check of its validity.
type hot struct{ entry *Entry }

func (h *hot) Load() uint64 {
	h.entry.credit.Store(math.MaxInt32)
	return 0
}

func TestEvictionEnds(t *testing.T) {
	s, _, ks := sized(10)
	for n := range 100 {
		e := &Entry{}
		e.Bounds[0].Generation = &hot{e}
		put(ks, n, e)
		s.Get(key(ks, n))
		if ks.Len(Success) > 10 {
			t.Fatalf("%d entries, the budget is for 10", ks.Len(Success))
		}
	}
	check(t, s, ks)
}

func TestCapacity(t *testing.T) {
	s, _ := newStore(1<<20, false)
	ks, other := s.NewKeyspace(), s.NewKeyspace()
	var successes, denials int
	ks.Limit(Success, 5, func() { successes++ })
	ks.Limit(Denial, 3, func() { denials++ })
	for n := range 50 {
		put(other, n, &Entry{Kind: Kind(n % 2), Cached: true})
		put(ks, n, &Entry{Kind: Success, Cached: true})
		put(ks, 100+n, &Entry{Kind: Denial, Cached: true})
	}
	if ks.Len(Success) != 5 || ks.Len(Denial) != 3 || successes != 45 || denials != 47 {
		t.Errorf("%d and %d entries, %d and %d evictions", ks.Len(Success), ks.Len(Denial), successes, denials)
	}
	if other.Len(Success) != 25 || other.Len(Denial) != 25 {
		t.Errorf("another keyspace has %d and %d entries left", other.Len(Success), other.Len(Denial))
	}
	put(ks, 49, &Entry{Kind: Success, Cached: true}) // replaces an entry
	if ks.Len(Success) != 5 || successes != 45 {
		t.Errorf("%d entries, %d evictions after a replacement", ks.Len(Success), successes)
	}
	ks.Limit(Success, 2, nil)
	put(ks, 200, &Entry{Kind: Success, Cached: true})
	if ks.Len(Success) != 2 || successes != 45 {
		t.Errorf("%d entries with a lower limit, %d evictions", ks.Len(Success), successes)
	}
	ks.Limit(Success, 0, nil)
	for n := range 20 {
		put(ks, 300+n, &Entry{Kind: Success, Cached: true})
	}
	if ks.Len(Success) != 22 {
		t.Errorf("%d entries without a limit, want 22", ks.Len(Success))
	}
	check(t, s, ks, other)
}

// TestCapacitySparesOthers asserts that an eviction by a limit does not decrement the credit of entries in other keyspaces.
func TestCapacitySparesOthers(t *testing.T) {
	s, _ := newStore(1<<20, false)
	ks, other := s.NewKeyspace(), s.NewKeyspace()
	ks.Limit(Success, 1, nil)
	e := put(other, 1, &Entry{Cached: true})
	s.Get(key(other, 1))
	for n := range 100 {
		put(ks, n, &Entry{Cached: true})
	}
	if e.credit.Load() != creditOwn {
		t.Errorf("credit %d, want %d", e.credit.Load(), creditOwn)
	}
}

func TestSetBudget(t *testing.T) {
	s, _, ks := sized(100)
	for n := range 100 {
		put(ks, n, &Entry{})
	}
	s.Get(key(ks, 5))
	s.SetBudget(s.Budget() / 10)
	if ks.Len(Success) != 10 || s.Get(key(ks, 5)) == nil {
		t.Errorf("%d entries left, want 10 with the used one", ks.Len(Success))
	}
	s.SetBudget(0)
	if ks.Len(Success) != 0 || s.Bytes() != 0 || s.hand != nil {
		t.Error("entries are left with a budget of 0")
	}
	put(ks, 1, &Entry{})
	check(t, s, ks)
}

// TestShowTwoKeyspaces has a gauge with the entries of two keyspaces, as during a reload, and drops one.
func TestShowTwoKeyspaces(t *testing.T) {
	s, _ := newStore(1<<20, false)
	old, next, shows := s.NewKeyspace(), s.NewKeyspace(), new(gauge)
	put(old, 1, &Entry{Cached: true})
	put(old, 2, &Entry{})
	put(old, 3, &Entry{Cached: true, Kind: Denial})
	for _, ks := range []*Keyspace{old, next} {
		ks.AddGauge(Success, shows)
	}
	put(next, 1, &Entry{Cached: true})
	put(next, 2, &Entry{Cached: true})
	if shows.number != 3 {
		t.Errorf("the gauge is %v, want 3", shows.number)
	}
	old.Drop()
	put(old, 4, &Entry{Cached: true})
	if shows.number != 2 {
		t.Errorf("the gauge is %v after one keyspace was dropped, want 2", shows.number)
	}
}

func TestDrop(t *testing.T) {
	s, _ := newStore(1<<20, true)
	ks, other := s.NewKeyspace(), s.NewKeyspace()
	if ks.ID() == other.ID() {
		t.Error("two keyspaces have one ID")
	}
	for n := range 50 {
		put(ks, n, &Entry{Kind: Kind(n % 2)})
		put(other, n, &Entry{Kind: Kind(n % 2)})
	}
	ks.Drop()
	ks.Drop()
	put(ks, 1, &Entry{})
	for n := range 50 {
		if s.Get(key(ks, n)) != nil || s.Get(key(other, n)) == nil {
			t.Fatalf("entry %d", n)
		}
	}
	check(t, s, ks, other)
}

func TestPopularity(t *testing.T) {
	type hit struct {
		at   time.Duration
		want bool
	}
	tests := map[string]struct {
		popularity *Popularity
		hits       []hit
	}{
		"reached":             {&Popularity{Amount: 3, Gap: time.Minute}, []hit{{1, false}, {2, false}, {3, true}, {4, true}}},
		"not before From":     {&Popularity{Amount: 1, Gap: time.Minute, From: 10}, []hit{{9, false}, {10, true}}},
		"a gap resets it":     {&Popularity{Amount: 2, Gap: 10}, []hit{{1, false}, {12, false}, {23, false}, {33, true}}},
		"the first hit, late": {&Popularity{Amount: 1, Gap: 10}, []hit{{100, true}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, h := range tt.hits {
				if got := tt.popularity.Count(h.at); got != h.want {
					t.Errorf("at %d: %v", h.at, got)
				}
			}
		})
	}
	t.Run("inherited", func(t *testing.T) {
		old, p := &Popularity{Amount: 3, Gap: 10}, &Popularity{Amount: 3, Gap: 10}
		old.Count(1)
		old.Count(2)
		p.Inherit(old)
		if !p.Count(12) {
			t.Error("the hits of the replaced entry do not count")
		}
		late := &Popularity{Amount: 3, Gap: 10}
		late.Inherit(old)
		if late.Count(13) {
			t.Error("a gap since the last hit of the replaced entry does not count")
		}
	})
}
