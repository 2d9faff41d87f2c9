package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/property"
)

// model is the oracle of a store: the last entry of each key, without eviction.
type model struct {
	t         *testing.T
	r         *rand.Rand
	store     *Store
	clock     *clock
	keyspaces []*Keyspace
	last      map[string]*Entry
	dropped   map[*Keyspace]bool
	evicted   map[*Keyspace]*[kinds]int
	bounds    [8]generation
	hits      int
}

func newModel(t *testing.T, seed uint64, budget int64, collide bool) *model {
	m := &model{
		t: t, r: rand.New(rand.NewPCG(seed, 4)),
		last: map[string]*Entry{}, dropped: map[*Keyspace]bool{}, evicted: map[*Keyspace]*[kinds]int{},
	}
	m.store, m.clock = newStore(budget, collide)
	for range 3 {
		m.addKeyspace()
	}
	return m
}

func (m *model) addKeyspace() {
	ks := m.store.NewKeyspace()
	m.keyspaces = append(m.keyspaces, ks)
	m.evicted[ks] = new([kinds]int)
	for k := range kinds {
		ks.AddGauge(k, new(gauge))
	}
}

func (m *model) entry() *Entry {
	e := &Entry{
		Kind: Kind(m.r.IntN(int(kinds))), Costly: m.r.IntN(2) == 0, StateSize: m.r.IntN(600), Cached: m.r.IntN(3) > 0,
	}
	if m.r.IntN(50) == 0 {
		e.StateSize = m.r.IntN(30 << 10)
	}
	if m.r.IntN(3) == 0 {
		e.Expires = m.clock.now() + time.Duration(m.r.IntN(100))
		e.Gone = e.Expires + time.Duration(m.r.IntN(100))
	} else {
		for i := range m.r.IntN(validity.MaxBounds + 1) {
			g := &m.bounds[m.r.IntN(len(m.bounds))]
			e.Bounds[i] = validity.Bound{Generation: g, Number: g.Load()}
		}
	}
	return e
}

// step runs a random operation.
func (m *model) step() {
	ks, n := m.keyspaces[m.r.IntN(len(m.keyspaces))], m.r.IntN(60)
	m.clock.Add(1)
	switch op := m.r.IntN(1000); {
	case op < 500:
		m.put(ks, n)
	case op < 900:
		m.get(ks, n)
	case op < 970:
		if e := m.last[string(key(ks, n))]; e != nil {
			m.store.Remove(e)
			m.store.Remove(e) // the second call has no effect
			if m.store.Get(key(ks, n)) != nil {
				m.t.Fatal("a removed entry is found")
			}
		}
	case op < 975:
		m.bounds[m.r.IntN(len(m.bounds))].Add(1)
	case op < 980:
		m.limit(ks)
	case op < 985:
		m.store.SetBudget(int64(m.r.IntN(60 << 10)))
	case op < 986:
		m.store.SetBudget(int64(m.r.IntN(2)-1) * 1000)
	case op < 998:
		m.store.SetBudget(100 << 10)
	default:
		ks.Drop()
		m.dropped[ks] = true
		m.addKeyspace()
		if oldest := m.keyspaces[0]; len(m.keyspaces) > 6 && m.dropped[oldest] {
			m.keyspaces = m.keyspaces[1:]
		}
	}
}

func (m *model) put(ks *Keyspace, n int) {
	e, before := m.entry(), *m.evicted[ks]
	put(ks, n, e)
	m.last[string(key(ks, n))] = e
	found := m.store.find(e.hash, []byte(e.key))
	if stored := !m.dropped[ks] && e.size <= m.store.Budget(); stored != (found == e) || found != nil && found != e {
		m.t.Fatalf("stored %v, found %p, put %p", stored, found, e)
	}
	if limit := ks.capacity[e.Kind]; limit > 0 && found == e && e.Cached && ks.cached[e.Kind] > limit {
		m.t.Fatalf("%d entries, limit %d", ks.cached[e.Kind], limit)
	}
	if after := *m.evicted[ks]; ks.evicted[Denial] == nil && after[Denial] != before[Denial] {
		m.t.Fatal("an eviction was counted by a replaced function")
	}
}

