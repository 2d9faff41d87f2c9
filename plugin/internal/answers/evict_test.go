package answers

import (
	"math"
	"testing"
	"time"
)

// sized returns a store that holds so many entries, which are alike.
func sized(n int) (*Store, *clock, *Keyspace) {
	s, c := newStore(1<<20, false)
	sp := s.NewKeyspace()
	e := put(sp, -1, &Entry{})
	s.SetBudget(int64(n) * e.size)
	s.Remove(e)
	return s, c, sp
}

func TestScanSparesWhatIsUsed(t *testing.T) {
	s, _, sp := sized(100)
	const used = 20
	for n := range used {
		put(sp, n, &Entry{})
	}
	for n := range 5000 {
		put(sp, 1000+n, &Entry{})
		if n%40 == 0 { // at least once in a round of the hand
			for n := range used {
				if s.Get(key(sp, n)) == nil {
					t.Fatalf("entry %d was evicted by a scan", n)
				}
			}
		}
	}
	check(t, s, sp)
	if sp.Len(Success) != 100 {
		t.Errorf("%d entries, want 100", sp.Len(Success))
	}
}

func TestScanEndsWhatWasUsed(t *testing.T) {
	s, _, sp := sized(100)
	for n := range 20 {
		put(sp, n, &Entry{Costly: true})
		for range 1000 {
			s.Get(key(sp, n))
		}
	}
	for n := range 2000 {
		put(sp, 1000+n, &Entry{})
	}
	for n := range 20 {
		if s.find(s.Hash(key(sp, n)), key(sp, n)) != nil {
			t.Errorf("entry %d stays though nobody has asked for long", n)
		}
	}
}

// survivors says how many new entries it takes to evict each of the first ones, all of which are used
// once.
func survivors(t *testing.T, entries ...*Entry) (rounds []int) {
	t.Helper()
	s, _, sp := sized(100)
	for n, e := range entries {
		put(sp, n, e)
		s.Get(key(sp, n))
	}
	rounds = make([]int, len(entries))
	for n := range 5000 {
		put(sp, 1000+n, &Entry{})
		for i, e := range entries {
			if e.newer == nil && rounds[i] == 0 {
				rounds[i] = n
			}
		}
	}
	for i, n := range rounds {
		if n == 0 {
			t.Fatalf("entry %d is still there", i)
		}
	}
	return rounds
}

func TestCostDecides(t *testing.T) {
	got := survivors(t,
		&Entry{}, &Entry{Costly: true},
		&Entry{StateSize: largeEntry}, &Entry{Costly: true, StateSize: largeEntry})
	own, costly, large, costlyLarge := got[0], got[1], got[2], got[3]
	if large >= own || own >= costly || costlyLarge >= costly || large >= costlyLarge {
		t.Errorf("evicted after: own %d, costly %d, large %d, costly and large %d", own, costly, large, costlyLarge)
	}
}

