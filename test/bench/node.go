package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// The figures of each setup in the part node. CPU time is divided by the number of queries of the pods.
const (
	nodeCPU        = "node: CPU of both"
	nodeCacheCPU   = "node: CPU of the node cache"
	nodeClusterCPU = "node: CPU of cluster DNS"
	nodeHits       = "node: hits per hundred queries"
	nodeReached    = "node: rate reached"
)

// nodeTTL is the TTL of the names of the cluster in seconds, the default of *kubernetes*.
const nodeTTL = 5

// nodeEach is the number of queries per second for each name and type, at random times. Of those, the ones in the nodeTTL
// seconds after a miss are hits: 0.4 * 5 = 2 of 3.
const nodeEach = 0.4

// nodeSetups are the setups of the part node.
var nodeSetups = []searchSetup{
	{name: nameWalked, node: nameNodeCache, cluster: nameClusterDNS, ttl: nodeTTL},
	{name: nameBothCoreDNS, node: nameCoreDNS, cluster: nameCoreDNS, ttl: nodeTTL},
}

// measureNode measures the setups in turn, each round begins with another one. Then it takes the profiles.
func (b *bench) measureNode(ctx context.Context) error {
	defer b.stopSearch()
	if err := b.startSetups(ctx, nodeSetups); err != nil {
		return err
	}
	names, err := nodeNames()
	if err != nil {
		return err
	}
	err = inTurns(b.rounds, b.search, func(s *searchServers, round int) error {
		if err := b.measureNodeSetup(ctx, s, names, uint64(round)); err != nil { // #nosec G115 -- not negative
			return fmt.Errorf("%s: %w", s.name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range b.search {
		for _, one := range s.servers() {
			if err := b.profileNode(ctx, s, one, names); err != nil {
				return fmt.Errorf("profile of %s: %w", one.name, err)
			}
		}
	}
	return nil
}

// nodeNames returns the queries of pods: A and AAAA for each Service with a cluster address.
func nodeNames() (all []packet, err error) {
	for n := range searchCluster.Services {
		service := searchCluster.Service(n)
		if service.Headless {
			continue
		}
		for records, qtype := range []uint16{dns.TypeAAAA, dns.TypeA} {
			bytes, err := new(dns.Msg).SetQuestion(serviceName(service), qtype).Pack()
			if err != nil {
				return nil, err
			}
			all = append(all, packet{bytes: bytes, rcode: dns.RcodeSuccess, records: records})
		}
	}
	return all, nil
}

// nodeRate is the number of queries per second.
func nodeRate(names []packet) int { return int(nodeEach * float64(len(names))) }

// nodeLoad draws queries at random for a number of seconds.
func (b *bench) nodeLoad(names []packet, what string, seed uint64, seconds int) (*load, error) {
	r := rand.New(rand.NewPCG(seed, 3))
	l := &load{what: what, rcode: dns.RcodeToString[dns.RcodeSuccess], rate: nodeRate(names)}
	var file strings.Builder
	for range l.rate * seconds {
		p := names[r.IntN(len(names))]
		l.packets = append(l.packets, p)
		var m dns.Msg
		if err := m.Unpack(p.bytes); err != nil {
			return nil, err
		}
		fmt.Fprintf(&file, "%s %s\n", m.Question[0].Name, dns.TypeToString[m.Question[0].Qtype])
	}
	return l, l.write(b.folder, file.String())
}

// measureNodeSetup measures one setup in one round, and again if queries were lost or late.
func (b *bench) measureNodeSetup(ctx context.Context, s *searchServers, names []packet, round uint64) error {
	if _, err := check(ctx, s.asked(), &load{packets: names}); err != nil {
		return err
	}
	for try := range tries {
		done, err := b.tryNode(ctx, s, names, round*tries+uint64(try)) // #nosec G115 -- not negative
		if err == nil {
			err = b.reached(done.Statistics, nodeRate(names), try, s.name+", node")
		}
		if err == nil {
			b.addNode(s, done)
			return nil
		}
		if !again(err) {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: again: %v\n", s.name, err)
	}
	return fmt.Errorf("no measurement of %d that counts: queries lost", tries)
}

// nodeDone is one measurement.
type nodeDone struct {
	dnsperf.Statistics
	queries searchCounts
	spent   searchTimes
}

// tryNode sends the load, after two TTLs of it that are not measured.
func (b *bench) tryNode(ctx context.Context, s *searchServers, names []packet, seed uint64) (done nodeDone, err error) {
	warm, err := b.nodeLoad(names, "node warm", 2*seed, 2*nodeTTL)
	if err != nil {
		return done, err
	}
	measured, err := b.nodeLoad(names, "node", 2*seed+1, b.seconds)
	if err != nil {
		return done, err
	}
	if _, err := b.dnsperf.Ask(ctx, s.asked().port, warm.dnsperf(), 1); err != nil {
		return done, err
	}
	queries, err := s.counted()
	if err != nil {
		return done, err
	}
	spent, err := s.spent()
	if err != nil {
		return done, err
	}
	if done.Statistics, err = b.dnsperf.Ask(ctx, s.asked().port, measured.dnsperf(), 1); err != nil {
		return done, err
	}
	if done.spent, err = s.spent(); err != nil { // first, as counting takes time as well
		return done, err
	}
	done.queries, err = s.counted()
	done.queries, done.spent = done.queries.minus(queries), done.spent.minus(spent)
	return done, err
}

// addNode records the figures of one measurement.
func (b *bench) addNode(s *searchServers, done nodeDone) {
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(done.Completed) }
	hits := 100 * (1 - done.queries.cluster/float64(done.Completed))
	for what, v := range map[string]float64{
		nodeCPU: each(done.spent.cache + done.spent.cluster), nodeCacheCPU: each(done.spent.cache), nodeClusterCPU: each(done.spent.cluster),
		nodeHits: hits, nodeReached: done.Rate,
	} {
		b.results.add(what, s.name, v)
	}
	fmt.Fprintf(os.Stderr, "%s: %.2f us, %.0f %% hits, %.0f/s\n", s.name, each(done.spent.cache+done.spent.cluster), hits, done.Rate)
	if done.Lost > 0 {
		b.lost = append(b.lost, fmt.Sprintf("%s, node: %d of %d", s.name, done.Lost, done.Sent))
	}
}

// profileNode writes a CPU profile of a server, if it has a port for it.
func (b *bench) profileNode(ctx context.Context, s *searchServers, one *server, names []packet) error {
	if one.pprof == 0 {
		return nil
	}
	l, err := b.nodeLoad(names, "node profile", 0, profileSeconds+1)
	if err != nil {
		return err
	}
	return b.profileDuring(ctx, one, "node", func() error {
		_, err := b.dnsperf.Ask(ctx, s.asked().port, l.dnsperf(), 1)
		return err
	})
}

// reportNode writes a line for each setup.
func (b *bench) reportNode(text *strings.Builder) {
	names := make([]string, 0, len(nodeSetups))
	for _, s := range nodeSetups {
		names = append(names, s.name)
	}
	b.grid(text, fmt.Sprintf("names of the cluster with TTL %d through a node cache: CPU per query of a pod, us", nodeTTL), names, []column{
		{title: "both", what: nodeCPU, format: "%.2f"},
		{title: "to " + names[0], what: nodeCPU, own: names[0]},
		{title: "node cache", what: nodeCacheCPU, format: "%.2f"},
		{title: "cluster DNS", what: nodeClusterCPU, format: "%.2f"},
		{title: "hits, %", what: nodeHits, format: "%.1f"},
		{title: "queries/s", what: nodeReached, format: "%.0f"},
	})
}
