package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// The limits of ClusterLoader2 for lookups of the names of Services: clusterloader2/testing/load/modules/dns-performance-metrics.yaml
// of kubernetes/perf-tests.
const (
	maxLookup50 = 20.0  // ms
	maxLookup99 = 100.0 // ms
	maxErrors   = 0.1   // percent
)

// Its load, by dns-k8s-hostnames.yaml: five clients and one more for each hundred nodes, each with ten lookups a second.
const (
	minClients     = 5
	nodesPerClient = 100
	lookupRate     = 10
)

// sloTimes are the times of a setup's measurement.
type sloTimes struct {
	warmUp       time.Duration // lookups that are not counted
	steady       time.Duration // lookups without changes
	changes      time.Duration // lookups while the cluster changes
	restarts     int           // of the API server
	afterRestart time.Duration // lookups after each
	ttl          int           // of answers, in seconds
	followed     int           // Services that change
}

// sloSetup is cluster DNS, and the cache of a node that pods query; without one, they query cluster DNS.
type sloSetup struct {
	name, cluster, node string
	coherent            bool // as in deploy/
}

// The setups: with the same Corefiles but for `coherent`.
var sloSetups = []sloSetup{
	{name: nameClusterDNS, cluster: nameClusterDNS},
	{name: "clusterdns and nodecache", cluster: nameClusterDNS, node: nameNodeCache, coherent: true},
	{name: nameCoreDNS, cluster: nameCoreDNS},
	{name: "CoreDNS and node-local-dns's Corefile", cluster: nameCoreDNS, node: nameCoreDNS},
}

const nameNodeCache = "nodecache"

// clusterFile is kubeadm's Corefile. Arguments: the ports of DNS, metrics and readiness, the API server, the certificate, the key and
// the authority of the client, the TTL, and an option of kubernetes.
const clusterFile = `.:%d {
    bind 127.0.0.1
    errors
    prometheus 127.0.0.1:%d
    ready 127.0.0.1:%d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint https://%s
        tls %s %s %s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl %d
        %s
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    loadbalance
}
`

// sloNodeFile has the blocks of node-local-dns's Corefile. Arguments: the ports of DNS, metrics and cluster DNS, and an option of forward.
const sloNodeFile = `cluster.local:%[1]d {
    bind 127.0.0.1
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    forward . 127.0.0.1:%[3]d {
        force_tcp
        %[4]s
    }
    prometheus 127.0.0.1:%[2]d
}
.:%[1]d {
    bind 127.0.0.1
    errors
    cache 30
    forward . 127.0.0.1:%[3]d
    prometheus 127.0.0.1:%[2]d
}
`

// The phases, and the figures of each after its name and a colon.
const (
	phaseSteady   = "steady"
	phaseChanging = "cluster changes"
	phaseOutage   = "restart of the API server"

	lookups50    = "lookups, p50, ms"
	lookups99    = "lookups, p99, ms"
	lookupsMax   = "lookups, longest, ms"
	lookupErrors = "lookups failed, %"
	lookupCount  = "lookups"

	changed50    = "request for a change to answer of a pod, p50, ms"
	changed99    = "request for a change to answer of a pod, p99, ms"
	changedCount = "changes"
	recovered50  = "after a restart of the API server, p50, s"
	recoveredMax = "after a restart of the API server, longest, s"
)

// measureSLO measures all setups on the same cluster, and prints the table.
func (b *bench) measureSLO(ctx context.Context, api *kubeapi.Server, s size, times sloTimes) error {
	all, err := b.slo(ctx, api, s, times)
	fmt.Printf("\n%d nodes, %d Services, %d endpoints; %d clients with %d lookups a second each; %s.\n", s.cluster.Nodes, s.cluster.Services,
		s.cluster.Endpoints, clientsOf(s), lookupRate, memory())
	fmt.Print(sloReport(all))
	return errors.Join(err, all.missed())
}

