// Command bench measures clusterdns and nodecache beside other servers: CPU time per query and memory, on the same
// generated cluster, in one run. It prints tables in Markdown. It needs Linux, dnsperf and two cores; the report names
// the other servers that are missing.
//
// CPU time is that of the whole server process, user and system, divided by the number of answered queries; wall clock
// time has no meaning on a shared machine. The server has one core, the load the other. Before each measurement a client
// sends every question once, and checks the response code and the number of records of the answer; dnsperf, the load
// generator, counts only response codes and lost queries. For misses, which go to a slow upstream server, the latency
// and the connections to that server are measured as well. In the part search, clients of our own walk through the
// search list as glibc does. In the part kernel, a client of our own is in the network namespace of a pod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/test/bench/generated"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// The parts of a run.
const (
	partHits      = "hits"
	partCluster   = "cluster"
	partTopology  = "topology"
	partImports   = "imports"
	partMemory    = "memory"
	partMisses    = "misses"
	partSearch    = "search"
	partTCP       = "tcp"
	partRates     = "rates"
	partStall     = "stall"
	partNode      = "node"
	partWaiting   = "waiting"
	partCores     = "cores"
	partCoherence = "coherence"
	partSessions  = "sessions"
	partKernel    = "kernel"
)

var everyPart = []string{partHits, partCluster, partTopology, partImports, partMemory, partMisses, partSearch, partTCP, partRates,
	partStall, partNode, partWaiting, partCores, partCoherence, partSessions, partKernel}

// settings are the settings of a run.
type settings struct {
	cluster  generated.Cluster
	parts    []string
	queries  int    // of a kind of cluster names, for each server and round
	hits     int    // queries of a kind of cache hits, for each server and round
	misses   int    // queries, for each server and round
	lookups  int    // of pods, for each setup and round
	near     bool   // the upstream server of misses acknowledges at once
	seconds  int    // of each measurement at a rate
	flood    int    // seconds at the higher rate of the part kernel
	rounds   int    // all servers are measured in each, in turn
	changes  int    // of an EndpointSlice, in the part coherence
	sessions int    // simulated, in the part sessions
	steered  bool   // the receiver's part of the kernel's work has the core of the load
	profile  string // for CPU profiles, "" for none
}

func (s settings) has(part string) bool { return slices.Contains(s.parts, part) }

// needsCluster reports whether a part needs the large cluster.
func (s settings) needsCluster() bool {
	return s.has(partHits) || s.has(partCluster) || s.has(partTopology) || s.has(partImports) || s.has(partMemory)
}

// needsAPI reports whether a part needs an API server.
func (s settings) needsAPI() bool {
	return s.needsCluster() || s.has(partSearch) || s.has(partTCP) || s.has(partStall) || s.has(partNode) ||
		s.has(partCoherence) || s.has(partSessions)
}

// needsDNSPerf reports whether dnsperf generates the load of a part.
func (s settings) needsDNSPerf() bool {
	return s.has(partHits) || s.has(partCluster) || s.has(partTopology) || s.has(partImports) || s.has(partMisses) || s.has(partTCP) || s.has(partRates) ||
		s.has(partNode) || s.has(partCores) || s.has(partCoherence)
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == echoMode {
		return echo(args[1])
	}
	if len(args) == 2 && (args[0] == upstreamMode || args[0] == nearMode) {
		return serveUpstream(args[1], args[0] == nearMode)
	}
	if len(args) == 2 && args[0] == apiMode {
		return serveAPI(args[1])
	}
	if len(args) == 2 && args[0] == podsMode {
		return servePods(ctx, args[1], os.Stdout)
	}
	if len(args) == 2 && args[0] == coherenceMode {
		return serveNodeCaches(ctx, args[1], os.Stdout)
	}
	if len(args) == 2 && args[0] == floorMode {
		return serveFloor(args[1])
	}
	if len(args) == 2 && args[0] == probeMode {
		return serveProbe(args[1], os.Stdout)
	}
	if len(args) == 2 && args[0] == podMode {
		return servePod(args[1], os.Stdout)
	}
	if len(args) == 1 && args[0] == tcpMode {
		return serveTCPJob(os.Stdin, os.Stdout)
	}
	inNamespace := len(args) > 0 && args[0] == steeredMode
	if inNamespace {
		args = args[1:]
	}
	s, err := parse(args)
	switch {
	case err != nil:
		return err
	case s.steered && !inNamespace:
		return steer(ctx, args)
	case inNamespace:
		if err := steered(); err != nil {
			return err
		}
	}
	folder, err := os.MkdirTemp("", "nearside-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	b := &bench{settings: s, folder: folder, results: results{}}
	defer b.stop()
	if err := b.start(ctx); err != nil {
		return err
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.report(os.Stdout)
}

func parse(args []string) (settings, error) {
	s := settings{parts: everyPart}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&s.cluster.Services, "services", 10000, "`number` of Services")
	flags.IntVar(&s.cluster.Endpoints, "endpoints", 110000, "`number` of endpoints")
	flags.IntVar(&s.cluster.Nodes, "nodes", 5000, "`number` of nodes")
	flags.IntVar(&s.cluster.Imports, "imports", 2000, "`number` of ServiceImports, in the part imports")
	flags.IntVar(&s.queries, "queries", 40000, "`number` of queries of each kind of cluster names, for each server and round")
	flags.IntVar(&s.hits, "hits", 200000, "`number` of queries of each kind of cache hits, for each server and round")
	flags.IntVar(&s.misses, "misses", 20000, "`number` of queries that no cache can answer, for each server and round")
	flags.IntVar(&s.lookups, "lookups", 2000, "`number` of look-ups of pods with a search list, for each setup and round")
	flags.BoolVar(&s.near, "near", false, "misses: the upstream server acknowledges at once, as one that is near but takes 20 ms to answer")
	flags.IntVar(&s.seconds, "seconds", 10, "`number` of seconds of each measurement in the parts with a low rate")
	flags.IntVar(&s.flood, "flood", 30, "kernel: `number` of seconds at 100,000 queries per second")
	flags.IntVar(&s.rounds, "rounds", 5, "`number` of rounds; the median is reported")
	flags.IntVar(&s.changes, "changes", 1000, "coherence: `number` of changes of an EndpointSlice; a fifth as many Services are created")
	flags.IntVar(&s.sessions, "sessions", fleetSessions, "sessions: `number` of simulated node caches of one cluster DNS")
	flags.BoolVar(&s.steered, "steered", false, "run in a network namespace whose loopback interface hands packets to the core of the load (needs root)")
	flags.StringVar(&s.profile, "profile", "", "`folder` for CPU profiles of nodecache and clusterdns, taken after the rounds")
	flags.Func("only", "the `parts` to run, of "+strings.Join(everyPart, ",")+", with commas between them", func(v string) error {
		s.parts = strings.Split(v, ",")
		for _, p := range s.parts {
			if !slices.Contains(everyPart, p) {
				return fmt.Errorf("%q is none of %s", p, strings.Join(everyPart, ", "))
			}
		}
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if min(s.rounds, s.queries, s.hits, s.misses, s.lookups, s.seconds, s.flood, s.changes, s.sessions) < 1 {
		return s, errors.New("rounds, queries, hits, misses, lookups, seconds, flood, changes and sessions: at least 1")
	}
	if s.cluster.Imports < fewestImports {
		return s, fmt.Errorf("imports: at least %d", fewestImports)
	}
	s.cluster.Namespaces, s.cluster.Headless, s.cluster.Seed = 100, 0.1, 1
	return s, s.cluster.Validate()
}
