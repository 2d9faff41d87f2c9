package cache

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// timedQuery is a query of a client at a time.
type timedQuery struct {
	after time.Duration
	query string        // with the suffix " tcp" over TCP
	gone  time.Duration // time at which the client cancels; 0 for never
	reply string        // expected
	err   error
}

// concurrently sends queries at their times, and compares the replies.
func (b *testCache) concurrently(queries []timedQuery) {
	b.t.Helper()
	var wg sync.WaitGroup
	for i, a := range queries {
		wg.Go(func() {
			time.Sleep(a.after)
			ctx := context.Background()
			if a.gone > 0 {
				canceled, cancel := context.WithCancel(ctx)
				defer cancel()
				time.AfterFunc(a.gone-a.after, cancel)
				ctx = canceled
			}
			text, tcp := strings.CutSuffix(a.query, " tcp")
			w, r := &client{tcp: tcp}, query(text)
			code, err := b.panicking(ctx, w, r)
			if !errors.Is(err, a.err) {
				b.t.Errorf("client %d, %s: error %v, want %v", i, a.query, err, a.err)
			}
			if got := brief(w.reply); got != a.reply {
				b.t.Errorf("client %d, %s\n got %s (code %d)\nwant %s", i, a.query, got, code, a.reply)
			}
			if w.reply != nil && (w.reply.Id != r.Id || w.reply.Question[0] != r.Question[0] || w.reply.RecursionDesired != r.RecursionDesired) {
				b.t.Errorf("client %d, %s: the reply is to another query: %v", i, a.query, w.reply)
			}
		})
	}
	wg.Wait()
}

var errServerPanicked = errors.New("recovered by the server")

// panicking serves a query as the server does, which recovers from a panic.
func (b *testCache) panicking(ctx context.Context, w *client, r *dns.Msg) (code int, err error) {
	defer func() {
		if recover() != nil {
			code, err = dns.RcodeServerFailure, errServerPanicked
		}
	}()
	if ctx.Done() == nil {
		return b.serve(w, r)
	}
	return b.ServeDNS(ctx, w, r)
}

