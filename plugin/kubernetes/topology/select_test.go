package topology

import (
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// cluster has two zones, and racks that span them. Nodes x1 and x2 have no record; node bare has no labels, blank an
// empty rack, and odd a host name that is not its own.
func cluster() *nodeMap {
	return newNodeMap(map[string]map[string]string{
		"a1":    {hostname: "a1", zone: "a", rack: "r1"},
		"a2":    {hostname: "a2", zone: "a", rack: "r2"},
		"b1":    {hostname: "b1", zone: "b", rack: "r1"},
		"bare":  {},
		"blank": {rack: ""},
		"odd":   {hostname: "host-7", zone: "b"},
	})
}

// everywhere has an endpoint on each node, as in EndpointSlices without hints.
var everywhere = []string{
	"wa1 node=a1 zone=a", "wa2 node=a2 zone=a", "wb1 node=b1 zone=b", "wbare node=bare",
	"wblank node=blank", "wodd node=odd zone=b", "wx1 node=x1 zone=a", "wx2 node=x2 zone=b", "outside",
}

const every = "wa1 wa2 wb1 wbare wblank wodd wx1 wx2 outside"

// Endpoints with hints. The hints are for other nodes and zones than those of the endpoints, so that selection by
// hints and by location have different results.
var (
	hintedZones = []string{"w1 node=b1 zone=b forZones=a", "w2 node=a1 zone=a forZones=b", "w3 node=a2 zone=a forZones=a,b"}
	hintedNodes = []string{"w1 node=b1 zone=b forNodes=a1", "w2 node=a1 zone=a forNodes=b1,a2", "w3 node=a2 zone=a forNodes=a1,a2"}
	bothHints   = []string{
		"w1 node=a1 zone=a forNodes=a1 forZones=a", "w2 node=a2 zone=a forNodes=a2 forZones=a", "w3 node=b1 zone=b forNodes=b1 forZones=b",
	}
	oneWithoutZones = []string{"w1 node=a1 zone=a forZones=a", "w2 node=b1 zone=b forZones=b", "w3 node=a1 zone=a"}
	oneWithoutNodes = []string{"w1 node=a1 zone=a forNodes=a1 forZones=a", "w2 node=a2 zone=a forZones=a", "w3 node=b1 zone=b forNodes=b1 forZones=b"}
	mixedHints      = []string{"w1 node=a1 zone=a forNodes=a1", "w2 node=a2 zone=a forZones=a"}
	emptyHints      = []string{"w1 node=a1 zone=a noHints", "w2 node=a2 zone=a noHints", "w3 node=b1 zone=b"}
)

// selection is a case: the endpoints that a caller on a node gets.
type selection struct {
	name      string
	node, in  string // of the caller; no node if it is unknown, and the zone if the node has no record
	endpoints []string
	want      string
}

// check runs the cases, and each again with every endpoint twice.
func check(t *testing.T, topology *index.Topology, defaults []index.Symbol, cases []selection) {
	t.Helper()
	p := PolicyOf(&index.Service{Kind: index.Headless, Topology: topology}, defaults)
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			nodes := cluster()
			got := p.Select(nodes, nodes.caller(tt.node, tt.in), endpointsOf(t, tt.endpoints))
			if names(got) != tt.want {
				t.Errorf("got %q, want %q", names(got), tt.want)
			}
			twice := append(endpointsOf(t, tt.endpoints), endpointsOf(t, tt.endpoints)...)
			got = p.Select(nodes, nodes.caller(tt.node, tt.in), twice)
			if n := len(got) / 2; names(got[:n]) != tt.want || names(got[n:]) != tt.want {
				t.Errorf("of duplicates got %q, want %q twice", names(got), tt.want)
			}
		})
	}
}

func keysOf(keys ...string) *index.Topology { return &index.Topology{Keys: symbols(keys...)} }

func TestSelectWithoutPolicy(t *testing.T) {
	check(t, nil, nil, []selection{
		{name: "a known caller", node: "a1", endpoints: bothHints, want: "w1 w2 w3"},
		{name: "an unknown caller", endpoints: everywhere, want: every},
		{name: "no endpoints", node: "a1"},
	})
}

