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

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// asker is a client that asks at a time of its own.
type asker struct {
	after time.Duration
	query string        // "tcp" may follow
	gone  time.Duration // after that it does not want an answer any more; 0 for never
	reply string        // what it gets
	err   error
}

// together lets clients ask at the same time, and compares what they get.
func (b *bed) together(askers []asker) {
	b.t.Helper()
	var wg sync.WaitGroup
	for i, a := range askers {
		wg.Go(func() {
			time.Sleep(a.after)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if a.gone > 0 {
				time.AfterFunc(a.gone-a.after, cancel)
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
				b.t.Errorf("client %d, %s: the reply is to something else: %v", i, a.query, w.reply)
			}
		})
	}
	wg.Wait()
}

var errServerPanicked = errors.New("recovered by the server")

// panicking serves as the server does, which stays alive after a panic.
func (b *bed) panicking(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (code int, err error) {
	defer func() {
		if recover() != nil {
			code, err = dns.RcodeServerFailure, errServerPanicked
		}
	}()
	return b.ServeDNS(ctx, w, r)
}

func TestSingleFlight(t *testing.T) {
	const (
		sec     = time.Second
		kept    = "NOERROR; w. 300 IN A 192.0.2.1"
		refused = "REFUSED"
		cut     = "NOERROR TC"
	)
	for _, c := range []struct {
		name, upstream string // it takes 2 seconds
		askers         []asker
		queries        int
		coalesced      float64
	}{
		{"one query for all", kept, []asker{
			{0, "w. A", 0, kept, nil},
			{sec, "w. A", 0, kept, nil},
			{sec, "W. A +edns", 0, "NOERROR; W. 300 IN A 192.0.2.1", nil},
			{3 * sec, "w. A", 0, "NOERROR; w. 299 IN A 192.0.2.1", nil},
		}, 1, 2},
		{"of what is not kept as well", refused, []asker{
			{0, "w. A", 0, refused, nil},
			{sec, "w. A", 0, refused, nil},
			{sec, "W. A +edns", 0, refused, nil},
			{3 * sec, "w. A", 0, refused, nil},
		}, 2, 2},
		{"and of a TTL of 0", "NOERROR; w. 0 IN A 192.0.2.1", []asker{
			{0, "w. A", 0, "NOERROR; w. 0 IN A 192.0.2.1", nil},
			{sec, "w. A", 0, "NOERROR; w. 0 IN A 192.0.2.1", nil},
		}, 1, 1},
		{"and of a failure", "fail", []asker{
			{0, "w. A", 0, "nothing", errUpstream},
			{sec, "w. A", 0, "nothing", errUpstream},
			{3 * sec, "w. A", 0, "SERVFAIL", nil},
		}, 1, 1},
		{"those who wait do not hang after a panic", "panic", []asker{
			{0, "w. A", 0, "nothing", errServerPanicked},
			{sec, "w. A", 0, "nothing", errPanicked},
			{3 * sec, "w. A", 0, "nothing", errServerPanicked},
		}, 2, 1},
		{"questions differ", kept, []asker{
			{0, "w. A", 0, kept, nil},
			{0, "w. A +cd", 0, kept, nil},
			{0, "w. A +do", 0, kept, nil},
			{0, "w. AAAA", 0, kept, nil},
			{0, "v. A", 0, kept, nil},
		}, 5, 0},
		{"a resolver may treat a query without RD in another way", refused, []asker{
			{0, "w. A", 0, refused, nil},
			{0, "w. A +norec", 0, refused, nil},
		}, 2, 0},
		{"the verdict of a validating resolver is for those who want it", "REFUSED AD", []asker{
			{0, "w. A", 0, "REFUSED", nil},
			{sec, "w. A +ad", 0, "REFUSED AD", nil},
			{sec, "w. A", 0, "REFUSED", nil},
		}, 1, 2},
		{"UDP is no answer for TCP", cut, []asker{
			{0, "w. A", 0, cut, nil},
			{sec, "w. A tcp", 0, cut, nil},
		}, 2, 0},
		{"TCP is an answer for UDP", refused, []asker{
			{0, "w. A tcp", 0, refused, nil},
			{sec, "w. A", 0, refused, nil},
			{sec, "w. A tcp", 0, refused, nil},
		}, 1, 2},
		{"what is cut for one may not be for another", cut, []asker{
			{0, "w. A", 0, cut, nil},
			{sec, "w. A", 0, cut, nil},
			{sec, "w. A +edns", 0, cut, nil},
		}, 2, 1},
		{"who asked first is gone", kept, []asker{
			{0, "w. A", sec, "nothing", context.Canceled},
			{sec / 2, "w. A", 0, kept, nil},
			{sec / 2, "w. A", 0, kept, nil},
		}, 2, 1},
		{"one who waits is gone", kept, []asker{
			{0, "w. A", 0, kept, nil},
			{sec / 2, "w. A", sec, "nothing", context.Canceled},
		}, 1, 0},
	} {
		beds(t, c.name, func(t *testing.T) {
			b := newBed(t, "cache {\nserve_stale off\n}")
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
			for i := range c.askers { // those of other names get their own
				c.askers[i].reply = strings.ReplaceAll(c.askers[i].reply, "w. 300", strings.ToLower(c.askers[i].query[:2])+" 300")
				if c.askers[i].query[0] == 'W' {
					c.askers[i].reply = strings.ReplaceAll(c.askers[i].reply, "w. 300", "W. 300")
				}
			}
			b.together(c.askers)
			b.wantQueries(c.queries)
			if got := value(t, b.counters("").coalesced); got != c.coalesced {
				t.Errorf("%v queries were counted as coalesced, want %v", got, c.coalesced)
			}
			if len(b.flights.all) != 0 {
				t.Errorf("%d flights are left", len(b.flights.all))
			}
		})
	}
}

// A query that finds nothing, and then no flight since it has just landed, takes what that has brought.
func TestJustLanded(t *testing.T) {
	beds(t, "landed", func(t *testing.T) {
		b := newBed(t, "cache")
		b.replies("NOERROR; " + a("w.", 300))
		b.ask("w. A")
		r, w := query("w. A"), new(client)
		var q answers.Query
		packed, ok := q.FromMsg(make([]byte, 0, answers.MaxQuery), r)
		if !ok {
			t.Fatal("no query")
		}
		asked := newClientQuery(r, packed, b.space.Key(nil, packed, &q), q, b.counters(""), w)
		if _, err := b.fetch(context.Background(), w, asked); err != nil {
			t.Fatal(err)
		}
		if got := brief(w.reply); got != "NOERROR; "+a("w.", 300) {
			t.Errorf("got %s", got)
		}
		b.wantQueries(1)
	})
}

// Those who wait for one that is gone do not all ask.
func TestLeaderGone(t *testing.T) {
	beds(t, "many wait", func(t *testing.T) {
		b := newBed(t, "cache")
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			select {
			case <-time.After(2 * time.Second):
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 300)))
			case <-ctx.Done():
				return dns.RcodeServerFailure, ctx.Err()
			}
		})
		askers := []asker{{0, "w. A", time.Second, "nothing", context.Canceled}}
		for range 100 {
			askers = append(askers, asker{time.Millisecond, "w. A", 0, "NOERROR; " + a("w.", 300), nil})
		}
		b.together(askers)
		b.wantQueries(2)
	})
}

