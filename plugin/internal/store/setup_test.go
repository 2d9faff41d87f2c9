package store

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// generation is a Generation that a test advances.
type generation struct{ atomic.Uint64 }

// gauge is a Gauge that a test reads.
type gauge struct{ number float64 }

func (g *gauge) Add(change float64) { g.number += change }

// clock is the time of a store in a test.
type clock struct{ atomic.Int64 }

func (c *clock) now() time.Duration { return time.Duration(c.Load()) }

// newStore returns a store with a clock. With collide it has one bucket, so that all keys collide.
func newStore(budget int64, collide bool) (*Store, *clock) {
	s, c := NewStore(budget), new(clock)
	s.now = c.now
	if collide {
		s.buckets = make([]atomic.Pointer[Entry], 1)
	}
	return s, c
}

// key returns the key of a question with a number in a keyspace.
func key(ks *Keyspace, n int) []byte {
	name := binary.BigEndian.AppendUint32([]byte{4}, uint32(n))
	query := append(append(make([]byte, wire.HeaderLen), name...), 0)
	q := wire.Query{NameLen: 6, Type: dns.TypeA, Class: dns.ClassINET}
	return ks.Key(nil, query, &q)
}

// put stores an entry under the key of a number.
func put(ks *Keyspace, n int, e *Entry) *Entry {
	ks.store.Put(ks, key(ks, n), e)
	return e
}

// until returns the Validity that ends when a Generation differs from a number.
func until(g validity.Generation, number uint64) validity.Validity {
	return validity.Validity{Bounds: [validity.MaxBounds]validity.Bound{{Generation: g, Number: number}}}
}

// newRecord parses a record.
func newRecord(t testing.TB, text string) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	return rr
}

// message returns a reply to a question, with records as text in the answer section.
func message(t testing.TB, name string, rrtype uint16, answers ...string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, rrtype)
	m.Response = true
	for _, s := range answers {
		m.Answer = append(m.Answer, newRecord(t, s))
	}
	return m
}

// longest is a name of 255 bytes in wire form, tooLong one of 256.
var (
	longest = strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 61) + "."
	tooLong = strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 62) + "."
)

// longestList is the data of a search list of the maximum length. Parse does not check that they are valid suffixes.
var longestList = strings.Repeat("s", wire.MaxSearchList)

func searchList(data string) dns.EDNS0 {
	return &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: []byte(data)}
}

// withOptions adds an OPT record with options.
func withOptions(options ...dns.EDNS0) func(*dns.Msg) {
	return func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = options
	}
}

func edns(size uint16, do bool) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, do) }
}

// newQuery returns a packed query, after a change of the message.
func newQuery(t testing.TB, name string, rrtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, rrtype)
	if change != nil {
		change(m)
	}
	return packMsg(t, m)
}

// addQueries adds malformed and valid queries to a corpus.
func addQueries(f *testing.F) {
	for _, b := range malformedFiles(f) {
		f.Add(b)
	}
	f.Add(newQuery(f, "svc.Example.", dns.TypeA, nil))
	f.Add(newQuery(f, longest, dns.TypeSRV, edns(1232, true)))
	caller := &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: []byte{1, 1, 'n'}}
	f.Add(newQuery(f, longest, dns.TypeSRV, withOptions(caller)))
	f.Add(newQuery(f, "a.", dns.TypeSRV, withOptions(caller, caller)))
	f.Add(newQuery(f, longest, dns.TypeSRV, withOptions(searchList(longestList))))
	f.Add(newQuery(f, "a.", dns.TypeSRV, withOptions(searchList("\x01b\x00"), caller)))
	f.Add(newQuery(f, "a.", dns.TypeSRV, withOptions(&dns.EDNS0_LOCAL{Code: wire.OptionCaller}, searchList(""))))
}

// malformedFiles returns the malformed queries of package wire's tests.
func malformedFiles(t testing.TB) (all [][]byte) {
	t.Helper()
	names, err := filepath.Glob("../wire/testdata/malformed/*.bin")
	if err != nil || len(names) == 0 {
		t.Fatal("no files", err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// packMsg packs a message.
func packMsg(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unpackMsg unpacks a message.
func unpackMsg(t testing.TB, b []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatal(err)
	}
	return m
}

// queryFor returns the query that a message is or that it answers.
func queryFor(m *dns.Msg) *dns.Msg {
	query := &dns.Msg{Question: m.Question}
	query.Id, query.RecursionDesired, query.AuthenticatedData, query.CheckingDisabled = m.Id, m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled
	if opt := m.IsEdns0(); opt != nil {
		query.Extra = []dns.RR{opt}
	}
	return query
}

// queryOf returns the query of a message, packed and parsed.
func queryOf(t testing.TB, m *dns.Msg) (query []byte, q wire.Query) {
	t.Helper()
	query, ok := QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), queryFor(m))
	if !ok {
		t.Fatalf("no query from %v", m)
	}
	return query, q
}

// check asserts that buckets, ring and counters have the same entries.
func check(t testing.TB, s *Store, keyspaces ...*Keyspace) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	ring := map[*Entry]bool{}
	var bytes int64
	counts, cached := map[*Keyspace][kinds]int64{}, map[*Keyspace][kinds]int64{}
	for e := s.hand; e != nil; {
		if e.newer.older != e || e.older.newer != e {
			t.Fatal("the ring has an inconsistent link")
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
			if found++; !ring[e] || s.bucket(e.hash) != &s.buckets[i] || e.hash != s.hash([]byte(e.key)) {
				t.Fatal("a bucket has an entry that is not in the ring, or that belongs to another bucket")
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
	for _, ks := range keyspaces {
		for k := range kinds {
			if int64(ks.Len(k)) != counts[ks][k] {
				t.Fatalf("keyspace %d: %d entries of kind %v, counted %d", ks.ID(), counts[ks][k], k, ks.Len(k))
			}
			if ks.cached[k] != cached[ks][k] {
				t.Fatalf("keyspace %d: %d cached entries of kind %v, counted %d", ks.ID(), cached[ks][k], k, ks.cached[k])
			}
			for _, g := range ks.gauges[k] {
				if shows, ok := g.(*gauge); ok && shows.number != float64(cached[ks][k]) {
					t.Fatalf("keyspace %d: %d cached entries of kind %v, the gauge shows %v", ks.ID(), cached[ks][k], k, shows.number)
				}
			}
		}
	}
}
