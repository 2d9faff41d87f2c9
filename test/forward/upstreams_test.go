//go:build linux

package forward

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestExpire checks that idle connections are closed after expire, or earlier by edns-tcp-keepalive.
func TestExpire(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		behaviour rogue.Behaviour
		expire    string
	}{
		"expire":                 {rogue.Behaviour{Delay: delay}, "1s"},
		"expire, in order":       {rogue.Behaviour{Delay: delay / 10, InOrder: true}, "1s"},
		"keepalive before":       {rogue.Behaviour{Delay: delay, Keepalive: new(uint16(5))}, "60s"},
		"keepalive of 0":         {rogue.Behaviour{Delay: delay, Keepalive: new(uint16(0))}, "60s"},
		"keepalive after expire": {rogue.Behaviour{Delay: delay, Keepalive: new(uint16(6000))}, "1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, c.behaviour)
			s := start(t, zone(forward(r.Addr, "force_tcp", "expire "+c.expire)))
			l := load{queries: 20, edns: true}
			l.run(s).wantRight(t)
			kit.Within(t, bounded, "no connections open", func() bool { return r.Counts().Open == 0 })
			kit.Within(t, bounded, "no connections open by the metric", func() bool { return s.scrape(t).Sum(connections, "to", r.Addr) == 0 })
			l.run(s).wantRight(t)
		})
	}
}

// TestHangUp closes all connections of an upstream repeatedly. Queries in flight are repeated.
func TestHangUp(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"FIN": false, "RST": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, rogue.Behaviour{Delay: delay, Reset: reset})
			s := start(t, zone(forward(r.Addr, "force_tcp")))
			end := load{queries: 600, pace: 2 * time.Millisecond, tcp: 4}.begin(s)
			for range 2 {
				time.Sleep(4 * delay)
				r.HangUp()
			}
			end().wantRight(t)
			// Connections that are being closed count in addition to their replacements.
			wantConnections(t, r, few)
		})
	}
}

// TestRestart stops an upstream during a load, and starts it again.
func TestRestart(t *testing.T) {
	t.Parallel()
	away := map[string]rogue.Behaviour{"refuses": {Refuse: true}, "black hole": {BlackHole: true}, "silent": {Drop: 1}}
	for name, b := range away {
		t.Run(name+", beside a good one", func(t *testing.T) {
			t.Parallel()
			r, good := rogueServer(t, rogue.Behaviour{Delay: delay}), rogueServer(t, rogue.Behaviour{Delay: delay})
			s := start(t, zone(forward(r.Addr+" "+good.Addr, "force_tcp")))
			end := load{queries: 800, pace: 2 * time.Millisecond, tcp: 4}.begin(s)
			for range 2 {
				time.Sleep(2 * delay)
				r.Behave(b)
				time.Sleep(2 * delay)
				r.Behave(rogue.Behaviour{Delay: delay})
			}
			end().wantRight(t)
		})
		t.Run(name+", alone", func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, rogue.Behaviour{Delay: delay})
			s := start(t, zone(forward(r.Addr, "force_tcp")))
			end := load{queries: 400, pace: 2 * time.Millisecond}.begin(s)
			time.Sleep(2 * delay)
			r.Behave(b)
			time.Sleep(2 * delay)
			r.Behave(rogue.Behaviour{Delay: delay})
			if right, _ := end().wantRcode(t, dns.RcodeServerFailure); right == 0 {
				t.Error("no query got its answer")
			}
			recovered(t, s)
		})
	}
}

