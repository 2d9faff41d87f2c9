package topology

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/property"
)

// across is endpointsOf for texts with the ID of the cluster: "east/w1 node=a1 zone=a". With nothing before the slash,
// the slice has no cluster.
func across(t *testing.T, all []string) []Endpoint {
	t.Helper()
	var made []Endpoint
	for _, text := range all {
		cluster, endpoint, ok := strings.Cut(text, "/")
		if !ok {
			t.Fatalf("%q is of no cluster", text)
		}
		one := endpointsOf(t, []string{endpoint})[0]
		one.Slice.Cluster = index.NewSymbol(cluster)
		made = append(made, one)
	}
	return made
}

// The endpoints of the cases below: two clusters have nodes and zones of the same names.
var (
	twoClusters = []string{
		"west/w1 node=a1 zone=a", "west/w2 node=b1 zone=b", "east/e1 node=a1 zone=a", "east/e2 node=b1 zone=b", "/u1 node=a1 zone=a",
	}
	eastOnly        = []string{"east/e1 node=a1 zone=a", "east/e2 node=b1 zone=b"}
	forNodesOfBoth  = []string{"west/w1 forNodes=a1", "west/w2 forNodes=b1", "east/e1 forNodes=a1", "east/e2 forNodes=b1"}
	forZonesOfBoth  = []string{"west/w1 forZones=a", "west/w2 forZones=b", "east/e1 forZones=a", "east/e2 forZones=b"}
	eastWithoutHint = []string{"west/w1 forZones=a", "west/w2 forZones=b", "east/e1", "east/e2"}
)

// crossing is a case: the endpoints that a caller in a cluster gets.
type crossing struct {
	name          string
	cluster, node string // of the caller
	endpoints     []string
	want          string
}

func checkAcross(t *testing.T, p Policy, cases []crossing) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			nodes := cluster()
			who := nodes.caller(tt.node, "")
			who.Cluster = index.NewSymbol(tt.cluster)
			if got := names(p.Select(nodes, who, across(t, tt.endpoints))); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func headlessPolicy(topology *index.Topology) Policy {
	return PolicyOf(&index.Service{Kind: index.Headless, Topology: topology}, nil)
}

