package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/property"
)

// failing answers with a response code.
func failing(code int) rogue.Behaviour { return rogue.Behaviour{Rcode: code} }

func TestFailover(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	servfail, refused := failing(dns.RcodeServerFailure), failing(dns.RcodeRefused)
	for name, c := range map[string]struct {
		options string
		servers []rogue.Behaviour
		rcode   int
		queries []int // minimum of each server; 0 is none
	}{
		"without the option":    {"", []rogue.Behaviour{servfail, good}, dns.RcodeServerFailure, []int{1, 0}},
		"the second is good":    {"failover SERVFAIL", []rogue.Behaviour{servfail, good}, dns.RcodeSuccess, []int{1, 1}},
		"the third is good":     {"failover SERVFAIL REFUSED", []rogue.Behaviour{servfail, refused, good}, dns.RcodeSuccess, []int{1, 1, 1}},
		"another code":          {"failover REFUSED", []rogue.Behaviour{servfail, good}, dns.RcodeServerFailure, []int{1, 0}},
		"all bad":               {"failover SERVFAIL REFUSED", []rogue.Behaviour{servfail, refused}, dns.RcodeRefused, []int{1, 1}},
		"one alone":             {"failover SERVFAIL", []rogue.Behaviour{servfail}, dns.RcodeServerFailure, []int{1}},
		"the second refuses":    {"failover SERVFAIL", []rogue.Behaviour{servfail, refusing}, dns.RcodeServerFailure, []int{1, 0}},
		"the second is silent":  {"failover SERVFAIL\nread_timeout 100ms", []rogue.Behaviour{servfail, silent}, dns.RcodeServerFailure, []int{1, 1}},
		"two silent":            {"failover SERVFAIL\ntimeout 300ms", []rogue.Behaviour{servfail, silent, silent}, dns.RcodeServerFailure, []int{1, 1}},
		"one attempt may fail":  {"failover SERVFAIL\nmax_connect_attempts 1", []rogue.Behaviour{servfail, good}, dns.RcodeSuccess, []int{1, 1}},
		"a name does not exist": {"failover NXDOMAIN", []rogue.Behaviour{failing(dns.RcodeNameError), good}, dns.RcodeSuccess, []int{1, 1}},
	} {
		for _, tcp := range []bool{false, true} {
			cases.Run(fmt.Sprintf("%s, TCP %t", name, tcp), func(t testing.TB) {
				f, servers := forwardTo(t, "policy sequential\n"+c.options, c.servers...)
				a := queryOver(f, question("a.example."), tcp)
				if a.Msg == nil || a.code != c.rcode {
					t.Errorf("message %v, code %d, error %v; want code %d", a.Msg, a.code, a.err, c.rcode)
				}
				for i, want := range c.queries {
					if n := servers[i].Counts().Queries(); n < want || want == 0 && n > 0 {
						t.Errorf("server %d got %d queries, want %d", i, n, want)
					}
				}
			})
		}
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	nodata := rogue.Behaviour{NoData: true}
	for name, c := range map[string]struct {
		options string
		first   rogue.Behaviour
		last    bool // it is the only stanza
		passed  bool
	}{
		"the code":                 {"next NXDOMAIN", failing(dns.RcodeNameError), false, true},
		"another code":             {"next NXDOMAIN", failing(dns.RcodeServerFailure), false, false},
		"a good answer":            {"next NXDOMAIN\nnext_on_nodata", good, false, false},
		"no data":                  {"next_on_nodata", nodata, false, true},
		"no data, other option":    {"next NXDOMAIN", nodata, false, false},
		"no data is no other code": {"next_on_nodata", failing(dns.RcodeNameError), false, false},
		"not to another plugin":    {"next NXDOMAIN", failing(dns.RcodeNameError), true, false},
		"no data, last stanza":     {"next_on_nodata", nodata, true, false},
		"without an answer":        {"next SERVFAIL\ntimeout 200ms", silent, false, false},
	} {
		cases.Run(name, func(t testing.TB) {
			one, two := rogue.Start(t, c.first), rogue.Start(t, good)
			text := stanzaOf(c.options, one.Addr)
			if !c.last {
				text += "\n" + stanzaOf("", two.Addr)
			}
			a := queryOver(chainOf(t, text), question("a.example."), false)
			if passed := two.Counts().Queries() > 0; passed != c.passed || a.code == dns.RcodeYXDomain {
				t.Errorf("passed to the next: %t, want %t; code %d", passed, c.passed, a.code)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	s := rogue.Start(t, good)
	f := chainOf(t, strings.Replace(stanzaOf("except b.a.example x.y", s.Addr), " . ", " a.example ", 1))
	for name, mine := range map[string]bool{
		"a.example.": true, "c.a.example.": true, "C.A.Example.": true, "aa.example.": false, "example.": false, ".": false,
		"b.a.example.": false, "c.b.a.example.": false, "bb.a.example.": true, "x.y.": false,
	} {
		t.Run(name, func(t *testing.T) {
			if a := queryOver(f, question(name), false); (a.Msg != nil) != mine || !mine && a.code != dns.RcodeYXDomain {
				t.Errorf("code %d of a message %v", a.code, a.Msg)
			}
		})
	}
	whole := chainOf(t, strings.Replace(stanzaOf("except a.example", s.Addr), " . ", " a.example ", 1))
	if a := queryOver(whole, question("a.example."), false); a.Msg == nil {
		t.Errorf("queries for the zone's own name are not forwarded: code %d", a.code)
	}
}

func TestHedge(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	servfail := rogue.Behaviour{Rcode: dns.RcodeServerFailure, Delay: 300 * time.Millisecond}
	late := rogue.Behaviour{Delay: time.Second}
	for name, c := range map[string]struct {
		options string
		servers []rogue.Behaviour
		rcode   int
		queries []int
		early   bool // before the first upstream has answered
	}{
		"the second answers first":        {"", []rogue.Behaviour{late, good}, dns.RcodeSuccess, []int{1, 1}, true},
		"the first is silent":             {"", []rogue.Behaviour{silent, good}, dns.RcodeSuccess, []int{1, 1}, true},
		"the first is in time":            {"", []rogue.Behaviour{good, good}, dns.RcodeSuccess, []int{1, 0}, true},
		"SERVFAIL waits for the second":   {"", []rogue.Behaviour{servfail, {Delay: 500 * time.Millisecond}}, dns.RcodeSuccess, []int{1, 1}, false},
		"SERVFAIL of the second waits":    {"", []rogue.Behaviour{{Delay: 500 * time.Millisecond}, failing(dns.RcodeServerFailure)}, dns.RcodeSuccess, []int{1, 1}, false},
		"both bad":                        {"", []rogue.Behaviour{servfail, servfail}, dns.RcodeServerFailure, []int{1, 1}, false},
		"SERVFAIL, and the second silent": {"timeout 1s", []rogue.Behaviour{servfail, silent}, dns.RcodeServerFailure, []int{1, 1}, false},
		"the first refuses":               {"", []rogue.Behaviour{refusing, good, good}, dns.RcodeSuccess, []int{0, 1, 0}, true},
		"the first refuses, then late":    {"", []rogue.Behaviour{refusing, late, good}, dns.RcodeSuccess, []int{0, 1, 1}, true},
		"the second refuses":              {"", []rogue.Behaviour{{Delay: 300 * time.Millisecond}, refusing, good}, dns.RcodeSuccess, []int{1, 0, 1}, true},
		"one hedge only":                  {"", []rogue.Behaviour{late, late, good}, dns.RcodeSuccess, []int{1, 1, 0}, false},
		"one upstream alone":              {"", []rogue.Behaviour{{Delay: 300 * time.Millisecond}}, dns.RcodeSuccess, []int{1}, false},
		"off":                             {"hedge 0", []rogue.Behaviour{{Delay: 300 * time.Millisecond}, good}, dns.RcodeSuccess, []int{1, 0}, false},
	} {
		for _, tcp := range []bool{false, true} {
			cases.Run(fmt.Sprintf("%s, TCP %t", name, tcp), func(t testing.TB) {
				options := "policy sequential\n" + c.options
				if !strings.Contains(options, "hedge") {
					options += "\nhedge 100ms"
				}
				f, servers := forwardTo(t, options, c.servers...)
				a := queryOver(f, question("a.example."), tcp)
				if a.Msg == nil || a.code != c.rcode {
					t.Errorf("message %v, code %d, error %v; want code %d", a.Msg, a.code, a.err, c.rcode)
				}
				for i, n := range c.queries {
					if got := servers[i].Counts().Queries(); got != n {
						t.Errorf("server %d got %d queries, want %d", i, got, n)
					}
				}
				if c.early && a.took > late.Delay-50*time.Millisecond {
					t.Errorf("the answer took %v", a.took)
				}
			})
		}
	}
}

// TestInTime measures how long clients wait for silent servers. A good server at the end has a share of a second, which
// is enough on a busy machine.
func TestInTime(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for name, c := range map[string]struct {
		options string
		silent  int // servers, before good ones
		good    int
		rcode   int
		min     time.Duration
		max     time.Duration
	}{
		"one of 2":                {"timeout 2s", 1, 1, dns.RcodeSuccess, 0, 2 * time.Second},
		"one of 4":                {"timeout 1s", 1, 3, dns.RcodeSuccess, 0, time.Second},
		"one of 15":               {"timeout 1s", 1, 14, dns.RcodeSuccess, 0, time.Second},
		"14 of 15":                {"timeout 15s", 14, 1, dns.RcodeSuccess, 0, 15 * time.Second},
		"3 of 4":                  {"timeout 4s", 3, 1, dns.RcodeSuccess, 0, 4 * time.Second},
		"all of 2":                {"timeout 1s", 2, 0, dns.RcodeServerFailure, 0, time.Second},
		"all of 15":               {"timeout 1s", 15, 0, dns.RcodeServerFailure, 0, time.Second},
		"one alone":               {"timeout 500ms", 1, 0, dns.RcodeServerFailure, 500 * time.Millisecond, 500 * time.Millisecond},
		"read_timeout":            {"read_timeout 100ms", 1, 1, dns.RcodeSuccess, 100 * time.Millisecond, 600 * time.Millisecond},
		"read_timeout, twice":     {"read_timeout 100ms", 2, 1, dns.RcodeSuccess, 200 * time.Millisecond, 700 * time.Millisecond},
		"attempts 1":              {"max_connect_attempts 1\nread_timeout 200ms", 1, 1, dns.RcodeServerFailure, 200 * time.Millisecond, 200 * time.Millisecond},
		"attempts 2":              {"max_connect_attempts 2\nread_timeout 200ms", 2, 1, dns.RcodeServerFailure, 400 * time.Millisecond, 400 * time.Millisecond},
		"attempts 0":              {"max_connect_attempts 0\nread_timeout 100ms\ntimeout 1s", 2, 0, dns.RcodeServerFailure, time.Second, time.Second},
		"attempts by default":     {"read_timeout 100ms\ntimeout 3s", 2, 0, dns.RcodeServerFailure, 3 * time.Second, 3 * time.Second},
		"read_timeout is too big": {"read_timeout 1m\ntimeout 2s", 1, 1, dns.RcodeSuccess, 0, 2 * time.Second},
		"hedge":                   {"hedge 100ms\ntimeout 4s", 3, 1, dns.RcodeSuccess, time.Second, 1500 * time.Millisecond},
	} {
		for _, transport := range []string{"UDP", "TCP", "TCP with fallback"} {
			cases.Run(name+" by "+transport, func(t testing.TB) {
				var servers []rogue.Behaviour
				for range c.silent {
					servers = append(servers, silent)
				}
				for range c.good {
					servers = append(servers, good)
				}
				options := "policy sequential\n" + c.options
				if transport == "TCP with fallback" {
					options += "\nfallback udp"
				}
				f, _ := forwardTo(t, options, servers...)
				m := question("a.example.")
				a := queryOver(f, m, transport != "UDP")
				if a.took < c.min || a.took > c.max+margin {
					t.Errorf("after %v, want after %v to %v", a.took, c.min, c.max)
				}
				if a.code != c.rcode {
					t.Errorf("code %d and error %v, want code %d", a.code, a.err, c.rcode)
				}
				if a.code == dns.RcodeServerFailure && a.err == nil {
					t.Error("SERVFAIL without an error")
				}
				if wrong := a.wrong(m); c.rcode == dns.RcodeSuccess && wrong != "" {
					t.Error(wrong)
				}
			})
		}
	}
}

// TestLateAnswer: a late answer is used although another upstream was tried.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	slow := rogue.Behaviour{Delay: 400 * time.Millisecond}
	for _, tcp := range []bool{false, true} {
		for name, servers := range map[string][]rogue.Behaviour{"beside a silent one": {slow, silent}, "alone": {slow}, "beside one that refuses": {slow, refusing}} {
			cases.Run(fmt.Sprintf("%s, TCP %t", name, tcp), func(t testing.TB) {
				f, all := forwardTo(t, "policy sequential\nread_timeout 250ms", servers...)
				m := question("a.example.")
				a := queryOver(f, m, tcp)
				if wrong := a.wrong(m); wrong != "" || a.took > slow.Delay+margin {
					t.Errorf("after %v: %s", a.took, wrong)
				}
				if n := all[0].Counts().Queries(); n < 1 || n > 2 {
					t.Errorf("the slow server got %d queries", n)
				}
			})
		}
	}
}

// TestEnd: the end of the context ends the wait.
func TestEnd(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for _, tcp := range []bool{false, true} {
		cases.Run(fmt.Sprintf("cancelled, TCP %t", tcp), func(t testing.TB) {
			f, _ := forwardTo(t, "", silent)
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(50*time.Millisecond, cancel)
			if a := queryWith(ctx, f, question("a.example."), tcp); a.code != dns.RcodeServerFailure || !errors.Is(a.err, context.Canceled) || a.took > 50*time.Millisecond+margin {
				t.Errorf("code %d, error %v, after %v", a.code, a.err, a.took)
			}
		})
		cases.Run(fmt.Sprintf("deadline, TCP %t", tcp), func(t testing.TB) {
			f, _ := forwardTo(t, "", silent, silent)
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			if a := queryWith(ctx, f, question("a.example."), tcp); a.code != dns.RcodeServerFailure || a.err == nil || a.took > 100*time.Millisecond+margin {
				t.Errorf("code %d, error %v, after %v", a.code, a.err, a.took)
			}
		})
	}
	cases.Run("deadline, the second is good", func(t testing.TB) {
		f, _ := forwardTo(t, "policy sequential", silent, good)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		m := question("a.example.")
		if wrong := queryWith(ctx, f, m, false).wrong(m); wrong != "" {
			t.Error(wrong)
		}
	})
	cases.Run("attempts that fail at once", func(t testing.TB) {
		f, _ := forwardTo(t, "max_connect_attempts 2", refusing)
		if a := queryOver(f, question("a.example."), true); a.code != dns.RcodeServerFailure || a.took > 100*time.Millisecond+margin {
			t.Errorf("code %d, error %v, after %v", a.code, a.err, a.took)
		}
	})
	// A truncated answer is returned if no other arrives.
	cases.Run("cancelled with an answer", func(t testing.TB) {
		f, _ := forwardTo(t, "prefer_udp", rogue.Behaviour{Drop: 1, OverUDP: &rogue.Behaviour{Truncate: true}})
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(200*time.Millisecond, cancel)
		if a := queryWith(ctx, f, question("a.example."), true); a.Msg == nil || !a.Truncated || a.took > 200*time.Millisecond+margin {
			t.Errorf("message %v, error %v after %v, want the truncated answer", a.Msg, a.err, a.took)
		}
	})
}

// TestEnd_NoFurtherAttempt: no attempt is made after the end of the time.
func TestEnd_NoFurtherAttempt(t *testing.T) {
	f, _ := forwardTo(t, "max_connect_attempts 0", good, good)
	for name, late := range map[string]time.Duration{"before the end": -time.Nanosecond, "at the end": 0} {
		t.Run(name, func(t *testing.T) {
			x := f.newExchange(false, nil)
			kit.Must(t, x.setMessage(&request.Request{Req: question("a.example."), W: &test.ResponseWriter{}}))
			x.mu.Lock()
			defer x.mu.Unlock()
			x.order, x.batch = x.all, new(batch.Batch)
			x.try(x.started)
			x.attempts[0].open = false
			x.retry(x.deadline.Add(late), false)
			if n := len(x.attempts); n != 1 != (late < 0) || x.last != (late == 0) {
				t.Errorf("%d attempts, the last: %t", n, x.last)
			}
		})
	}
}

// attemptCounter is the receiver of an exchange. It stores how many attempts the exchange made, and how many it still has.
type attemptCounter struct {
	x     *exchange
	ended chan struct{}
	made  int
	kept  int
}

func (r *attemptCounter) replied(*batch.Batch, message, *upstream, error) {
	r.made, r.kept = r.x.made, len(r.x.attempts)
	close(r.ended)
}

// TestAttemptsAreReused: an exchange whose attempts fail one after the other reuses the memory of the first.
func TestAttemptsAreReused(t *testing.T) {
	t.Parallel()
	for name, closes := range map[string]rogue.Behaviour{"refuses": refusing, "closes": {CloseAtOnce: true}} {
		f, _ := forwardTo(t, "force_tcp\ntimeout 2s", closes)
		r := &attemptCounter{ended: make(chan struct{})}
		r.x = f.newExchange(false, r)
		kit.Must(t, r.x.setMessage(&request.Request{Req: question("a.example."), W: &test.ResponseWriter{}}))
		var b batch.Batch
		r.x.run(&b)
		b.Flush()
		<-r.ended
		if r.made < 3 || r.kept != 1 {
			t.Errorf("%s: %d attempts, %d of them kept, want 3 and more, and 1", name, r.made, r.kept)
		}
	}
}

// TestShortRefusal: queries wait for a server that refuses for a short time.
func TestShortRefusal(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for name, c := range map[string]struct {
		options string
		tcp     bool
		servers int
	}{
		"UDP": {"", false, 1}, "TCP": {"", true, 1}, "fallback": {"force_tcp\nfallback udp", false, 1}, "two": {"", true, 2},
		"never checked": {"max_fails 0", true, 1},
	} {
		cases.Run(name, func(t testing.TB) {
			behaviours := make([]rogue.Behaviour, c.servers)
			for i := range behaviours {
				behaviours[i] = refusing
			}
			f, servers := forwardTo(t, c.options, behaviours...)
			time.AfterFunc(250*time.Millisecond, func() { servers[c.servers-1].Behave(good) })
			var wait sync.WaitGroup
			for i := range 200 {
				wait.Go(func() { wantRight(t, f, c.tcp, fmt.Sprintf("q%d.example.", i)) })
			}
			wait.Wait()
			if n := servers[c.servers-1].Counts().Queries(); n > 420 {
				t.Errorf("%d queries to the server for 200 of clients", n)
			}
		})
	}
}

// TestPauses: a server that fails at once is tried with growing pauses.
func TestPauses(t *testing.T) {
	t.Parallel()
	measured(t, func(t testing.TB) {
		certificate := rogue.NewCertificate(t, "127.0.0.1")
		var received atomic.Int64
		w := startWeb(t, certificate.Config, func(r *dns.Msg) *dns.Msg {
			if r.Question[0].Qtype != dns.TypeNS {
				received.Add(1)
			}
			return nil
		})
		f := chainOf(t, stanzaOf("timeout 1600ms\ntls "+certificate.CA, "https://"+w.at))
		const queries = 100
		var wait sync.WaitGroup
		for i := range queries {
			wait.Go(func() {
				if a := queryOver(f, question(fmt.Sprintf("q%d.example.", i)), true); a.code != dns.RcodeServerFailure || a.took > 1600*time.Millisecond+margin {
					t.Errorf("code %d after %v", a.code, a.took)
				}
			})
		}
		wait.Wait()
		// After 0, 100, 300, 700 and 1500 ms; fewer while it is down, or on a busy machine. The client of HTTP/2 may repeat
		// one.
		if n := received.Load(); n <= queries || n > 6*queries {
			t.Errorf("%d queries were sent for %d of clients, want up to 5 for each, and more than 1 on average", n, queries)
		}
	})
}

func TestMaxConcurrent(t *testing.T) {
	t.Parallel()
	measured(t, func(t testing.TB) {
		f, servers := forwardTo(t, "max_concurrent 2\ntimeout 2s", rogue.Behaviour{Delay: 300 * time.Millisecond})
		before := metric(t, "coredns_forward_max_concurrent_rejects_total")
		var wait sync.WaitGroup
		for i := range 2 {
			wait.Go(func() { wantRight(t, f, false, fmt.Sprintf("q%d.example.", i)) })
		}
		kit.Eventually(t, "two queries", func() bool { return servers[0].Counts().Queries() == 2 })
		if a := queryOver(f, question("a.example."), false); a.code != dns.RcodeRefused || a.err == nil {
			t.Errorf("code %d, error %v", a.code, a.err)
		}
		if n := metric(t, "coredns_forward_max_concurrent_rejects_total") - before; n != 1 {
			t.Errorf("%v are counted", n)
		}
		wait.Wait()
		wantRight(t, f, false, "b.example.")
	})
}

// TestNotOneQuestion: a query without exactly one question is not sent, and is no failure of the upstream.
func TestNotOneQuestion(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for _, n := range []int{0, 2} {
		cases.Run(fmt.Sprint(n), func(t testing.TB) {
			f, servers := forwardTo(t, "", good)
			m := question("a.example.")
			if m.Question = nil; n > 0 {
				m.Question = []dns.Question{{Name: "a.", Qtype: 1, Qclass: 1}, {Name: "b.", Qtype: 1, Qclass: 1}}
			}
			if a := queryOver(f, m, false); a.code != dns.RcodeFormatError || a.err == nil || a.took > margin {
				t.Errorf("code %d, error %v, after %v", a.code, a.err, a.took)
			}
			if c := servers[0].Counts(); c.Queries()+c.Probes()+c.Malformed > 0 || upstreamOf(f, 0).doubted() {
				t.Errorf("the server got queries: %+v", c)
			}
		})
	}
}

// TestUse changes upstreams under load. Connections of those that remain stay open, and no query is lost.
func TestUse(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for _, options := range []string{"force_tcp", ""} {
		cases.Run(options, func(t testing.TB) {
			slow := rogue.Behaviour{Delay: 20 * time.Millisecond}
			f, servers := forwardTo(t, options+"\nexpire 1m", slow, slow, slow)
			remaining := upstreamOf(f, 1)
			var ended atomic.Bool
			var clients sync.WaitGroup
			for c := range 10 {
				clients.Go(func() {
					for i := 0; !ended.Load(); i++ {
						wantRight(t, f, false, fmt.Sprintf("q%d.c%d.example.", i, c))
					}
				})
			}
			for i := range 40 {
				f.use([]endpoint{plain(servers[1].Addr), plain(servers[2*(i%2)].Addr)})
				time.Sleep(10 * time.Millisecond)
			}
			ended.Store(true)
			clients.Wait()
			if upstreamOf(f, 0) != remaining || len(*f.upstreams.Load()) != 2 {
				t.Error("a remaining upstream was replaced")
			}
			if n := servers[1].Counts().Connections; options != "" && n > 2 {
				t.Errorf("%d connections to the remaining upstream", n)
			}
			f.use(nil)
			if a := queryOver(f, question("a.example."), false); a.code != dns.RcodeServerFailure || !errors.Is(a.err, errNone) {
				t.Errorf("without upstreams: code %d, error %v", a.code, a.err)
			}
			kit.Eventually(t, "connections are closed", func() bool {
				return servers[0].Counts().Open+servers[1].Counts().Open+servers[2].Counts().Open == 0
			})
			for _, s := range servers {
				kit.Eventually(t, "sockets are closed", func() bool { return metric(t, "nearside_forward_connections", "to", s.Addr) == 0 })
			}
		})
	}
}

// running returns the stacks of this plugin's goroutines, except those of tests.
func running() (stacks []string) {
	buf := make([]byte, 1<<22)
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, owner := range []string{"forward/transport.", "forward.(*upstream)", "forward.(*Forward)", "net/http.(*Transport)", "net/http.(*persistConn)", "http2", "proxy.(*"} {
			if strings.Contains(stack, owner) && !strings.Contains(stack, "testing.(*T).Parallel") {
				stacks = append(stacks, stack)
				break
			}
		}
	}
	return stacks
}

// TestStop: queries in flight are answered, and no goroutine is left. It is not parallel, since it examines all
// goroutines.
func TestStop(t *testing.T) {
	cases := concurrently(t)
	for name, c := range map[string]struct {
		options string
		server  rogue.Behaviour
		rcode   int
	}{
		"UDP":                {"", rogue.Behaviour{Delay: 200 * time.Millisecond}, dns.RcodeSuccess},
		"TCP":                {"force_tcp", rogue.Behaviour{Delay: 200 * time.Millisecond}, dns.RcodeSuccess},
		"silent, is checked": {"force_tcp\nfallback udp\ntimeout 300ms\nread_timeout 50ms", silent, dns.RcodeServerFailure},
		"TCP does not work":  {"force_tcp\nfallback udp", rogue.Behaviour{Refuse: true, OverUDP: rogue.Well()}, dns.RcodeSuccess},
	} {
		cases.Run(name, func(t testing.TB) {
			f, servers := forwardTo(t, c.options, c.server)
			var wait sync.WaitGroup
			for i := range 10 {
				wait.Go(func() {
					m := question(fmt.Sprintf("q%d.example.", i))
					if a := queryOver(f, m, false); a.code != c.rcode {
						t.Errorf("code %d, error %v", a.code, a.err)
					}
				})
			}
			kit.Eventually(t, "the server has queries", func() bool { return c.server.Refuse || servers[0].Counts().Queries() > 0 })
			f.stop()
			f.use([]endpoint{plain(servers[0].Addr), plain("127.0.0.1:9")})
			wait.Wait()
			if n := len(*f.upstreams.Load()); n != 1 {
				t.Errorf("%d upstreams after the end", n)
			}
			f.stop()
			kit.Eventually(t, "connections are closed", func() bool { return servers[0].Counts().Open == 0 })
		})
	}
	cases.Wait()
	kit.Eventually(t, "goroutines have ended", func() bool { return len(running()) == 0 })
}

// TestChangingServers has servers that change their behaviour at random, while one always answers: each client gets its
// answer in time. Then that one misbehaves as well.
func TestChangingServers(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for _, options := range []string{"", "force_tcp", "force_tcp\nfallback udp\nhedge 50ms", "prefer_udp\nfailover SERVFAIL", "policy sequential\nhedge 20ms"} {
		for _, all := range []bool{false, true} {
			cases.Go(func() {
				t.Run(fmt.Sprintf("%s, all misbehave: %t", options, all), func(t *testing.T) {
					property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
						measured(t, func(t testing.TB) { changeServers(t, seed, options, all) })
					})
				})
			})
		}
	}
}

// moods are the behaviours of these servers. None sends a wrong answer that matches the query.
var moods = []rogue.Behaviour{
	good, good, silent, refusing, {Delay: 100 * time.Millisecond}, {Shuffle: 50 * time.Millisecond}, {CloseAfter: 1}, {CloseAtOnce: true},
	{InOrder: true, Delay: 2 * time.Millisecond}, {ResetShare: 0.3}, {Cut: 0.3}, {Drop: 0.3}, {Wrong: rogue.WrongID | rogue.WrongDirection},
	{Wrong: rogue.WrongQuestion | rogue.WrongType}, {Drop: 1, OverUDP: rogue.Well()}, {Refuse: true, OverUDP: rogue.Well()}, {OverUDP: &silent},
}

// changeServers runs one case of TestChangingServers.
func changeServers(t testing.TB, seed uint64, options string, allMisbehave bool) {
	dice := rand.New(rand.NewPCG(seed, 1)) // #nosec G404 -- reproducible
	const timeout = 1500 * time.Millisecond
	f, servers := forwardTo(t, options+"\nhealth_check 20ms\ntimeout "+timeout.String(), good, good, good)
	var ended atomic.Bool
	var right, failed atomic.Int64
	var clients sync.WaitGroup
	for c := range 6 {
		clients.Go(func() {
			for i := 0; !ended.Load(); i++ {
				m := question(fmt.Sprintf("q%d.c%d.eXample.", i, c))
				a := queryOver(f, m, i%3 == 0)
				switch wrong := a.wrong(m); {
				case a.took > timeout+margin:
					t.Errorf("%s: after %v", m.Question[0].Name, a.took)
				case wrong == "":
					right.Add(1)
				case allMisbehave && a.Msg == nil && a.code == dns.RcodeServerFailure:
					failed.Add(1)
				default:
					t.Errorf("%s: %s", m.Question[0].Name, wrong)
				}
			}
		})
	}
	const enough = 50
	for i := 0; i < 30 || right.Load() < enough && i < 3000; i++ { // a busy machine sends few
		n := dice.IntN(len(servers))
		if n > 0 || allMisbehave { // otherwise the first server remains good
			servers[n].Behave(moods[dice.IntN(len(moods))])
		}
		time.Sleep(time.Duration(dice.IntN(100)) * time.Millisecond)
	}
	for _, s := range servers {
		s.Behave(good)
	}
	ended.Store(true)
	clients.Wait()
	if right.Load() < enough {
		t.Errorf("%d right answers and %d failures", right.Load(), failed.Load())
	}
	// When all servers are good again, all queries succeed.
	kit.Eventually(t, "ten answers at once", func() bool {
		for i := range 10 {
			m := question(fmt.Sprintf("after%d.example.", i))
			if a := queryOver(f, m, i%2 == 0); a.wrong(m) != "" || a.took > margin {
				return false
			}
		}
		return true
	})
}
