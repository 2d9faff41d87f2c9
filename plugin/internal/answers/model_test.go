package answers

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/property"
)

// model is the slow version of a store: what was put last under each key, without eviction.
type model struct {
	t       *testing.T
	r       *rand.Rand
	store   *Store
	clock   *clock
	spaces  []*Keyspace
	last    map[string]*Entry
	dropped map[*Keyspace]bool
	evicted map[*Keyspace]*[kinds]int
	bounds  [8]generation
	hits    int
}

func newModel(t *testing.T, seed uint64, budget int64, collide bool) *model {
	m := &model{
		t: t, r: rand.New(rand.NewPCG(seed, 4)),
		last: map[string]*Entry{}, dropped: map[*Keyspace]bool{}, evicted: map[*Keyspace]*[kinds]int{},
	}
	m.store, m.clock = newStore(budget, collide)
	for range 3 {
		m.addSpace()
	}
	return m
}

func (m *model) addSpace() {
	sp := m.store.NewKeyspace()
	m.spaces = append(m.spaces, sp)
	m.evicted[sp] = new([kinds]int)
	for k := range kinds {
		sp.Show(k, new(gauge))
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
		for i := range m.r.IntN(MaxBounds + 1) {
			g := &m.bounds[m.r.IntN(len(m.bounds))]
			e.Bounds[i] = Bound{g, g.Load()}
		}
	}
	return e
}

// step does something by chance.
func (m *model) step() {
	sp, n := m.spaces[m.r.IntN(len(m.spaces))], m.r.IntN(60)
	m.clock.Add(1)
	switch op := m.r.IntN(1000); {
	case op < 500:
		m.put(sp, n)
	case op < 900:
		m.get(sp, n)
	case op < 970:
		if e := m.last[string(key(sp, n))]; e != nil {
			m.store.Remove(e)
			m.store.Remove(e) // twice does no harm
			if m.store.Get(key(sp, n)) != nil {
				m.t.Fatal("removed, and still there")
			}
		}
	case op < 975:
		m.bounds[m.r.IntN(len(m.bounds))].Add(1)
	case op < 980:
		m.limit(sp)
	case op < 985:
		m.store.SetBudget(int64(m.r.IntN(60 << 10)))
	case op < 986:
		m.store.SetBudget(int64(m.r.IntN(2)-1) * 1000)
	case op < 998:
		m.store.SetBudget(100 << 10)
	default:
		m.store.Drop(sp)
		m.dropped[sp] = true
		m.addSpace()
		if oldest := m.spaces[0]; len(m.spaces) > 6 && m.dropped[oldest] {
			m.spaces = m.spaces[1:]
		}
	}
}

func (m *model) put(sp *Keyspace, n int) {
	e, before := m.entry(), *m.evicted[sp]
	put(sp, n, e)
	m.last[string(key(sp, n))] = e
	there := m.store.find(e.hash, []byte(e.key))
	if kept := !m.dropped[sp] && e.size <= m.store.Budget(); kept != (there == e) || there != nil && there != e {
		m.t.Fatalf("kept %v, there %p, put %p", kept, there, e)
	}
	if most := sp.capacity[e.Kind]; most > 0 && there == e && e.Cached && sp.cached[e.Kind] > most {
		m.t.Fatalf("%d entries, at most %d", sp.cached[e.Kind], most)
	}
	if after := *m.evicted[sp]; sp.evicted[Denial] == nil && after[Denial] != before[Denial] {
		m.t.Fatal("an eviction was told of where nobody asked")
	}
}

func (m *model) get(sp *Keyspace, n int) {
	k := key(sp, n)
	e := m.store.Get(k)
	if e != nil {
		m.hits++
	}
	if e != nil && (e != m.last[string(k)] || e.key != string(k) || e.keyspace != sp) {
		m.t.Fatalf("got %p, last put %p", e, m.last[string(k)])
	}
	if e != nil && e.credit.Load() <= 0 {
		m.t.Fatal("no credit after use")
	}
	if e != nil && m.dropped[sp] {
		m.t.Fatal("an entry of a space that is dropped")
	}
}

func (m *model) limit(sp *Keyspace) {
	k := Kind(m.r.IntN(int(kinds)))
	most := m.r.IntN(20)
	if m.r.IntN(4) == 0 {
		sp.Limit(k, most, nil)
		return
	}
	sp.Limit(k, most, func() { m.evicted[sp][k]++ })
}

func TestModel(t *testing.T) {
	for _, collide := range []bool{false, true} {
		t.Run(fmt.Sprintf("collide %v", collide), func(t *testing.T) {
			property.Seeds(t, 0, 8, func(t *testing.T, seed uint64) {
				m := newModel(t, seed, 40<<10, collide)
				for range 6000 {
					m.step()
					check(t, m.store, m.spaces...)
				}
				if m.hits < 100 {
					t.Errorf("only %d hits, so that little was tested", m.hits)
				}
				for _, sp := range m.spaces {
					m.store.Drop(sp)
				}
				check(t, m.store, m.spaces...)
				if m.store.Bytes() != 0 || m.store.hand != nil {
					t.Errorf("%d bytes left", m.store.Bytes())
				}
			})
		})
	}
}

func TestPutReplaces(t *testing.T) {
	s, _ := newStore(1<<20, true)
	sp, other := s.NewKeyspace(), s.NewKeyspace()
	first := put(sp, 1, &Entry{Kind: Denial})
	put(other, 1, &Entry{})
	second := put(sp, 1, &Entry{})
	if s.Get(key(sp, 1)) != second || sp.Len(Denial) != 0 || sp.Len(Success) != 1 || other.Len(Success) != 1 {
		t.Error("not replaced")
	}
	s.Remove(first) // which is not there any more
	if s.Get(key(sp, 1)) != second {
		t.Error("what replaced an entry was removed with it")
	}
	check(t, s, sp, other)
}

func TestFindComparesKeys(t *testing.T) {
	s, _ := newStore(1<<20, true)
	sp := s.NewKeyspace()
	e := put(sp, 1, &Entry{})
	if s.find(e.hash, key(sp, 1)) != e || s.find(e.hash, key(sp, 2)) != nil || s.find(e.hash+1, key(sp, 2)) != nil {
		t.Error("found by the hash alone")
	}
}

func TestPutTooLarge(t *testing.T) {
	s, _ := newStore(64<<10, false)
	sp := s.NewKeyspace()
	for n := range 20 {
		put(sp, n, &Entry{})
	}
	put(sp, 7, &Entry{StateSize: 64 << 10})
	if s.Get(key(sp, 7)) != nil {
		t.Error("kept what is larger than the budget, or what it replaces")
	}
	if sp.Len(Success) != 19 {
		t.Errorf("%d others left, want 19", sp.Len(Success))
	}
	check(t, s, sp)
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
	sp := s.NewKeyspace()
	for n := range 5 {
		put(sp, n, &Entry{})
	}
	there, missing := key(sp, 3), key(sp, 77)
	if n := testing.AllocsPerRun(1000, func() {
		if s.Get(there) == nil || s.Get(missing) != nil {
			t.Error("wrong")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
