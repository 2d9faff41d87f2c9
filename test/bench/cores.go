package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// The part cores compares a server on one core with the same server on two. The load and the upstream server use the same
// two cores, so the measure is not the number of answers per second, but of answers per second of CPU time. As in the part
// hits, the load is as fast as the answers: at a fixed rate, the cost of wake-ups hides that of contention.
const allCores = child.ServerCore + "," + child.LoadCore

// The kinds of queries of the part cores.
const (
	coresHits   = "hits"
	coresMisses = "misses"
)

// coresRow is the name of the CPU time per query of a kind with a number of cores.
func coresRow(kind string, cores int) string {
	return fmt.Sprintf("cores, %s: CPU per query on %d", kind, cores)
}

// coresReached is the name of the queries per second.
func coresReached(kind string, cores int) string {
	return fmt.Sprintf("cores, %s: rate on %d", kind, cores)
}

// coresGain is the name of the throughput on two cores divided by that on one, at the same CPU time of each core.
func coresGain(kind string) string { return "cores, " + kind + ": throughput of 2 cores to 1" }

// gain computes it from the costs of a query.
func gain(one, two float64) float64 { return 2 * one / two }

// coresServers are measured with one core and with two.
var coresServers = []struct {
	cache
	cores int
}{
	{cache{nameNodeCache, (*bench).startNodeCacheHot, true}, 1},
	{cache{nameNodeCache, (*bench).startNodeCacheHot, true}, 2},
	{cache{nameCoreDNS, (*bench).startCoreDNSHot, false}, 1},
	{cache{nameCoreDNS, (*bench).startCoreDNSHot, false}, 2},
}

