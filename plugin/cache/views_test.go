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

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// caller is a client whose last octet is what it sees.
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

// byLast are the views of callers by their last octet.
type byLast struct{}

func (byLast) View(from netip.Addr, _ []byte) answers.View {
	return answers.View{Number: uint32(from.As4()[3])}
}

// perCaller is an upstream whose answer to each caller is another: 192.0.2.x to the one with the last octet x.
type perCaller struct {
	*bed
	mark  func(c *answers.Properties, last byte) // what it says of that; nil while all get the same
	takes time.Duration
	ttl   int
}

func (p *perCaller) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	mark := p.mark
	time.Sleep(p.takes)
	last := byte(99)
	if mark != nil {
		last = 0 // of the cache itself
		if host, err := netip.ParseAddrPort(w.RemoteAddr().String()); err == nil && host.Addr().Is4() {
			last = host.Addr().As4()[3]
		}
		mark(answers.PropertiesOf(ctx, r), last)
	}
	return 0, w.WriteMsg(replyTo(p.t, r, answerFor(last, p.ttl)))
}

func answerFor(last byte, ttl int) string {
	return fmt.Sprintf("NOERROR; w. %d IN A 192.0.2.%d", ttl, last)
}

// askAs asks as a caller, and wants the answer for another one, or the same.
func (p *perCaller) askAs(last byte, text, want string) {
	p.t.Helper()
	w := &caller{last: last}
	if _, err := p.bed.ServeDNS(context.Background(), w, query(text)); err != nil {
		p.t.Error(err)
	}
	if got := brief(w.reply); got != want {
		p.t.Errorf("%s, caller %d\n got %s\nwant %s", text, last, got, want)
	}
}

func newPerCaller(t *testing.T, corefile string) *perCaller {
	p := &perCaller{bed: newBed(t, corefile), ttl: 60}
	p.upstream(p.ServeDNS)
	return p
}

// marks are the ways in which a plugin says that an answer is not for all.
func marks(g *generation) map[string]func(c *answers.Properties, last byte) {
	bound := func() [answers.MaxBounds]answers.Bound {
		return [answers.MaxBounds]answers.Bound{{Generation: g, Number: g.n}}
	}
	return map[string]func(c *answers.Properties, last byte){
		"of a view": func(c *answers.Properties, last byte) {
			c.Bounds, c.Views, c.View.Number = bound(), byLast{}, uint32(last)
		},
		"private":            func(c *answers.Properties, _ byte) { c.View.Private = true },
		"private, of a view": func(c *answers.Properties, _ byte) { c.Bounds, c.Views, c.View.Private = bound(), byLast{}, true },
		"private, outdated":  func(c *answers.Properties, _ byte) { *c = ended(); c.View.Private = true },
	}
}

var viewOptions = []string{
	"serve_stale off", "serve_stale 1h", "serve_stale 1h verify", "serve_stale 1h verify 1s", "prefetch 1 1m 90%", "denial 0", "disable success",
}

// eachView runs a test for each option and each way in which a plugin marks its answers.
func eachView(t *testing.T, test func(t *testing.T, corefile string, mark func(c *answers.Properties, last byte))) {
	for _, option := range viewOptions {
		for name, mark := range marks(new(generation)) {
			beds(t, option+", "+name, func(t *testing.T) { test(t, "cache {\n"+option+"\n}", mark) })
		}
	}
}

// What holds for one caller is given to no other, whatever the cache does with answers.
func TestViews(t *testing.T) {
	eachView(t, func(t *testing.T, corefile string, mark func(c *answers.Properties, last byte)) {
		p := newPerCaller(t, corefile)
		p.mark = mark
		asked := 0
		for _, wait := range []time.Duration{0, time.Second, 58 * time.Second, 2 * time.Second, time.Hour} {
			time.Sleep(wait)
			for _, last := range []byte{1, 2, 1, 3} {
				p.askAs(last, "w. A", answerFor(last, 60))
				asked++
			}
			synctest.Wait()
		}
		p.wantQueries(asked)
		if e := p.entry("w. A"); freshnessOf(e, p.now()) != unusable {
			t.Errorf("kept is %+v", e)
		}
	})
}

