package cache

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// caller is a client; the last octet of its address is its view.
type caller struct {
	client
	last byte
}

func (c *caller) RemoteAddr() net.Addr {
	if c.tcp {
		return &net.TCPAddr{IP: net.IPv4(198, 51, 100, c.last), Port: 40000}
	}
	return &net.UDPAddr{IP: net.IPv4(198, 51, 100, c.last), Port: 40000}
}

// byLast numbers the views of callers by their last octet.
type byLast struct{}

func (byLast) View(from netip.Addr, _ []byte) store.View {
	return store.View{Number: uint32(from.As4()[3])}
}

// perCaller is an upstream with another answer for each caller: 192.0.2.x for last octet x.
type perCaller struct {
	*testCache
	mark  func(c *store.Properties, last byte) // sets the properties of an answer; nil if it is for all callers
	takes time.Duration
	ttl   int
}

func (p *perCaller) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	mark := p.mark
	time.Sleep(p.takes)
	last := byte(99)
	if mark != nil {
		last = 0 // a query of the cache itself
		if host, err := netip.ParseAddrPort(w.RemoteAddr().String()); err == nil && host.Addr().Is4() {
			last = host.Addr().As4()[3]
		}
		mark(store.PropertiesOf(ctx, r), last)
	}
	return 0, w.WriteMsg(replyTo(p.t, r, answerFor(last, p.ttl)))
}

func answerFor(last byte, ttl int) string {
	return fmt.Sprintf("NOERROR; w. %d IN A 192.0.2.%d", ttl, last)
}

// queryAs queries as a caller, and compares the answer.
func (p *perCaller) queryAs(last byte, text, want string) {
	p.t.Helper()
	w := &caller{last: last}
	if _, err := p.testCache.ServeDNS(context.Background(), w, query(text)); err != nil {
		p.t.Error(err)
	}
	if got := brief(w.reply); got != want {
		p.t.Errorf("%s, caller %d\n got %s\nwant %s", text, last, got, want)
	}
}

func newPerCaller(t *testing.T, corefile string) *perCaller {
	p := &perCaller{testCache: newTestCache(t, corefile), ttl: 60}
	p.upstream(p.ServeDNS)
	return p
}

// marks are the ways in which a plugin marks an answer that is not for all callers.
func marks(g *generation) map[string]func(c *store.Properties, last byte) {
	bound := func() [validity.MaxBounds]validity.Bound {
		return [validity.MaxBounds]validity.Bound{{Generation: g, Number: g.n}}
	}
	return map[string]func(c *store.Properties, last byte){
		"of a view": func(c *store.Properties, last byte) {
			c.Bounds, c.Views, c.View.Number = bound(), byLast{}, uint32(last)
		},
		"private":            func(c *store.Properties, _ byte) { c.View.Private = true },
		"private, of a view": func(c *store.Properties, _ byte) { c.Bounds, c.Views, c.View.Private = bound(), byLast{}, true },
		"private, outdated":  func(c *store.Properties, _ byte) { *c = ended(); c.View.Private = true },
	}
}

var viewOptions = []string{
	"serve_stale off", "serve_stale 1h", "serve_stale 1h verify", "serve_stale 1h verify 1s", "prefetch 1 1m 90%", "denial 0", "disable success",
}

// eachView runs a test for each option and each way in which a plugin marks its answers.
func eachView(t *testing.T, test func(t *testing.T, corefile string, mark func(c *store.Properties, last byte))) {
	for _, option := range viewOptions {
		for name, mark := range marks(new(generation)) {
			inBubble(t, option+", "+name, func(t *testing.T) { test(t, "cache {\n"+option+"\n}", mark) })
		}
	}
}