func TestSingleFlight(t *testing.T) {
	const (
		sec     = time.Second
		cached  = "NOERROR; w. 300 IN A 192.0.2.1"
		refused = "REFUSED"
		cut     = "NOERROR TC"
	)
	for _, c := range []struct {
		name, upstream string // it takes 2 seconds
		queries        []timedQuery
		received       int
		coalesced      float64
	}{
		{"one query for all", cached, []timedQuery{
			{0, "w. A", 0, cached, nil},
			{sec, "w. A", 0, cached, nil},
			{sec, "W. A +edns", 0, "NOERROR; W. 300 IN A 192.0.2.1", nil},
			{3 * sec, "w. A", 0, "NOERROR; w. 299 IN A 192.0.2.1", nil},
		}, 1, 2},
		{"one query for all, not stored", refused, []timedQuery{
			{0, "w. A", 0, refused, nil},
			{sec, "w. A", 0, refused, nil},
			{sec, "W. A +edns", 0, refused, nil},
			{3 * sec, "w. A", 0, refused, nil},
		}, 2, 2},
		{"one query for all, with TTL 0", "NOERROR; w. 0 IN A 192.0.2.1", []timedQuery{
			{0, "w. A", 0, "NOERROR; w. 0 IN A 192.0.2.1", nil},
			{sec, "w. A", 0, "NOERROR; w. 0 IN A 192.0.2.1", nil},
		}, 1, 1},
		{"one query for all, which fails", "fail", []timedQuery{
			{0, "w. A", 0, "nothing", errUpstream},
			{sec, "w. A", 0, "nothing", errUpstream},
			{3 * sec, "w. A", 0, "SERVFAIL", nil},
		}, 1, 1},
		{"a panic ends the wait", "panic", []timedQuery{
			{0, "w. A", 0, "nothing", errServerPanicked},
			{sec, "w. A", 0, "nothing", errPanicked},
			{3 * sec, "w. A", 0, "nothing", errServerPanicked},
		}, 2, 1},
		{"questions differ", cached, []timedQuery{
			{0, "w. A", 0, cached, nil},
			{0, "w. A +cd", 0, cached, nil},
			{0, "w. A +do", 0, cached, nil},
			{0, "w. AAAA", 0, cached, nil},
			{0, "v. A", 0, cached, nil},
		}, 5, 0},
		{"a query without RD may get another reply", refused, []timedQuery{
			{0, "w. A", 0, refused, nil},
			{0, "w. A +norec", 0, refused, nil},
		}, 2, 0},
		{"AD is only for clients that set it", "REFUSED AD", []timedQuery{
			{0, "w. A", 0, "REFUSED", nil},
			{sec, "w. A +ad", 0, "REFUSED AD", nil},
			{sec, "w. A", 0, "REFUSED", nil},
		}, 1, 2},
		{"a reply over UDP does not serve TCP", cut, []timedQuery{
			{0, "w. A", 0, cut, nil},
			{sec, "w. A tcp", 0, cut, nil},
		}, 2, 0},
		{"a reply over TCP serves UDP", refused, []timedQuery{
			{0, "w. A tcp", 0, refused, nil},
			{sec, "w. A", 0, refused, nil},
			{sec, "w. A tcp", 0, refused, nil},
		}, 1, 2},
		{"a truncated reply serves only clients with the same limit", cut, []timedQuery{
			{0, "w. A", 0, cut, nil},
			{sec, "w. A", 0, cut, nil},
			{sec, "w. A +edns", 0, cut, nil},
		}, 2, 1},
		{"the leader cancels", cached, []timedQuery{
			{0, "w. A", sec, "nothing", context.Canceled},
			{sec / 2, "w. A", 0, cached, nil},
			{sec / 2, "w. A", 0, cached, nil},
		}, 2, 1},
		{"a waiting client cancels", cached, []timedQuery{
			{0, "w. A", 0, cached, nil},
			{sec / 2, "w. A", sec, "nothing", context.Canceled},
		}, 1, 0},
	} {
		chainOnly(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\nserve_stale off\n}")
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				select {
				case <-time.After(2 * sec):
				case <-ctx.Done():
					return dns.RcodeServerFailure, ctx.Err()
				}
				switch c.upstream {
				case "panic":
					panic("on purpose")
				case "fail":
					return dns.RcodeServerFailure, errUpstream
				}
				m := replyTo(t, r, c.upstream)
				for _, rr := range m.Answer {
					rr.Header().Name = strings.ToLower(r.Question[0].Name)
				}
				return m.Rcode, w.WriteMsg(m)
			})
			for i := range c.queries { // replies have the name of their query
				c.queries[i].reply = strings.ReplaceAll(c.queries[i].reply, "w. 300", strings.ToLower(c.queries[i].query[:2])+" 300")
				if c.queries[i].query[0] == 'W' {
					c.queries[i].reply = strings.ReplaceAll(c.queries[i].reply, "w. 300", "W. 300")
				}
			}
			b.concurrently(c.queries)
			b.wantQueries(c.received)
			if got := value(t, b.counters("").coalesced); got != c.coalesced {
				t.Errorf("%v queries were counted as coalesced, want %v", got, c.coalesced)
			}
			if len(b.flights.all) != 0 {
				t.Errorf("%d flights remain", len(b.flights.all))
			}
		})
	}
}