func TestSelectByHostname(t *testing.T) {
	check(t, keysOf(hostname), nil, []selection{
		{name: "same node", node: "a1", endpoints: everywhere, want: "wa1"},
		{name: "several on the node, in order", node: "a1", endpoints: []string{"w1 node=a1", "w2 node=b1", "w3 node=a1"}, want: "w1 w3"},
		{name: "none on the node", node: "a1", endpoints: []string{"w1 node=a2 zone=a", "w2"}},
		{name: "the host has another name than the node", node: "odd", endpoints: everywhere, want: "wodd"},
		{name: "no record of the node: by its name", node: "x1", endpoints: everywhere, want: "wx1"},
		{name: "the node lacks the label: not by its name", node: "bare", endpoints: everywhere},
		{name: "unknown caller", endpoints: everywhere},
		{name: "unknown caller with a zone", in: "a", endpoints: everywhere},
		{name: "no endpoints", node: "a1"},
		{name: "hints don't count", node: "a1", endpoints: hintedZones, want: "w2"},
	})
}

func TestSelectByZone(t *testing.T) {
	check(t, keysOf(zone), nil, []selection{
		{name: "same zone, by record and by endpoint", node: "a1", endpoints: everywhere, want: "wa1 wa2 wx1"},
		{name: "a record is above the endpoint's zone", node: "a1", endpoints: []string{"w1 node=b1 zone=a", "w2 node=a2 zone=b", "w3 node=bare zone=a"}, want: "w2"},
		{name: "endpoint without a node: by its zone", node: "b1", endpoints: []string{"w1 zone=b", "w2 zone=a", "w3"}, want: "w1"},
		{name: "no record of the caller's node: by the caller's zone", node: "x2", in: "b", endpoints: everywhere, want: "wb1 wodd wx2"},
		{name: "no record and no zone", node: "x2", endpoints: everywhere},
		{name: "the node lacks the label", node: "bare", in: "a", endpoints: everywhere},
		{name: "none in the zone", node: "a1", endpoints: []string{"w1 node=b1 zone=b", "w2"}},
		{name: "unknown caller", endpoints: everywhere},
		{name: "unknown caller with a zone", in: "a", endpoints: everywhere},
	})
}

func TestSelectByAnyLabel(t *testing.T) {
	check(t, keysOf(rack), nil, []selection{
		{name: "same rack, across zones", node: "a1", endpoints: everywhere, want: "wa1 wb1"},
		{name: "an empty value is a value", node: "blank", endpoints: everywhere, want: "wblank"},
		{name: "the node lacks the label", node: "odd", endpoints: everywhere},
		{name: "no record", node: "x1", in: "a", endpoints: everywhere},
	})
}

func TestSelectByOrderedKeys(t *testing.T) {
	hard := []selection{
		{name: "first key", node: "a1", endpoints: everywhere, want: "wa1"},
		{name: "first key, though the second matches earlier ones", node: "a2", endpoints: everywhere, want: "wa2"},
		{name: "second key", node: "a1", endpoints: []string{"w1 node=b1 zone=b", "w2 node=a2 zone=a", "w3 zone=a", "w4"}, want: "w2 w3"},
		{name: "no match", node: "a1", endpoints: []string{"w1 node=b1 zone=b", "w2"}},
		{name: "the node has neither label", node: "bare", endpoints: everywhere},
		{name: "no record: first key", node: "x1", in: "a", endpoints: everywhere, want: "wx1"},
		{name: "no record: second key", node: "x3", in: "a", endpoints: everywhere, want: "wa1 wa2 wx1"},
		{name: "unknown caller", endpoints: everywhere},
	}
	t.Run("hard", func(t *testing.T) { check(t, keysOf(hostname, zone), nil, hard) })
	t.Run("hard, with a key in the midst that no node has", func(t *testing.T) { check(t, keysOf(hostname, region, zone), nil, hard) })
	t.Run("soft", func(t *testing.T) {
		check(t, keysOf(hostname, zone, "*"), nil, []selection{
			{name: "first key", node: "a1", endpoints: everywhere, want: "wa1"},
			{name: "second key", node: "a1", endpoints: []string{"w1 node=b1", "w2 node=a2", "w3"}, want: "w2"},
			{name: "no match: all", node: "a1", endpoints: []string{"w1 node=b1 zone=b", "w2"}, want: "w1 w2"},
			{name: "the node has neither label: all", node: "bare", endpoints: everywhere, want: every},
			{name: "no record, no zone, no endpoint there: all", node: "x3", endpoints: everywhere, want: every},
			{name: "unknown caller: all", endpoints: everywhere, want: every},
			{name: "no endpoints", node: "a1"},
		})
	})
	t.Run("any", func(t *testing.T) {
		check(t, keysOf("*"), nil, []selection{
			{name: "known caller", node: "a1", endpoints: everywhere, want: every},
			{name: "unknown caller", endpoints: everywhere, want: every},
		})
	})
	t.Run("default keys do as those of the annotation", func(t *testing.T) { check(t, nil, symbols(hostname, zone), hard) })
	t.Run("the Service's own keys replace the default", func(t *testing.T) {
		check(t, keysOf(rack), symbols(hostname, zone, "*"), []selection{
			{name: "match", node: "a1", endpoints: everywhere, want: "wa1 wb1"},
			{name: "no match", node: "odd", endpoints: everywhere},
		})
	})
}

