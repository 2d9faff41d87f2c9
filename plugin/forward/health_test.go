package forward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

const checkFailures = "coredns_proxy_healthcheck_failures_total"

// TestDown: after more than max_fails failed checks, an upstream gets no queries while another is up.
func TestDown(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for name, c := range map[string]struct {
		options string
		tcp     bool
		fails   uint32
	}{
		"UDP": {"", false, 2}, "TCP": {"force_tcp", true, 2}, "fallback": {"force_tcp\nfallback udp", true, 2}, "5 fails": {"max_fails 5", false, 5}, "1 fail": {"force_tcp\nmax_fails 1", true, 1},
	} {
		cases.Run(name, func(t testing.TB) {
			f, servers := forwardTo(t, "policy sequential\nhealth_check 20ms\nread_timeout 300ms\n"+c.options, refusing, good)
			u, s := upstreamOf(f, 0), servers[0]
			u.fails.Store(c.fails)
			if u.down() {
				t.Error("the upstream is down too early")
			}
			u.fails.Store(0)
			wantRight(t, f, c.tcp, "a.example.")
			kit.Eventually(t, "it is down", u.down)
			if n := metric(t, checkFailures, "to", s.Addr, "proxy_name", "forward"); n < float64(c.fails)+1 {
				t.Errorf("the upstream is down after %v failed checks, want %d", n, c.fails+1)
			}
			wantRight(t, f, c.tcp, "b.example.", "c.example.")
			s.Behave(good)
			kit.Eventually(t, "a check has found it up", func() bool { return !u.down() && !u.doubted() && s.Counts().Probes() > 0 })
			checks := 0
			if c.tcp && s.Counts().UDPProbes > 0 { // the last check over TCP failed just before: a query goes over UDP, and TCP is checked
				checks = 1
			}
			s.ResetCounts()
			wantRight(t, f, c.tcp, "d.example.")
			if s.Counts().Queries() != 1 {
				t.Error("the upstream is not the first")
			}
			time.Sleep(60 * time.Millisecond)
			if n := s.Counts().Probes(); n > checks {
				t.Errorf("%d checks of an upstream that answers, want at most %d", n, checks)
			}
		})
	}
}

// TestCheck examines the queries of checks.
func TestCheck(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	for _, c := range []struct {
		options, name string
		recursion     bool
	}{
		{"", ".", true}, {"health_check 1s no_rec", ".", false}, {"health_check 1s domain a.Example", "a.example.", true}, {"health_check 1s no_rec domain b", "b.", false},
	} {
		for transport, options := range map[string]string{"UDP": "", "TCP": "force_tcp", "TLS": "tls " + certificate.CA} {
			t.Run(c.options+" "+transport, func(t *testing.T) {
				var seen sight
				s := script{tcp: replies(func(r *dns.Msg) *dns.Msg { seen.add(r); return new(dns.Msg).SetRcode(r, dns.RcodeRefused) })}
				prefix, other := "", replies(func(*dns.Msg) *dns.Msg { t.Error("a check over the other protocol"); return nil })
				switch transport {
				case "TLS":
					prefix, s.tls = "tls://", certificate.Config
					s.udp = other
				case "TCP":
					s.udp = other
				case "UDP":
					s.udp, s.tcp = s.tcp, other
				}
				u := upstreamOf(chainOf(t, stanzaOf(options+"\n"+c.options, prefix+s.address(t))), 0)
				u.failed()
				kit.Eventually(t, "any answer will do", func() bool { return !u.checking.Load() })
				if u.doubted() || u.fails.Load() > 0 {
					t.Errorf("doubt %t after %d failed checks", u.doubted(), u.fails.Load())
				}
				all := seen.all()
				if len(all) != 1 {
					t.Fatalf("%d queries", len(all))
				}
				if q := all[0].Question[0]; q.Name != c.name || q.Qtype != dns.TypeNS || all[0].RecursionDesired != c.recursion {
					t.Errorf("the query is %v", all[0])
				}
			})
		}
	}
}

