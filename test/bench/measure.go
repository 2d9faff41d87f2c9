package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// results are the figures of each round: by name, then by server.
type results map[string]map[string][]float64

func (r results) add(what, server string, v float64) {
	if r[what] == nil {
		r[what] = map[string][]float64{}
	}
	r[what][server] = append(r[what][server], v)
}

const (
	memorySync   = "after the first sync"
	memoryRelist = "after one full relist"
	memoryPeak   = "maximum, relist included"
	memoryRest   = "node cache at rest"
	memoryHits   = "node cache after the queries"
)

// settle is the time for servers to finish a relist and to release memory.
const settle = 20 * time.Second

// measure fills in the results.
func (b *bench) measure(ctx context.Context) error {
	for _, step := range []struct {
		wanted  bool
		measure func(context.Context) error
	}{
		{b.has(partMemory) || b.has(partImports), b.measureRead},
		{b.has(partCluster), b.measureCluster},
		{b.has(partTopology), b.measureTopology},
		{b.has(partImports), b.measureImports},
		{b.has(partHits) || b.has(partMemory), b.measureCaches},
		{b.has(partMemory), b.measureRelist},
		{b.has(partMisses), b.measureMisses},
		{b.has(partSearch), b.measureSearch},
		{b.has(partTCP), b.measureTCP},
		{b.has(partRates), b.measureRates},
		{b.has(partStall), b.measureStall},
		{b.has(partNode), b.measureNode},
		{b.has(partWaiting), b.measureWaiting},
		{b.has(partCores), b.measureCores},
		{b.has(partCoherence), b.measureCoherence},
		{b.has(partSessions), b.measureSessions},
		{b.has(partKernel), b.measureKernel},
	} {
		if !step.wanted {
			continue
		}
		if err := step.measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// measureRead measures the memory of servers that have read the cluster and answered no query.
func (b *bench) measureRead(ctx context.Context) error {
	return b.memoryAtRest(ctx, b.servers, memorySync)
}

func (b *bench) measureCluster(ctx context.Context) error {
	loads, err := b.drawAll(clusterKinds)
	if err != nil {
		return err
	}
	if err := b.measureRounds(ctx, b.servers, loads, b.queries); err != nil {
		return err
	}
	return b.measureStock(ctx, b.plain, loads)
}

func (b *bench) drawAll(kinds []kind) (loads []*load, err error) {
	for _, k := range kinds {
		l, err := drawn(b.cluster, k, b.folder)
		if err != nil {
			return nil, err
		}
		loads = append(loads, l)
	}
	return loads, nil
}

func (b *bench) measureCaches(ctx context.Context) error {
	if err := b.startCaches(ctx); err != nil {
		return err
	}
	if b.has(partMemory) {
		if err := b.memoryAtRest(ctx, b.caches, memoryRest); err != nil {
			return err
		}
	}
	if !b.has(partHits) {
		return nil
	}
	var loads []*load
	for _, k := range hitKinds {
		l, err := firstOnes(b.cluster, k, b.folder)
		if err != nil {
			return err
		}
		loads = append(loads, l)
	}
	if err := b.measureRounds(ctx, b.caches, loads, b.hits); err != nil {
		return err
	}
	return b.memoryOf(b.caches, memoryHits)
}

// measureRounds measures servers in turn, each round begins with another one. Then it takes the profiles.
func (b *bench) measureRounds(ctx context.Context, servers []*server, loads []*load, queries int) error {
	err := inTurns(b.rounds, servers, func(s *server, _ int) error {
		for _, l := range loads {
			if err := b.measureCPU(ctx, s, l, queries); err != nil {
				return fmt.Errorf("%s, %s: %w", s.name, l.what, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.profileAll(ctx, servers, loads)
}

// inTurns measures all in each round, and begins each round with another one.
func inTurns[S any](rounds int, all []S, measure func(s S, round int) error) error {
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
		for i := range all {
			if err := measure(all[(i+round)%len(all)], round); err != nil {
				return err
			}
		}
	}
	return nil
}

// errSlow means that cached answers expired in a measurement.
var errSlow = errors.New("cached answers expired")

// again reports whether a measurement does not count because of an event that may not happen again.
func again(err error) bool {
	return errors.Is(err, dnsperf.ErrLost) || errors.Is(err, errSlow) || errors.Is(err, dnsperf.ErrRate)
}

// rateTries is the number of attempts to reach a rate. On a busy machine no attempt may succeed.
const rateTries = 3

// reached returns an error if a measurement has to be repeated, as its rate was not reached. The report notes it if that is
// the last attempt.
func (b *bench) reached(counted dnsperf.Statistics, rate, try int, what string) error {
	err := counted.JudgeRate(rate)
	if err == nil || try < rateTries-1 {
		return err
	}
	b.lost = append(b.lost, fmt.Sprintf("%s: %v", what, err))
	return nil
}

// tries is the maximum number of attempts of a measurement.
const tries = 5

// measureCPU measures one server with one kind of question. It repeats the measurement when queries were lost, and for
// hits when entries of the cache expired: some queries were no hits.
func (b *bench) measureCPU(ctx context.Context, s *server, l *load, queries int) error {
	wanted := enough
	for try := range tries {
		ttl, err := b.warm(ctx, s, l, wanted)
		if err != nil {
			return err
		}
		began := time.Now()
		each, counted, err := b.timeOne(ctx, s, l, queries)
		if l.cached && err == nil && time.Since(began) >= ttl {
			err = errSlow
			wanted = longer(time.Since(began))
		}
		if err == nil {
			err = b.reached(counted, l.rate, try, s.name+", "+l.what)
		}
		if again(err) {
			fmt.Fprintf(os.Stderr, "%s, %s: again: %v\n", s.name, l.what, err)
			continue
		}
		if err != nil {
			return err
		}
		b.results.add(l.what, s.name, each)
		fmt.Fprintf(os.Stderr, "%s, %s: %.2f us, %.0f/s\n", s.name, l.what, each, counted.Rate)
		if counted.Lost > 0 {
			b.lost = append(b.lost, fmt.Sprintf("%s, %s: %d of %d", s.name, l.what, counted.Lost, counted.Sent))
		}
		return nil
	}
	return fmt.Errorf("no measurement of %d that counts: queries lost, or answers older than their TTL", tries)
}

// timeOne returns the CPU time of each query, in microseconds.
func (b *bench) timeOne(ctx context.Context, s *server, l *load, queries int) (each float64, counted dnsperf.Statistics, err error) {
	before, err := s.CPU()
	if err != nil {
		return 0, counted, err
	}
	if counted, err = b.ask(ctx, s.port, l, (queries+len(l.packets)-1)/len(l.packets)); err != nil {
		return 0, counted, err
	}
	after, err := s.CPU()
	return float64((after - before).Nanoseconds()) / 1000 / float64(counted.Completed), counted, err
}

// ask sends every question of a load a number of times, by the client for that load.
func (b *bench) ask(ctx context.Context, port int, l *load, times int) (dnsperf.Statistics, error) {
	if l.pipes.Connections > 0 {
		return askTCP(ctx, port, l, times)
	}
	return b.dnsperf.Ask(ctx, port, l.dnsperf(), times)
}

// askFor sends the questions of a load for a number of seconds, by the client for that load.
func (b *bench) askFor(ctx context.Context, port int, l *load, seconds int) error {
	if l.pipes.Connections > 0 {
		return askTCPFor(ctx, port, l, seconds)
	}
	_, err := b.dnsperf.AskFor(ctx, port, l.dnsperf(), seconds)
	return err
}

// The minimum TTL of cached answers at the start of a measurement, and the highest such limit: warm sends the questions
// again after the TTL of the answers of 30 seconds.
const (
	enough    = 8 * time.Second
	maxEnough = 25 * time.Second
)

// longer is the minimum TTL for a measurement that is repeated after it took a time that was too long.
func longer(took time.Duration) time.Duration { return min(took*5/4, maxEnough) }

// warm sends every question once, and checks the answers. It returns the lowest TTL among them, which is no less than
// wanted if they are cached.
func (b *bench) warm(ctx context.Context, s *server, l *load, wanted time.Duration) (time.Duration, error) {
	atOnce := *l
	atOnce.rate = 0
	for range tries {
		if _, err := b.dnsperf.Ask(ctx, s.port, atOnce.dnsperf(), 1); err != nil && !errors.Is(err, dnsperf.ErrLost) {
			return 0, err
		}
		seconds, err := check(ctx, s, l)
		ttl := time.Duration(seconds) * time.Second
		if err != nil || !l.cached || ttl >= wanted {
			return ttl, err
		}
		if err := child.Pause(ctx, ttl+2*time.Second); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("answers never have a TTL of %s", wanted)
}

// memoryAtRest is memoryOf for servers that have just been started.
func (b *bench) memoryAtRest(ctx context.Context, servers []*server, when string) error {
	if err := child.Pause(ctx, settle/4); err != nil {
		return err
	}
	return b.memoryOf(servers, when)
}

func (b *bench) memoryOf(servers []*server, when string) error {
	for _, s := range servers {
		now, peak, err := s.Memory()
		if err != nil {
			return err
		}
		b.results.add(when, s.name, now)
		if when == memoryRelist {
			b.results.add(memoryPeak, s.name, peak)
		}
	}
	return nil
}

func (b *bench) measureRelist(ctx context.Context) error {
	if err := b.relist(); err != nil {
		return err
	}
	if err := child.Pause(ctx, settle); err != nil {
		return err
	}
	return b.memoryOf(b.servers, memoryRelist)
}