func TestSelectLocal(t *testing.T) {
	check(t, &index.Topology{Local: true, Auto: true, Distribution: index.PreferSameNode}, symbols("*"), []selection{
		{name: "same node", node: "a1", endpoints: everywhere, want: "wa1"},
		{name: "none on the node", node: "a1", endpoints: []string{"w1 node=a2 zone=a", "w2"}},
		{name: "by the node's name, not the host's", node: "odd", endpoints: everywhere, want: "wodd"},
		{name: "node without labels", node: "bare", endpoints: everywhere, want: "wbare"},
		{name: "no record of the node", node: "x1", endpoints: everywhere, want: "wx1"},
		{name: "hints don't count", node: "a1", endpoints: hintedNodes, want: "w2"},
		{name: "unknown caller, not even endpoints without a node", endpoints: everywhere},
	})
}

// kubeProxy has the cases in which selection is that of kube-proxy, whatever set the hints (pkg/proxy, KEP-2433,
// KEP-3015).
var kubeProxy = []selection{
	{name: "hints for all, one for the node", node: "a1", endpoints: hintedNodes, want: "w1 w3"},
	{name: "hints for all, of several nodes", node: "a2", endpoints: hintedNodes, want: "w2 w3"},
	{name: "node hints for all, none for the node, no zone hints", node: "odd", endpoints: hintedNodes, want: "w1 w2 w3"},
	{name: "zone hints for all, one for the zone", node: "a1", endpoints: hintedZones, want: "w1 w3"},
	{name: "zone hints for all, none for the zone", node: "x1", in: "c", endpoints: hintedZones, want: "w1 w2 w3"},
	{name: "both kinds: node first", node: "a1", endpoints: bothHints, want: "w1"},
	{name: "both kinds, none for the node: zone", node: "odd", endpoints: bothHints, want: "w3"},
	{name: "both kinds, neither for the caller", node: "x1", in: "c", endpoints: bothHints, want: "w1 w2 w3"},
	{name: "one endpoint without zone hints", node: "a1", endpoints: oneWithoutZones, want: "w1 w2 w3"},
	{name: "one endpoint without node hints: zone", node: "a1", endpoints: oneWithoutNodes, want: "w1 w2"},
	{name: "some with nodes, others with zones", node: "a1", endpoints: mixedHints, want: "w1 w2"},
	{name: "no record of the caller's node: by its name", node: "x1", endpoints: []string{"w1 forNodes=x1", "w2 forNodes=a1"}, want: "w1"},
	{name: "no record of the caller's node: by the caller's zone", node: "x1", in: "a", endpoints: hintedZones, want: "w1 w3"},
	{name: "no zone of the caller", node: "bare", endpoints: hintedZones, want: "w1 w2 w3"},
	{name: "no zone of the caller, and an empty zone hint", node: "bare", endpoints: []string{"w1 forZones=", "w2 forZones=a"}, want: "w1 w2"},
	{name: "unknown caller", endpoints: bothHints, want: "w1 w2 w3"},
	{name: "unknown caller with a zone", in: "a", endpoints: hintedZones, want: "w1 w2 w3"},
	{name: "unknown caller, and an empty node hint", endpoints: []string{"w1 forNodes=", "w2 forNodes=a1"}, want: "w1 w2"},
	{name: "no endpoints", node: "a1"},
}

func TestSelectAuto(t *testing.T) {
	auto := &index.Topology{Auto: true}
	t.Run("kube-proxy", func(t *testing.T) { check(t, auto, nil, kubeProxy) })
	t.Run("also with a preference", func(t *testing.T) {
		check(t, &index.Topology{Auto: true, Distribution: index.PreferSameNode}, symbols(hostname), kubeProxy)
	})
	check(t, auto, nil, []selection{
		{name: "no hints", node: "a1", endpoints: everywhere, want: every},
		{name: "empty hints are none", node: "a1", endpoints: emptyHints, want: "w1 w2 w3"},
	})
}