// TestCheck_Every counts the checks of a server that refuses.
func TestCheck_Every(t *testing.T) {
	t.Parallel()
	cases := concurrently(t)
	defer cases.Wait()
	for options, c := range map[string]struct {
		min   float64
		every time.Duration
	}{
		"health_check 200ms": {2, 200 * time.Millisecond},
		"health_check 20ms":  {5, 20 * time.Millisecond},
		"health_check 0":     {5, 20 * time.Millisecond}, // no busy loop
		"health_check 1h":    {1, time.Hour},
		"max_fails 0":        {0, 0},
	} {
		for _, tcp := range []string{"", "\nforce_tcp"} {
			cases.Run(options+tcp, func(t testing.TB) {
				f, servers := forwardTo(t, options+tcp, refusing)
				u := upstreamOf(f, 0)
				// Another server of this run may have used the same port.
				before := metric(t, checkFailures, "to", servers[0].Addr)
				began := time.Now()
				for range 100 {
					u.failed()
					time.Sleep(5 * time.Millisecond)
				}
				n, limit := metric(t, checkFailures, "to", servers[0].Addr)-before, 0.0
				if c.every > 0 {
					limit = 1 + float64(time.Since(began)/c.every)
				}
				if n < c.min || n > limit {
					t.Errorf("%v checks, want %v to %v", n, c.min, limit)
				}
				if options == "max_fails 0" && (u.doubted() || u.checking.Load() || u.down()) {
					t.Error("the upstream is checked, or doubted")
				}
			})
		}
	}
}

// TestCheck_Again: a query that fails while a check ends causes another check.
func TestCheck_Again(t *testing.T) {
	t.Parallel()
	f, _ := forwardTo(t, "", good)
	u := upstreamOf(f, 0)
	u.checking.Store(true)
	u.failed() // starts no second check
	if u.endCheck() || !u.checking.Load() {
		t.Error("the upstream is doubted, and not checked")
	}
	u.check()
	if u.doubted() || u.checking.Load() {
		t.Error("after an answer, the upstream is doubted or checked")
	}
	for i := range 100 {
		for range i % 50 {
			u.failed()
			time.Sleep(time.Microsecond)
		}
		kit.Eventually(t, "it is not doubted", func() bool { return !u.doubted() })
	}
}

// TestCheck_Busy: a check that can't be sent, since too many queries are in flight, does not count.
func TestCheck_Busy(t *testing.T) {
	t.Parallel()
	f, servers := forwardTo(t, "force_tcp\nhealth_check 20ms", good)
	u := upstreamOf(f, 0)
	pool := u.stream
	defer pool.Close()
	const busy = 6
	var checks atomic.Int32
	u.stream = &transport.Func{
		Exchange: func(_ context.Context, query []byte) ([]byte, error) {
			if checks.Add(1) <= busy {
				return nil, transport.ErrBusy
			}
			return slices.Clone(query), nil
		},
		Closed: func() {},
	}
	u.failed()
	kit.Eventually(t, "a check is answered", func() bool { return !u.doubted() && !u.checking.Load() })
	if n := checks.Load(); n != busy+1 {
		t.Errorf("%d checks, want %d", n, busy+1)
	}
	if n := metric(t, checkFailures, "to", servers[0].Addr, "proxy_name", "forward"); n != 0 {
		t.Errorf("%v checks count as failed: the upstream would be down after %d", n, f.maxFails+1)
	}
}

// TestUpByQuery: an answer to a client makes an upstream up.
func TestUpByQuery(t *testing.T) {
	t.Parallel()
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("TCP %t", tcp), func(t *testing.T) {
			at := script{tcp: replies(func(r *dns.Msg) *dns.Msg {
				if r.Question[0].Qtype == dns.TypeNS {
					return nil
				}
				return addressReply(r)
			})}.address(t)
			f := chainOf(t, stanzaOf("health_check 20ms", at))
			u := upstreamOf(f, 0)
			u.fails.Store(10)
			u.failed()
			wantRight(t, f, tcp, "a.example.")
			if u.down() || u.doubted() || u.fails.Load() > 1 {
				t.Errorf("upstream is down: %t, doubted: %t, after %d fails", u.down(), u.doubted(), u.fails.Load())
			}
		})
	}
}