// TestAllDown has all upstreams read and never answer, until one of them answers again: while they are down the number of
// queries to them is limited, and clients get answers soon after.
func TestAllDown(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{"TCP": {"force_tcp"}, "UDP": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two := rogueServer(t, rogue.Behaviour{}), rogueServer(t, rogue.Behaviour{})
			s := start(t, zone(forward(one.Addr+" "+two.Addr, append(options, "timeout 1s", "read_timeout 300ms")...)))
			load{queries: 50}.run(s).wantRight(t)
			one.Behave(rogue.Behaviour{Drop: 1})
			two.Behave(rogue.Behaviour{Drop: 1})
			one.ResetCounts()
			two.ResetCounts()
			began := time.Now()
			l := load{queries: 600, pace: 5 * time.Millisecond, wait: time.Second + margin}
			l.run(s).want(t, dns.RcodeToString[dns.RcodeServerFailure])
			noStorm(t, time.Since(began), l.queries, one, two)
			one.Behave(rogue.Behaviour{})
			recovered(t, s)
		})
	}
}

// noStorm fails the test if upstreams that are down received more queries than the limit: each client query twice at each
// upstream, four repeated queries for each connection without answers, and a health check with one retry every half second.
func noStorm(t *testing.T, during time.Duration, queries int, upstreams ...*rogue.Server) {
	t.Helper()
	sent, copies, checks := 0, 0, int(during/(500*time.Millisecond))+2
	for _, r := range upstreams {
		c := r.Counts()
		sent += c.Queries()
		copies += 4 * c.Connections
		if c.Probes() > 2*checks {
			t.Errorf("%d checks of %s in %s, want at most %d", c.Probes(), r.Addr, during, 2*checks)
		}
		for name, n := range c.Names {
			if n > 4 {
				t.Errorf("%s received %d queries for %s, want at most 4", r.Addr, n, name)
			}
		}
	}
	if limit := 2*len(upstreams)*queries + copies; sent > limit {
		t.Errorf("%d queries in %s, want at most %d", sent, during, limit)
	}
	t.Logf("%d queries of clients, %d to upstreams in %s", queries, sent, during)
}

// TestFailfast checks that with the option no query is sent to upstreams that count as down.
func TestFailfast(t *testing.T) {
	t.Parallel()
	r := rogueServer(t, rogue.Behaviour{})
	s := start(t, zone(forward(r.Addr, "force_tcp", "failfast_all_unhealthy_upstreams", "health_check 100ms", "timeout 500ms", "read_timeout 200ms")))
	r.Behave(rogue.Behaviour{Refuse: true})
	kit.Within(t, bounded, "an upstream that counts as down", func() bool {
		load{queries: 1}.run(s)
		return s.scrape(t).Sum(checkFailed, "to", r.Addr) > 2
	})
	kit.Within(t, bounded, "queries that fail at once", func() bool {
		load{queries: 1}.run(s)
		return s.scrape(t).Sum(broken) > 0
	})
	// From now on the server receives queries, but checks still fail: no query may be sent to it.
	r.Behave(rogue.Behaviour{Drop: 1})
	time.Sleep(300 * time.Millisecond) // for queries in flight
	r.ResetCounts()
	if right, failed := (load{queries: 100}).run(s).wantRcode(t, dns.RcodeServerFailure); right > 0 || failed != 100 {
		t.Errorf("%d right answers and %d SERVFAIL, want 0 and 100", right, failed)
	}
	if c := r.Counts(); c.Queries() > 0 {
		t.Errorf("%d queries to an upstream that is down, want none", c.Queries())
	}
	r.Behave(rogue.Behaviour{})
	recovered(t, s)
}

// TestHedge has a first upstream that never answers. The second one is queried after the time of hedge, long before
// read_timeout of the first.
func TestHedge(t *testing.T) {
	t.Parallel()
	silent, good := rogueServer(t, rogue.Behaviour{Drop: 1}), rogueServer(t, rogue.Behaviour{Delay: delay})
	s := start(t, zone(forward(silent.Addr+" "+good.Addr,
		"force_tcp", "policy sequential", "max_fails 0", "hedge 100ms", "timeout 30s", "read_timeout 20s")))
	load{tcp: 4}.run(s).wantRight(t)
	if c := silent.Counts(); c.Queries() == 0 {
		t.Error("no queries to the first upstream")
	}
	wantConnections(t, good, pipelined)
}

