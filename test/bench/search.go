package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// The figures of each setup. Counts and CPU time are divided by the number of look-ups.
const (
	searchQueries    = "search: queries of the pods"
	searchExternal   = "search: queries of the pods for an external name"
	searchToCluster  = "search: queries to cluster DNS"
	searchToUpstream = "search: queries to the upstream"
	searchNodeCPU    = "search: CPU of the node cache"
	searchClusterCPU = "search: CPU of cluster DNS"
	externalP50      = "search: external names, median latency"
	externalP99      = "search: external names, p99 latency"
	clusterP50       = "search: cluster names, median latency"
	clusterP99       = "search: cluster names, p99 latency"
	searchReached    = "search: rate reached"
)

// measureSearch measures the setups in turn, each round begins with another one. Then it takes the profiles.
func (b *bench) measureSearch(ctx context.Context) error {
	defer b.stopSearch()
	if err := b.startSetups(ctx, searchSetups); err != nil {
		return err
	}
	err := inTurns(b.rounds, b.search, func(s *searchServers, round int) error {
		if err := b.measureSetup(ctx, s, round); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range b.search {
		if err := b.profileSetup(ctx, s); err != nil {
			return fmt.Errorf("profile of %s: %w", s.name, err)
		}
	}
	return nil
}

// measureSetup measures one setup in one round, and again if too many look-ups failed.
func (b *bench) measureSetup(ctx context.Context, s *searchServers, round int) error {
	for try := range tries {
		err := b.trySetup(ctx, s, round, try)
		if !errors.Is(err, dnsperf.ErrLost) {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: again: %v\n", s.name, err)
		b.lost = append(b.lost, fmt.Sprintf("%s, measured again: %v", s.name, err))
	}
	return fmt.Errorf("no measurement of %d that counts: look-ups failed", tries)
}

// searchWarm is the number of look-ups before a measurement: three seconds of the load, so that the frequent names are
// in the caches, as in a cluster that has been up for longer.
const searchWarm = 3 * searchRate

func (b *bench) trySetup(ctx context.Context, s *searchServers, round, try int) error {
	tag, seed := fmt.Sprintf("r%d-%d", round, try), 2*uint64(round)
	if _, err := s.lookUp(ctx, tag, seed, searchWarm); err != nil {
		return err
	}
	queries, err := s.counted()
	if err != nil {
		return err
	}
	spent, err := s.spent()
	if err != nil {
		return err
	}
	done, err := s.lookUp(ctx, tag, seed+1, b.lookups)
	if err != nil {
		return err
	}
	spentAfter, err := s.spent() // first, as counting takes time as well
	if err != nil {
		return err
	}
	queriesAfter, err := s.counted()
	if err != nil {
		return err
	}
	b.addSearch(s, done, queriesAfter.minus(queries), spentAfter.minus(spent))
	return nil
}

// lookUp has the pods look up names.
func (s *searchServers) lookUp(ctx context.Context, tag string, seed uint64, lookups int) (searchDone, error) {
	done, err := runPods(ctx, searchJob{Port: uint16(s.asked().port), Tag: tag, Seed: seed, Lookups: lookups})
	if err != nil {
		return done, err
	}
	return done, done.judge()
}

// searchCounts are numbers of queries since the start.
type searchCounts struct {
	cluster  float64 // to cluster DNS
	upstream int     // to the upstream server
}

func (c searchCounts) minus(before searchCounts) searchCounts {
	return searchCounts{c.cluster - before.cluster, c.upstream - before.upstream}
}

func (s *searchServers) counted() (c searchCounts, err error) {
	if c.cluster, err = requests(s.metrics); err != nil {
		return c, err
	}
	upstream, err := askCounts(s.upstream, nameCounts)
	c.upstream = upstream.queries
	return c, err
}

// searchTimes are CPU times since the start.
type searchTimes struct{ cache, cluster time.Duration }

func (t searchTimes) minus(before searchTimes) searchTimes {
	return searchTimes{t.cache - before.cache, t.cluster - before.cluster}
}

func (s *searchServers) spent() (t searchTimes, err error) {
	if t.cluster, err = s.dns.CPU(); err != nil || s.cache == nil {
		return t, err
	}
	t.cache, err = s.cache.CPU()
	return t, err
}

// addSearch records the figures of one measurement.
func (b *bench) addSearch(s *searchServers, done searchDone, queries searchCounts, spent searchTimes) {
	each := func(v float64) float64 { return v / float64(done.lookups()) }
	microseconds := func(d time.Duration) float64 { return each(float64(d.Nanoseconds()) / 1000) }
	add := func(what string, v float64) { b.results.add(what, s.name, v) }
	add(searchQueries, each(float64(done.External.Queries+done.Cluster.Queries)))
	add(searchExternal, float64(done.External.Queries)/float64(len(done.External.Latencies)))
	add(searchToCluster, each(queries.cluster))
	add(searchToUpstream, each(float64(queries.upstream)))
	add(searchClusterCPU, microseconds(spent.cluster))
	if s.cache != nil {
		add(searchNodeCPU, microseconds(spent.cache))
	}
	add(externalP50, dnsperf.Percentile(done.External.Latencies, 50))
	add(externalP99, dnsperf.Percentile(done.External.Latencies, 99))
	add(clusterP50, dnsperf.Percentile(done.Cluster.Latencies, 50))
	add(clusterP99, dnsperf.Percentile(done.Cluster.Latencies, 99))
	add(searchReached, done.Rate)
	if done.Failed > 0 {
		b.lost = append(b.lost, fmt.Sprintf("%s: %d look-ups of %d, the first: %s", s.name, done.Failed, done.Failed+done.lookups(), done.Failure))
	}
	if done.Again > 0 {
		b.lost = append(b.lost, fmt.Sprintf("%s: %d queries, sent again", s.name, done.Again))
	}
	fmt.Fprintf(os.Stderr, "%s: %d look-ups, %.0f/s, %d failed, %d queries sent again\n", s.name, done.lookups(), done.Rate, done.Failed, done.Again)
}

// profileSetup writes CPU profiles of the setup's servers that have a port for it.
func (b *bench) profileSetup(ctx context.Context, s *searchServers) error {
	for _, one := range s.servers() {
		if one.pprof == 0 {
			continue
		}
		err := b.profileDuring(ctx, one, "search "+s.name, func() error {
			_, err := s.lookUp(ctx, "profile-"+one.name, 0, searchRate*(profileSeconds+1))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// searchTables are the figures of the setups in the report.
var searchTables = []struct {
	title   string
	columns []column
}{
	{"queries per look-up", []column{
		{title: "of the pod", what: searchQueries, format: "%.2f"},
		{title: "of the pod, for an external name", what: searchExternal, format: "%.2f"},
		{title: "to cluster DNS", what: searchToCluster, format: "%.2f"},
		{title: "to the upstream", what: searchToUpstream, format: "%.2f"},
	}},
	{"CPU per look-up, and latency", []column{
		{title: "node cache, us", what: searchNodeCPU, format: "%.0f", in: hasNodeCache},
		{title: "cluster DNS, us", what: searchClusterCPU, format: "%.0f"},
		{title: "external p50, ms", what: externalP50, format: "%.2f"},
		{title: "external p99, ms", what: externalP99, format: "%.2f"},
		{title: "cluster p50, ms", what: clusterP50, format: "%.2f"},
		{title: "cluster p99, ms", what: clusterP99, format: "%.2f"},
		{title: "look-ups/s", what: searchReached, format: "%.0f"},
	}},
}

// hasNodeCache reports whether a setup has a node cache.
func hasNodeCache(name string) bool {
	return slices.ContainsFunc(searchSetups, func(s searchSetup) bool { return s.name == name && s.node != "" })
}

// reportSearch writes a line for each setup in each table.
func (b *bench) reportSearch(text *strings.Builder) {
	fmt.Fprintf(text, "\nOf pods, %d look-ups a second, %.0f %% of them of external names; upstream %d ms away:\n",
		searchRate, 100*externalShare, upstreamDelay.Milliseconds())
	var rows []string
	for _, s := range searchSetups {
		rows = append(rows, s.name)
	}
	for _, t := range searchTables {
		b.grid(text, t.title, rows, t.columns)
	}
}
