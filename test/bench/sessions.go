package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// The figures of the part sessions.
const (
	fleetSubscriptions = "fleet: subscriptions of a session"
	fleetMemory        = "fleet: memory"
	fleetPeak          = "fleet: maximum memory"
	fleetCPU           = "fleet: CPU of heartbeats"
	fleetRate          = "fleet: heartbeats a second"
	fleetGap           = "fleet: longest time between heartbeats"
	fleetFloor         = "fleet: CPU of a server that only sends"
	fleetOwn           = "fleet: CPU of heartbeats beyond it"
	fleetQuiet         = "fleet: query without sessions, p99"
	fleetBeside        = "fleet: query beside heartbeats, p99"
	fleetBesideMax     = "fleet: query beside heartbeats, max"
	fleetP50           = "fleet: change, p50"
	fleetMax           = "fleet: change, max"
)

// nameFleet is the server of simulated node caches, nameFloor one that only writes heartbeats to as many connections.
const (
	nameFleet = "clusterdns with sessions"
	nameFloor = "a loop that writes heartbeats"
)

// floorMode is the argument that makes this program that loop; the next one is an address and a port.
const floorMode = "heartbeats"

// fleetSetups are the setups of the part.
var fleetSetups = []searchSetup{{name: nameFleet, cluster: nameClusterDNS, ttl: nodeTTL, coherent: true}}

// The sizes of the part, of the bars.
const (
	fleetSessions = 15000
	fleetNames    = 200 // of each session
)

// subscriptionsMetric counts the subscriptions of all sessions.
const subscriptionsMetric = "nearside_kubernetes_coherence_subscriptions"

// measureSessions measures the simulated node caches of a large cluster.
func (b *bench) measureSessions(ctx context.Context) error {
	for range b.rounds {
		if err := b.measureFleet(ctx); err != nil {
			return fmt.Errorf("%s: %w", nameFleet, err)
		}
		if err := b.measureFloor(ctx); err != nil {
			return fmt.Errorf("%s: %w", nameFloor, err)
		}
	}
	return nil
}

// measureFleet measures a new server, so that an earlier round has left no memory.
func (b *bench) measureFleet(ctx context.Context) error {
	defer b.stopSearch()
	if err := checkFiles(b.sessions); err != nil {
		return err
	}
	if err := b.startSetups(ctx, fleetSetups); err != nil {
		return err
	}
	s := b.search[0]
	job := coherenceJob{
		Writes: b.writes, Namespace: searchCluster.Namespace(0), Cluster: s.dns.port, Sessions: b.sessions, PID: s.dns.PID, Metrics: s.metrics,
	}
	if job.PProf = s.dns.pprof; job.PProf > 0 {
		job.Profile = b.profilePath(nameFleet, "heartbeats")
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
		fleetQuiet: dnsperf.Percentile(f.Quiet, 99), fleetBeside: dnsperf.Percentile(f.Beside, 99), fleetBesideMax: dnsperf.Percentile(f.Beside, 100),
		fleetP50: dnsperf.Percentile(f.Delivered, 50), fleetMax: dnsperf.Percentile(f.Delivered, 100),
	} {
		b.results.add(what, s.name, v)
	}
	fmt.Fprintf(os.Stderr, "%d sessions, %.0f subscriptions: %.0f MiB, maximum %.0f; heartbeats: %.1f %% of a core; change: max %.0f ms; query, p99: %.2f ms, without sessions %.2f\n",
		f.Sessions, f.Subscriptions, f.Memory, f.Peak, f.CPU, dnsperf.Percentile(f.Delivered, 100), dnsperf.Percentile(f.Beside, 99), dnsperf.Percentile(f.Quiet, 99))
	return nil
}

// measureFloor measures the loop, after the server of the round.
func (b *bench) measureFloor(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	port := child.FreePort()
	server, err := child.Start(ctx, child.ServerCore, b.folder, fmt.Sprintf("floor-%d", port), self, floorMode, addressAt(port))
	if err != nil {
		return err
	}
	defer server.Stop()
	listening := func() bool {
		conn, err := net.Dial("tcp", addressAt(port))
		return err == nil && conn.Close() == nil
	}
	if err := child.Await(ctx, 10*time.Second, nameFloor, listening); err != nil {
		return err
	}
	done, err := runNodeCaches(ctx, coherenceJob{Floor: true, Cluster: port, Sessions: b.sessions, PID: server.PID})
	if err != nil {
		return err
	}
	f, all := done.Fleet, b.results[fleetCPU][nameFleet]
	own := all[len(all)-1] - f.CPU
	b.results.add(fleetFloor, nameFleet, f.CPU)
	b.results.add(fleetOwn, nameFleet, own)
	fmt.Fprintf(os.Stderr, "%s: %.1f %% of a core for %.0f/s, ours %.1f %%\n", nameFloor, f.CPU, f.Heartbeats, own)
	return nil
}

// reportSessions writes the table.
func (b *bench) reportSessions(text *strings.Builder) {
	b.grid(text, fmt.Sprintf("%d simulated sessions", b.sessions), []string{nameFleet}, []column{
		{title: "subscriptions of each", what: fleetSubscriptions, format: "%.1f"},
		{title: "memory, MiB", what: fleetMemory, format: "%.0f"},
		{title: "maximum, MiB", what: fleetPeak, format: "%.0f"},
		{title: "heartbeats, % of a core", what: fleetCPU, format: "%.1f"},
		{title: nameFloor, what: fleetFloor, format: "%.1f"},
		{title: "beyond it", what: fleetOwn, format: "%.1f"},
		{title: "heartbeats/s", what: fleetRate, format: "%.0f"},
		{title: "longest gap, ms", what: fleetGap, format: "%.0f"},
		{title: "query of another client without sessions, p99, ms", what: fleetQuiet, format: "%.2f"},
		{title: "beside heartbeats, p99", what: fleetBeside, format: "%.2f"},
		{title: "max", what: fleetBesideMax, format: "%.2f"},
		{title: "one event to half of them, ms", what: fleetP50, format: "%.0f"},
		{title: "to all, ms", what: fleetMax, format: "%.0f"},
	})
}

// sessionBars are the bars of the part.
func sessionBars() (all []budget) {
	for _, one := range []budget{
		{title: "15,000 sessions with 200 subscriptions each: maximum memory at most 400 MB", what: fleetPeak, limit: 400},
		{title: "their heartbeats at most 10 % of a core", what: fleetCPU, limit: 10, unit: "%"},
		{title: "the same, beyond a loop that only writes them", what: fleetOwn, limit: 10, unit: "%"},
		{title: "one event to all of them within a second", what: fleetMax, limit: 1000, unit: "ms"},
	} {
		one.part, one.own = partSessions, nameFleet
		all = append(all, one)
	}
	return all
}
