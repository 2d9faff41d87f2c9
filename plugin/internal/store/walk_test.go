package store

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

func TestAll(t *testing.T) {
	s := NewStore(DefaultBudget)
	k, other := s.NewKeyspace(), s.NewKeyspace()
	var want []string
	for i := range 3000 { // more than there are buckets
		key := fmt.Sprintf("%04d", i)
		s.Put(k, []byte(key), new(Entry))
		s.Put(other, []byte("other"+key), new(Entry))
		want = append(want, key)
	}
	var got []string
	for e := range k.All() {
		got = append(got, string(e.Key()))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
	n := 0
	for range k.All() {
		if n++; n == 10 {
			break
		}
	}
	if n != 10 {
		t.Errorf("the loop has not ended: %d", n)
	}
	k.Drop()
	for e := range k.All() {
		t.Errorf("entry %q of a dropped keyspace", e.Key())
	}
}

// TestAllConcurrent replaces and removes entries meanwhile: all those that remain are found, and at most two of a key.
func TestAllConcurrent(t *testing.T) {
	s := NewStore(DefaultBudget)
	k := s.NewKeyspace()
	const kept = 200
	for i := range kept {
		s.Put(k, fmt.Appendf(nil, "kept %d", i), new(Entry))
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			s.Put(k, fmt.Appendf(nil, "kept %d", i%kept), new(Entry))
			e := new(Entry)
			s.Put(k, fmt.Appendf(nil, "removed %d", i), e)
			s.Remove(e)
		}
	})
	for range 50 {
		found := map[string]int{}
		for e := range k.All() {
			found[string(e.Key())]++
		}
		for i := range kept {
			if n := found[fmt.Sprintf("kept %d", i)]; n < 1 || n > 2 {
				t.Errorf("kept %d: %d entries", i, n)
			}
		}
	}
	close(stop)
	writer.Wait()
}

// TestAppendReplyKey compares the key of a reply with that of its query.
func TestAppendReplyKey(t *testing.T) {
	k := NewStore(DefaultBudget).NewKeyspace()
	for _, tt := range []struct {
		name   string
		qtype  uint16
		do, cd bool
	}{
		{"www.example.", dns.TypeA, false, false},
		{"WWW.Example.", dns.TypeAAAA, true, false},
		{".", dns.TypeNS, false, true},
		{`a\.b\000.example.`, dns.TypeTXT, true, true},
	} {
		m := new(dns.Msg).SetQuestion(tt.name, tt.qtype)
		m.CheckingDisabled = tt.cd
		if tt.do {
			m.SetEdns0(1232, true)
		}
		query, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		reply, err := new(dns.Msg).SetReply(m).Pack()
		if err != nil {
			t.Fatal(err)
		}
		var q wire.Query
		if !q.Parse(query) {
			t.Fatalf("%s is not parsed", tt.name)
		}
		if got, ok := k.AppendReplyKey(nil, reply, tt.do, tt.cd); !ok || !slices.Equal(got, k.Key(nil, query, &q)) {
			t.Errorf("%s: %q, %t", tt.name, got, ok)
		}
		for n := range len(reply) {
			if _, ok := k.AppendReplyKey(nil, reply[:n], tt.do, tt.cd); ok {
				t.Errorf("%s: the first %d bytes of the reply have a key", tt.name, n)
			}
		}
	}
}