// TestAllDown is not parallel: its metric has no labels.
func TestAllDown(t *testing.T) {
	const broken = "coredns_forward_healthcheck_broken_total"
	allDown := func(t testing.TB, options string, behaviours ...rogue.Behaviour) (*Forward, []*rogue.Server) {
		f, servers := forwardTo(t, options, behaviours...)
		for _, u := range *f.upstreams.Load() {
			u.fails.Store(100)
			u.checking.Store(true) // prevents checks
		}
		return f, servers
	}
	t.Run("failfast", func(t *testing.T) {
		f, servers := allDown(t, "failfast_all_unhealthy_upstreams", good, good)
		before := metric(t, broken)
		if a := queryOver(f, question("a.example."), false); a.code != dns.RcodeServerFailure || !errors.Is(a.err, errNoHealthy) || a.took > margin {
			t.Errorf("code %d, error %v, after %v", a.code, a.err, a.took)
		}
		if n := metric(t, broken) - before; n != 1 || servers[0].Counts().Queries()+servers[1].Counts().Queries() > 0 {
			t.Errorf("%s increased by %v, or wrong number of queries", broken, n)
		}
	})
	t.Run("failfast, one is up", func(t *testing.T) {
		f, _ := allDown(t, "failfast_all_unhealthy_upstreams", good, good)
		upstreamOf(f, 1).fails.Store(0)
		before := metric(t, broken)
		wantRight(t, f, false, "a.example.", "b.example.")
		if n := metric(t, broken) - before; n != 0 || !upstreamOf(f, 0).down() {
			t.Errorf("%s increased by %v, want 0; first upstream down: %t, want true", broken, n, upstreamOf(f, 0).down())
		}
	})
	t.Run("trial", func(t *testing.T) {
		f, servers := allDown(t, "", good, good)
		before := metric(t, broken)
		wantRight(t, f, false, "a.example.")
		if n := metric(t, broken) - before; n != 1 || servers[0].Counts().Queries()+servers[1].Counts().Queries() != 1 {
			t.Errorf("%s increased by %v, or wrong number of queries", broken, n)
		}
		if upstreamOf(f, 0).down() == upstreamOf(f, 1).down() {
			t.Error("the upstream that answered is not up, or the other is")
		}
	})
	t.Run("any upstream", func(t *testing.T) {
		f, servers := allDown(t, "timeout 300ms\npolicy sequential", silent, silent, silent)
		var wait sync.WaitGroup
		for i := range 40 {
			wait.Go(func() { queryOver(f, question(fmt.Sprintf("q%d.example.", i)), false) })
		}
		kit.Eventually(t, "each is queried", func() bool {
			return servers[0].Counts().Queries() > 0 && servers[1].Counts().Queries() > 0 && servers[2].Counts().Queries() > 0
		})
		wait.Wait()
	})
	t.Run("few at a time", func(t *testing.T) {
		measured(t, func(t testing.TB) {
			for _, tcp := range []bool{false, true} {
				f, servers := allDown(t, "timeout 200ms", silent)
				u := upstreamOf(f, 0)
				for round := range 2 {
					var wait sync.WaitGroup
					for i := range 50 {
						wait.Go(func() {
							if a := queryOver(f, question(fmt.Sprintf("r%d.q%d.example.", round, i)), tcp); a.code != dns.RcodeServerFailure || a.err == nil {
								t.Errorf("code %d, error %v", a.code, a.err)
							}
						})
					}
					wait.Wait()
					if n := len(servers[0].Counts().Names); n != (round+1)*maxTrials || u.trials.Load() != 0 {
						t.Errorf("round %d: %d names in all; %d are still counted", round, n, u.trials.Load())
					}
				}
			}
		})
	})
}

// TestDoubtedLast: an upstream that has failed is the last in the order until it answers.
func TestDoubtedLast(t *testing.T) {
	t.Parallel()
	measured(t, func(t testing.TB) {
		f, servers := forwardTo(t, "policy sequential\nread_timeout 100ms\nhealth_check 20ms\nmax_fails 1000", silent, good, good)
		u := upstreamOf(f, 0)
		wantRight(t, f, false, "a.example.")
		if !u.doubted() || servers[0].Counts().Queries() != 1 {
			t.Error("the upstream is not doubted")
		}
		wantRight(t, f, false, "b.example.", "c.example.")
		if servers[0].Counts().Queries() != 1 {
			t.Error("the upstream is not the last")
		}
		// The doubted upstream is tried when the others do not answer.
		servers[1].Behave(refusing)
		servers[2].Behave(refusing)
		servers[0].Behave(rogue.Behaviour{})
		wantRight(t, f, false, "d.example.")
		kit.Eventually(t, "it is not doubted any more", func() bool { return !u.doubted() })
		servers[1].Behave(good)
		servers[2].Behave(good)
		servers[0].ResetCounts()
		wantRight(t, f, false, "e.example.")
		if servers[0].Counts().Queries() != 1 {
			t.Error("the upstream is not the first again")
		}
	})
}