// TestHedgeLate has a first upstream that answers late: clients get the answer of the second one, and the late answer is
// counted.
func TestHedgeLate(t *testing.T) {
	t.Parallel()
	late, good := rogueServer(t, rogue.Behaviour{Delay: time.Second}), rogueServer(t, rogue.Behaviour{})
	s := start(t, zone(forward(late.Addr+" "+good.Addr, "force_tcp", "policy sequential", "hedge 50ms")))
	load{}.run(s).wantRight(t)
	if got := good.Counts().Queries(); got == 0 {
		t.Error("no queries to the second upstream")
	}
	kit.Within(t, bounded, "late answers by the metric", func() bool { return s.scrape(t).Sum(lateAnswers, "to", late.Addr, "proto", "tcp") > 0 })
}

// TestLate has an upstream that answers some queries after read_timeout. It implements edns-tcp-keepalive: otherwise it may count
// as a server that ignores queries, whose connections end before a late answer.
func TestLate(t *testing.T) {
	t.Parallel()
	for proto, option := range map[string]string{"tcp": "force_tcp", "udp": "prefer_udp"} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			late := rogueServer(t, rogue.Behaviour{LateShare: 0.2, Late: time.Second, Keepalive: new(uint16(100))})
			good := rogueServer(t, rogue.Behaviour{})
			s := start(t, zone(forward(late.Addr+" "+good.Addr, option, "policy sequential", "read_timeout 300ms")))
			queries := load{pace: 5 * time.Millisecond, edns: true} // the load lasts longer than an answer is late: connections stay in use
			queries.run(s).wantRight(t)
			if proto == "udp" { // the socket of a query is closed with the query, so that no late answer is received
				return
			}
			// A busy machine stops the process for longer than read_timeout: then the pool closes the connection, and
			// late answers to queries from before are lost. Those to further queries are counted.
			kit.Within(t, bounded, "late answers by the metric", func() bool {
				if s.scrape(t).Sum(lateAnswers, "to", late.Addr, "proto", proto) > 0 {
					return true
				}
				queries.run(s).wantRight(t)
				return false
			})
		})
	}
}

// TestFailover checks that a response code of the list causes a query to another upstream, and that the client gets the
// code if all upstreams return it.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]rogue.Behaviour{
		"SERVFAIL":               {Rcode: dns.RcodeServerFailure},
		"REFUSED":                {Rcode: dns.RcodeRefused},
		"REFUSED, header alone":  {Rcode: dns.RcodeRefused, Bare: true},
		"SERVFAIL, header alone": {Rcode: dns.RcodeServerFailure, Bare: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, good := rogueServer(t, b), rogueServer(t, rogue.Behaviour{Delay: delay})
			s := start(t, zone(forward(bad.Addr+" "+good.Addr, "force_tcp", "policy sequential", "failover SERVFAIL REFUSED")))
			load{tcp: 4}.run(s).wantRight(t)
			good.Behave(b)
			if right, _ := (load{queries: 50}).run(s).wantRcode(t, b.Rcode); right > 0 {
				t.Errorf("%d right answers, though no upstream sent one", right)
			}
			wantConnections(t, bad, pipelined)
			if got := s.scrape(t).Sum(requestCount, "to", bad.Addr, "proxy_name", "forward", "rcode", dns.RcodeToString[b.Rcode]); got == 0 {
				t.Error("the response code is not counted")
			}
		})
	}
}

// TestNext checks that a response code, or an answer without records, passes the query to the next stanza.
func TestNext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		behaviour rogue.Behaviour
		option    string
	}{
		"NXDOMAIN": {rogue.Behaviour{Rcode: dns.RcodeNameError}, "next NXDOMAIN"},
		"no data":  {rogue.Behaviour{NoData: true}, "next_on_nodata"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := rogueServer(t, c.behaviour), rogueServer(t, rogue.Behaviour{Delay: delay})
			s := start(t, zone(forward(first.Addr, "force_tcp", c.option), forward(second.Addr, "force_tcp")))
			load{tcp: 4}.run(s).wantRight(t)
			for _, r := range []*rogue.Server{first, second} {
				wantQueriedOnce(t, r, 300)
				wantConnections(t, r, pipelined)
			}
		})
	}
}

