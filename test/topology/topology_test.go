//go:build linux

package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestTopology asks from pods of three nodes in two zones, through nodecache and past it.
func TestTopology(t *testing.T) {
	c := start(t)
	// First, so that a false answer would be in the caches of what follows.
	t.Run("claims through nodecache", func(t *testing.T) { testClaimsThroughCache(t, c) })
	t.Run("answers", func(t *testing.T) { testAnswers(t, c) })
	t.Run("who is believed", func(t *testing.T) { testTrust(t, c) })
	t.Run("default trust and keys", func(t *testing.T) { testDefaults(t, c) })
	t.Run("account without nodes", func(t *testing.T) { testWithoutNodes(t, c) })
	now := atFirst
	for _, state := range states {
		now = atFirst.but(state.rows...)
		t.Run(state.name, func(t *testing.T) {
			state.change(t, c)
			c.follow(t, now)
		})
	}
	t.Run("API server killed", func(t *testing.T) { testOutage(t, c, now) })
}

// caller asks, and is known as one of the columns of the views.
type caller struct {
	asking
	column int
}

// cached are the pods, who ask the nodecache of their node.
func (c *cluster) cached() (all []caller) {
	for i, pod := range c.pod {
		all = append(all, caller{asking{from: pod, server: local}, i + 1})
	}
	return all
}

// direct are those who ask clusterdns itself: pods by both families; the host network of n1, whose address an
// endpoint has, and of n2, whose address nobody has; and a stranger.
func (c *cluster) direct() (all []caller) {
	for i, pod := range c.pod {
		all = append(all, caller{asking{from: pod, server: clusterDNS}, i + 1}, caller{asking{from: pod, server: clusterDNS6}, i + 1})
	}
	return append(all, c.host(1, 1), c.host(2, unknown), c.foreign(fromTrusted, clusterDNS))
}

func (c *cluster) host(node, column int) caller {
	return caller{asking{from: c.node[node-1], server: clusterDNS}, column}
}

func (c *cluster) foreign(address, server string) caller {
	return caller{asking{from: c.stranger, server: server, options: []string{"-b", address}}, unknown}
}

// wantAll fails the test if an answer is not what the caller is to see: over UDP and TCP, each twice, and without
// EDNS where the query has no option.
func wantAll(t *testing.T, a asking, all []wish) {
	t.Helper()
	variants := [][]string{nil, {"+tcp"}, nil, {"+tcp"}}
	if !strings.Contains(a.String(), "+ednsopt") {
		variants = append(variants, []string{"+noedns"})
	}
	for _, options := range variants {
		if err := a.with(options...).check(all); err != nil {
			t.Error(err)
		}
	}
}

func testClaimsThroughCache(t *testing.T, c *cluster) {
	for i, pod := range c.cached() {
		other := 1 + (i+1)%nodes
		all := wishes(atFirst.of(pod.column))
		wantAll(t, pod.with(claims(fmt.Sprint("n", other), "")), all)
		wantAll(t, pod.asking, all)
	}
}

func testAnswers(t *testing.T, c *cluster) {
	for _, from := range append(c.cached(), c.direct()...) {
		t.Run(from.String(), func(t *testing.T) {
			wantAll(t, from.asking, append(wishes(atFirst.of(from.column)), always...))
		})
	}
	t.Run("from the cache", func(t *testing.T) {
		for node := 1; node <= nodes; node++ {
			if c.cacheMetric(t, node, "coredns_cache_hits_total{") == 0 {
				t.Errorf("n%d: no answer was from the cache", node)
			}
		}
	})
}

// counts are the metric's values by label.
func (s *clusterServer) counts(t *testing.T) map[string]int {
	t.Helper()
	page, err := get(s.from, "http://"+s.address+":9153/metrics")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, label := range []string{"option", "endpoint", "pod_cidr", "pod", "node_address", "unknown_node", "unknown_address", "untrusted_option", "malformed_option"} {
		all[label] = sum(t, page, `nearside_kubernetes_topology_answers_total{caller="`+label+`"} `)
	}
	return all
}

