package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// missRate is the number of queries per second.
const missRate = 8000

// The figures of each server in the part misses.
const (
	missCPU     = "misses: CPU per query"
	missP50     = "misses: median latency"
	missP99     = "misses: p99 latency"
	missMax     = "misses: max connections"
	missEnd     = "misses: connections at the end"
	missReached = "misses: rate reached"
	missSent    = "misses: queries sent"
	missLost    = "misses: queries lost"
	missRest    = "misses: memory at rest"
	missGrowth  = "misses: memory above that at rest"
)

// missCorefile forwards over TCP, behind a cache that has none of the names. Arguments: the DNS port, the port of the
// upstream server, the metrics port, further directives.
const missCorefile = `.:%d {
    bind 127.0.0.1
    errors
    cache 30
    forward . 127.0.0.1:%d {
        force_tcp
    }
    prometheus 127.0.0.1:%d%s
}
`

// unboundMisses has Unbound forward over TCP. At 8,000 queries per second, 160 are in flight in 20 ms; the limits are
// far higher, and the socket buffer is large enough while another process has the core.
const unboundMisses = `    num-queries-per-thread: 16384
    outgoing-range: 8192
    outgoing-num-tcp: 500
    so-rcvbuf: 4m
    tcp-upstream: yes
`

// missServers are the servers of the part misses.
var missServers = []cache{
	{nameNodeCache, (*bench).startNodeCacheMisses, true},
	{nameCoreDNS, (*bench).startCoreDNSMisses, false},
	{nameUnbound, (*bench).startUnboundMisses, false},
}

func (b *bench) startNodeCacheMisses(ctx context.Context, s *server) error {
	return b.run(ctx, s, b.nodecache, fmt.Sprintf(missCorefile, s.port, s.upstream, child.FreePort(), b.profiled(s)), "-conf")
}

func (b *bench) startCoreDNSMisses(ctx context.Context, s *server) error {
	return b.run(ctx, s, b.coredns, fmt.Sprintf(missCorefile, s.port, s.upstream, child.FreePort(), ""), "-conf")
}

func (b *bench) startUnboundMisses(ctx context.Context, s *server) error {
	path, err := b.unbound()
	if err != nil {
		return err
	}
	return b.run(ctx, s, path, fmt.Sprintf(unboundConf, s.port, unboundMisses, b.folder, s.upstream), "-d", "-c")
}

// startForwarders starts servers, each with an upstream server.
func (b *bench) startForwarders(ctx context.Context, all []cache) error {
	for _, c := range all {
		if c.name == nameCoreDNS && b.coredns == "" {
			continue // which find has noted
		}
		s := &server{name: c.name, port: child.FreePort()}
		var err error
		if s.upstream, err = b.startUpstream(ctx); err != nil {
			return err
		}
		if err = c.start(b, ctx, s); err == nil {
			err = child.Await(ctx, 10*time.Second, "an answer", func() bool { return answers(s.port, "started.example.com.") })
		}
		switch {
		case err == nil:
			b.forwarders = append(b.forwarders, s)
		case c.own:
			b.drop(s, err)
			return err
		default:
			b.drop(s, err)
		}
	}
	return nil
}

func (b *bench) stopForwarders() {
	for _, s := range b.forwarders {
		s.Stop()
	}
	b.forwarders = nil
	b.stopUpstreams()
}

