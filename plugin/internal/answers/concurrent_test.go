package answers

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// numbered returns an entry whose only address is the number, with the query for it.
func numbered(t testing.TB, sp *Keyspace, n int) (e *Entry, key, query []byte, q Query) {
	t.Helper()
	m := message(t, fmt.Sprintf("n%d.example.", n), dns.TypeA)
	m.Answer = []dns.RR{&dns.A{
		Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30},
		A:   binary.BigEndian.AppendUint32(nil, uint32(n)),
	}}
	e = new(Entry)
	if err := e.Fill(m); err != nil {
		t.Fatal(err)
	}
	query, ok := q.FromMsg(make([]byte, 0, MaxQuery), m)
	if !ok {
		t.Fatal("no query")
	}
	return e, sp.Key(nil, query, &q), query, q
}

// TestConcurrent has readers ask while everything else happens: what they get is always the answer to
// what they asked.
func TestConcurrent(t *testing.T) {
	const numbers, steps = 64, 6000
	for _, collide := range []bool{false, true} {
		t.Run(fmt.Sprintf("collide %v", collide), func(t *testing.T) {
			s, _ := newStore(20<<10, collide) // for about half of them
			sp := s.NewKeyspace()
			var readers, writers sync.WaitGroup
			var ended atomic.Bool
			var hits atomic.Int64
			for seed := range 3 {
				readers.Go(func() {
					read(t, s, sp, rand.New(rand.NewPCG(uint64(seed), 1)), &ended, &hits, numbers)
				})
			}
			for seed := range 2 {
				writers.Go(func() {
					r := rand.New(rand.NewPCG(uint64(seed), 2))
					for range steps {
						write(t, s, sp, r, numbers)
					}
				})
			}
			writers.Go(func() {
				for range steps / 100 {
					other := s.NewKeyspace()
					for n := range 3 {
						put(other, n, &Entry{Costly: true})
					}
					s.Drop(other)
				}
			})
			writers.Wait()
			ended.Store(true)
			readers.Wait()
			check(t, s, sp)
			if hits.Load() == 0 {
				t.Error("no hit")
			}
		})
	}
}

func write(t *testing.T, s *Store, sp *Keyspace, r *rand.Rand, numbers int) {
	e, key, _, _ := numbered(t, sp, r.IntN(numbers))
	e.Kind = Kind(r.IntN(int(kinds)))
	switch r.IntN(20) {
	case 0:
		if there := s.Get(key); there != nil {
			s.Remove(there)
		}
	case 1:
		s.SetBudget(int64(10+r.IntN(20)) << 10)
	case 2:
		sp.Limit(e.Kind, r.IntN(numbers), func() {})
	default:
		s.Put(sp, key, e)
	}
}

func read(t *testing.T, s *Store, sp *Keyspace, r *rand.Rand, ended *atomic.Bool, hits *atomic.Int64, numbers int) {
	type ask struct {
		key, query []byte
		q          Query
	}
	asks := make([]ask, numbers)
	for n := range asks {
		_, key, query, q := numbered(t, sp, n)
		asks[n] = ask{key, query, q}
	}
	buf := make([]byte, 0, dns.MinMsgSize)
	for !ended.Load() {
		n := r.IntN(numbers)
		e := s.Get(asks[n].key)
		if e == nil {
			continue
		}
		hits.Add(1)
		p := e.Patch(0)
		b := e.Plain.AppendReply(buf, asks[n].query, &asks[n].q, &p)
		m := new(dns.Msg)
		if err := m.Unpack(b); err != nil {
			t.Error(err)
			return
		}
		if a, ok := m.Answer[0].(*dns.A); !ok || !a.A.Equal(net.IP(binary.BigEndian.AppendUint32(nil, uint32(n)))) {
			t.Errorf("asked for %d, got %v", n, m)
			return
		}
	}
}

// TestConcurrentUseKeepsBudget asserts that the budget holds after every Put, however much is read.
func TestConcurrentUseKeepsBudget(t *testing.T) {
	s, _, sp := sized(8)
	var readers sync.WaitGroup
	var ended atomic.Bool
	for range 3 {
		readers.Go(func() {
			for !ended.Load() {
				for n := range 16 {
					s.Get(key(sp, n))
				}
			}
		})
	}
	for n := range 20000 {
		put(sp, n%16, &Entry{Costly: true})
		if s.Bytes() > s.Budget() {
			t.Errorf("%d bytes, budget %d", s.Bytes(), s.Budget())
			break
		}
	}
	ended.Store(true)
	readers.Wait()
	check(t, s, sp)
}