// missed returns an error if a setup with clusterdns is beyond a limit.
func (f figures) missed() (err error) {
	for _, s := range sloSetups {
		for _, phase := range sloPhases {
			for _, l := range sloLimits {
				if v := f[figure(phase, l.what)][s.name]; s.cluster == nameClusterDNS && v > l.limit {
					err = errors.Join(err, fmt.Errorf("%s, %s: %g, limit %g", s.name, figure(phase, l.what), v, l.limit))
				}
			}
		}
	}
	return err
}

// slo measures all setups. With an error it returns the figures before it.
func (b *bench) slo(ctx context.Context, api *kubeapi.Server, s size, times sloTimes) (figures, error) {
	all := figures{}
	w, err := newWorld(api, s)
	if err != nil {
		return all, err
	}
	services, err := newFollowed(api, times.followed)
	if err != nil {
		return all, err
	}
	for _, setup := range sloSetups {
		if err := b.measureSetup(ctx, w, services, setup, times, all); err != nil {
			return all, fmt.Errorf("%s: %w", setup.name, err)
		}
	}
	return all, w.gate.refuse()
}

func clientsOf(s size) int { return minClients + s.cluster.Nodes/nodesPerClient }

// sloServers are the running servers of a setup.
type sloServers struct {
	cluster *server
	node    *child.Process // nil without one
	client  *client        // of the server that pods query
	address string         // of that server
}

func (s *sloServers) stop() {
	s.cluster.stop()
	if s.node != nil {
		s.node.Stop()
		_ = s.client.Close() // nothing is lost
	}
}

// measureSetup measures a setup through all phases.
func (b *bench) measureSetup(ctx context.Context, w *world, services []*followed, setup sloSetup, times sloTimes, all figures) error {
	servers, err := b.startSetup(ctx, w, setup, times.ttl)
	if err != nil {
		return err
	}
	defer servers.stop()
	load := newLookups(w.cluster, clientsOf(w.size), servers.address)
	pause := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { return child.Pause(ctx, d) }
	}
	if _, err := load.during(ctx, pause(times.warmUp)); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	for _, phase := range []struct {
		name string
		do   func(context.Context) error
	}{
		{phaseSteady, pause(times.steady)},
		{phaseChanging, func(ctx context.Context) error {
			return followAll(ctx, services, servers.address, times, setup.name, all)
		}},
		{phaseOutage, func(ctx context.Context) error {
			return w.outages(ctx, services[0], servers.client, times, setup.name, all)
		}},
	} {
		done, err := load.during(ctx, phase.do)
		if err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		done.addTo(all, phase.name, setup.name)
		fmt.Fprintf(os.Stderr, "%s, %s: %d lookups, %d failed\n", setup.name, phase.name, len(done.latencies), done.failed)
	}
	return nil
}

