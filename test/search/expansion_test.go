//go:build linux

package search

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// autopath returns the directive of nodecache.
func (w *world) autopath() string {
	return "autopath @nodelocal {\n        " + w.source(nodeAccount) + "\n    }"
}

// TestExpansion tests autopath in nodecache, with the pods of its node from a real API server.
func TestExpansion(t *testing.T) {
	w := newWorld(t)
	all := resolvers(t)
	t.Run("clusterdns", func(t *testing.T) { testExpansion(t, w, w.startOurs(t), all, 1) })
	t.Run("CoreDNS", func(t *testing.T) { testExpansion(t, w, w.startStock(t), all, 3) })
}

// TestManifests has the objects in files, without an API server.
func TestManifests(t *testing.T) {
	w := newManifests(t)
	n := w.newNode(t)
	n.startCache(t, w.startOurs(t), corefile(w.autopath(), ""))
	k := n.newKinds(t)
	n.waitFor(t, k.shop, k.bank, k.extra, k.own)
	k.lookUp(t, resolvers(t), true)
	testSideBySide(t, n, n.clients(t, k), suffixes, "autopath")
}

// testExpansion tests nodecache in front of one kind of cluster DNS. queries is the max number of queries that
// cluster DNS receives for all candidates of a name and a type.
func testExpansion(t *testing.T, w *world, server *clusterServer, all []resolver, queries int) {
	n := w.newNode(t)
	n.startCache(t, server, corefile(w.autopath(), ""))
	k := n.newKinds(t)
	n.waitFor(t, k.shop, k.bank, k.extra, k.own)
	t.Run("fast path", func(t *testing.T) { testFastPath(t, n, k.shop) }) // the first: an older answer may expire while it counts
	t.Run("lookups", func(t *testing.T) { k.lookUp(t, all, true) })
	t.Run("queries for an external name", func(t *testing.T) { testExternal(t, w, server, k, all, queries) })
	t.Run("queries for a missing name", func(t *testing.T) { testMissing(t, w, server, k, all, queries) })
	t.Run("clients side by side", func(t *testing.T) { testSideBySide(t, n, n.clients(t, k), suffixes, "autopath") })
	t.Run("replaced pods", func(t *testing.T) { testReplaced(t, n) })
	t.Run("ended pods", func(t *testing.T) { testEnded(t, n) })
	t.Run("reload", func(t *testing.T) { testReload(t, n, k) })
	t.Run("cluster DNS is down", func(t *testing.T) { testClusterDown(t, server, k, all) })
	t.Run("API server is down", func(t *testing.T) { testAPIDown(t, n, k, all) })
}

// waitFor waits until the search lists of pods are known.
func (n *node) waitFor(t *testing.T, all ...*pod) {
	t.Helper()
	for _, p := range all {
		l := lookup{name: "both-#.outside.example"}.next() // answers without a list are not stored for clients with one
		for _, server := range []string{local, local6} {
			kit.Succeeds(t, maxWait, "the search list of "+p.String()+" is known", func() error {
				return querier{from: p.Namespace, server: server, network: "udp"}.check(l.name+"."+p.search[0]+".", "A", "192.0.2.1 at "+l.name+".")
			})
		}
	}
}

// byType returns the number of queries for each type, and for each name and type.
func byType(all []query) (types, questions map[string]int) {
	types, questions = map[string]int{}, map[string]int{}
	for _, q := range all {
		types[q.qtype]++
		questions[q.name+" "+q.qtype]++
	}
	return types, questions
}

// wantQueries fails the test if a server received more than perType queries for a type, or a query twice.
func wantQueries(t *testing.T, what string, all []query, perType int) {
	t.Helper()
	types, questions := byType(all)
	for _, qtype := range []string{"A", "AAAA"} {
		if types[qtype] > perType {
			t.Errorf("%s: %d queries for %s, want max %d: %v", what, types[qtype], qtype, perType, all)
		}
	}
	for q, n := range questions {
		if n > 1 {
			t.Errorf("%s: %d queries for %s: %v", what, n, q, all)
		}
	}
}

