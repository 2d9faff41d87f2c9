package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
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
)

// The setups of the part.
const (
	nameCoherent = "nodecache, clusterdns, coherent"
	nameTimed    = "nodecache, clusterdns, not coherent"
)

// hitTTL is a TTL in seconds in which no answer expires, so that all queries are hits without sessions, too.
const hitTTL = 3600

// coherenceSetups returns the setups with a TTL of names of the cluster.
func coherenceSetups(ttl int) []searchSetup {
	return []searchSetup{
		{name: nameCoherent, node: nameNodeCache, cluster: nameClusterDNS, ttl: ttl, coherent: true},
		{name: nameTimed, node: nameNodeCache, cluster: nameClusterDNS, ttl: ttl},
	}
}

// coherentCaches is the number of node caches of the bars. One of them is a program.
const coherentCaches = 100

// coherentOption is the option of *kubernetes* and of *forward*.
const coherentOption = "\n        coherent"

// manyConnections is a directive for as many connections of one address as there are simulated node caches.
const manyConnections = `
    fastpath {
        max_connections 17000 17000
    }`

// measureCoherence measures the setups with and without.
func (b *bench) measureCoherence(ctx context.Context) error {
	if err := b.measureCoherent(ctx); err != nil {
		return fmt.Errorf("coherence: %w", err)
	}
	return nil
}

func (b *bench) measureCoherent(ctx context.Context) error {
	if err := b.measureReachAndChanges(ctx); err != nil {
		return err
	}
	defer b.stopSearch()
	if err := b.startSetups(ctx, coherenceSetups(hitTTL)); err != nil {
		return err
	}
	hits, err := firstOnes(searchCluster, hitKinds[0], b.folder)
	if err != nil {
		return err
	}
	hits.what = coherenceHit
	hits.cached = false // a session's answers have the configured TTL, which does not count down
	return inTurns(b.rounds, b.search, func(s *searchServers, _ int) error { return b.measureCoherentHit(ctx, s, hits) })
}

func (b *bench) measureReachAndChanges(ctx context.Context) error {
	defer b.stopSearch()
	if err := b.startSetups(ctx, coherenceSetups(nodeTTL)); err != nil {
		return err
	}
	names, err := nodeNames()
	if err != nil {
		return err
	}
	err = inTurns(b.rounds, b.search, func(s *searchServers, round int) error {
		if err := b.measureReach(ctx, s, names, uint64(round)); err != nil { // #nosec G115 -- not negative
			return fmt.Errorf("%s: %w", s.name, err)
		}
		return nil
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
		share := 100 * done.queries.cluster / float64(done.Completed)
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
		slices.Sort(kind.times.All)
		slices.Sort(kind.times.Program)
		p50, p99 := dnsperf.Percentile(kind.times.All, 50), dnsperf.Percentile(kind.times.All, 99)
		b.results.add(kind.p50, s.name, p50)
		b.results.add(kind.p99, s.name, p99)
		b.results.add(kind.node, s.name, dnsperf.Percentile(kind.times.Program, 99))
		slices.Sort(kind.times.Written)
		fmt.Fprintf(os.Stderr, "%s: %.2f ms, %s: %.2f ms, of it the write to the API server, p99: %.2f ms; slowest: written %s, first answer %s, last %s\n",
			kind.p50, p50, kind.p99, p99, dnsperf.Percentile(kind.times.Written, 99), kind.times.Slowest.Written, kind.times.Slowest.First, kind.times.Slowest.Last)
	}
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
}

// coherenceBars are the bars of the part.
func coherenceBars() (all []budget) {
	for _, one := range []budget{
		{title: "all of 100 node caches answer with a changed EndpointSlice, p99 at most 50 ms", what: coherenceChangeP99, limit: 50, unit: "ms"},
		{title: "the same with a Service whose name did not exist", what: coherenceCreateP99, limit: 50, unit: "ms"},
		{title: "queries to cluster DNS at TTL 5 at most 1/10", what: coherenceReach, peer: nameTimed, share: 0.1, unit: "of 100"},
		{title: "a hit with coherent: no measurable difference (3 %)", what: coherenceHit, peer: nameTimed, share: 1.03},
	} {
		one.part, one.own = partCoherence, nameCoherent
		all = append(all, one)
	}
	return all
}