// startSetup starts the servers of a setup on one core.
func (b *bench) startSetup(ctx context.Context, w *world, setup sloSetup, ttl int) (*sloServers, error) {
	forCluster, forNode := "", ""
	if setup.coherent {
		forCluster, forNode = "coherent", "coherent"
	}
	cluster := b.programs[slices.IndexFunc(b.programs, func(p program) bool { return p.name == setup.cluster })]
	s, err := b.startWith(ctx, cluster, func(s *server) string {
		p := w.api.Plane()
		return fmt.Sprintf(clusterFile, s.port, child.FreePort(), s.ready, w.gate.address, p.CertFile(), p.KeyFile(), p.CAFile(), ttl, forCluster)
	})
	if err != nil {
		return nil, err
	}
	servers := &sloServers{cluster: s, client: s.client, address: address(s.port)}
	if err := s.awaitReady(ctx); err != nil {
		servers.stop()
		return nil, err
	}
	if setup.node == "" {
		return servers, nil
	}
	if err := b.startNode(ctx, servers, setup.node, forNode); err != nil {
		servers.stop()
		return nil, err
	}
	return servers, nil
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// startNode starts the cache of a node in front of cluster DNS.
func (b *bench) startNode(ctx context.Context, s *sloServers, name, option string) (err error) {
	path := b.nodecache
	if name == nameCoreDNS {
		path = b.programs[1].path
	}
	folder, err := os.MkdirTemp(b.folder, "node-")
	if err != nil {
		return err
	}
	port, conf := child.FreePort(), filepath.Join(folder, "Corefile")
	if err := os.WriteFile(conf, fmt.Appendf(nil, sloNodeFile, port, child.FreePort(), s.cluster.port, option), 0o600); err != nil {
		return err
	}
	s.address = address(port)
	if s.client, err = dial(s.address); err != nil {
		return err
	}
	if s.node, err = child.Start(ctx, b.core, folder, name, path, "-conf", conf); err != nil {
		return err
	}
	return child.Await(ctx, startTimeout, name, s.client.responds)
}

// outages restarts the API server again and again, and measures how long after it is ready again a change is answered.
func (w *world) outages(ctx context.Context, f *followed, c *client, times sloTimes, name string, all figures) error {
	var took []time.Duration
	for range times.restarts {
		if err := w.gate.refuse(); err != nil {
			return err
		}
		if err := w.restart(ctx, w.gate.open); err != nil {
			return err
		}
		answered, err := f.change(ctx, c)
		if err != nil {
			return err
		}
		took = append(took, answered)
		if err := child.Pause(ctx, times.afterRestart); err != nil {
			return err
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		all.add(recovered50, name, dnsperf.Percentile(took, 50)/1000)
		all.add(recoveredMax, name, dnsperf.Percentile(took, 100)/1000)
	}
	return nil
}

// sloReport returns the tables of the figures and of the limits.
func sloReport(all figures) string {
	var text strings.Builder
	text.WriteString("\n| |")
	for _, s := range sloSetups {
		text.WriteString(" " + s.name + " |")
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(sloSetups)) + "\n")
	line := func(r row) {
		text.WriteString("| " + r.what + " |")
		for _, s := range sloSetups {
			text.WriteString(" " + all.cell(r, s.name) + " |")
		}
		text.WriteString("\n")
	}
	for _, r := range sloRows() {
		line(r)
	}
	text.WriteString("\n| limit of ClusterLoader2 |" + strings.Repeat(" |", len(sloSetups)) + "\n|---|" + strings.Repeat("---|", len(sloSetups)) + "\n")
	for _, phase := range sloPhases {
		for _, l := range sloLimits {
			fmt.Fprintf(&text, "| %s at most %g |", figure(phase, l.what), l.limit)
			for _, s := range sloSetups {
				text.WriteString(" " + all.met(figure(phase, l.what), s.name, l.limit) + " |")
			}
			text.WriteString("\n")
		}
	}
	return text.String()
}

// met reports whether a figure is within a limit, "" if there is none.
func (f figures) met(what, name string, limit float64) string {
	switch v, measured := f[what][name]; {
	case !measured:
		return ""
	case v <= limit:
		return "yes"
	}
	return "**no**"
}

var sloLimits = []struct {
	what  string
	limit float64
}{{lookups50, maxLookup50}, {lookups99, maxLookup99}, {lookupErrors, maxErrors}}

var sloPhases = []string{phaseSteady, phaseChanging, phaseOutage}

// sloRows returns the figures in the order of the report.
func sloRows() (all []row) {
	for _, phase := range sloPhases {
		for _, r := range []row{{lookupCount, "%.0f"}, {lookups50, "%.2f"}, {lookups99, "%.2f"}, {lookupsMax, "%.1f"}, {lookupErrors, "%.4f"}} {
			all = append(all, row{figure(phase, r.what), r.format})
		}
	}
	return append(all, row{changedCount, "%.0f"}, row{changed50, "%.1f"}, row{changed99, "%.1f"}, row{recovered50, "%.2f"}, row{recoveredMax, "%.2f"})
}
