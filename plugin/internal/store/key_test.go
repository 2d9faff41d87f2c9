package store

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

// randomQuery returns a message. It has few names, types, classes and flags, so that many messages have equal keys.
func randomQuery(r *rand.Rand) *dns.Msg {
	names := []string{".", "a.", "A.", "b.a.", "B.a.", "b.A.", `b\.a.`, "ba.", `\001a.`, `\@.`, "`.", "[.", "{."}
	m := new(dns.Msg)
	m.Id = uint16(r.Uint32())
	m.Question = []dns.Question{{
		Name:   names[r.IntN(len(names))],
		Qtype:  []uint16{1, 28, 256, 0}[r.IntN(4)],
		Qclass: []uint16{1, 3}[r.IntN(2)],
	}}
	m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
	if r.IntN(2) == 0 {
		m.SetEdns0(uint16(r.Uint32()), r.IntN(2) == 0)
		// Some lists end in bytes that could be mistaken for the number of a view or the ID of a list.
		lists := []string{"", "\x01b\x00", "\x01b\x00\x01c\x00", "\x01b\x00\x02ab\x00", "\x00\x00\x00\x00", "\x02ab\x00"}
		if n := r.IntN(2 * len(lists)); n < len(lists) {
			m.IsEdns0().Option = []dns.EDNS0{searchList(lists[n])}
		}
	}
	return m
}

func TestAppendKey(t *testing.T) {
	property.Seeds(t, 4, 1, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		type slowKey struct {
			keyspace      uint32
			name          string
			rrtype, class uint16
			do, cd        bool
			searches      bool
			list          string
		}
		known, back := map[string]slowKey{}, map[slowKey]string{}
		for range 20000 {
			m := randomQuery(r)
			checkFromMsg(t, m)
			query, q := queryOf(t, m)
			keyspace := r.Uint32N(3) * 0x01010101
			key := AppendKey([]byte("in front"), keyspace, query, &q)
			if !bytes.HasPrefix(key, []byte("in front")) {
				t.Fatal("the prefix has changed")
			}
			key = key[len("in front"):]
			question := m.Question[0]
			slow := slowKey{keyspace, strings.ToLower(question.Name), question.Qtype, question.Qclass, q.DO, m.CheckingDisabled, q.Search != nil, string(q.Search)}
			if before, ok := known[string(key)]; ok && before != slow {
				t.Fatalf("one key for %+v and %+v", before, slow)
			}
			if before, ok := back[slow]; ok && before != string(key) {
				t.Fatalf("two keys for %+v: %x and %x", slow, before, key)
			}
			known[string(key)], back[slow] = slow, string(key)
			if name, _, err := dns.UnpackDomainName(KeyName(key), 0); err != nil || name != slow.name {
				t.Fatalf("name %q in the key, want %q (%v)", name, slow.name, err)
			}
			other := bytes.Clone(key)
			SetKeyspace(other, keyspace+1)
			if want := AppendKey(nil, keyspace+1, query, &q); !bytes.Equal(other, want) {
				t.Fatalf("in another keyspace %x, want %x", other, want)
			}
		}
		if len(known) < 3000 && property.Fixed() {
			t.Errorf("only %d keys", len(known))
		}
		t.Run("longest", func(t *testing.T) {
			var q wire.Query
			b := newQuery(t, longest, dns.TypeA, withOptions(searchList(longestList)))
			if !q.Parse(b) {
				t.Fatal("refused")
			}
			if n := len(appendKeyView(AppendKeyList(AppendKey(nil, 1, b, &q), 1), &View{Number: 1})); n != MaxKey {
				t.Errorf("length %d", n)
			}
		})
		t.Run("views and paths", func(t *testing.T) {
			numbers := []uint32{0, 1, 1 << 24, 0x01620000, 0x02616200, 0x03016200, 1<<32 - 1}
			nodes := [][2]string{{}, {"n", ""}, {"n", "z"}, {"nz", ""}, {"n", "\x01z"}, {"n\x01z", ""}, {strings.Repeat("n", 253), "z"}}
			for base := range maps.Clone(known) {
				if base[keyFlags]&(keyDO|keyCD) != 0 { // to limit the number of keys
					continue
				}
				for _, number := range numbers {
					path := string(AppendKeyList([]byte(base), number))
					more := []string{path}
					for _, node := range nodes {
						v := View{Number: number, Node: node[0], Zone: node[1]}
						more = append(more, string(appendKeyView([]byte(base), &v)))
					}
					for _, view := range numbers {
						more = append(more, string(appendKeyView([]byte(path), &View{Number: view})))
					}
					for _, key := range more {
						if was, twice := known[key]; twice {
							t.Fatalf("the key %x, from %x and number %x, is that of %+v", key, base, number, was)
						}
						if name := KeyName([]byte(key)); !bytes.Equal(name, KeyName([]byte(base))) {
							t.Fatalf("name %x in the key %x, from %x", name, key, base)
						}
						known[key] = slowKey{name: fmt.Sprintf("%x with %d", base, number)}
					}
				}
			}
		})
	})
}

