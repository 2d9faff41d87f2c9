package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// outer queries the cache as a cache in front of it does, which needs the properties of the answer.
func (b *testCache) outer(text string) (string, *store.Recorded) {
	b.t.Helper()
	w, r := new(client), query(text)
	ctx, recorded := store.Record(context.Background(), r)
	if _, err := b.ServeDNS(ctx, w, r); err != nil && !errors.Is(err, errUpstream) {
		b.t.Errorf("%s: %v", text, err)
	}
	return brief(w.reply), recorded
}

// TestProperties checks that a cache in front gets the properties of hits, misses and shared replies.
func TestProperties(t *testing.T) {
	g, number := new(generation), &serial{7}
	bound := [validity.MaxBounds]validity.Bound{{Generation: g, Number: 0}}
	known := func(c *store.Properties, _ *dns.Msg) {
		c.Bounds, c.AnyCase, c.Serial = bound, true, number
	}
	tests := map[string]struct {
		corefile, reply string
		mark            func(c *store.Properties, r *dns.Msg)
		expires         time.Duration // after the query; 0 for never
		known           bool
	}{
		"by TTL":               {"cache", "NOERROR; " + a("w.", 60), nil, time.Minute, false},
		"by TTL, denied":       {"cache", "NXDOMAIN; " + zSOA, nil, time.Minute, false},
		"not cached":           {"cache", "NOERROR; " + a("w.", 0), nil, 0, false},
		"refused":              {"cache", "REFUSED", nil, 0, false},
		"by generation":        {"cache", "NOERROR; " + a("w.", 60), known, time.Minute, true},
		"by generation, alone": {"cache {\ndisable success\n}", "NOERROR; " + a("w.", 60), known, 0, true},
	}
	for name, tt := range tests {
		chainOnly(t, name, func(t *testing.T) {
			b := newTestCache(t, tt.corefile)
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(time.Second)
				if tt.mark != nil {
					tt.mark(store.PropertiesOf(ctx, r), r)
				}
				return 0, w.WriteMsg(replyTo(t, r, tt.reply))
			})
			check := func(what string, recorded *store.Recorded, expires time.Duration) {
				if expires != 0 && tt.expires == 0 {
					expires = 0
				}
				if recorded.Expires != expires {
					t.Errorf("%s: expires %v, want %v", what, recorded.Expires, expires)
				}
				if recorded.ByGeneration() != tt.known || !recorded.ForAll() {
					t.Errorf("%s: known %t, for all %t", what, recorded.ByGeneration(), recorded.ForAll())
				}
				if tt.known && (recorded.Bounds != bound || recorded.Serial != store.Serial(number) || !recorded.AnyCase) {
					t.Errorf("%s: got %+v", what, recorded.Properties)
				}
			}
			var wg sync.WaitGroup
			for i := range 3 { // the first is the leader; the others share its reply if possible
				wg.Go(func() {
					_, recorded := b.outer("w. A")
					if tt.known && tt.expires == 0 {
						check(fmt.Sprint("query ", i), recorded, 0) // not shared
						return
					}
					check(fmt.Sprint("query ", i), recorded, b.now()+tt.expires)
				})
			}
			wg.Wait()
			if tt.expires == 0 {
				return
			}
			stored := b.now()
			time.Sleep(10 * time.Second)
			_, recorded := b.outer("w. A")
			check("hit", recorded, stored+tt.expires)
			r := query("w. A")
			ctx, other := store.Record(context.Background(), r.Copy())
			if _, err := b.ServeDNS(ctx, new(client), r); err != nil {
				t.Error(err)
			}
			if other.Expires != 0 || other.ByGeneration() {
				t.Errorf("properties of another query: %+v", other.Properties)
			}
		})
	}
}