// TestViews checks with each option that no caller gets the answer of another one.
func TestViews(t *testing.T) {
	eachView(t, func(t *testing.T, corefile string, mark func(c *store.Properties, last byte)) {
		p := newPerCaller(t, corefile)
		p.mark = mark
		sent := 0
		for _, wait := range []time.Duration{0, time.Second, 58 * time.Second, 2 * time.Second, time.Hour} {
			time.Sleep(wait)
			for _, last := range []byte{1, 2, 1, 3} {
				p.queryAs(last, "w. A", answerFor(last, 60))
				sent++
			}
			synctest.Wait()
		}
		p.wantQueries(sent)
		if e := p.entry("w. A"); freshnessOf(e, p.now()) != unusable {
			t.Errorf("the entry is %+v", e)
		}
	})
}

// TestViews_Concurrent has callers query at the same time: each gets its own answer. Before the first reply the cache does
// not know that the answer depends on the caller.
func TestViews_Concurrent(t *testing.T) {
	eachView(t, func(t *testing.T, corefile string, mark func(c *store.Properties, last byte)) {
		p := newPerCaller(t, corefile)
		p.space.ByGeneration.Store(true)
		p.mark, p.takes = mark, time.Second
		for range 2 {
			var wg sync.WaitGroup
			for last := range byte(6) {
				wg.Go(func() {
					time.Sleep(time.Duration(last) * 100 * time.Millisecond)
					w := &caller{last: last + 1, client: client{tcp: last%2 == 1}}
					if _, err := p.testCache.ServeDNS(context.Background(), w, query("w. A")); err != nil {
						t.Error(err)
					}
					if got, want := brief(w.reply), answerFor(last+1, 60); got != want {
						t.Errorf("caller %d\n got %s\nwant %s", last+1, got, want)
					}
				})
			}
			wg.Wait()
		}
		if len(p.flights.all) != 0 {
			t.Errorf("%d flights remain", len(p.flights.all))
		}
	})
}

// TestViews_Change has an answer for all callers change into one for each, and back. Answers for one caller are never
// served to another, and the last answer for all is stored.
func TestViews_Change(t *testing.T) {
	eachView(t, func(t *testing.T, corefile string, mark func(c *store.Properties, last byte)) {
		p := newPerCaller(t, corefile)
		all := answerFor(99, 60)
		p.queryAs(1, "w. A", all)
		p.mark = mark
		query := func(last byte) string { // the stored answer for all may still be served
			w := &caller{last: last}
			if _, err := p.testCache.ServeDNS(context.Background(), w, query("w. A")); err != nil {
				t.Error(err)
			}
			got := w.reply.Answer[0].(*dns.A).A.String()
			if got != "192.0.2.99" && got != fmt.Sprintf("192.0.2.%d", last) {
				t.Errorf("caller %d got %s", last, got)
			}
			return got
		}
		for range 100 {
			time.Sleep(time.Second)
			for last := range byte(3) {
				query(last + 1)
			}
			synctest.Wait()
		}
		time.Sleep(2 * time.Hour)
		for last := range byte(3) {
			if got, want := query(last+1), fmt.Sprintf("192.0.2.%d", last+1); got != want {
				t.Errorf("two hours after the change caller %d got %s, want %s", last+1, got, want)
			}
		}
		p.mark = nil
		p.queryAs(1, "w. A", all)
		n := p.received()
		p.queryAs(2, "w. A", all)
		if e := p.entry("w. A"); e == nil == (p.received() == n) {
			t.Errorf("the entry is %v after %d more queries", e, p.received()-n)
		}
		if p.entry("w. A") == nil && p.kinds[store.Success].disabled == nil {
			t.Error("the answer for all was not stored")
		}
	})
}

// TestViews_Prefetch has callers wait for a prefetch of an answer for one caller: each gets its own.
func TestViews_Prefetch(t *testing.T) {
	for name, mark := range marks(new(generation)) {
		inBubble(t, name, func(t *testing.T) {
			p := newPerCaller(t, "cache {\nprefetch 1\nserve_stale off\n}")
			p.queryAs(1, "w. A", answerFor(99, 60))
			p.mark, p.takes = mark, 6*time.Second
			time.Sleep(57 * time.Second)
			p.queryAs(1, "w. A", answerFor(99, 3)) // starts the prefetch
			time.Sleep(4 * time.Second)            // the answer has expired
			var wg sync.WaitGroup
			for last := range byte(3) {
				wg.Go(func() { p.queryAs(last+1, "w. A", answerFor(last+1, 60)) })
			}
			wg.Wait()
			synctest.Wait()
			if e := p.entry("w. A"); freshnessOf(e, p.now()) != unusable {
				t.Errorf("the entry is %+v", e)
			}
		})
	}
}