// testTrust asks the clusterdns that believes nodes alone, and looks at what it counts: nobody else asks.
func testTrust(t *testing.T, c *cluster) {
	n3 := claims("n3", "")
	pod1 := asking{from: c.pod[0], server: clusterDNS}
	for _, tc := range []struct {
		name  string
		ask   asking
		seen  map[string]string
		count string
	}{
		{"pod", pod1, atFirst.of(1), "pod_cidr"},
		{"pod, IPv6", asking{from: c.pod[1], server: clusterDNS6}, atFirst.of(2), "pod_cidr"},
		{"host whose address an endpoint has", c.host(1, 1).asking, atFirst.of(1), "endpoint"},
		{"host whose address nobody has", c.host(2, unknown).asking, atFirst.of(unknown), "unknown_address"},
		{"pod that claims to be elsewhere", pod1.with(n3), atFirst.of(1), "pod_cidr"},
		{"Pod, where Pods are not watched", c.foreign(fromPod, clusterDNS).asking, atFirst.of(unknown), "unknown_address"},
		{"stranger who claims to be somewhere", c.foreign(fromTrusted, clusterDNS).with(n3), atFirst.of(unknown), "untrusted_option"},
		{"node that asks for another", c.host(1, 1).with(n3), atFirst.of(3), "option"},
		{"node that asks for another in a zone that is not its own", c.host(1, 1).with(claims("n3", "east")), atFirst.of(3), "option"},
		{"option of another version", c.host(2, unknown).with("+ednsopt=65313:02026e33"), atFirst.of(unknown), "malformed_option"},
		{"empty option", c.host(2, unknown).with("+ednsopt=65313"), atFirst.of(unknown), "malformed_option"},
		{"two options", c.host(2, unknown).with(n3, n3), atFirst.of(unknown), "malformed_option"},
		{"node that there is not, in a zone", c.host(2, unknown).with(claims("n9", "west")), map[string]string{
			"keys": "3", "rack": "", "local": "", "close": "3", "same": "1 2 3", "auto": "2 3", "plain": "1 2 3",
		}, "unknown_node"},
	} {
		ok := t.Run(tc.name, func(t *testing.T) {
			before := c.server.counts(t)
			all := append(wishes(tc.seen), always...)
			for _, options := range [][]string{nil, {"+tcp"}} {
				if err := tc.ask.with(options...).check(all); err != nil {
					t.Error(err)
				}
			}
			eventually(t, "the metric", func() error {
				for label, n := range c.server.counts(t) {
					want := before[label]
					if label == tc.count {
						want += 2 * perCaller
					}
					if n != want {
						return fmt.Errorf("%s: %d, want %d", label, n, want)
					}
				}
				return nil
			})
		})
		if !ok {
			return // each failure takes as long as the wait
		}
	}
}

// testDefaults has a clusterdns with keys in the Corefile, which believes whoever has a private address and
// watches Pods.
func testDefaults(t *testing.T, c *cluster) {
	s := c.startCluster(t, account, "pods verified\n        topology keys kubernetes.io/hostname *", otherDNS)
	withKeys := atFirst.but(row{"plain", [...]string{"1 2 3", "1", "2", "3"}})
	n3 := claims("n3", "")
	for _, from := range []caller{
		{asking{from: c.pod[0], server: otherDNS}, 1},
		{asking{from: c.pod[1], server: otherDNS}, 2},
		{asking{from: c.pod[0], server: otherDNS, options: []string{n3}}, 3},
		{c.foreign(fromTrusted, otherDNS).with(n3), 3},
		{c.foreign(fromPod, otherDNS).asking, 2},
		c.foreign(fromTrusted, otherDNS),
		c.foreign(fromUntrusted, otherDNS),
		{c.foreign(fromUntrusted, otherDNS).with(n3), unknown},
	} {
		t.Run(from.String(), func(t *testing.T) {
			wantAll(t, from.asking, append(wishes(withKeys.of(from.column)), always...))
		})
	}
	if s.counts(t)["pod"] == 0 {
		t.Error("nobody was known as a Pod")
	}
}

// testWithoutNodes has a clusterdns whose account may not read Nodes: it is ready, and answers what it can.
func testWithoutNodes(t *testing.T, c *cluster) {
	s := c.startCluster(t, blindAccount, "topology", otherDNS)
	pod1 := asking{from: c.pod[0], server: otherDNS}
	const all = "1 2 3"
	for _, tc := range []struct {
		name string
		ask  asking
		seen map[string]string
	}{
		{"node and zone are told", pod1.with(claims("n1", "east")), map[string]string{
			"keys": "1", "rack": "SERVFAIL", "local": "1", "close": "1 2", "same": "3", "auto": "1", "plain": all,
		}},
		{"node is told", pod1.with(claims("n1", "")), map[string]string{
			"keys": "1", "rack": "SERVFAIL", "local": "1", "close": all, "same": "3", "auto": all, "plain": all,
		}},
		{"nothing is told", pod1, map[string]string{
			"keys": all, "rack": "SERVFAIL", "local": "SERVFAIL", "close": all, "same": all, "auto": all, "plain": all,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantAll(t, tc.ask, append(wishes(tc.seen), always...)) })
	}
	eventually(t, "the log tells of it", func() error {
		if !strings.Contains(s.Output(), "nodes is forbidden") {
			return fmt.Errorf("the log is\n%s", s.Output())
		}
		return nil
	})
}

