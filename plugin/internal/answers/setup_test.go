package answers

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// generation is a Generation that a test advances.
type generation struct{ atomic.Uint64 }

// gauge is a Gauge that a test reads.
type gauge struct{ number float64 }

func (g *gauge) Add(change float64) { g.number += change }

// clock is the time of a store in a test.
type clock struct{ atomic.Int64 }

func (c *clock) now() time.Duration { return time.Duration(c.Load()) }

// newStore returns a store with a clock, and with one bucket alone if asked for: then all keys collide.
func newStore(budget int64, collide bool) (*Store, *clock) {
	s, c := NewStore(budget), new(clock)
	s.now = c.now
	if collide {
		s.buckets = make([]atomic.Pointer[Entry], 1)
	}
	return s, c
}

// key returns the key of a question with a number in a space.
func key(sp *Keyspace, n int) []byte {
	name := binary.BigEndian.AppendUint32([]byte{4}, uint32(n))
	query := append(append(make([]byte, HeaderLen), name...), 0)
	q := Query{NameLen: 6, Type: dns.TypeA, Class: dns.ClassINET}
	return sp.Key(nil, query, &q)
}

// put puts an entry under a number.
func put(sp *Keyspace, n int, e *Entry) *Entry {
	sp.store.Put(sp, key(sp, n), e)
	return e
}

// message returns a reply to a question, with records as text in the answer section.
func message(t testing.TB, name string, rrtype uint16, answers ...string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, rrtype)
	m.Response = true
	for _, s := range answers {
		rr, err := dns.NewRR(s)
		if err != nil {
			t.Fatal(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	return m
}

// check asserts that buckets, ring and numbers tell of the same entries.
func check(t testing.TB, s *Store, spaces ...*Keyspace) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	ring := map[*Entry]bool{}
	var bytes int64
	counts, cached := map[*Keyspace][kinds]int64{}, map[*Keyspace][kinds]int64{}
	for e := s.hand; e != nil; {
		if e.newer.older != e || e.older.newer != e {
			t.Fatal("the ring is broken")
		}
		ring[e] = true
		bytes += e.size
		n := counts[e.keyspace]
		n[e.Kind]++
		counts[e.keyspace] = n
		if e.Cached {
			n := cached[e.keyspace]
			n[e.Kind]++
			cached[e.keyspace] = n
		}
		if e = e.newer; e == s.hand {
			break
		}
	}
	found := 0
	for i := range s.buckets {
		for e := s.buckets[i].Load(); e != nil; e = e.next.Load() {
			if found++; !ring[e] || s.bucket(e.hash) != &s.buckets[i] || e.hash != s.Hash([]byte(e.key)) {
				t.Fatal("a bucket has what does not belong there")
			}
		}
	}
	if found != len(ring) {
		t.Fatalf("%d entries in buckets, %d in the ring", found, len(ring))
	}
	if s.Bytes() != bytes {
		t.Fatalf("bytes %d, entries have %d", s.Bytes(), bytes)
	}
	if bytes > max(0, s.Budget()) {
		t.Fatalf("bytes %d, budget %d", bytes, s.Budget())
	}
	for _, sp := range spaces {
		for k := range kinds {
			if int64(sp.Len(k)) != counts[sp][k] {
				t.Fatalf("space %d: %d entries of kind %v, counted %d", sp.ID(), counts[sp][k], k, sp.Len(k))
			}
			if sp.cached[k] != cached[sp][k] {
				t.Fatalf("space %d: a cache keeps %d entries of kind %v, counted %d", sp.ID(), cached[sp][k], k, sp.cached[k])
			}
			for _, g := range sp.gauges[k] {
				if shows, ok := g.(*gauge); ok && shows.number != float64(cached[sp][k]) {
					t.Fatalf("space %d: a cache keeps %d entries of kind %v, its gauge is %v", sp.ID(), cached[sp][k], k, shows.number)
				}
			}
		}
	}
}