// TestProperties_Foreign checks that both its TTL and a change of the cluster end a reply that depends on both, and that no session
// vouches for it.
func TestProperties_Foreign(t *testing.T) {
	const notCached = "cache {\ndisable success\n}"
	for _, tt := range []struct {
		name, corefile string
		wait           time.Duration
		advance        bool
		queries        int // that the upstream receives, of two
	}{
		{"stored", "cache", time.Second, false, 1},
		{"the TTL has ended", "cache", time.Minute, false, 2},
		{"the cluster has changed", "cache", time.Second, true, 2},
		{"the cluster has changed, with serve_stale", "cache {\nserve_stale\n}", time.Second, true, 2},
		{"not cached", notCached, time.Second, false, 2},
	} {
		chainOnly(t, tt.name, func(t *testing.T) {
			b, g := newTestCache(t, tt.corefile), new(watchable)
			b.space.ByGeneration.Store(true)
			queries := 0
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				queries++
				p := store.PropertiesOf(ctx, r)
				p.DependOn(g)
				p.Foreign = true
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 60)))
			})
			b.want("w. A", "NOERROR; "+a("w.", 60))
			time.Sleep(tt.wait)
			if tt.advance {
				g.n++
			}
			_, recorded := b.outer("w. A")
			if queries != tt.queries {
				t.Errorf("the upstream received %d queries, want %d", queries, tt.queries)
			}
			if !recorded.Foreign || recorded.ByGeneration() || !recorded.Validity.ByGeneration() {
				t.Errorf("properties of the second reply: %+v", recorded.Properties)
			}
			var q wire.Query
			packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), query("w. A"))
			if !ok {
				t.Fatal("the query does not parse")
			}
			e := b.store.Get(b.space.Key(make([]byte, 0, store.MaxKey), packed, &q))
			if (e == nil) != (tt.corefile == notCached) {
				t.Fatalf("entry %v", e)
			}
			if e != nil && len(e.Watchable(nil)) > 0 {
				t.Error("a session vouches for the entry")
			}
		})
	}
}

// watchable is a generation that sessions can watch.
type watchable struct{ generation }

// Watch implements push.Generation.
func (*watchable) Watch(w interface{ Advanced() }) interface{ Advanced() } { return w }

// TestProperties_Stale checks that a cache in front does not store a stale answer.
func TestProperties_Stale(t *testing.T) {
	inBubble(t, "stale", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.replies("NOERROR; " + a("w.", 60))
		b.want("w. A", "NOERROR; "+a("w.", 60))
		b.fails()
		time.Sleep(61 * time.Second)
		if got, recorded := b.outer("w. A"); got != "NOERROR; "+a("w.", 30) || recorded.Expires > b.now() || recorded.ByGeneration() {
			t.Errorf("got %s, which expires at %v; now is %v", got, recorded.Expires, b.now())
		}
	})
}

// TestProperties_Views checks that an answer for one caller is marked for a cache in front.
func TestProperties_Views(t *testing.T) {
	for name, mark := range marks(new(generation)) {
		inBubble(t, name, func(t *testing.T) {
			p := newPerCaller(t, "cache")
			p.mark = mark
			for range 2 {
				got, recorded := p.outer("w. A")
				if got != answerFor(1, 60) || recorded.ForAll() || recorded.Expires != 0 {
					t.Errorf("got %s, for all %t, %+v", got, recorded.ForAll(), recorded.Properties)
				}
			}
		})
	}
}

// TestProperties_Background checks that a reply after the answer to a cache in front does not change its properties.
func TestProperties_Background(t *testing.T) {
	inBubble(t, "background", func(t *testing.T) {
		b := newTestCache(t, "cache {\nserve_stale 1h verify 1s\n}")
		b.replies("NOERROR; " + a("w.", 60))
		b.want("w. A", "NOERROR; "+a("w.", 60))
		time.Sleep(61 * time.Second)
		b.upstream(plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			time.Sleep(2 * time.Second)
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 60)))
		}))
		got, recorded := b.outer("w. A")
		before := recorded.Expires
		if got != "NOERROR; "+a("w.", 0) || before > b.now() {
			t.Errorf("got %s, which expires at %v", got, before)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if recorded.Expires != before {
			t.Errorf("changed after the answer: expires at %v", recorded.Expires)
		}
	})
}

// TestProperties_Waits has a negative answer for a name that queries wait for: it is stored by its generations, for queries that
// have waited, and its TTL stays 0 whatever the configured minimum.
func TestProperties_Waits(t *testing.T) {
	for _, corefile := range []string{"cache", "cache {\ndenial 9984 3600 60\n}"} {
		chainOnly(t, corefile, func(t *testing.T) {
			b, g := newTestCache(t, corefile), new(generation)
			b.space.ByGeneration.Store(true)
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				c := store.PropertiesOf(ctx, r)
				c.Bounds[0], c.Waits = validity.Bound{Generation: g}, true
				return 0, w.WriteMsg(replyTo(t, r, denial("NXDOMAIN", 0, 0)))
			})
			for i := range 3 {
				b.want("w. A", denial("NXDOMAIN", 0, 0))
				b.wantQueries(i + 1)
			}
			if e := b.entry("w. A"); e == nil || !e.Waits || e.Cached || e.Expires != 0 {
				t.Errorf("stored: %+v", e)
			}
			if _, recorded := b.outer("w. A"); !recorded.Waits {
				t.Error("a cache in front does not get Waits")
			}
		})
	}
}
