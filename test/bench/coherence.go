package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// The figures of the setups in the part coherence.
const (
	coherenceReach      = "coherence: queries to cluster DNS of a hundred"
	coherenceHit        = "coherence: CPU of a hit"
	coherenceChangeP50  = "coherence: change, p50"
	coherenceChangeP99  = "coherence: change, p99"
	coherenceChangeNode = "coherence: change, p99 of the program"
	coherenceCreateP50  = "coherence: creation, p50"
	coherenceCreateP99  = "coherence: creation, p99"
	coherenceCreateNode = "coherence: creation, p99 of the program"

	fleetSubscriptions = "fleet: subscriptions of a session"
	fleetMemory        = "fleet: memory"
	fleetPeak          = "fleet: maximum memory"
	fleetCPU           = "fleet: CPU of heartbeats"
	fleetRate          = "fleet: heartbeats a second"
	fleetGap           = "fleet: longest time between heartbeats"
	fleetP50           = "fleet: change, p50"
	fleetMax           = "fleet: change, max"
)

// The setups of the part.
const (
	nameCoherent = "nodecache, clusterdns, coherent"
	nameTimed    = "nodecache, clusterdns, not coherent"
	nameFleet    = "clusterdns with sessions"
)

var coherenceSetups = []searchSetup{
	{name: nameCoherent, node: nameNodeCache, cluster: nameClusterDNS, ttl: nodeTTL, coherent: true},
	{name: nameTimed, node: nameNodeCache, cluster: nameClusterDNS, ttl: nodeTTL},
}

// fleetSetups are those of the simulated node caches.
var fleetSetups = []searchSetup{{name: nameFleet, cluster: nameClusterDNS, ttl: nodeTTL, coherent: true}}

// The sizes of the part, of the bars.
const (
	coherentCaches = 100 // one of them is a program
	fleetSessions  = 15000
	fleetNames     = 200 // of each session
)

// coherentOption is the option of *kubernetes* and of *forward*.
const coherentOption = "\n        coherent"

// manyConnections is a directive for as many connections of one address as there are simulated node caches.
const manyConnections = `
    fastpath {
        max_connections 20000 20000
    }`

// subscriptionsMetric counts the subscriptions of all sessions.
const subscriptionsMetric = "coredns_kubernetes_coherence_subscriptions"

// measureCoherence measures the setups with and without, and then the simulated node caches of a large cluster.
func (b *bench) measureCoherence(ctx context.Context) error {
	if err := b.measureCoherent(ctx); err != nil {
		return fmt.Errorf("coherence: %w", err)
	}
	for range b.rounds {
		if err := b.measureFleet(ctx); err != nil {
			return fmt.Errorf("%s: %w", nameFleet, err)
		}
	}
	return nil
}

func (b *bench) measureCoherent(ctx context.Context) error {
	defer b.stopSearch()
	if err := b.startSetups(ctx, coherenceSetups); err != nil {
		return err
	}
	names, err := nodeNames()
	if err != nil {
		return err
	}
	hits, err := firstOnes(searchCluster, hitKinds[0], b.folder)
	if err != nil {
		return err
	}
	hits.what, hits.cached = coherenceHit, false // an answer without a session expires after nodeTTL, and is one of many
	err = inTurns(b.rounds, b.search, func(s *searchServers, round int) error {
		if err := b.measureReach(ctx, s, names, uint64(round)); err != nil { // #nosec G115 -- not negative
			return fmt.Errorf("%s: %w", s.name, err)
		}
		return b.measureCoherentHit(ctx, s, hits)
	})
	if err != nil {
		return err
	}
	return b.measureChanges(ctx, b.search[0])
}

// measureCoherentHit measures hits of the node cache, whose figures are those of the setup.
func (b *bench) measureCoherentHit(ctx context.Context, s *searchServers, hits *load) error {
	cache := *s.cache
	cache.name = s.name
	return b.measureCPU(ctx, &cache, hits, b.hits)
}

// measureReach measures the queries that the node cache sends to cluster DNS, of those of pods in the part node.
func (b *bench) measureReach(ctx context.Context, s *searchServers, names []packet, round uint64) error {
	for try := range tries {
		done, err := b.tryNode(ctx, s, names, round*tries+uint64(try)) // #nosec G115 -- not negative
		if again(err) {
			fmt.Fprintf(os.Stderr, "%s: again: %v\n", s.name, err)
			continue
		}
		if err != nil {
			return err
		}
		share := 100 * done.queries.cluster / float64(done.completed)
		fmt.Fprintf(os.Stderr, "%s: %.2f of a hundred queries reach cluster DNS\n", s.name, share)
		b.results.add(coherenceReach, s.name, share)
		return nil
	}
	return fmt.Errorf("no measurement of %d that counts: queries lost", tries)
}

// measureChanges measures the time until node caches have a change.
func (b *bench) measureChanges(ctx context.Context, s *searchServers) error {
	done, err := runNodeCaches(ctx, coherenceJob{
		Writes: b.writes, Namespace: searchCluster.Namespace(0), Cluster: s.dns.port, Node: s.cache.port, Sessions: coherentCaches - 1,
		Changes: b.changes, Creations: max(b.changes/5, 1),
	})
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		times          changeTimes
		p50, p99, node string
	}{
		{done.Changes, coherenceChangeP50, coherenceChangeP99, coherenceChangeNode},
		{done.Creations, coherenceCreateP50, coherenceCreateP99, coherenceCreateNode},
	} {
		slices.Sort(kind.times.Every)
		slices.Sort(kind.times.Program)
		p50, p99 := percentile(kind.times.Every, 50), percentile(kind.times.Every, 99)
		b.results.add(kind.p50, s.name, p50)
		b.results.add(kind.p99, s.name, p99)
		b.results.add(kind.node, s.name, percentile(kind.times.Program, 99))
		fmt.Fprintf(os.Stderr, "%s: %.2f ms, %s: %.2f ms\n", kind.p50, p50, kind.p99, p99)
	}
	return nil
}