// checkFromKey asserts that a query from a key has that key, and reports whether there is one.
func checkFromKey(t testing.TB, key []byte) bool {
	t.Helper()
	var q wire.Query
	packed, ok := QueryFromKey(&q, make([]byte, 0, wire.MaxQuery+wire.OptionLen+wire.MaxSearchList), key)
	if !ok {
		return false
	}
	var parsed wire.Query
	if !parsed.Parse(packed) || !parsed.RD || !parsed.EDNS || new(dns.Msg).Unpack(packed) != nil {
		t.Fatalf("key %x: invalid query %x", key, packed)
	}
	again := AppendKey(nil, 0, packed, &parsed)
	SetKeyspace(again, uint32(key[0])<<24|uint32(key[1])<<16|uint32(key[2])<<8|uint32(key[3]))
	if !bytes.Equal(again, key) {
		t.Fatalf("key %x: query %x has key %x", key, packed, again)
	}
	return true
}

func TestFromKey(t *testing.T) {
	store, _ := newStore(1<<20, false)
	ks := store.NewKeyspace()
	list, _ := searchlist.AppendSuffixes(nil, []string{"a.svc.cluster.local.", "svc.cluster.local."})
	for name, tt := range map[string]struct {
		change func(m *dns.Msg) *dns.Msg
		key    func(key []byte) []byte
		ok     bool
	}{
		"plain":          {func(m *dns.Msg) *dns.Msg { return m }, nil, true},
		"DO":             {func(m *dns.Msg) *dns.Msg { return m.SetEdns0(4096, true) }, nil, true},
		"CD":             {func(m *dns.Msg) *dns.Msg { m.CheckingDisabled = true; return m }, nil, true},
		"upper case":     {func(m *dns.Msg) *dns.Msg { m.Question[0].Name = "WWW.a.svc.cluster.local."; return m }, nil, true},
		"search list":    {func(m *dns.Msg) *dns.Msg { return searchlist.WithOption(m, list) }, nil, true},
		"root":           {func(m *dns.Msg) *dns.Msg { m.Question[0].Name = "."; return m }, nil, true},
		"another class":  {func(m *dns.Msg) *dns.Msg { m.Question[0].Qclass = dns.ClassCHAOS; return m }, nil, false},
		"a view":         {func(m *dns.Msg) *dns.Msg { return m }, func(key []byte) []byte { return appendKeyView(key, &View{Number: 7}) }, false},
		"a node":         {func(m *dns.Msg) *dns.Msg { return m }, func(key []byte) []byte { return appendKeyView(key, &View{Node: "n", Zone: "z"}) }, false},
		"a list by ID":   {func(m *dns.Msg) *dns.Msg { return m }, func(key []byte) []byte { return AppendKeyList(key, 7) }, false},
		"list of a view": {func(m *dns.Msg) *dns.Msg { return searchlist.WithOption(m, list) }, func(key []byte) []byte { return appendKeyView(key, &View{Number: 7}) }, false},
		"cut":            {func(m *dns.Msg) *dns.Msg { return m }, func(key []byte) []byte { return key[:len(key)-1] }, false},
		"empty":          {func(m *dns.Msg) *dns.Msg { return m }, func([]byte) []byte { return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			query, q := queryOf(t, tt.change(message(t, "www.a.svc.cluster.local.", dns.TypeSRV)))
			key := ks.Key(nil, query, &q)
			if tt.key != nil {
				key = tt.key(key)
			}
			if ok := checkFromKey(t, key); ok != tt.ok {
				t.Errorf("%t, want %t; key %x", ok, tt.ok, key)
			}
		})
	}
}

// FuzzFromKey makes queries from arbitrary keys, and from those of all queries that Parse accepts.
func FuzzFromKey(f *testing.F) {
	for _, seed := range [][]byte{nil, make([]byte, keyHead), make([]byte, keyHead+1), {0, 0, 0, 1, 0, 1, 0, 1, keySearch, 1, 'a', 0, 2, 1, 'b', 0}} {
		f.Add(seed)
	}
	f.Add(packMsg(f, new(dns.Msg).SetQuestion("www.example.", dns.TypeA).SetEdns0(1232, true)))
	f.Fuzz(func(t *testing.T, b []byte) {
		checkFromKey(t, b)
		var q wire.Query
		if !q.Parse(b) {
			return
		}
		key := AppendKey(nil, 7, b, &q)
		if !checkFromKey(t, key) && len(q.Search) <= wire.MaxSearchList {
			t.Fatalf("no query for key %x of query %x", key, b)
		}
	})
}

func TestKeyAllocatesNothing(t *testing.T) {
	var key [MaxKey]byte
	buf := make([]byte, 0, wire.MaxQuery)
	for name, b := range map[string][]byte{
		"plain":       newQuery(t, "svc.example.", dns.TypeA, nil),
		"upper":       newQuery(t, "Svc.Example.", dns.TypeA, edns(1232, true)),
		"long":        newQuery(t, longest, dns.TypeA, edns(1232, true)),
		"search list": newQuery(t, longest, dns.TypeA, withOptions(searchList(longestList), &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: []byte{1}})),
	} {
		t.Run(name, func(t *testing.T) {
			var q wire.Query
			if n := testing.AllocsPerRun(1000, func() {
				if !q.Parse(b) {
					t.Error("refused")
				}
				AppendKeyList(AppendKey(key[:0], 7, b, &q), 8)
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
			m := unpackMsg(t, b)
			if n := testing.AllocsPerRun(1000, func() {
				if _, ok := QueryFromMsg(&q, buf, m); !ok {
					t.Error("refused")
				}
			}); n != 0 {
				t.Errorf("%v allocations from a message", n)
			}
		})
	}
}