// Queries for what has expired wait for one reply as well.
func TestSingleFlightOfExpired(t *testing.T) {
	const first = "NOERROR; w. 60 IN A 192.0.2.1"
	const second = "NOERROR; w. 60 IN A 192.0.2.2"
	for _, c := range []struct {
		name, option, upstream, reply string
		queries                       int
	}{
		{"on failure, but there is none", "", second, second, 2},
		{"on failure", "", "SERVFAIL", staleA, 2},
		{"verify", "serve_stale 1h verify", second, second, 2},
		{"verify fails", "serve_stale 1h verify", "SERVFAIL", "NOERROR; w. 0 IN A 192.0.2.1", 2},
		{"immediate", "serve_stale", second, "NOERROR; w. 0 IN A 192.0.2.1", 2},
		{"a reply that is not kept", "", "NOERROR; w. 0 IN A 192.0.2.2", "NOERROR; w. 0 IN A 192.0.2.2", 2},
	} {
		beds(t, c.name, func(t *testing.T) {
			b := newBed(t, "cache {\n"+c.option+"\n}")
			b.replies(first)
			b.ask("w. A")
			time.Sleep(60 * time.Second)
			b.slowly(time.Second, c.upstream)
			askers := make([]asker, 100)
			for i := range askers {
				askers[i] = asker{0, "w. A", 0, c.reply, nil}
			}
			b.together(askers)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			b.wantQueries(c.queries)
		})
	}
}