// states are those that the objects are brought to, one after the other: they build on each other.
var states = []struct {
	name   string
	change func(t *testing.T, c *cluster)
	rows   []row // that are not as at first
}{
	{"endpoints go", func(t *testing.T, c *cluster) {
		c.remove(t, "keys", "n2")
		c.unready(t, "rack", "n1")
		c.unready(t, "local", "n1")
		c.remove(t, "close", "n3")
	}, []row{
		{"keys", [...]string{"1 3", "1", "1", "3"}},
		{"rack", [...]string{"", "3", "", "3"}},
		{"local", [...]string{"", "", "2", ""}},
		{"close", [...]string{"1 2", "1 2", "1 2", "1 2"}},
	}},
	{"more endpoints go", func(t *testing.T, c *cluster) {
		c.unready(t, "keys", "n1")
		c.remove(t, "close", "n1")
	}, []row{
		{"keys", [...]string{"3", "3", "3", "3"}},
		{"rack", [...]string{"", "3", "", "3"}},
		{"local", [...]string{"", "", "2", ""}},
		{"close", [...]string{"2", "2", "2", "2"}},
	}},
	{"endpoints come back", func(t *testing.T, c *cluster) {
		for _, service := range []string{"keys", "rack", "local", "close"} {
			c.restore(t, service)
		}
	}, nil},
	{"hints are withdrawn", func(t *testing.T, c *cluster) {
		c.withdrawHints(t, "same")
		c.withdrawHints(t, "auto")
	}, []row{
		{"same", [...]string{"1 2 3", "1", "2", "3"}},
		{"auto", [...]string{"1 2 3", "1 2 3", "1 2 3", "1 2 3"}},
	}},
	{"nodes are relabelled", func(t *testing.T, c *cluster) {
		c.restore(t, "auto") // with its hints
		c.withdrawHints(t, "same")
		c.remove(t, "keys", "n2")
		c.remove(t, "same", "n2")
		c.relabel(t, "n2", corev1.LabelTopologyZone, "west")
		c.relabel(t, "n2", rack, "a")
		c.relabel(t, "n3", rack, "c")
	}, []row{
		{"keys", [...]string{"1 3", "1", "3", "3"}},
		{"rack", [...]string{"", "1", "1", "3"}},
		{"close", [...]string{"1 2 3", "1 2", "3", "3"}},
		{"same", [...]string{"1 3", "1", "3", "3"}},
		{"auto", [...]string{"1 2 3", "1", "2 3", "2 3"}},
	}},
}

// follow waits until clusterdns answers as things are, and then until each nodecache does, which may be behind
// for the TTL. Then nothing else is answered any more, over TCP neither.
func (c *cluster) follow(t *testing.T, now views) {
	t.Helper()
	begin := time.Now()
	direct, cached := c.direct(), c.cached()
	for _, from := range direct {
		c.waitFor(t, from.asking, now.of(from.column))
	}
	after := time.Since(begin)
	for _, from := range direct {
		wantAll(t, from.asking, wishes(now.of(from.column)))
	}
	for _, from := range cached {
		c.waitFor(t, from.asking, now.of(from.column))
	}
	t.Logf("clusterdns follows after %v, nodecache after %v", after.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	for _, from := range cached {
		wantAll(t, from.asking, wishes(now.of(from.column)))
	}
}

func (c *cluster) waitFor(t *testing.T, a asking, seen map[string]string) {
	t.Helper()
	eventually(t, a.String(), func() error { return a.check(wishes(seen)) })
}

// testOutage kills the API server: what callers see stays, in nodecache too when what it keeps is over and it has
// asked again.
func testOutage(t *testing.T, c *cluster, now views) {
	before := c.server.counts(t)["option"]
	c.plane.KillAPIServer()
	all := append(c.cached(), c.direct()...)
	eventually(t, "each nodecache asks again", func() error {
		for _, from := range all {
			wantAll(t, from.asking, append(wishes(now.of(from.column)), always...))
		}
		if t.Failed() {
			t.FailNow()
		}
		if told := c.server.counts(t)["option"] - before; told < nodes*perCaller {
			return fmt.Errorf("%d answers, want %d", told, nodes*perCaller)
		}
		return nil
	})
}
