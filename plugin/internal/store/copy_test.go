package store

import (
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// fakeCopy counts the calls of the store.
type fakeCopy struct {
	served, removed int
	used            bool
}

func (c *fakeCopy) Serve()     { c.served++ }
func (c *fakeCopy) Remove()    { c.removed++ }
func (c *fakeCopy) Used() bool { return c.used }

// TestCopies has copies of an entry that leaves the store in each way: they are removed before the store returns, once.
func TestCopies(t *testing.T) {
	for name, leave := range map[string]func(s *Store, ks *Keyspace, h *heardSession){
		"replaced": func(_ *Store, ks *Keyspace, _ *heardSession) {
			put(ks, 1, &Entry{Validity: validity.Validity{Expires: time.Hour}})
		},
		"evicted":     func(s *Store, _ *Keyspace, _ *heardSession) { s.SetBudget(0) },
		"no memory":   func(s *Store, _ *Keyspace, _ *heardSession) { s.Reserve(1 << 20) },
		"invalidated": func(_ *Store, _ *Keyspace, h *heardSession) { h.invalidate(7) },
		"keyspace":    func(_ *Store, ks *Keyspace, _ *heardSession) { ks.Drop() },
	} {
		t.Run(name, func(t *testing.T) {
			store, c := newStore(1<<20, false)
			ks, session := store.NewKeyspace(), newSession(c)
			e := put(ks, 1, &Entry{Validity: session.vouchedUntil(time.Hour, 7)})
			copies := []*fakeCopy{{}, {}, {}}
			for _, c := range copies {
				if !store.AddCopy(e, c) {
					t.Fatal("not added")
				}
			}
			store.DropCopies(e, func(c Copy) bool { return c == copies[1] })
			leave(store, ks, session)
			got := []fakeCopy{*copies[0], *copies[1], *copies[2]}
			if want := []fakeCopy{{served: 1, removed: 1}, {served: 1}, {served: 1, removed: 1}}; !slices.Equal(got, want) {
				t.Errorf("calls %v, want %v", got, want)
			}
			var late fakeCopy
			if store.AddCopy(e, &late) || late.served != 0 {
				t.Error("a copy was added to an entry that is not stored")
			}
		})
	}
}

// TestToCopy counts the hits after which an entry is copied.
func TestToCopy(t *testing.T) {
	store, _ := newStore(1<<20, false)
	ks := store.NewKeyspace()
	entry := func() *Entry { return put(ks, 1, &Entry{Validity: validity.Validity{Expires: time.Hour}}) }
	due := func(e *Entry) (hits []int) {
		for hit := 1; hit <= 9; hit++ {
			if e.ToCopy() {
				hits = append(hits, hit)
			}
		}
		return hits
	}
	if got := due(entry()); !slices.Equal(got, []int{4, 8}) {
		t.Errorf("without an earlier entry: at hits %v", got)
	}
	e := entry()
	store.AddCopy(e, &fakeCopy{})
	entry()
	e = entry() // of the second replacement
	if got := due(e); !slices.Equal(got, []int{1, 4, 8}) {
		t.Errorf("in place of a copied entry: at hits %v", got)
	}
	e = entry()
	if got := due(e); !slices.Equal(got, []int{4, 8}) {
		t.Errorf("in place of an entry that was not copied again: at hits %v", got)
	}
	e.NeverCopy()
	if got := due(e); len(got) != 0 {
		t.Errorf("without a form for copies: at hits %v", got)
	}
	if got := due(entry()); !slices.Equal(got, []int{4, 8}) {
		t.Errorf("in place of an entry without a form for copies: at hits %v", got)
	}
}

// TestCountCopied counts hits of copies for prefetch.
func TestCountCopied(t *testing.T) {
	e := &Entry{Popularity: &Popularity{Amount: 10, Gap: time.Minute}}
	e.CountCopied(9, time.Second)
	if e.Popularity.Count(2*time.Second) != true {
		t.Error("10 hits are not counted")
	}
	e = &Entry{Popularity: &Popularity{Amount: 10, Gap: time.Minute}}
	e.CountCopied(8, time.Second)
	if e.Popularity.Count(2 * time.Second) {
		t.Error("9 hits are 10")
	}
}

// TestEvictCopied fills the store with other names while a copy of an entry is used, and while another one's is not.
func TestEvictCopied(t *testing.T) {
	store, _ := newStore(100*1000, false)
	ks := store.NewKeyspace()
	entry := func(n int) *Entry { return put(ks, n, &Entry{Validity: validity.Validity{Expires: time.Hour}}) }
	used, unused := entry(1), entry(2)
	store.AddCopy(used, &fakeCopy{used: true})
	store.AddCopy(unused, &fakeCopy{})
	for n := range 1000 {
		entry(10 + n)
	}
	if !store.Has(used) || store.Has(unused) {
		t.Errorf("the entry whose copy is used is stored: %t, the other one: %t", store.Has(used), store.Has(unused))
	}
}
