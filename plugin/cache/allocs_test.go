package cache

import (
	"context"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestAllocations limits the allocations of a hit to those of the message for the plugins in front. Hits of the fast path
// do not create a message.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name, reply string
		limit       float64
	}{
		{"A", "NOERROR; " + a("www.example.", 300), 8},
		{"NXDOMAIN", denial("NXDOMAIN", 60, 60), 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\nprefetch 10\n}")
			b.replies(c.reply)
			b.query("www.example. A")
			r, w, ctx := query("www.example. A"), new(client), context.Background()
			if n := testing.AllocsPerRun(1000, func() {
				if _, err := b.ServeDNS(ctx, w, r); err != nil {
					t.Error(err)
				}
			}); n > c.limit {
				t.Errorf("%v allocations, the limit is %v", n, c.limit)
			}
			b.wantQueries(1)
		})
	}
}

// TestReadReplyAllocations limits the allocations for a reply in wire form to those of the stored entry.
func TestReadReplyAllocations(t *testing.T) {
	if underRace {
		t.Skip("sync.Pool drops buffers")
	}
	const (
		entry      = 1 // with the state
		packed     = 1 // with the offsets
		options    = 1
		popularity = 1
		compressed = 2 // the answer, and its bytes
		key        = 1
	)
	for _, tt := range []struct {
		reply, options string // the name of an ordinary reply
		limit          float64
	}{
		{"address", "", entry + packed + key},
		{"aliases", "", entry + packed + key},
		{"nonexistent name", "", entry + packed + key},
		{"address", "prefetch 10", entry + packed + key + popularity},
		{"extended error", "", entry + packed + key + options},
		{"search list not tried", "", entry + packed + key},
		{"search list without data", "", 3*(entry+packed+key) + options}, // with two candidates
		{"services longer than 512 bytes", "", entry + packed + key + compressed},
	} {
		t.Run(tt.reply+" "+tt.options, func(t *testing.T) {
			c := newWireCache(t, ".", tt.options)
			q, packed, key, reply := ordinaryReply(t, c, tt.reply)
			var m wire.Reply
			query := &clientQuery{Query: q, packed: packed, key: key, counters: c.counters("")}
			if n := testing.AllocsPerRun(1000, func() {
				m.Parse(reply)
				r := c.examine(query, &m, &noProperties, nil)
				if c.storeReply(&r, nil) == nil {
					t.Fatal("not stored")
				}
			}); n > tt.limit {
				t.Errorf("%v allocations, the limit is %v", n, tt.limit)
			}
		})
	}
}

// ordinaryReply returns one of ordinaryReplies with its query and key.
func ordinaryReply(t testing.TB, c *Cache, name string) (q wire.Query, packed, key, reply []byte) {
	t.Helper()
	i := slices.IndexFunc(ordinaryReplies, func(r struct{ name, query, reply string }) bool { return r.name == name })
	if i < 0 {
		t.Fatalf("no reply %q", name)
	}
	packed, q = wireQueryOf(t, query(ordinaryReplies[i].query))
	return q, packed, c.space.Key(nil, packed, &q), packReply(t, wireReplyTo(t, query(ordinaryReplies[i].query), ordinaryReplies[i].reply), true)
}

// BenchmarkReadReply compares a reply in wire form with the same reply as a message.
func BenchmarkReadReply(b *testing.B) {
	for _, name := range []string{"address", "aliases", "nonexistent name", "services longer than 512 bytes"} {
		c := newWireCache(b, ".", "")
		q, packed, key, reply := ordinaryReply(b, c, name)
		b.Run(name+"/wire", func(b *testing.B) {
			b.ReportAllocs()
			var m wire.Reply
			query := &clientQuery{Query: q, packed: packed, key: key, counters: c.counters("")}
			for b.Loop() {
				m.Parse(reply)
				r := c.examine(query, &m, &noProperties, nil)
				if c.storeReply(&r, nil) == nil {
					b.Fatal("not stored")
				}
			}
		})
		b.Run(name+"/message", func(b *testing.B) {
			query := kit.Unpack(b, packed)
			client := &clientQuery{Query: q, msg: query, packed: packed, key: key, counters: c.counters("")}
			b.ReportAllocs()
			for b.Loop() {
				m := kit.Unpack(b, reply)
				if c.storedResult(client, m, new(store.Recorded), 0, "", false).entry == nil {
					b.Fatal("not stored")
				}
			}
		})
	}
}