// measureFleet measures a new server, so that an earlier round has left no memory.
func (b *bench) measureFleet(ctx context.Context) error {
	defer b.stopSearch()
	if err := b.startSetups(ctx, fleetSetups); err != nil {
		return err
	}
	s := b.search[0]
	job := coherenceJob{
		Writes: b.writes, Namespace: searchCluster.Namespace(0), Cluster: s.dns.port, Sessions: b.sessions, PID: s.dns.pid, Metrics: s.metrics,
	}
	for n := range fleetNames - 1 {
		job.Names = append(job.Names, serviceName(searchCluster.Service(n)))
	}
	done, err := runNodeCaches(ctx, job)
	if err != nil {
		return err
	}
	f := done.Fleet
	for what, v := range map[string]float64{
		fleetSubscriptions: f.Subscriptions / float64(f.Sessions), fleetMemory: f.Memory, fleetPeak: f.Peak, fleetCPU: f.CPU,
		fleetRate: f.Heartbeats, fleetGap: float64(f.LongestGap.Milliseconds()),
		fleetP50: percentile(f.Delivered, 50), fleetMax: percentile(f.Delivered, 100),
	} {
		b.results.add(what, s.name, v)
	}
	fmt.Fprintf(os.Stderr, "%d sessions, %.0f subscriptions: %.0f MiB, maximum %.0f; heartbeats: %.1f %% of a core; change: max %.0f ms\n",
		f.Sessions, f.Subscriptions, f.Memory, f.Peak, f.CPU, percentile(f.Delivered, 100))
	return nil
}

// reportCoherence writes the tables.
func (b *bench) reportCoherence(text *strings.Builder) {
	b.grid(text, fmt.Sprintf("names of the cluster with TTL %d", nodeTTL), []string{nameCoherent, nameTimed}, []column{
		{title: "of 100 queries, to cluster DNS", what: coherenceReach, format: "%.2f"},
		{title: "to " + nameTimed, what: coherenceReach, own: nameTimed},
		{title: "hit, us", what: coherenceHit, format: "%.2f"},
		{title: "to " + nameTimed, what: coherenceHit, own: nameTimed},
	})
	b.grid(text, fmt.Sprintf("write of a change to answers with it of %d node caches, ms", coherentCaches), []string{nameCoherent}, []column{
		{title: "EndpointSlice, p50", what: coherenceChangeP50, format: "%.2f"},
		{title: "p99", what: coherenceChangeP99, format: "%.2f"},
		{title: "p99 of nodecache", what: coherenceChangeNode, format: "%.2f"},
		{title: "new Service, p50", what: coherenceCreateP50, format: "%.2f"},
		{title: "p99", what: coherenceCreateP99, format: "%.2f"},
		{title: "p99 of nodecache", what: coherenceCreateNode, format: "%.2f"},
	})
	b.grid(text, fmt.Sprintf("%d simulated sessions", b.sessions), []string{nameFleet}, []column{
		{title: "subscriptions of each", what: fleetSubscriptions, format: "%.1f"},
		{title: "memory, MiB", what: fleetMemory, format: "%.0f"},
		{title: "maximum, MiB", what: fleetPeak, format: "%.0f"},
		{title: "heartbeats, % of a core", what: fleetCPU, format: "%.1f"},
		{title: "heartbeats/s", what: fleetRate, format: "%.0f"},
		{title: "longest gap, ms", what: fleetGap, format: "%.0f"},
		{title: "one event to half of them, ms", what: fleetP50, format: "%.0f"},
		{title: "to all, ms", what: fleetMax, format: "%.0f"},
	})
}

// coherenceBars are the bars of the part.
func coherenceBars() (all []budget) {
	for _, one := range []budget{
		{title: "100 node caches answer with a changed EndpointSlice, p99 at most 50 ms", what: coherenceChangeP99, limit: 50, unit: "ms"},
		{title: "the same with a Service whose name did not exist", what: coherenceCreateP99, limit: 50, unit: "ms"},
		{title: "queries to cluster DNS at TTL 5 at most 1/10", what: coherenceReach, peer: nameTimed, share: 0.1, unit: "of 100"},
		{title: "a hit with coherent: no measurable difference (3 %)", what: coherenceHit, peer: nameTimed, share: 1.03},
		{title: "15,000 sessions with 200 subscriptions each: maximum memory at most 400 MB", what: fleetPeak, own: nameFleet, limit: 400},
		{title: "their heartbeats at most 10 % of a core", what: fleetCPU, own: nameFleet, limit: 10, unit: "%"},
		{title: "one event to all of them within a second", what: fleetMax, own: nameFleet, limit: 1000, unit: "ms"},
	} {
		one.part, one.own = partCoherence, cmp.Or(one.own, nameCoherent)
		all = append(all, one)
	}
	return all
}
