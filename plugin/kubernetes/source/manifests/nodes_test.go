package manifests

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

var withTopology = source.Options{Endpoints: true, Topology: true}

// nodeFile is a manifest of a node.
func nodeFile(name, zone, spec string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {topology.kubernetes.io/zone: %s}}, spec: {%s}}\n---\n", name, zone, spec)
}

// nodeText returns the zone of a node in the index, and the node of an address.
func nodeText(ix *index.Index, name, ip string) string {
	text := "no node"
	if n := ix.Node(index.NewSymbol(name)); n != nil {
		zone, _ := n.Label(index.NewSymbol(corev1.LabelTopologyZone))
		text = zone.String()
	}
	if n := ix.NodeByIP(netip.MustParseAddr(ip)); n != nil {
		text += " " + n.Name.String()
	}
	return text
}

func TestNodes(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		opts       source.Options
		ip, want   string
	}{
		{"ranges of both families", nodeFile("node-1", "Zone-A", `podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, "fd00:1::/64"]`), withTopology, "fd00:1::7", "Zone-A node-1"},
		{"one range, as old servers have it", nodeFile("node-1", "Zone-A", "podCIDR: 10.1.0.0/24"), withTopology, "10.1.0.255", "Zone-A node-1"},
		{"no range", nodeFile("node-1", "Zone-A", ""), withTopology, "10.1.0.1", "Zone-A"},
		{"without topology", nodeFile("node-1", "Zone-A", "podCIDR: 10.1.0.0/24"), everything, "10.1.0.1", "no node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, ix, _ := load(t, tc.opts, map[string]string{"a.yaml": tc.file})
			if got := nodeText(ix, "node-1", tc.ip); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}

	t.Run("zones of endpoints come from their nodes", func(t *testing.T) {
		_, ix, _ := load(t, withTopology, map[string]string{"a.yaml": endpoints, "z.yaml": node})
		want := "service default/db headless\n  slice db-1 /tcp/5432 any/tcp/-1: 10.0.0.1,db-0,Zone-A 10.0.0.2,elsewhere 10.0.0.4"
		if got := dump(ix); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if got := ix.Service("default", "db").Slices[0].Endpoint(0).Node.String(); got != "node-1" {
			t.Errorf("the first endpoint is on %q", got)
		}
	})
}

// TestNodeChanges edits the file of a node: each change reaches the index, and nothing else changes it.
func TestNodeChanges(t *testing.T) {
	r := run(t, withTopology, map[string]string{
		"one.yaml": nodeFile("node-1", "a", "podCIDR: 10.1.0.0/24"),
		"two.yaml": nodeFile("node-2", "b", "podCIDR: 10.2.0.0/24"),
	}, nil)
	is := func(want string) {
		t.Helper()
		r.within(3*time.Second, want, func() bool { return nodeText(r.ix, "node-1", "10.1.0.1") == want })
	}
	// The index publishes a record before it advances the generation.
	advanced := func(what string, since uint64) {
		t.Helper()
		by := func() uint64 { return r.ix.NodesGeneration().Load() - since }
		r.within(3*time.Second, what, func() bool { return by() > 0 })
		if by() != 1 {
			t.Errorf("%s, and the generation advanced by %d", what, by())
		}
	}
	is("a node-1")
	second := index.NewSymbol("node-2")
	kept, generation := r.ix.Node(second), r.ix.NodesGeneration().Load()

	r.write("one.yaml", nodeFile("node-1", "c", "podCIDR: 10.1.0.0/24"))
	is("c node-1")
	advanced("one label changed", generation)
	r.write("one.yaml", nodeFile("node-1", "c", ""))
	is("c")
	r.write("one.yaml", nodeFile("node-1", "c", "podCIDR: 10.1.0.0/25"))
	is("c node-1")
	generation = r.ix.NodesGeneration().Load()
	r.write("two.yaml", "# the same\n"+nodeFile("node-2", "b", "podCIDR: 10.2.0.0/24"))
	r.must(os.Remove(r.path("one.yaml")))
	is("no node")
	if r.ix.Node(second) != kept {
		t.Error("the record of an unchanged node was replaced")
	}
	advanced("one node went", generation)
	r.write("one.yaml", strings.ReplaceAll(nodeFile("node-1", "d", ""), "spec: {}", "spec: {podCIDR: 10.1.0.0/24}"))
	is("d node-1")
}

func TestDemoNodes(t *testing.T) {
	s, err := New("../../../../deploy/demo", withTopology)
	kit.Must(t, err)
	s.ix = index.New()
	s.serve()
	if n := s.ix.NodeByIP(netip.MustParseAddr("fd00:244:0:2::20")); n == nil {
		t.Error("the demo's second node has no range of IPv6")
	}
}