// TestViews_Verify has a stale answer for all replaced by an answer for one caller, which the upstream is queried for once.
func TestViews_Verify(t *testing.T) {
	for name, mark := range marks(new(generation)) {
		inBubble(t, name, func(t *testing.T) {
			p := newPerCaller(t, "cache {\nserve_stale 1h verify\n}")
			p.queryAs(1, "w. A", answerFor(99, 60))
			p.mark = mark
			time.Sleep(time.Minute)
			p.queryAs(1, "w. A", answerFor(1, 60))
			p.wantQueries(2)
		})
	}
}

// TestViews_FastPath checks that the store has a base entry for the fast path, and an entry for each view.
func TestViews_FastPath(t *testing.T) {
	inBubble(t, "views", func(t *testing.T) {
		g := new(generation)
		p := newPerCaller(t, "cache")
		p.space.ByGeneration.Store(true)
		p.mark = marks(g)["of a view"]
		for _, last := range []byte{1, 2} {
			p.queryAs(last, "w. A", answerFor(last, 60))
		}
		p.mark = marks(g)["private, of a view"]
		p.queryAs(3, "w. A", answerFor(3, 60))
		r := query("w. A")
		var q wire.Query
		packed, _ := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), r)
		key := p.space.Key(make([]byte, 0, store.MaxKey), packed, &q)
		base := p.store.Get(key)
		if base == nil || base.Views == nil || base.Cached {
			t.Fatalf("the base entry is %+v", base)
		}
		for last, want := range map[byte]string{1: answerFor(1, 60), 2: answerFor(2, 60), 3: "", 4: ""} {
			e, _ := p.store.GetView(base, key, p.now(), netip.AddrFrom4([4]byte{198, 51, 100, last}), nil)
			got := ""
			if e != nil {
				m := kit.Unpack(t, e.Plain.AppendReply(nil, packed, &q, &store.Patch{}))
				m.RecursionAvailable = true
				got = brief(m)
			}
			if got != want {
				t.Errorf("caller %d got %q, want %q", last, got, want)
			}
		}
		g.n++
		if base.Fresh(p.now()) {
			t.Error("the base entry outlives its generation")
		}
		p.mark = nil
		p.queryAs(1, "w. A", answerFor(99, 60))
		p.queryAs(2, "w. A", answerFor(99, 60))
		p.wantQueries(4)
	})
}

// TestViews_Nested has a plugin query the server for the target of an alias. If the target depends on the caller, so does
// the answer with the alias.
func TestViews_Nested(t *testing.T) {
	for name, mark := range marks(new(generation)) {
		chainOnly(t, name, func(t *testing.T) {
			p := newPerCaller(t, "cache")
			p.mark = mark
			p.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				if r.Question[0].Name == "w." {
					return p.ServeDNS(ctx, w, r)
				}
				nested := &caller{last: w.RemoteAddr().(*net.UDPAddr).IP.To4()[3]}
				if _, err := p.testCache.ServeDNS(ctx, nested, query("w. A")); err != nil {
					return dns.RcodeServerFailure, err
				}
				m := replyTo(t, r, "NOERROR; alias. 60 IN CNAME w.")
				m.Answer = append(m.Answer, nested.reply.Answer...)
				return 0, w.WriteMsg(m)
			})
			for _, last := range []byte{1, 2, 1} {
				p.queryAs(last, "alias. A", fmt.Sprintf("NOERROR; alias. 60 IN CNAME w.; w. 60 IN A 192.0.2.%d", last))
			}
		})
	}
}

// ended returns the properties of a reply whose data changed during the query.
func ended() (p store.Properties) {
	p.End()
	return p
}