// second is the max number of queries of a load that may be repeated at a server on another connection, which shows
// whether the server or the connection is slow.
const second = 10

// wantQueriedOnce fails the test unless a server received all names, and at most a few of them twice.
func wantQueriedOnce(t *testing.T, r *rogue.Server, names int) {
	t.Helper()
	if c := r.Counts(); len(c.Names) != names || c.Queries() > names+second {
		t.Errorf("%d queries for %d names, want %d names and at most %d queries", c.Queries(), len(c.Names), names, names+second)
	}
}

// TestMaxConcurrent exceeds max_concurrent: the excess queries get REFUSED and are counted. The server implements edns-tcp-keepalive,
// which the first query shows: no query is sent twice then, and the limit is exact.
func TestMaxConcurrent(t *testing.T) {
	t.Parallel()
	const limit = 20
	r := rogueServer(t, rogue.Behaviour{Delay: time.Second, Keepalive: new(uint16(100))})
	s := start(t, zone(forward(r.Addr, "force_tcp", fmt.Sprintf("max_concurrent %d", limit))))
	load{queries: 1}.run(s).wantRight(t)
	right, refused := load{}.run(s).wantRcode(t, dns.RcodeRefused)
	if right < limit || refused == 0 {
		t.Errorf("%d right answers and %d refused, want at least %d and 1", right, refused, limit)
	}
	if got := s.scrape(t).Sum(rejects); int(got) != refused {
		t.Errorf("%v rejects by the metric, %d by the clients", got, refused)
	}
	if got := r.Counts().MaxInFlight; got < limit || got > limit+1 {
		t.Errorf("%d queries at one time, want %d, and at most one health check", got, limit)
	}
	load{queries: limit}.run(s).wantRight(t)
}

// TestInFlight checks max_in_flight and max_connections.
func TestInFlight(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options     []string
		inFlight    int // on a connection
		connections int
	}{
		"one":  {[]string{"max_in_flight 1"}, 1, single},
		"ten":  {[]string{"max_in_flight 10", "max_connections 64"}, 10, 64},
		"many": {[]string{"max_in_flight 200", "max_connections 1"}, 200, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, rogue.Behaviour{Delay: delay})
			s := start(t, zone(forward(r.Addr, append([]string{"force_tcp"}, c.options...)...)))
			load{}.run(s).wantRight(t)
			limit := c.inFlight
			if limit > 1 { // repeated queries whose answer arrived on another connection still count
				limit += second
			}
			if got := r.Counts().MaxOnConnection; got > limit {
				t.Errorf("%d queries at one time on a connection, want at most %d", got, limit)
			}
			wantConnections(t, r, c.connections)
		})
	}
}

// TestPolicies checks the distribution of queries by each policy.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for policy, minQueries := range map[string][3]int{"sequential": {300, 0, 0}, "round_robin": {100, 100, 100}, "random": {50, 50, 50}} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			var servers []*rogue.Server
			var addresses []string
			for range 3 {
				r := rogueServer(t, rogue.Behaviour{Delay: delay})
				servers, addresses = append(servers, r), append(addresses, r.Addr)
			}
			s := start(t, zone(forward(strings.Join(addresses, " "), "force_tcp", "policy "+policy)))
			load{}.run(s).wantRight(t)
			for i, r := range servers {
				if got := r.Counts().Queries(); got < minQueries[i] {
					t.Errorf("upstream %d received %d queries, want at least %d", i, got, minQueries[i])
				}
				wantConnections(t, r, pipelined)
			}
		})
	}
}