// What holds only for who asked is nobody else's: an answer of a plugin that vouches for it in another
// way than by a TTL, and names that are not cached.
func TestNotShared(t *testing.T) {
	for _, c := range []struct {
		name, option string
		next         func(ctx context.Context, r, m *dns.Msg)
	}{
		{"conditions, not kept", "", func(ctx context.Context, r, m *dns.Msg) {
			answers.PropertiesOf(ctx, r).Bounds[0] = answers.Bound{Generation: new(generation)}
			m.Answer[0].Header().Ttl = 0
		}},
		{"conditions that are over", "", func(ctx context.Context, r, _ *dns.Msg) {
			answers.PropertiesOf(ctx, r).Bounds[0] = answers.Bound{Generation: &generation{2}, Number: 1}
		}},
		{"disabled", "disable success", func(context.Context, *dns.Msg, *dns.Msg) {}},
	} {
		beds(t, c.name, func(t *testing.T) {
			b := newBed(t, "cache {\n"+c.option+"\n}")
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(time.Second)
				m := replyTo(t, r, "NOERROR; "+a("w.", 300))
				c.next(ctx, r, m)
				return 0, w.WriteMsg(m)
			})
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { b.ask("w. A") })
			}
			wg.Wait()
			b.wantQueries(3)
		})
	}
}

// Plugins ask the server for where an alias leads. Two that lead to each other end as they do without a
// cache.
func TestNested(t *testing.T) {
	for option, ttl := range map[string]int{ // of the answers when they have expired: it takes 5 seconds to get others
		"serve_stale off": 60, "serve_stale 1h verify": 60, "serve_stale 1h verify 1s": 0, "": 30,
	} {
		beds(t, option, func(t *testing.T) {
			b := newBed(t, "cache {\n"+option+"\n}")
			type depth struct{}
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(time.Second)
				if n, _ := ctx.Value(depth{}).(int); n < 4 {
					other := map[string]string{"w.": "v. A", "v.": "w. A"}[r.Question[0].Name]
					_, err := b.ServeDNS(context.WithValue(ctx, depth{}, n+1), new(client), query(other))
					if err != nil {
						return dns.RcodeServerFailure, err
					}
				}
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a(r.Question[0].Name, 60)))
			})
			for _, ttl := range []int{60, ttl} {
				b.together([]asker{{0, "w. A", 0, "NOERROR; " + a("w.", ttl), nil}, {0, "v. A", 0, "NOERROR; " + a("v.", ttl), nil}})
				time.Sleep(60 * time.Second)
			}
		})
	}
}

// Plugin loop finds out that the upstream is the server itself by its own questions that come back.
func TestLoop(t *testing.T) {
	beds(t, "loop", func(t *testing.T) {
		b := newBed(t, "cache")
		seen := 0
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if seen++; seen < 3 { // the forwarder asks the server, with nothing but the message
				if _, err := b.ServeDNS(context.Background(), w, r); err != nil {
					return dns.RcodeServerFailure, err
				}
			}
			return dns.RcodeServerFailure, errUpstream
		})
		b.ask("1.2. HINFO")
		if seen != 3 {
			t.Errorf("the question was seen %d times, want 3", seen)
		}
	})
}

// What one client's server does to its reply is not seen by another. With -race this finds replies that
// are written to by two.
func TestRepliesAreApart(t *testing.T) {
	for _, reply := range []string{"NOERROR; " + a("w.", 300), "REFUSED; " + a("w.", 300)} {
		b := newBed(t, "cache")
		release := make(chan struct{})
		shared := replyTo(t, query("w. A"), reply) // as plugins that give out their own records
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
			t.Errorf("the plugin's own message was changed: %s", brief(shared))
		}
	}
}