func TestUselessGoesFirst(t *testing.T) {
	g := new(generation)
	tests := map[string]struct {
		entry   *Entry
		useless bool
	}{
		"advanced":                        {&Entry{Validity: Validity{Bounds: [MaxBounds]Bound{{g, 0}}}}, true},
		"advanced in the last":            {&Entry{Validity: Validity{Bounds: [MaxBounds]Bound{{g, 1}, {g, 1}, {g, 1}, {g, 0}}}}, true},
		"current":                         {&Entry{Validity: Validity{Bounds: [MaxBounds]Bound{{g, 1}}}}, false},
		"expired":                         {&Entry{Validity: Validity{Expires: 10}}, true},
		"gone":                            {&Entry{Validity: Validity{Expires: 5}, Gone: 10}, true},
		"expired, of use":                 {&Entry{Validity: Validity{Expires: 5}, Gone: 11}, false},
		"not expired, though gone before": {&Entry{Validity: Validity{Expires: 11}, Gone: 5}, false},
		"advanced, not expired":           {&Entry{Validity: Validity{Expires: 20, Bounds: [MaxBounds]Bound{{g, 0}}}}, true},
		"without an end":                  {&Entry{}, false},
	}
	g.Store(1)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, c, sp := sized(10)
			c.Store(10)
			told := 0
			sp.Limit(Success, 0, func() { told++ })
			tt.entry.Costly, tt.entry.Cached = true, true
			for n := range 9 {
				put(sp, n, &Entry{Costly: true, Cached: true})
			}
			e := put(sp, 9, tt.entry)
			for n := range 10 {
				if s.Get(key(sp, n)) == nil {
					t.Fatal("not there")
				}
			}
			put(sp, 10, &Entry{})
			if gone := e.newer == nil; gone != tt.useless {
				t.Errorf("gone: %v, want %v", gone, tt.useless)
			}
			if e.useless(10) != tt.useless {
				t.Errorf("useless: %v, want %v", e.useless(10), tt.useless)
			}
			if want := 1; tt.useless && told != 0 || !tt.useless && told != want {
				t.Errorf("told of %d evictions", told)
			}
			check(t, s, sp)
		})
	}
}

func TestFreshEntryStays(t *testing.T) {
	s, _, sp := sized(10)
	for n := range 10 {
		put(sp, n, &Entry{Costly: true})
	}
	for n := range 10 {
		s.Get(key(sp, n))
	}
	large := put(sp, 20, &Entry{StateSize: int(s.Budget()) * 12 / 13 * 9 / 10}) // for which nearly all must go
	if s.Get(key(sp, 20)) != large {
		t.Error("the entry that has just come was evicted")
	}
	check(t, s, sp)
}

// hot is the Generation of an entry that somebody uses whenever it is looked at.
type hot struct{ entry *Entry }

func (h *hot) Load() uint64 {
	h.entry.credit.Store(math.MaxInt32)
	return 0
}

func TestEvictionEnds(t *testing.T) {
	s, _, sp := sized(10)
	for n := range 100 {
		e := &Entry{}
		e.Bounds[0].Generation = &hot{e}
		put(sp, n, e)
		s.Get(key(sp, n))
		if sp.Len(Success) > 10 {
			t.Fatalf("%d entries, though the budget is for 10", sp.Len(Success))
		}
	}
	check(t, s, sp)
}

func TestCapacity(t *testing.T) {
	s, _ := newStore(1<<20, false)
	sp, other := s.NewKeyspace(), s.NewKeyspace()
	var successes, denials int
	sp.Limit(Success, 5, func() { successes++ })
	sp.Limit(Denial, 3, func() { denials++ })
	for n := range 50 {
		put(other, n, &Entry{Kind: Kind(n % 2), Cached: true})
		put(sp, n, &Entry{Kind: Success, Cached: true})
		put(sp, 100+n, &Entry{Kind: Denial, Cached: true})
	}
	if sp.Len(Success) != 5 || sp.Len(Denial) != 3 || successes != 45 || denials != 47 {
		t.Errorf("%d and %d entries, %d and %d evictions", sp.Len(Success), sp.Len(Denial), successes, denials)
	}
	if other.Len(Success) != 25 || other.Len(Denial) != 25 {
		t.Errorf("another space has %d and %d entries left", other.Len(Success), other.Len(Denial))
	}
	put(sp, 49, &Entry{Kind: Success, Cached: true}) // in the place of what is there
	if sp.Len(Success) != 5 || successes != 45 {
		t.Errorf("%d entries, %d evictions after a replacement", sp.Len(Success), successes)
	}
	sp.Limit(Success, 2, nil)
	put(sp, 200, &Entry{Kind: Success, Cached: true})
	if sp.Len(Success) != 2 || successes != 45 {
		t.Errorf("%d entries with a lower limit, %d evictions", sp.Len(Success), successes)
	}
	sp.Limit(Success, 0, nil)
	for n := range 20 {
		put(sp, 300+n, &Entry{Kind: Success, Cached: true})
	}
	if sp.Len(Success) != 22 {
		t.Errorf("%d entries without a limit, want 22", sp.Len(Success))
	}
	check(t, s, sp, other)
}