// measureMisses measures the servers in turn, each round begins with another one. Then it takes the profiles.
func (b *bench) measureMisses(ctx context.Context) error {
	defer b.stopForwarders()
	if err := b.startForwarders(ctx, missServers); err != nil {
		return err
	}
	if err := b.missesAtRest(ctx); err != nil {
		return err
	}
	err := inTurns(b.rounds, b.forwarders, func(s *server, round int) error {
		if err := b.measureMiss(ctx, s, round); err != nil {
			return fmt.Errorf("%s, misses: %w", s.name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range b.forwarders {
		if err := b.profileMisses(ctx, s); err != nil {
			return fmt.Errorf("profile of %s, misses: %w", s.name, err)
		}
	}
	return nil
}

// missesAtRest measures the memory of servers without queries.
func (b *bench) missesAtRest(ctx context.Context) error {
	if err := child.Pause(ctx, settle/4); err != nil {
		return err
	}
	for _, s := range b.forwarders {
		if err := s.atRest(); err != nil {
			return err
		}
		b.results.add(missRest, s.name, s.rest)
	}
	return nil
}

// measureMiss measures one server in one round, and again if it answered with an error. Lost queries are a figure of
// their own, so they are no reason.
func (b *bench) measureMiss(ctx context.Context, s *server, round int) error {
	for try := range tries {
		err := b.tryMiss(ctx, s, fmt.Sprintf("round%d-%d", round, try))
		if !errors.Is(err, dnsperf.ErrCode) {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s, misses: again: %v\n", s.name, err)
		b.lost = append(b.lost, fmt.Sprintf("%s, misses, measured again: %v", s.name, err))
	}
	return fmt.Errorf("no measurement of %d that counts: queries answered with an error", tries)
}

// Queries before a measurement: with checked answers, and a second of the load, in which the server opens its
// connections.
const (
	checkedMisses = 1024
	warmMisses    = missRate
)

func (b *bench) tryMiss(ctx context.Context, s *server, tag string) error {
	if err := b.warmMiss(ctx, s, tag); err != nil {
		return err
	}
	l, err := freshNames(b.folder, tag+"."+s.name, b.misses)
	if err != nil {
		return err
	}
	if _, err := askCounts(s.upstream, nameReset); err != nil {
		return err
	}
	before, err := s.CPU()
	if err != nil {
		return err
	}
	counted, latencies, err := b.dnsperf.AskAtRate(ctx, s.port, l.dnsperf(), missRate)
	if err == nil {
		err = counted.JudgeAnswered(l.rcode, len(l.packets))
	}
	if err != nil {
		return err
	}
	after, err := s.CPU()
	if err != nil {
		return err
	}
	return b.addMiss(s, after-before, counted, latencies)
}

// warmMiss sends the queries before a measurement.
func (b *bench) warmMiss(ctx context.Context, s *server, tag string) error {
	checked, err := freshNames(b.folder, "check."+tag+"."+s.name, checkedMisses)
	if err != nil {
		return err
	}
	if _, err := check(ctx, s, checked); err != nil {
		return err
	}
	warm, err := freshNames(b.folder, "warm."+tag+"."+s.name, warmMisses)
	if err != nil {
		return err
	}
	_, _, err = b.dnsperf.AskAtRate(ctx, s.port, warm.dnsperf(), missRate)
	return err
}

// addMiss records the figures of one measurement.
func (b *bench) addMiss(s *server, cpu time.Duration, counted dnsperf.Statistics, latencies []time.Duration) error {
	upstream, err := askCounts(s.upstream, nameCounts)
	if err != nil {
		return err
	}
	if upstream.queries < counted.Completed {
		return fmt.Errorf("%d answers, but %d queries upstream: not all were misses", counted.Completed, upstream.queries)
	}
	growth, err := s.growth()
	if err != nil {
		return err
	}
	each := float64(cpu.Nanoseconds()) / 1000 / float64(counted.Completed)
	p50, p99 := dnsperf.Percentile(latencies, 50), dnsperf.Percentile(latencies, 99)
	fmt.Fprintf(os.Stderr, "%s, misses: %.2f us, p50 %.2f ms, p99 %.2f ms, %.0f/s, lost %d; upstream: %s\n",
		s.name, each, p50, p99, counted.Rate, counted.Lost, upstream)
	for what, v := range map[string]float64{
		missCPU: each, missP50: p50, missP99: p99, missMax: float64(upstream.maxOpen), missEnd: float64(upstream.open),
		missReached: counted.Rate, missSent: float64(counted.Sent), missLost: float64(counted.Lost),
		missGrowth: growth,
	} {
		b.results.add(what, s.name, v)
	}
	if counted.Lost > 0 {
		b.lost = append(b.lost, fmt.Sprintf("%s, misses: %d of %d", s.name, counted.Lost, counted.Sent))
	}
	return nil
}

// profileMisses writes a CPU profile of a server, if it has a port for it.
func (b *bench) profileMisses(ctx context.Context, s *server) error {
	if s.pprof == 0 {
		return nil
	}
	l, err := freshNames(b.folder, "profile."+s.name, missRate*(profileSeconds+1))
	if err != nil {
		return err
	}
	return b.profileDuring(ctx, s, "misses", func() error {
		_, _, err := b.dnsperf.AskAtRate(ctx, s.port, l.dnsperf(), missRate)
		return err
	})
}

// freshNames makes questions for names that are in no other load, if each call has another tag.
func freshNames(folder, tag string, n int) (*load, error) {
	l := &load{what: "misses " + tag, rcode: dns.RcodeToString[dns.RcodeSuccess]}
	var file strings.Builder
	for i := range n {
		name := dns.CanonicalName(fmt.Sprintf("n%d.%s.example.com", i, tag))
		b, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		q, err := readQuestion(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		address := addressOf(q.owner)
		l.packets = append(l.packets, packet{bytes: b, rcode: dns.RcodeSuccess, records: 1, address: address[:]})
		fmt.Fprintf(&file, "%s A\n", name)
	}
	return l, l.write(folder, file.String())
}
