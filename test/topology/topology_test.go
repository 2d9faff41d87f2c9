//go:build linux

package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestTopology sends queries from pods of three nodes in two zones, through nodecache and directly to clusterdns.
func TestTopology(t *testing.T) {
	c := start(t)
	// This is first, so that a wrong answer would be in the caches for the following tests.
	t.Run("claims through nodecache", func(t *testing.T) { testClaimsThroughCache(t, c) })
	t.Run("answers", func(t *testing.T) { testAnswers(t, c) })
	t.Run("trust", func(t *testing.T) { testTrust(t, c) })
	t.Run("default trust and keys", func(t *testing.T) { testDefaults(t, c) })
	t.Run("account without nodes", func(t *testing.T) { testWithoutNodes(t, c) })
	now := initial
	for _, state := range states {
		now = initial.replace(state.rows...)
		t.Run(state.name, func(t *testing.T) {
			state.change(t, c)
			c.follow(t, now)
		})
	}
	t.Run("API server killed", func(t *testing.T) { testOutage(t, c, now) })
}

// caller is a querier that receives the answers of one column of the views.
type caller struct {
	querier
	column int
}

// cached returns the pods, as callers that query the nodecache of their node.
func (c *cluster) cached() (all []caller) {
	for i, pod := range c.pod {
		all = append(all, caller{querier{from: pod, server: local}, i + 1})
	}
	return all
}

// direct returns the callers that query clusterdns itself: pods over both families; the host network of n1, whose address an
// endpoint has, and of n2, whose address no object has; and stranger.
func (c *cluster) direct() (all []caller) {
	for i, pod := range c.pod {
		all = append(all, caller{querier{from: pod, server: clusterDNS}, i + 1}, caller{querier{from: pod, server: clusterDNS6}, i + 1})
	}
	return append(all, c.host(1, 1), c.host(2, unknown), c.foreign(fromTrusted, clusterDNS))
}

func (c *cluster) host(node, column int) caller {
	return caller{querier{from: c.node[node-1], server: clusterDNS}, column}
}

func (c *cluster) foreign(address, server string) caller {
	return caller{querier{from: c.stranger, server: server, options: []string{"-b", address}}, unknown}
}

// wantAll fails the test if a reply is not as expected: over UDP and TCP, each twice, and without EDNS if the query has no
// option.
func wantAll(t *testing.T, q querier, all []expectation) {
	t.Helper()
	variants := [][]string{nil, {"+tcp"}, nil, {"+tcp"}}
	if !strings.Contains(q.String(), "+ednsopt") {
		variants = append(variants, []string{"+noedns"})
	}
	for _, options := range variants {
		if err := q.with(options...).check(all); err != nil {
			t.Error(err)
		}
	}
}

func testClaimsThroughCache(t *testing.T, c *cluster) {
	for i, pod := range c.cached() {
		other := 1 + (i+1)%nodes
		all := expectations(initial.seenBy(pod.column))
		wantAll(t, pod.with(claims(fmt.Sprint("n", other), "")), all)
		wantAll(t, pod.querier, all)
	}
}