// Nodes of another cluster never match the caller's, even with equal names; a zone may span clusters.
func TestSelectOtherClusters(t *testing.T) {
	t.Run("hostname", func(t *testing.T) {
		checkAcross(t, headlessPolicy(keysOf(hostname)), []crossing{
			{name: "own node", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1 u1"},
			{name: "of the other cluster", cluster: "east", node: "a1", endpoints: twoClusters, want: "e1 u1"},
			{name: "own ID not known: names count", node: "a1", endpoints: twoClusters, want: "w1 e1 u1"},
			{name: "a third cluster", cluster: "north", node: "a1", endpoints: twoClusters, want: "u1"},
			{name: "no record of the node: its name", cluster: "west", node: "x1", endpoints: []string{"west/w1 node=x1", "east/e1 node=x1"}, want: "w1"},
			{name: "none on the node", cluster: "west", node: "a1", endpoints: eastOnly},
		})
	})
	t.Run("zone", func(t *testing.T) {
		checkAcross(t, headlessPolicy(keysOf(zone)), []crossing{
			{name: "across clusters", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1 e1 u1"},
			{name: "the endpoint's zone, not that of a node of the name", cluster: "west", node: "a1",
				endpoints: []string{"west/w1 node=a1 zone=b", "east/e1 node=a1 zone=b", "east/e2 node=b1 zone=a"}, want: "w1 e2"},
			{name: "own ID not known: the node's zone", node: "a1",
				endpoints: []string{"west/w1 node=a1 zone=b", "east/e1 node=a1 zone=b", "east/e2 node=b1 zone=a"}, want: "w1 e1"},
		})
	})
	t.Run("rack", func(t *testing.T) {
		checkAcross(t, headlessPolicy(keysOf(rack, "*")), []crossing{
			{name: "labels of nodes of this cluster", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1 w2 u1"},
			{name: "only others: all", cluster: "west", node: "a1", endpoints: eastOnly, want: "e1 e2"},
		})
	})
	t.Run("Local", func(t *testing.T) {
		checkAcross(t, headlessPolicy(&index.Topology{Local: true}), []crossing{
			{name: "own node", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1 u1"},
			{name: "none of this cluster", cluster: "west", node: "a1", endpoints: eastOnly},
			{name: "own ID not known", node: "a1", endpoints: eastOnly, want: "e1"},
			{name: "unknown caller", cluster: "west", endpoints: []string{"east/e1", "west/w1", "/u1"}},
		})
	})
	t.Run("PreferSameNode", func(t *testing.T) {
		checkAcross(t, headlessPolicy(&index.Topology{Distribution: index.PreferSameNode}), []crossing{
			{name: "own node", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1 u1"},
			{name: "none on the node: the zone", cluster: "west", node: "a1", endpoints: eastOnly, want: "e1"},
			{name: "none on the node: the zone, of both", cluster: "west", node: "a2", endpoints: twoClusters, want: "w1 e1 u1"},
			{name: "unknown caller: all", cluster: "west", endpoints: eastOnly, want: "e1 e2"},
		})
	})
	t.Run("PreferSameZone", func(t *testing.T) {
		checkAcross(t, headlessPolicy(&index.Topology{Distribution: index.PreferSameZone}), []crossing{
			{name: "across clusters", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1 e1 u1"},
		})
	})
	t.Run("hints", func(t *testing.T) {
		checkAcross(t, headlessPolicy(&index.Topology{Auto: true}), []crossing{
			{name: "for zones, across clusters", cluster: "west", node: "a1", endpoints: forZonesOfBoth, want: "w1 e1"},
			{name: "for nodes, of this cluster", cluster: "west", node: "a1", endpoints: forNodesOfBoth, want: "w1"},
			{name: "for nodes, own ID not known", node: "a1", endpoints: forNodesOfBoth, want: "w1 e1"},
			{name: "for nodes, of others alone: all", cluster: "west", node: "a1", endpoints: forNodesOfBoth[2:], want: "e1 e2"},
			{name: "a cluster without hints: all", cluster: "west", node: "a1", endpoints: eastWithoutHint, want: "w1 w2 e1 e2"},
		})
	})
}

// Endpoints of the caller's cluster are preferred, if the policy selects any of them.
func TestSelectOwnClusterFirst(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		checkAcross(t, headlessPolicy(nil).OwnClusterFirst(), []crossing{
			{name: "own", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1 w2"},
			{name: "own, unknown caller", cluster: "west", endpoints: twoClusters, want: "w1 w2"},
			{name: "none in this cluster", cluster: "north", node: "a1", endpoints: twoClusters, want: "w1 w2 e1 e2 u1"},
			{name: "an ID that is part of another", cluster: "we", endpoints: twoClusters, want: "w1 w2 e1 e2 u1"},
			{name: "own ID not known", node: "a1", endpoints: twoClusters, want: "w1 w2 e1 e2 u1"},
			{name: "own ID unknown, slices without a cluster", endpoints: []string{"/u1", "/u2"}, want: "u1 u2"},
			{name: "no endpoints", cluster: "west"},
		})
	})
	t.Run("hostname", func(t *testing.T) {
		checkAcross(t, headlessPolicy(keysOf(hostname)).OwnClusterFirst(), []crossing{
			{name: "own", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1"},
			{name: "none on the node in this cluster", cluster: "west", node: "a2", endpoints: twoClusters},
			{name: "none selected in this cluster: slices without a cluster", cluster: "west", node: "a1", endpoints: []string{"west/w2 node=b1", "/u1 node=a1"}, want: "u1"},
		})
	})
	t.Run("zone", func(t *testing.T) {
		checkAcross(t, headlessPolicy(keysOf(zone)).OwnClusterFirst(), []crossing{
			{name: "own", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1"},
			{name: "none of this cluster in the zone: the zone of others", cluster: "west", node: "a1",
				endpoints: []string{"west/w2 node=b1 zone=b", "east/e1 zone=a", "east/e2 zone=b"}, want: "e1"},
			{name: "none in the zone", cluster: "west", node: "a1", endpoints: []string{"west/w2 node=b1 zone=b", "east/e2 zone=b"}},
		})
	})
	t.Run("zone or any", func(t *testing.T) {
		checkAcross(t, headlessPolicy(keysOf(zone, "*")).OwnClusterFirst(), []crossing{
			{name: "any of this cluster before the zone of others", cluster: "west", node: "a1",
				endpoints: []string{"west/w2 node=b1 zone=b", "east/e1 zone=a"}, want: "w2"},
		})
	})
	t.Run("Local", func(t *testing.T) {
		checkAcross(t, headlessPolicy(&index.Topology{Local: true}).OwnClusterFirst(), []crossing{
			{name: "own", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1"},
			{name: "unknown caller", cluster: "west", endpoints: twoClusters},
		})
	})
	t.Run("preference", func(t *testing.T) {
		checkAcross(t, headlessPolicy(&index.Topology{Distribution: index.PreferSameZone}).OwnClusterFirst(), []crossing{
			{name: "own zone", cluster: "west", node: "a1", endpoints: twoClusters, want: "w1"},
			{name: "own, of another zone, before the zone of others", cluster: "west", node: "a1",
				endpoints: []string{"west/w2 node=b1 zone=b", "east/e1 zone=a"}, want: "w2"},
			{name: "none of this cluster: the zone", cluster: "north", node: "a1", endpoints: twoClusters, want: "w1 e1 u1"},
		})
	})
	t.Run("hints", func(t *testing.T) {
		checkAcross(t, headlessPolicy(&index.Topology{Auto: true}).OwnClusterFirst(), []crossing{
			{name: "own, though others have no hints", cluster: "west", node: "a1", endpoints: eastWithoutHint, want: "w1"},
		})
	})
}

// Whether a policy filters, and whether by caller.
func TestPolicyOwnClusterFirst(t *testing.T) {
	for _, c := range []struct {
		name             string
		p                Policy
		filters, byAsker bool
		text             string
	}{
		{"nothing", Policy{}, false, false, "none"},
		{"a rule", headlessPolicy(&index.Topology{Local: true}), true, true, "local"},
		{"the cluster", Policy{}.OwnClusterFirst(), true, false, "none"},
		{"both", headlessPolicy(&index.Topology{Local: true}).OwnClusterFirst(), true, true, "local"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.p.Filters() != c.filters || c.p.ByCaller() != c.byAsker || c.p.String() != c.text {
				t.Errorf("it filters: %t, by caller: %t, by %s", c.p.Filters(), c.p.ByCaller(), c.p)
			}
		})
	}
	p := headlessPolicy(keysOf(zone))
	p.OwnClusterFirst()
	if got := p.Select(newNodeMap(nil), Caller{Cluster: index.NewSymbol("west")}, across(t, []string{"west/w1"})); len(got) > 0 {
		t.Error("the policy itself was changed")
	}
}

// clusterWorld is a world with endpoints in several clusters.
type clusterWorld struct {
	*world
	clusters []string // of the endpoints
	cluster  string   // of the caller; empty if it is not known
	ownFirst bool
}

var someClusters = []string{"", "east", "west", "a.b"}

func newClusterWorld(r *rand.Rand) *clusterWorld {
	w := &clusterWorld{world: newWorld(r), cluster: pick(r, someClusters), ownFirst: r.IntN(2) == 0}
	for range w.endpoints {
		w.clusters = append(w.clusters, pick(r, someClusters))
	}
	return w
}

func (w *clusterWorld) own(i int) bool {
	return w.cluster != "" && w.cluster == w.clusters[i]
}

// asSeen returns the endpoints from the caller's point of view: those of another cluster have no node, and no hints
// for nodes of this cluster.
func (w *clusterWorld) asSeen() []place {
	all := slices.Clone(w.endpoints)
	for i := range all {
		if w.cluster == "" || w.clusters[i] == "" || w.own(i) {
			continue
		}
		all[i].node = ""
		if len(all[i].forNodes) > 0 {
			all[i].forNodes = []string{"a node of another cluster"}
		}
	}
	return all
}

// choose returns the indices of the endpoints that the caller gets: of its own cluster, or else of all.
func (w *clusterWorld) choose() []int {
	seen := w.asSeen()
	plain := *w.world
	if w.ownFirst {
		var own []int
		plain.endpoints = nil
		for i, e := range seen {
			if w.own(i) {
				own, plain.endpoints = append(own, i), append(plain.endpoints, e)
			}
		}
		var chosen []int
		for _, at := range plain.choose() {
			chosen = append(chosen, own[at])
		}
		if len(chosen) > 0 {
			return chosen
		}
	}
	plain.endpoints = seen
	return plain.choose()
}

// TestSelectRandomClusters is TestSelectRandom with endpoints of several clusters.
func TestSelectRandomClusters(t *testing.T) {
	counts := map[string]int{}
	property.Seeds(t, 0, 15_000, func(t *testing.T, seed uint64) {
		w := newClusterWorld(rand.New(rand.NewPCG(seed, 1)))
		nodes, all := newNodeMap(w.nodes), w.selectable()
		for i := range all {
			all[i].Slice.Cluster = index.NewSymbol(w.clusters[i])
		}
		var want []Endpoint
		for _, i := range w.choose() {
			want = append(want, all[i])
		}
		p := PolicyOf(w.service(), symbols(w.defaults...))
		if w.ownFirst {
			p = p.OwnClusterFirst()
		}
		who := nodes.caller(w.node, w.zone)
		who.Cluster = index.NewSymbol(w.cluster)
		if got := p.Select(nodes, who, slices.Clone(all)); !slices.Equal(got, want) {
			t.Fatalf("policy %s: got %q, want %q of\n%+v\n%+v", p, names(got), names(want), *w.world, *w)
		}
		if wrong := explainsSelect(p, nodes, who, all, want); wrong != "" {
			t.Fatalf("policy %s explained: %s", p, wrong)
		}
		w.count(counts, want)
	})
	t.Log(counts)
	for _, kind := range []string{"own alone", "fall back", "without the ID", "another cluster's node of the name"} {
		if counts[kind] < 100 && property.Fixed() {
			t.Errorf("%q came %d times", kind, counts[kind])
		}
	}
}

// count counts the kinds of cases in which endpoints were filtered.
func (w *clusterWorld) count(counts map[string]int, chosen []Endpoint) {
	others := 0
	for _, c := range chosen {
		if id := c.Slice.Cluster.String(); id != w.cluster {
			others++
		}
	}
	switch {
	case len(chosen) == 0:
		return
	case w.cluster == "":
		counts["without the ID"]++
	case w.ownFirst && others == 0 && len(chosen) < len(w.endpoints):
		counts["own alone"]++
	case w.ownFirst && others > 0:
		counts["fall back"]++
	}
	for i, e := range w.endpoints {
		if w.node != "" && e.node == w.node && w.cluster != "" && w.clusters[i] != "" && !w.own(i) {
			counts["another cluster's node of the name"]++
			return
		}
	}
}