// TestManyWaitersOfOneName has many queries wait for one flight and leave it, as they do when the client response timer
// expires: a search of all waiters for each of them takes minutes.
func TestManyWaitersOfOneName(t *testing.T) {
	const waiters = 200_000
	var f flights
	q, wire := &clientQuery{key: []byte("w.")}, new(wirechain.Request)
	all := make([]wireWaiter, waiters)
	began := time.Now()
	var joined *flight
	for i := range all {
		all[i].q = wire
		joined = f.joinWire(q, 0, &all[i])
	}
	for i := range all { // in another order than they have joined
		w := &all[(i*7919)%waiters]
		if !f.leave(joined, w) || f.leave(joined, w) {
			t.Fatalf("waiter %d did not leave once", i)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d waiters joined and left within %v", waiters, took)
	}
}

// TestJustFinished has a flight end between the lookup of a query and its join: the query gets the stored reply.
func TestJustFinished(t *testing.T) {
	inBubble(t, "finished", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.replies("NOERROR; " + a("w.", 300))
		b.query("w. A")
		r, w := query("w. A"), new(client)
		var parsed wire.Query
		packed, ok := store.QueryFromMsg(&parsed, make([]byte, 0, wire.MaxQuery), r)
		if !ok {
			t.Fatal("no query")
		}
		q := newClientQuery(r, packed, b.space.Key(nil, packed, &parsed), parsed, b.counters(""), w)
		if _, err := b.fetch(context.Background(), w, q); err != nil {
			t.Fatal(err)
		}
		if got := brief(w.reply); got != "NOERROR; "+a("w.", 300) {
			t.Errorf("got %s", got)
		}
		b.wantQueries(1)
	})
}

// TestLeaderGone has the leader cancel: of the waiting queries only one becomes the next leader.
func TestLeaderGone(t *testing.T) {
	inBubble(t, "many wait", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			select {
			case <-time.After(2 * time.Second):
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 300)))
			case <-ctx.Done():
				return dns.RcodeServerFailure, ctx.Err()
			}
		})
		queries := []timedQuery{{0, "w. A", time.Second, "nothing", context.Canceled}}
		for range 100 {
			queries = append(queries, timedQuery{time.Millisecond, "w. A", 0, "NOERROR; " + a("w.", 300), nil})
		}
		b.concurrently(queries)
		b.wantQueries(2)
	})
}

// TestSingleFlightOfExpired has many queries for an expired answer: all wait for one reply.
func TestSingleFlightOfExpired(t *testing.T) {
	const first = "NOERROR; w. 60 IN A 192.0.2.1"
	const second = "NOERROR; w. 60 IN A 192.0.2.2"
	for _, c := range []struct {
		name, option, upstream, reply string
		received                      int
	}{
		{"on failure, but there is none", "", second, second, 2},
		{"on failure", "", "SERVFAIL", staleA, 2},
		{"verify", "serve_stale 1h verify", second, second, 2},
		{"verify fails", "serve_stale 1h verify", "SERVFAIL", "NOERROR; w. 0 IN A 192.0.2.1", 2},
		{"immediate", "serve_stale", second, "NOERROR; w. 0 IN A 192.0.2.1", 2},
		{"a reply with TTL 0", "", "NOERROR; w. 0 IN A 192.0.2.2", "NOERROR; w. 0 IN A 192.0.2.2", 2},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+c.option+"\n}")
			b.replies(first)
			b.query("w. A")
			time.Sleep(60 * time.Second)
			b.slowly(time.Second, c.upstream)
			queries := make([]timedQuery, 100)
			for i := range queries {
				queries[i] = timedQuery{0, "w. A", 0, c.reply, nil}
			}
			b.concurrently(queries)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			b.wantQueries(c.received)
		})
	}
}

// TestNotShared checks the replies that queries do not share: those that depend on generations and are not stored, and
// those for names that are not cached.
func TestNotShared(t *testing.T) {
	for _, c := range []struct {
		name, option string
		next         func(ctx context.Context, r, m *dns.Msg)
	}{
		{"by generation, not stored", "", func(ctx context.Context, r, m *dns.Msg) {
			store.PropertiesOf(ctx, r).Bounds[0] = validity.Bound{Generation: new(generation)}
			m.Answer[0].Header().Ttl = 0
		}},
		{"by a generation that has advanced", "", func(ctx context.Context, r, _ *dns.Msg) {
			store.PropertiesOf(ctx, r).Bounds[0] = validity.Bound{Generation: &generation{2}, Number: 1}
		}},
		{"disabled", "disable success", func(context.Context, *dns.Msg, *dns.Msg) {}},
	} {
		chainOnly(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+c.option+"\n}")
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(time.Second)
				m := replyTo(t, r, "NOERROR; "+a("w.", 300))
				c.next(ctx, r, m)
				return 0, w.WriteMsg(m)
			})
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { b.query("w. A") })
			}
			wg.Wait()
			b.wantQueries(3)
		})
	}
}