// testExternal counts the queries for a name that exists only without a suffix.
func testExternal(t *testing.T, w *world, server *clusterServer, k kinds, all []resolver, queries int) {
	for _, r := range all {
		if r.command("any", "") == nil {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			l := lookup{name: "both-#.outside.example", v4: "192.0.2.1", v6: "2001:db8::1", canonical: "both-#.outside.example", at: noSuffix}.next()
			lookUp(t, r, k.shop, "any", l, true)
			wantQueries(t, "cluster DNS, first lookup", server.since(0, l.name+"."), queries)
			wantQueries(t, "upstream, first lookup", w.upstream.since(0, l.name+"."), 2) // with the suffix of the nodes, and without one
			cluster, outside := server.mark(), w.upstream.mark()
			lookUp(t, r, k.shop, "any", l, true)
			wantQueries(t, "cluster DNS, again", server.since(cluster, l.name+"."), 0)
			wantQueries(t, "upstream, again", w.upstream.since(outside, l.name+"."), 0)
			lookUp(t, r, k.bank, "any", l, true)
			wantQueries(t, "cluster DNS, of another namespace", server.since(cluster, l.name+"."), queries)
			wantQueries(t, "upstream, of another namespace", w.upstream.since(outside, l.name+"."), 0)
		})
	}
}

// testMissing counts the queries for a name that does not exist, for which resolvers query all candidates.
func testMissing(t *testing.T, w *world, server *clusterServer, k kinds, all []resolver, queries int) {
	for _, r := range all {
		if r.command("any", "") == nil {
			continue
		}
		for _, name := range []string{"missing-#.outside.example", "missing-#", "empty-#.outside.example"} {
			t.Run(r.name+"/"+name, func(t *testing.T) {
				l := lookup{name: name, at: nowhere}.next()
				lookUp(t, r, k.shop, "any", l, true)
				wantQueries(t, "cluster DNS, of the walk", server.since(0, l.name+"."), queries)
				wantQueries(t, "upstream, of the walk", w.upstream.since(0, l.name+"."), 2)
				cluster, outside := server.mark(), w.upstream.mark()
				lookUp(t, r, k.shop, "any", l, true)
				wantQueries(t, "cluster DNS, again", server.since(cluster, l.name+"."), 0)
				wantQueries(t, "upstream, again", w.upstream.since(outside, l.name+"."), 0)
			})
		}
	}
}

// testFastPath sends queries that are expanded, repeatedly: the fast path answers all but the first.
func testFastPath(t *testing.T, n *node, p *pod) {
	const times = 20
	for _, base := range []string{"web", "web.bank", "intra-0", "both-0.outside.example", "four-0.outside.example"} {
		for _, qtype := range []string{"A", "AAAA"} {
			name := base + "." + p.search[0] + "."
			a := querier{from: p.Namespace, server: local, network: "udp"}
			if err := a.check(name, qtype, model(p.search, name, qtype)); err != nil {
				t.Error(err)
			}
			before := n.metrics(t)
			for range times {
				if err := a.check(name, qtype, model(p.search, name, qtype)); err != nil {
					t.Error(err)
				}
			}
			if got := n.metrics(t).Since(before).Sum("nearside_fastpath_answered_total"); got < times {
				t.Errorf("%s %s: the fast path answered %v of %d", name, qtype, got, times)
			}
		}
	}
}

// client is a querier with its search list, nil if nodecache does not know one.
type client struct {
	name string
	querier
	list []string
}