// TestCapacitySparesOthers asserts that entries of another kind lose no credit to a limit.
func TestCapacitySparesOthers(t *testing.T) {
	s, _ := newStore(1<<20, false)
	sp, other := s.NewKeyspace(), s.NewKeyspace()
	sp.Limit(Success, 1, nil)
	e := put(other, 1, &Entry{Cached: true})
	s.Get(key(other, 1))
	for n := range 100 {
		put(sp, n, &Entry{Cached: true})
	}
	if e.credit.Load() != creditOwn {
		t.Errorf("credit %d, want %d", e.credit.Load(), creditOwn)
	}
}

func TestSetBudget(t *testing.T) {
	s, _, sp := sized(100)
	for n := range 100 {
		put(sp, n, &Entry{})
	}
	s.Get(key(sp, 5))
	s.SetBudget(s.Budget() / 10)
	if sp.Len(Success) != 10 || s.Get(key(sp, 5)) == nil {
		t.Errorf("%d entries left, want 10 with the one that was used", sp.Len(Success))
	}
	s.SetBudget(0)
	if sp.Len(Success) != 0 || s.Bytes() != 0 || s.hand != nil {
		t.Error("something is left of nothing")
	}
	put(sp, 1, &Entry{})
	check(t, s, sp)
}

// A gauge shows the entries of several spaces, as after a reload: those of the space that is dropped go from it.
func TestShowTwoSpaces(t *testing.T) {
	s, _ := newStore(1<<20, false)
	old, next, shows := s.NewKeyspace(), s.NewKeyspace(), new(gauge)
	put(old, 1, &Entry{Cached: true})
	put(old, 2, &Entry{})
	put(old, 3, &Entry{Cached: true, Kind: Denial})
	for _, sp := range []*Keyspace{old, next} {
		sp.Show(Success, shows)
	}
	put(next, 1, &Entry{Cached: true})
	put(next, 2, &Entry{Cached: true})
	if shows.number != 3 {
		t.Errorf("the gauge is %v, want 3", shows.number)
	}
	s.Drop(old)
	put(old, 4, &Entry{Cached: true})
	if shows.number != 2 {
		t.Errorf("the gauge is %v after one space was dropped, want 2", shows.number)
	}
}

func TestDrop(t *testing.T) {
	s, _ := newStore(1<<20, true)
	sp, other := s.NewKeyspace(), s.NewKeyspace()
	if sp.ID() == other.ID() {
		t.Error("two spaces have one number")
	}
	for n := range 50 {
		put(sp, n, &Entry{Kind: Kind(n % 2)})
		put(other, n, &Entry{Kind: Kind(n % 2)})
	}
	s.Drop(sp)
	s.Drop(sp)
	put(sp, 1, &Entry{})
	for n := range 50 {
		if s.Get(key(sp, n)) != nil || s.Get(key(other, n)) == nil {
			t.Fatalf("entry %d", n)
		}
	}
	check(t, s, sp, other)
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
		"reached":              {&Popularity{Amount: 3, Gap: time.Minute}, []hit{{1, false}, {2, false}, {3, true}, {4, true}}},
		"not before its time":  {&Popularity{Amount: 1, Gap: time.Minute, From: 10}, []hit{{9, false}, {10, true}}},
		"a gap ends the count": {&Popularity{Amount: 2, Gap: 10}, []hit{{1, false}, {12, false}, {23, false}, {33, true}}},
		"the first late":       {&Popularity{Amount: 1, Gap: 10}, []hit{{100, true}}},
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
			t.Error("the hits of the entry before do not count")
		}
		late := &Popularity{Amount: 3, Gap: 10}
		late.Inherit(old)
		if late.Count(13) {
			t.Error("a gap since the entry before does not count")
		}
	})
}