func (m *model) get(ks *Keyspace, n int) {
	k := key(ks, n)
	e := m.store.Get(k)
	if e != nil {
		m.hits++
	}
	if e != nil && (e != m.last[string(k)] || e.key != string(k) || e.keyspace != ks) {
		m.t.Fatalf("got %p, last put %p", e, m.last[string(k)])
	}
	if e != nil && e.credit.Load() <= 0 {
		m.t.Fatal("no credit after a hit")
	}
	if e != nil && m.dropped[ks] {
		m.t.Fatal("an entry of a dropped keyspace")
	}
}

func (m *model) limit(ks *Keyspace) {
	k := Kind(m.r.IntN(int(kinds)))
	limit := m.r.IntN(20)
	if m.r.IntN(4) == 0 {
		ks.Limit(k, limit, nil)
		return
	}
	ks.Limit(k, limit, func() { m.evicted[ks][k]++ })
}

func TestModel(t *testing.T) {
	for _, collide := range []bool{false, true} {
		t.Run(fmt.Sprintf("collide %v", collide), func(t *testing.T) {
			property.Seeds(t, 0, 8, func(t *testing.T, seed uint64) {
				m := newModel(t, seed, 40<<10, collide)
				for range 6000 {
					m.step()
					check(t, m.store, m.keyspaces...)
				}
				if m.hits < 100 {
					t.Errorf("only %d hits", m.hits)
				}
				for _, ks := range m.keyspaces {
					ks.Drop()
				}
				check(t, m.store, m.keyspaces...)
				if m.store.Bytes() != 0 || m.store.hand != nil {
					t.Errorf("%d bytes left", m.store.Bytes())
				}
			})
		})
	}
}

func TestPutReplaces(t *testing.T) {
	s, _ := newStore(1<<20, true)
	ks, other := s.NewKeyspace(), s.NewKeyspace()
	first := put(ks, 1, &Entry{Kind: Denial})
	put(other, 1, &Entry{})
	second := put(ks, 1, &Entry{})
	if s.Get(key(ks, 1)) != second || ks.Len(Denial) != 0 || ks.Len(Success) != 1 || other.Len(Success) != 1 {
		t.Error("not replaced")
	}
	s.Remove(first) // has no effect
	if s.Get(key(ks, 1)) != second {
		t.Error("the replacement of an entry was removed with it")
	}
	check(t, s, ks, other)
}

func TestFindComparesKeys(t *testing.T) {
	s, _ := newStore(1<<20, true)
	ks := s.NewKeyspace()
	e := put(ks, 1, &Entry{})
	if s.find(e.hash, key(ks, 1)) != e || s.find(e.hash, key(ks, 2)) != nil || s.find(e.hash+1, key(ks, 2)) != nil {
		t.Error("found an entry of another key")
	}
}

func TestPutTooLarge(t *testing.T) {
	s, _ := newStore(64<<10, false)
	ks := s.NewKeyspace()
	for n := range 20 {
		put(ks, n, &Entry{})
	}
	put(ks, 7, &Entry{StateSize: 64 << 10})
	if s.Get(key(ks, 7)) != nil {
		t.Error("an entry larger than the budget was stored, or the old one is left")
	}
	if ks.Len(Success) != 19 {
		t.Errorf("%d others left, want 19", ks.Len(Success))
	}
	check(t, s, ks)
}

func TestNewBuckets(t *testing.T) {
	for budget, want := range map[int64]int{
		-1: 1 << 10, 0: 1 << 10, 512 << 10: 1 << 10, 512<<10 + 512: 1 << 11, DefaultBudget: 1 << 16, 1 << 40: 1 << 20,
	} {
		if got := len(NewStore(budget).buckets); got != want {
			t.Errorf("budget %d: %d buckets, want %d", budget, got, want)
		}
	}
}

func TestGetAllocatesNothing(t *testing.T) {
	s, _ := newStore(1<<20, true)
	ks := s.NewKeyspace()
	for n := range 5 {
		put(ks, n, &Entry{})
	}
	stored, missing := key(ks, 3), key(ks, 77)
	if n := testing.AllocsPerRun(1000, func() {
		if s.Get(stored) == nil || s.Get(missing) != nil {
			t.Error("wrong result of Get")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
