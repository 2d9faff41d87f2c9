package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// numbered returns an entry whose address is a number, with its key and the query for it.
func numbered(t testing.TB, ks *Keyspace, n int) (e *Entry, key, query []byte, q wire.Query) {
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
	query, q = queryOf(t, m)
	return e, ks.Key(nil, query, &q), query, q
}

// TestConcurrent asserts that readers get the answer to their question during every kind of change.
func TestConcurrent(t *testing.T) {
	const numbers, steps = 64, 6000
	for _, collide := range []bool{false, true} {
		t.Run(fmt.Sprintf("collide %v", collide), func(t *testing.T) {
			s, _ := newStore(20<<10, collide) // for about half of the numbers
			ks := s.NewKeyspace()
			var readers, writers sync.WaitGroup
			var ended atomic.Bool
			var hits atomic.Int64
			for seed := range 3 {
				readers.Go(func() {
					read(t, s, ks, rand.New(rand.NewPCG(uint64(seed), 1)), &ended, &hits, numbers)
				})
			}
			for seed := range 2 {
				writers.Go(func() {
					r := rand.New(rand.NewPCG(uint64(seed), 2))
					for range steps {
						write(t, s, ks, r, numbers)
					}
				})
			}
			writers.Go(func() {
				for range steps / 100 {
					other := s.NewKeyspace()
					for n := range 3 {
						put(other, n, &Entry{Costly: true})
					}
					other.Drop()
				}
			})
			writers.Wait()
			ended.Store(true)
			readers.Wait()
			check(t, s, ks)
			if hits.Load() == 0 {
				t.Error("no hit")
			}
		})
	}
}

func write(t *testing.T, s *Store, ks *Keyspace, r *rand.Rand, numbers int) {
	e, key, _, _ := numbered(t, ks, r.IntN(numbers))
	e.Kind = Kind(r.IntN(int(kinds)))
	switch r.IntN(20) {
	case 0:
		if old := s.Get(key); old != nil {
			s.Remove(old)
		}
	case 1:
		s.SetBudget(int64(10+r.IntN(20)) << 10)
	case 2:
		ks.Limit(e.Kind, r.IntN(numbers), func() {})
	default:
		s.Put(ks, key, e)
	}
}

func read(t *testing.T, s *Store, ks *Keyspace, r *rand.Rand, ended *atomic.Bool, hits *atomic.Int64, numbers int) {
	type lookup struct {
		key, query []byte
		q          wire.Query
	}
	lookups := make([]lookup, numbers)
	for n := range lookups {
		_, key, query, q := numbered(t, ks, n)
		lookups[n] = lookup{key, query, q}
	}
	buf := make([]byte, 0, dns.MinMsgSize)
	for !ended.Load() {
		n := r.IntN(numbers)
		e := s.Get(lookups[n].key)
		if e == nil {
			continue
		}
		hits.Add(1)
		p := e.Patch(0)
		b := e.Plain.AppendReply(buf, lookups[n].query, &lookups[n].q, &p)
		m := new(dns.Msg)
		if err := m.Unpack(b); err != nil {
			t.Error(err)
			return
		}
		if a, ok := m.Answer[0].(*dns.A); !ok || !a.A.Equal(net.IP(binary.BigEndian.AppendUint32(nil, uint32(n)))) {
			t.Errorf("queried %d, got %v", n, m)
			return
		}
	}
}

// TestBudgetDuringHits asserts that entries fit the budget after every Put while readers restore their credits.
func TestBudgetDuringHits(t *testing.T) {
	s, _, ks := sized(8)
	var readers sync.WaitGroup
	var ended atomic.Bool
	for range 3 {
		readers.Go(func() {
			for !ended.Load() {
				for n := range 16 {
					s.Get(key(ks, n))
				}
			}
		})
	}
	for n := range 20000 {
		put(ks, n%16, &Entry{Costly: true})
		if s.Bytes() > s.Budget() {
			t.Errorf("%d bytes, budget %d", s.Bytes(), s.Budget())
			break
		}
	}
	ended.Store(true)
	readers.Wait()
	check(t, s, ks)
}