// TestNested has a plugin query the server for the target of an alias. Two aliases of each other do not deadlock.
func TestNested(t *testing.T) {
	for option, ttl := range map[string]int{ // TTL of the second answers; the upstream needs 5.4 seconds
		"serve_stale off": 60, "serve_stale 1h verify": 60, "serve_stale 1h verify 1s": 0, "": 30,
	} {
		chainOnly(t, option, func(t *testing.T) {
			b := newTestCache(t, "cache {\n"+option+"\n}")
			type depth struct{}
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(time.Second)
				if n, _ := ctx.Value(depth{}).(int); n < 4 {
					other := map[string]string{"w.": "v. A", "v.": "w. A"}[r.Question[0].Name]
					_, err := b.ServeDNS(context.WithValue(ctx, depth{}, n+1), new(client), query(other))
					if err != nil {
						return dns.RcodeServerFailure, err
					}
					// The client response timer of the nested query expires with the client's, for the same flight. The
					// client gets the stale answer only if the reply comes after both.
					time.Sleep(100 * time.Millisecond)
				}
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a(r.Question[0].Name, 60)))
			})
			for _, ttl := range []int{60, ttl} {
				b.concurrently([]timedQuery{{0, "w. A", 0, "NOERROR; " + a("w.", ttl), nil}, {0, "v. A", 0, "NOERROR; " + a("v.", ttl), nil}})
				time.Sleep(60 * time.Second)
			}
		})
	}
}

// TestLoop checks that HINFO queries are not coalesced: plugin loop detects a loop by its own queries that return.
func TestLoop(t *testing.T) {
	chainOnly(t, "loop", func(t *testing.T) {
		b := newTestCache(t, "cache")
		seen := 0
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if seen++; seen < 3 { // the forwarder queries this server, with a new context
				if _, err := b.ServeDNS(context.Background(), w, r); err != nil {
					return dns.RcodeServerFailure, err
				}
			}
			return dns.RcodeServerFailure, errUpstream
		})
		b.query("1.2. HINFO")
		if seen != 3 {
			t.Errorf("the question was seen %d times, want 3", seen)
		}
	})
}

// TestRepliesAreApart checks that a change of one client's reply does not change another's. With -race it finds shared
// messages.
func TestRepliesAreApart(t *testing.T) {
	for _, reply := range []string{"NOERROR; " + a("w.", 300), "REFUSED; " + a("w.", 300)} {
		b := newTestCache(t, "cache")
		release := make(chan struct{})
		shared := replyTo(t, query("w. A"), reply) // a plugin that writes its own records
		b.Next = plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, _ *dns.Msg) (int, error) {
			<-release
			return 0, w.WriteMsg(shared)
		})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				w := new(client)
				if _, err := b.ServeDNS(context.Background(), w, query("w. A")); err != nil {
					t.Error(err)
				}
				if w.reply.Answer[0].Header().Ttl != 300 || len(w.reply.Extra) != 0 {
					t.Errorf("the reply is %s", brief(w.reply))
				}
				w.reply.Answer[0].Header().Ttl, w.reply.Id = 1, 1
				w.reply.Extra = append(w.reply.Extra, new(dns.OPT))
				w.reply.Question[0].Name = "v."
			})
		}
		close(release)
		wg.Wait()
		if shared.Answer[0].Header().Ttl != 300 || shared.Question[0].Name != "w." {
			t.Errorf("the plugin's message was changed: %s", brief(shared))
		}
	}
}