func testAnswers(t *testing.T, c *cluster) {
	for _, from := range append(c.cached(), c.direct()...) {
		t.Run(from.String(), func(t *testing.T) {
			wantAll(t, from.querier, append(expectations(initial.seenBy(from.column)), common...))
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

// counts returns the values of the metric of answers by label.
func (s *clusterServer) counts(t *testing.T) map[string]int {
	t.Helper()
	page, err := get(s.from, "http://"+s.address+":9153/metrics")
	kit.Must(t, err)
	all := map[string]int{}
	for _, label := range []string{"option", "endpoint", "pod_cidr", "pod", "node_address", "unknown_node", "unknown_address", "untrusted_option", "malformed_option"} {
		all[label] = sum(t, page, `nearside_kubernetes_topology_answers_total{caller="`+label+`"} `)
	}
	return all
}

// testTrust queries the clusterdns that trusts only nodes, and checks its metric. It receives no other queries at that time.
func testTrust(t *testing.T, c *cluster) {
	n3 := claims("n3", "")
	pod1 := querier{from: c.pod[0], server: clusterDNS}
	for _, tc := range []struct {
		name    string
		querier querier
		seen    map[string]string
		count   string
	}{
		{"pod", pod1, initial.seenBy(1), "pod_cidr"},
		{"pod, IPv6", querier{from: c.pod[1], server: clusterDNS6}, initial.seenBy(2), "pod_cidr"},
		{"host whose address an endpoint has", c.host(1, 1).querier, initial.seenBy(1), "endpoint"},
		{"host whose address no object has", c.host(2, unknown).querier, initial.seenBy(unknown), "unknown_address"},
		{"pod that claims to be elsewhere", pod1.with(n3), initial.seenBy(1), "pod_cidr"},
		{"Pod, where Pods are not watched", c.foreign(fromPod, clusterDNS).querier, initial.seenBy(unknown), "unknown_address"},
		{"stranger that claims to be on a node", c.foreign(fromTrusted, clusterDNS).with(n3), initial.seenBy(unknown), "untrusted_option"},
		{"node that sends the name of another", c.host(1, 1).with(n3), initial.seenBy(3), "option"},
		{"node that sends the name of another with a wrong zone", c.host(1, 1).with(claims("n3", "east")), initial.seenBy(3), "option"},
		{"option of another version", c.host(2, unknown).with("+ednsopt=65313:02026e33"), initial.seenBy(unknown), "malformed_option"},
		{"empty option", c.host(2, unknown).with("+ednsopt=65313"), initial.seenBy(unknown), "malformed_option"},
		{"two options", c.host(2, unknown).with(n3, n3), initial.seenBy(unknown), "malformed_option"},
		{"missing node, in a zone", c.host(2, unknown).with(claims("n9", "west")), map[string]string{
			"keys": "3", "rack": "", "local": "", "close": "3", "same": "1 2 3", "auto": "2 3", "plain": "1 2 3",
		}, "unknown_node"},
	} {
		ok := t.Run(tc.name, func(t *testing.T) {
			before := c.server.counts(t)
			all := append(expectations(tc.seen), common...)
			for _, options := range [][]string{nil, {"+tcp"}} {
				if err := tc.querier.with(options...).check(all); err != nil {
					t.Error(err)
				}
			}
			kit.Succeeds(t, maxWait, "the metric", func() error {
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

// testDefaults has a clusterdns with keys in the Corefile, which trusts clients with private addresses, the default, and
// watches Pods.
func testDefaults(t *testing.T, c *cluster) {
	s := c.startCluster(t, account, "pods verified\n        topology keys kubernetes.io/hostname *", otherDNS)
	withKeys := initial.replace(row{"plain", [...]string{"1 2 3", "1", "2", "3"}})
	n3 := claims("n3", "")
	for _, from := range []caller{
		{querier{from: c.pod[0], server: otherDNS}, 1},
		{querier{from: c.pod[1], server: otherDNS}, 2},
		{querier{from: c.pod[0], server: otherDNS, options: []string{n3}}, 3},
		{c.foreign(fromTrusted, otherDNS).with(n3), 3},
		{c.foreign(fromPod, otherDNS).querier, 2},
		c.foreign(fromTrusted, otherDNS),
		c.foreign(fromUntrusted, otherDNS),
		{c.foreign(fromUntrusted, otherDNS).with(n3), unknown},
	} {
		t.Run(from.String(), func(t *testing.T) {
			wantAll(t, from.querier, append(expectations(withKeys.seenBy(from.column)), common...))
		})
	}
	if s.counts(t)["pod"] == 0 {
		t.Error("no caller was identified by its Pod")
	}
}

// testWithoutNodes has a clusterdns whose account may not read Nodes: it is ready, and answers without their labels.
func testWithoutNodes(t *testing.T, c *cluster) {
	s := c.startCluster(t, blindAccount, "topology", otherDNS)
	pod1 := querier{from: c.pod[0], server: otherDNS}
	const all = "1 2 3"
	for _, tc := range []struct {
		name    string
		querier querier
		seen    map[string]string
	}{
		{"option with node and zone", pod1.with(claims("n1", "east")), map[string]string{
			"keys": "1", "rack": "SERVFAIL", "local": "1", "close": "1 2", "same": "3", "auto": "1", "plain": all,
		}},
		{"option with node", pod1.with(claims("n1", "")), map[string]string{
			"keys": "1", "rack": "SERVFAIL", "local": "1", "close": all, "same": "3", "auto": all, "plain": all,
		}},
		{"no option", pod1, map[string]string{
			"keys": all, "rack": "SERVFAIL", "local": "SERVFAIL", "close": all, "same": all, "auto": all, "plain": all,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantAll(t, tc.querier, append(expectations(tc.seen), common...)) })
	}
	kit.Succeeds(t, maxWait, "the error is logged", func() error {
		if !strings.Contains(s.Output(), "nodes is forbidden") {
			return fmt.Errorf("log:\n%s", s.Output())
		}
		return nil
	})
}

// states are changes of the objects. Each one follows the one before it.
var states = []struct {
	name   string
	change func(t *testing.T, c *cluster)
	rows   []row // that differ from the initial views
}{
	{"endpoints removed", func(t *testing.T, c *cluster) {
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
	{"more endpoints removed", func(t *testing.T, c *cluster) {
		c.unready(t, "keys", "n1")
		c.remove(t, "close", "n1")
	}, []row{
		{"keys", [...]string{"3", "3", "3", "3"}},
		{"rack", [...]string{"", "3", "", "3"}},
		{"local", [...]string{"", "", "2", ""}},
		{"close", [...]string{"2", "2", "2", "2"}},
	}},
	{"endpoints restored", func(t *testing.T, c *cluster) {
		for _, service := range []string{"keys", "rack", "local", "close"} {
			c.restore(t, service)
		}
	}, nil},
	{"hints removed", func(t *testing.T, c *cluster) {
		c.withdrawHints(t, "same")
		c.withdrawHints(t, "auto")
	}, []row{
		{"same", [...]string{"1 2 3", "1", "2", "3"}},
		{"auto", [...]string{"1 2 3", "1 2 3", "1 2 3", "1 2 3"}},
	}},
	{"nodes relabelled", func(t *testing.T, c *cluster) {
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

// follow waits until clusterdns has the answers of these views, and then until each nodecache has them, which may be late by
// the TTL. Afterwards there are no other answers, also over TCP.
func (c *cluster) follow(t *testing.T, now views) {
	t.Helper()
	begin := time.Now()
	direct, cached := c.direct(), c.cached()
	for _, from := range direct {
		c.waitFor(t, from.querier, now.seenBy(from.column))
	}
	after := time.Since(begin)
	for _, from := range direct {
		wantAll(t, from.querier, expectations(now.seenBy(from.column)))
	}
	for _, from := range cached {
		c.waitFor(t, from.querier, now.seenBy(from.column))
	}
	t.Logf("clusterdns has the new answers after %v, nodecache after %v", after.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	for _, from := range cached {
		wantAll(t, from.querier, expectations(now.seenBy(from.column)))
	}
}

func (c *cluster) waitFor(t *testing.T, q querier, seen map[string]string) {
	t.Helper()
	kit.Succeeds(t, maxWait, q.String(), func() error { return q.check(expectations(seen)) })
}

// testOutage kills the API server: the answers stay the same, also those of nodecache after its stored answers have expired.
func testOutage(t *testing.T, c *cluster, now views) {
	before := c.server.counts(t)["option"]
	c.plane.KillAPIServer()
	all := append(c.cached(), c.direct()...)
	kit.Succeeds(t, maxWait, "each nodecache queries clusterdns again", func() error {
		for _, from := range all {
			wantAll(t, from.querier, append(expectations(now.seenBy(from.column)), common...))
		}
		if t.Failed() {
			t.FailNow()
		}
		if n := c.server.counts(t)["option"] - before; n < nodes*perCaller {
			return fmt.Errorf("%d answers, want %d", n, nodes*perCaller)
		}
		return nil
	})
}