func TestSelectPreferSameZone(t *testing.T) {
	prefer := &index.Topology{Distribution: index.PreferSameZone}
	t.Run("kube-proxy", func(t *testing.T) { check(t, prefer, symbols(hostname), kubeProxy) })
	check(t, prefer, symbols(hostname), []selection{
		{name: "same zone", node: "a1", endpoints: everywhere, want: "wa1 wa2 wx1"},
		{name: "empty hints are none", node: "a1", endpoints: emptyHints, want: "w1 w2"},
		{name: "none in the zone: all", node: "a1", endpoints: []string{"w1 node=b1 zone=b", "w2"}, want: "w1 w2"},
		{name: "no record: by the caller's zone", node: "x9", in: "b", endpoints: everywhere, want: "wb1 wodd wx2"},
		{name: "no zone of the caller: all, also those without a zone", node: "bare", endpoints: everywhere, want: every},
		{name: "unknown caller: all", endpoints: everywhere, want: every},
		{name: "unknown caller with a zone: all", in: "a", endpoints: everywhere, want: every},
		{name: "no endpoints", node: "a1"},
	})
}

func TestSelectPreferSameNode(t *testing.T) {
	prefer := &index.Topology{Distribution: index.PreferSameNode}
	t.Run("kube-proxy", func(t *testing.T) { check(t, prefer, symbols(zone), kubeProxy) })
	check(t, prefer, symbols(zone), []selection{
		{name: "same node", node: "a2", endpoints: everywhere, want: "wa2"},
		{name: "empty hints are none", node: "a1", endpoints: emptyHints, want: "w1"},
		{name: "none on the node: zone", node: "a1", endpoints: []string{"w1 node=b1 zone=b", "w2 node=a2 zone=a", "w3", "w4 zone=a"}, want: "w2 w4"},
		{name: "none in the zone either: all", node: "a1", endpoints: []string{"w1 node=b1 zone=b", "w2"}, want: "w1 w2"},
		{name: "no record: same node", node: "x1", in: "a", endpoints: everywhere, want: "wx1"},
		{name: "no record: zone", node: "x9", in: "b", endpoints: everywhere, want: "wb1 wodd wx2"},
		{name: "no zone of the caller: all", node: "x9", endpoints: everywhere, want: every},
		{name: "unknown caller: all", endpoints: everywhere, want: every},
	})
}

// allPolicies has one policy of each rule.
var allPolicies = map[string]*index.Topology{
	"keys":           keysOf(region, rack, hostname, zone, "*"),
	"local":          {Local: true},
	"auto":           {Auto: true},
	"PreferSameZone": {Distribution: index.PreferSameZone},
	"PreferSameNode": {Distribution: index.PreferSameNode},
	"nothing":        nil,
}

func TestSelectDoesNotAllocate(t *testing.T) {
	for name, topology := range allPolicies {
		for kind, endpoints := range map[string][]string{"no hints": everywhere, "hints": bothHints} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				p := PolicyOf(&index.Service{Kind: index.Headless, Topology: topology}, nil)
				nodes, all := cluster(), endpointsOf(t, endpoints)
				c, buffer := nodes.caller("a1", ""), make([]Endpoint, len(all))
				n := testing.AllocsPerRun(100, func() {
					copy(buffer, all)
					p.Select(nodes, c, buffer)
				})
				if n != 0 {
					t.Errorf("%v allocations, want none", n)
				}
			})
		}
	}
}

// TestSelectLooksUpNodesOnce asserts that the node of an endpoint is looked up at most once, with any number of keys.
func TestSelectLooksUpNodesOnce(t *testing.T) {
	p := PolicyOf(&index.Service{Kind: index.Headless, Topology: keysOf(region, rack, hostname, zone, "*")}, nil)
	nodes := cluster()
	p.Select(nodes, nodes.caller("odd", ""), endpointsOf(t, everywhere))
	if nodes.asked > len(everywhere) {
		t.Errorf("asked %d times for the nodes of %d endpoints", nodes.asked, len(everywhere))
	}
}

func BenchmarkSelect(b *testing.B) {
	ix := index.New()
	var all []Endpoint
	for _, name := range []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"} {
		ix.PutNode(&index.Node{Name: index.NewSymbol(name), Labels: []index.Label{
			{Key: index.NewSymbol(hostname), Value: index.NewSymbol(name)},
			{Key: index.NewSymbol(zone), Value: index.NewSymbol("zone-" + name)},
		}})
		all = append(all, Endpoint{Slice: &index.Slice{}, Endpoint: index.Endpoint{Node: index.NewSymbol(name), Zone: index.NewSymbol("zone-" + name)}})
	}
	n := ix.Node(index.NewSymbol("n5"))
	c := Caller{Name: n.Name, Zone: index.NewSymbol("zone-n5"), Node: n}
	for name, topology := range allPolicies {
		b.Run(name, func(b *testing.B) {
			p, buffer := PolicyOf(&index.Service{Kind: index.Headless, Topology: topology}, nil), make([]Endpoint, len(all))
			for b.Loop() {
				copy(buffer, all)
				p.Select(ix, c, buffer)
			}
		})
	}
}