// clients returns the pods, and clients whose search list nodecache must not guess.
func (n *node) clients(t *testing.T, k kinds) (all []client) {
	t.Helper()
	add := func(name string, from *netns.Namespace, source4, source6 string, list []string) {
		for server, source := range map[string]string{local: source4, local6: source6} {
			if source == "" {
				continue
			}
			for _, network := range []string{"udp", "tcp"} {
				for _, edns := range []bool{false, true} {
					all = append(all, client{name, querier{from: from, server: server, source: source, network: network, edns: edns}, list})
				}
			}
		}
	}
	for _, p := range []*pod{k.shop, k.bank, k.extra, k.own} {
		add(p.String(), p.Namespace, p.IPv4.String(), p.IPv6.String(), p.search)
	}
	unknown := n.newPod(t, "unknown", shop, clusterSearch(shop)...)
	add("an address of no pod", unknown.Namespace, unknown.IPv4.String(), unknown.IPv6.String(), nil)

	elsewhere := n.newPod(t, "elsewhere", shop, clusterSearch(shop)...)
	elsewhere.name = "elsewhere-" + n.name
	n.world.put(t, podObject(elsewhere, "another-node"))
	add("a pod of another node", elsewhere.Namespace, elsewhere.IPv4.String(), elsewhere.IPv6.String(), nil)

	twice := n.newPod(t, "twice", shop, clusterSearch(shop)...)
	n.create(t, twice)
	second := *twice
	second.namespace = bank
	n.world.put(t, podObject(&second, n.name))
	add("an address of two pods", twice.Namespace, twice.IPv4.String(), twice.IPv6.String(), nil)

	host := &pod{Namespace: n.Namespace, namespace: shop, name: "host-" + n.name}
	n.world.put(t, podObject(host, n.name, inHostNetwork))
	add("a pod in the host network", n.Namespace, n.IPv4.String(), n.IPv6.String(), nil)
	add("the node", n.Namespace, local, local6, nil)

	other := n.newPod(t, "policy", shop, "corp.example") // which queries nodecache nevertheless
	n.create(t, other, func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault })
	add("a pod with the node's list", other.Namespace, other.IPv4.String(), other.IPv6.String(), nil)
	return all
}

// bases are names that clients look up, with a number for %d.
var bases = []string{
	"dual", "web", "sixth", "db", "e1.db", "web.bank", "db.shop", "abroad", "shop", "vault", "vault.bank", "search", "svc",
	"intra-%d", "only-%d", "bare-%d", "missing-%d", "both-%d.outside.example", "four-%d.outside.example", "six-%d.outside.example",
	"alias-%d.outside.example", "empty-%d.outside.example", "missing-%d.outside.example", "deep.missing-%d.outside.example",
}

// suffixes are those of queried names, for all clients; those that some client has as the first one are more frequent.
var suffixes = []string{
	".shop.svc.cluster.local.", ".shop.svc.cluster.local.", ".shop.svc.cluster.local.", ".bank.svc.cluster.local.", ".bank.svc.cluster.local.",
	".svc.cluster.local.", ".cluster.local.", ".corp.example.", ".extra.example.", ".",
}

// testSideBySide has all clients query the same names concurrently and repeatedly: each receives the answer for its own
// search list, and not one that is stored for another list.
func testSideBySide(t *testing.T, n *node, clients []client, suffixes []string, plugin string) {
	const workers, each, numbers = 6, 1500, 8
	first := lookups.Add(numbers) - numbers
	before := n.metrics(t)
	var running sync.WaitGroup
	wrong := make(chan error, workers*each)
	for worker := range workers {
		running.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range each {
				c := clients[random.IntN(len(clients))]
				base := bases[random.IntN(len(bases))]
				if strings.Contains(base, "%") {
					base = fmt.Sprintf(base, first+random.Int64N(numbers))
				}
				name := base + suffixes[random.IntN(len(suffixes))]
				if random.IntN(8) == 0 {
					name = strings.ToUpper(name)
				}
				qtype := []string{"A", "AAAA"}[random.IntN(2)]
				if err := c.check(name, qtype, model(c.list, name, qtype)); err != nil {
					wrong <- fmt.Errorf("%s, by %s: %w", c.name, c.server, err)
				}
			}
		})
	}
	running.Wait()
	close(wrong)
	count := 0
	for err := range wrong {
		if count++; count <= 20 {
			t.Error(err)
		}
	}
	t.Logf("%d of %d answers are wrong", count, workers*each)
	for _, name := range []string{"nearside_fastpath_answered_total", "nearside_" + plugin + "_expansions_total"} {
		increase := n.metrics(t).Since(before).Sum(name)
		if t.Logf("%s: %v", name, increase); increase == 0 {
			t.Errorf("%s has not increased", name)
		}
	}
}