// measureCores measures the servers in turn.
func (b *bench) measureCores(ctx context.Context) error {
	defer b.stopForwarders()
	for _, c := range coresServers {
		b.procs = c.cores
		err := b.startForwarders(ctx, []cache{c.cache})
		b.procs = 0
		if err != nil {
			return err
		}
	}
	names, err := b.hotLoad("cores")
	if err != nil {
		return err
	}
	err = inTurns(b.rounds, b.forwarders, func(s *server, round int) error {
		if err := b.measureCoresOf(ctx, s, names, round); err != nil {
			return fmt.Errorf("%s on %d cores: %w", s.name, s.procs, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.addGains()
	b.stopForwarders()
	return b.profileCores(ctx, names)
}

// coresGenerator is dnsperf on both cores. The kernel distributes its sockets among those of the server: evenly, if they
// are many.
func (b *bench) coresGenerator(s *server, kind string) dnsperf.Generator {
	return dnsperf.Generator{Path: b.dnsperf.Path, Cores: allCores, Queue: fmt.Sprint(s.procs * coresInFlight[kind]), Sockets: "64"}
}

// coresInFlight is the number of queries in flight for each core of the server, by kind. That of misses is so high that
// the delay of the upstream server does not limit the load.
var coresInFlight = map[string]int{coresHits: 100, coresMisses: 500}

// measureCoresOf measures hits, and then misses.
func (b *bench) measureCoresOf(ctx context.Context, s *server, names *load, round int) error {
	if _, err := b.warm(ctx, s, names, enough); err != nil {
		return err
	}
	if err := b.timeCores(ctx, s, coresHits, names, max(1, s.procs*b.hits/len(names.packets))); err != nil {
		return err
	}
	fresh, err := freshNames(b.folder, fmt.Sprintf("cores%d-%d.%s", s.procs, round, s.name), s.procs*b.misses)
	if err != nil {
		return err
	}
	return b.timeCores(ctx, s, coresMisses, fresh, 1)
}

// timeCores records the CPU time per query.
func (b *bench) timeCores(ctx context.Context, s *server, kind string, l *load, times int) error {
	before, err := s.CPU()
	if err != nil {
		return err
	}
	counted, err := b.coresGenerator(s, kind).Run(ctx, s.port, l.dnsperf(), "-n", fmt.Sprint(times), "-l", dnsperf.Longest)
	if err == nil {
		err = counted.JudgeAnswered(l.rcode, times*len(l.packets))
	}
	if err != nil {
		return err
	}
	after, err := s.CPU()
	if err != nil {
		return err
	}
	each := float64((after - before).Nanoseconds()) / 1000 / float64(counted.Completed)
	fmt.Fprintf(os.Stderr, "%s on %d cores, %s: %.2f us, %.0f/s\n", s.name, s.procs, kind, each, counted.Rate)
	b.results.add(coresRow(kind, s.procs), s.name, each)
	b.results.add(coresReached(kind, s.procs), s.name, counted.Rate)
	if counted.Lost > 0 {
		b.lost = append(b.lost, fmt.Sprintf("%s on %d cores, %s: %d of %d", s.name, s.procs, kind, counted.Lost, counted.Sent))
	}
	return nil
}

// addGains computes the gain of each round.
func (b *bench) addGains() {
	for _, kind := range []string{coresHits, coresMisses} {
		for _, name := range []string{nameNodeCache, nameCoreDNS} {
			one, two := b.results[coresRow(kind, 1)][name], b.results[coresRow(kind, 2)][name]
			for i := range min(len(one), len(two)) {
				b.results.add(coresGain(kind), name, gain(one[i], two[i]))
			}
		}
	}
}

// mutexProfiling is a file for the program, which has no setting for profiles of mutexes.
const mutexProfiling = `package main

import "runtime"

func init() { runtime.SetMutexProfileFraction(1) }
`

// buildProfiling builds nodecache with profiles of mutexes: the file exists for the compiler alone.
func (b *bench) buildProfiling(ctx context.Context) (path string, err error) {
	file, overlay := filepath.Join(b.folder, "mutexprofile.go"), filepath.Join(b.folder, "overlay.json")
	if err := os.WriteFile(file, []byte(mutexProfiling), 0o600); err != nil {
		return "", err
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf(`{"Replace": {%q: %q}}`, filepath.Join(wd, "cmd/nodecache/mutexprofile.go"), file)
	if err := os.WriteFile(overlay, []byte(text), 0o600); err != nil {
		return "", err
	}
	path = filepath.Join(b.folder, "nodecache-profiling")
	return path, child.Build(ctx, path, "./cmd/nodecache", "-overlay", overlay)
}

// profileCores writes profiles of the waits of nodecache on two cores: for mutexes, and of goroutines in general.
func (b *bench) profileCores(ctx context.Context, names *load) error {
	if b.profile == "" {
		return nil
	}
	usual := b.nodecache
	defer func() { b.nodecache = usual }()
	var err error
	if b.nodecache, err = b.buildProfiling(ctx); err != nil {
		return err
	}
	for _, kind := range []string{coresHits, coresMisses} {
		if err := b.profileWaits(ctx, kind, names); err != nil {
			return fmt.Errorf("profile of %s on 2 cores, %s: %w", nameNodeCache, kind, err)
		}
	}
	return nil
}

// profileWaits starts a server, since these profiles count from its start.
func (b *bench) profileWaits(ctx context.Context, kind string, names *load) error {
	defer b.stopForwarders()
	b.procs, b.pprofOptions = 2, " {\n        block 1\n    }"
	err := b.startForwarders(ctx, hotServers[:1])
	b.procs, b.pprofOptions = 0, ""
	if err != nil {
		return err
	}
	s, l := b.forwarders[0], names
	if kind == coresMisses {
		if l, err = freshNames(b.folder, "cores.profile", b.misses); err != nil {
			return err
		}
	}
	if _, err := b.coresGenerator(s, kind).Run(ctx, s.port, l.dnsperf(), "-n", fmt.Sprint(max(1, b.hits/len(l.packets))), "-l", fmt.Sprint(profileSeconds)); err != nil {
		return err
	}
	if err := os.MkdirAll(b.profile, 0o755); err != nil {
		return err
	}
	for _, what := range []string{"mutex", "block"} {
		path := filepath.Join(b.profile, fmt.Sprintf("%s-2-cores-%s-%s.pprof", s.name, kind, what))
		if err := fetchProfile(ctx, s.pprof, what, path); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "wrote", path)
	}
	return nil
}

// reportCores writes a table for each kind.
func (b *bench) reportCores(text *strings.Builder) {
	for _, kind := range []string{coresHits, coresMisses} {
		b.grid(text, kind+", load and server on the same 2 cores", []string{nameNodeCache, nameCoreDNS}, []column{
			{title: "CPU per query with GOMAXPROCS 1, us", what: coresRow(kind, 1), format: "%.2f"},
			{title: "with 2, us", what: coresRow(kind, 2), format: "%.2f"},
			{title: "queries/s with 1", what: coresReached(kind, 1), format: "%.0f"},
			{title: "with 2", what: coresReached(kind, 2), format: "%.0f"},
			{title: "throughput of 2 cores to 1", what: coresGain(kind), format: "%.2f"},
		})
	}
}