// Callers that ask at the same time wait for each other's reply at most: they get their own. The first time
// nothing tells the cache that they are not to share.
func TestViews_AtOnce(t *testing.T) {
	eachView(t, func(t *testing.T, corefile string, mark func(c *answers.Properties, last byte)) {
		p := newPerCaller(t, corefile)
		p.space.ByGeneration.Store(true)
		p.mark, p.takes = mark, time.Second
		for range 2 {
			var wg sync.WaitGroup
			for last := range byte(6) {
				wg.Go(func() {
					time.Sleep(time.Duration(last) * 100 * time.Millisecond)
					w := &caller{last: last + 1, client: client{tcp: last%2 == 1}}
					if _, err := p.bed.ServeDNS(context.Background(), w, query("w. A")); err != nil {
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
			t.Errorf("%d flights are left", len(p.flights.all))
		}
	})
}

// An answer for all that becomes one for each is asked for again, by the cache itself as well; nobody is given
// what that gets. As soon as it is for all again, it is kept.
func TestViews_ComeAndGo(t *testing.T) {
	eachView(t, func(t *testing.T, corefile string, mark func(c *answers.Properties, last byte)) {
		p := newPerCaller(t, corefile)
		all := answerFor(99, 60)
		p.askAs(1, "w. A", all)
		p.mark = mark
		ask := func(last byte) string { // what is still kept may be given, with less time to live or as stale
			w := &caller{last: last}
			if _, err := p.bed.ServeDNS(context.Background(), w, query("w. A")); err != nil {
				t.Error(err)
			}
			got := w.reply.Answer[0].(*dns.A).A.String()
			if got != "192.0.2.99" && got != fmt.Sprintf("192.0.2.%d", last) {
				t.Errorf("caller %d is given %s", last, got)
			}
			return got
		}
		for range 100 {
			time.Sleep(time.Second)
			for last := range byte(3) {
				ask(last + 1)
			}
			synctest.Wait()
		}
		time.Sleep(2 * time.Hour)
		for last := range byte(3) {
			if got, want := ask(last+1), fmt.Sprintf("192.0.2.%d", last+1); got != want {
				t.Errorf("long after the change caller %d is given %s, want %s", last+1, got, want)
			}
		}
		p.mark = nil
		p.askAs(1, "w. A", all)
		n := p.queries()
		p.askAs(2, "w. A", all)
		if kept := p.entry("w. A"); kept == nil == (p.queries() == n) {
			t.Errorf("kept is %v, and %d queries more were asked", kept, p.queries()-n)
		}
		if p.entry("w. A") == nil && p.kinds[answers.Success].disabled == nil {
			t.Error("what is for all is not kept again")
		}
	})
}

// Those who wait for a prefetch do not get what it has brought, but their own.
func TestViews_Prefetch(t *testing.T) {
	for name, mark := range marks(new(generation)) {
		beds(t, name, func(t *testing.T) {
			p := newPerCaller(t, "cache {\nprefetch 1\nserve_stale off\n}")
			p.askAs(1, "w. A", answerFor(99, 60))
			p.mark, p.takes = mark, 6*time.Second
			time.Sleep(57 * time.Second)
			p.askAs(1, "w. A", answerFor(99, 3)) // it is fetched again now
			time.Sleep(4 * time.Second)          // and has expired
			var wg sync.WaitGroup
			for last := range byte(3) {
				wg.Go(func() { p.askAs(last+1, "w. A", answerFor(last+1, 60)) })
			}
			wg.Wait()
			synctest.Wait()
			if e := p.entry("w. A"); freshnessOf(e, p.now()) != unusable {
				t.Errorf("kept is %+v", e)
			}
		})
	}
}

// The fast path is told that the answer depends on who asks, and finds the answer of each view alone.
func TestViews_FastPath(t *testing.T) {
	beds(t, "views", func(t *testing.T) {
		g := new(generation)
		p := newPerCaller(t, "cache")
		p.space.ByGeneration.Store(true)
		p.mark = marks(g)["of a view"]
		for _, last := range []byte{1, 2} {
			p.askAs(last, "w. A", answerFor(last, 60))
		}
		p.mark = marks(g)["private, of a view"]
		p.askAs(3, "w. A", answerFor(3, 60))
		r := query("w. A")
		var q answers.Query
		packed, _ := q.FromMsg(make([]byte, 0, answers.MaxQuery), r)
		key := p.space.Key(make([]byte, 0, answers.MaxKey), packed, &q)
		base := p.store.Get(key)
		if base == nil || base.Views == nil || base.Cached {
			t.Fatalf("kept for all is %+v", base)
		}
		for last, want := range map[byte]string{1: answerFor(1, 60), 2: answerFor(2, 60), 3: "", 4: ""} {
			e, _ := p.store.GetView(base, key, p.now(), netip.AddrFrom4([4]byte{198, 51, 100, last}), nil)
			got := ""
			if e != nil {
				m := new(dns.Msg)
				if err := m.Unpack(e.Plain.AppendReply(nil, packed, &q, &answers.Patch{})); err != nil {
					t.Fatal(err)
				}
				m.RecursionAvailable = true
				got = brief(m)
			}
			if got != want {
				t.Errorf("caller %d is given %q, want %q", last, got, want)
			}
		}
		g.n++
		if base.Fresh(p.now()) {
			t.Error("what leads to the views outlives what they hang on")
		}
		p.mark = nil
		p.askAs(1, "w. A", answerFor(99, 60))
		p.askAs(2, "w. A", answerFor(99, 60))
		p.wantQueries(4)
	})
}

// A plugin asks the server for where an alias leads, and what it gets there is not for all: nor is its own
// answer then.
func TestViews_Nested(t *testing.T) {
	for name, mark := range marks(new(generation)) {
		beds(t, name, func(t *testing.T) {
			p := newPerCaller(t, "cache")
			p.mark = mark
			p.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				if r.Question[0].Name == "w." {
					return p.ServeDNS(ctx, w, r)
				}
				nested := &caller{last: w.RemoteAddr().(*net.UDPAddr).IP.To4()[3]}
				if _, err := p.bed.ServeDNS(ctx, nested, query("w. A")); err != nil {
					return dns.RcodeServerFailure, err
				}
				m := replyTo(t, r, "NOERROR; alias. 60 IN CNAME w.")
				m.Answer = append(m.Answer, nested.reply.Answer...)
				return 0, w.WriteMsg(m)
			})
			for _, last := range []byte{1, 2, 1} {
				p.askAs(last, "alias. A", fmt.Sprintf("NOERROR; alias. 60 IN CNAME w.; w. 60 IN A 192.0.2.%d", last))
			}
		})
	}
}

// ended returns the properties of a reply whose data changed while it was made.
func ended() (p answers.Properties) {
	p.End()
	return p
}
