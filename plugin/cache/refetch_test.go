package cache

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// wireOnly is inBubble for queries in wire form alone.
func wireOnly(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name+" "+inWireForm, func(t *testing.T) { synctest.Test(t, test) })
}

// TestRefetch has a session invalidate answers: popular ones are fetched again, with the same question.
func TestRefetch(t *testing.T) {
	for name, tt := range map[string]struct {
		query   string
		hits    int
		refetch bool
	}{
		"popular":            {"w. A", 1, true},
		"served once":        {"w. A", 0, false},
		"DO, CD":             {"w. A +do +cd", 3, true},
		"search list":        {"w.a. A +search:a.,b.", 1, true},
		"another type":       {"w. TXT", 1, true},
		"upper case":         {"W. A", 1, true},
		"without RD, served": {"w. A", 2, true},
	} {
		wireOnly(t, name, func(t *testing.T) {
			b := newCoherentCache(t, "cache")
			b.vouched("NXDOMAIN tried:a.; authority; . 5 IN SOA ns. root. 1 2 3 4 5", 1)
			if !strings.Contains(tt.query, "search") {
				b.vouched(denial("NXDOMAIN", 5, 5), 1)
			}
			for range tt.hits + 1 {
				b.query(tt.query)
			}
			b.pass(time.Minute)
			b.invalidate(1)
			synctest.Wait()
			want := 1
			if tt.refetch {
				want++
			}
			b.wantQueries(want)
			if got := value(t, b.counters("").refetches); got != float64(want-1) {
				t.Errorf("%v refetches, want %d", got, want-1)
			}
			if n := refetching.Load(); n != 0 {
				t.Errorf("%d refetches are in progress", n)
			}
			b.query(tt.query)
			b.wantQueries(2)
			first, last := b.seen[0], b.seen[len(b.seen)-1]
			if !strings.EqualFold(first.Question[0].Name, last.Question[0].Name) || first.Question[0].Qtype != last.Question[0].Qtype ||
				first.CheckingDisabled != last.CheckingDisabled || !last.RecursionDesired {
				t.Errorf("refetched with\n%v, the first query was\n%v", last, first)
			}
			b.invalidate(1)
			synctest.Wait()
			b.wantQueries(2 + map[bool]int{true: 1}[tt.refetch]) // served once after the refetch
		})
	}
	chainOnly(t, "not through the plugin chain", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.query("w. A")
		b.invalidate(1)
		synctest.Wait()
		b.wantQueries(1)
	})
}

var expandMetrics = expand.NewMetrics("cache_test")

// TestRefetchOfParts has an answer that was made of replies for two candidates of a search list: hits of the answer are hits of the
// replies, which are refetched.
func TestRefetchOfParts(t *testing.T) {
	const candidate, bare = "w.a.", "w."
	for _, form := range []string{"chain", "wire"} {
		t.Run(form, func(t *testing.T) {
			b := newCoherentCache(t, "cache")
			b.store, b.space, b.now = store.Shared, store.Shared.NewKeyspace(), validity.Now // those of the expander
			b.limit()
			b.open()
			b.SetExchanger(exchanger{b.Cache}, nil)
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				reply, handle := denial("NXDOMAIN", 60, 60), uint64(1)
				if r.Question[0].Name == bare {
					reply, handle = address(1, 60), 2
				}
				giveVoucher(ctx, r, b.session, handle)
				m := replyTo(t, r, reply)
				return m.Rcode, w.WriteMsg(m)
			})
			x := &expand.Expander{Plugin: "test", Next: b.Cache, Block: &block.Block{Keyspace: b.space}, Metrics: expandMetrics}
			question := &expand.Question{Base: bare, Suffixes: []string{"a."}, ListID: 1}
			for range 2 {
				w, r := new(client), query(candidate+" A")
				if form == "chain" {
					if _, err := x.ServeDNS(context.Background(), w, r, question); err != nil {
						t.Fatal(err)
					}
				} else {
					b.expand(x, w, r, question)
				}
				if got := brief(w.reply); !strings.HasSuffix(got, "192.0.2.1") {
					t.Fatalf("got %s", got)
				}
			}
			b.wantQueries(2)
			for handle := range uint64(2) {
				b.invalidate(handle + 1)
				kit.Eventually(t, fmt.Sprintf("a refetch of the reply with handle %d", handle+1), func() bool {
					return b.received() >= int(handle)+3 // #nosec G115 -- small
				})
			}
		})
	}
}

// expand answers a query in wire form by an Expander in front of the cache.
func (b *testCache) expand(x *expand.Expander, w *client, r *dns.Msg, question *expand.Question) {
	b.t.Helper()
	packed, err := r.Pack()
	a := &answerer{cache: b.Cache, w: w, r: r, done: make(chan struct{})}
	q := &wirechain.Request{Packed: packed, Answerer: a}
	if err != nil || !q.Parse(packed) {
		b.t.Fatal(err)
	}
	q.Key = b.space.Key(nil, packed, &q.Query)
	var out batch.Batch
	x.ServeWire(&out, q, r.Question[0].Name, question)
	out.Flush()
	<-a.done
}

// TestRefetchIsBounded has many popular answers invalidated at once.
func TestRefetchIsBounded(t *testing.T) {
	wireOnly(t, "many", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched("NOERROR; w. 5 IN A 192.0.2.1", 1)
		const n = maxRefetching + 40
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			giveVoucher(ctx, r, b.session, 1)
			return 0, w.WriteMsg(replyTo(t, r, fmt.Sprintf("NOERROR; %s 5 IN A 192.0.2.1", r.Question[0].Name)))
		})
		for i := range n {
			b.query(fmt.Sprintf("w%d. A", i))
			b.query(fmt.Sprintf("w%d. A", i))
		}
		b.wantQueries(n)
		b.slowly(time.Second, "SERVFAIL")
		b.invalidate(1)
		synctest.Wait()
		b.wantQueries(n + maxRefetching)
		c := b.counters("")
		if got := [3]float64{value(t, c.refetches), value(t, c.skipped), value(t, c.invalidated)}; got != [3]float64{maxRefetching, 40, n} {
			t.Errorf("refetches, skipped and invalidated %v, want %d, 40 and %d", got, maxRefetching, n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if left := refetching.Load(); left != 0 {
			t.Errorf("%d refetches are in progress", left)
		}
	})
}

// TestRefetchJoined has a query wait for the answer that is being refetched.
func TestRefetchJoined(t *testing.T) {
	wireOnly(t, "joined", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.query("w. A")
		b.slowly(time.Second, address(2, 5))
		b.invalidate(1)
		b.want("w. A", address(2, 5))
		b.wantQueries(2)
	})
}
