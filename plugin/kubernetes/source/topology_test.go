package source

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// topologyStripper stores the fields that topology needs.
func topologyStripper() Stripper {
	return NewStripper(Options{Topology: true})
}

func symbols(all ...string) []index.Symbol {
	var s []index.Symbol
	for _, a := range all {
		s = append(s, index.NewSymbol(a))
	}
	return s
}

// TestStripTopology reads the policies of headless Services; skipped is the part that is reported as left out.
func TestStripTopology(t *testing.T) {
	annotation := func(key, value string) map[string]string { return map[string]string{key: value} }
	distribution := func(d string) corev1.ServiceSpec { return corev1.ServiceSpec{TrafficDistribution: &d} }
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		spec        corev1.ServiceSpec
		want        *index.Topology
		skipped     string
	}{
		{name: "nothing"},
		{name: "keys", annotations: annotation(AnnotationTopologyKeys, "kubernetes.io/hostname, topology.kubernetes.io/zone, *"),
			want: &index.Topology{Keys: symbols("kubernetes.io/hostname", "topology.kubernetes.io/zone", "*")}},
		{name: "keys, empty", annotations: annotation(AnnotationTopologyKeys, " \n")},
		{name: "keys that are none", annotations: annotation(AnnotationTopologyKeys, "a b"), skipped: "topology keys"},
		{name: "keys that are none, and Local", annotations: annotation(AnnotationTopologyKeys, "a b"), skipped: "topology keys",
			spec: corev1.ServiceSpec{InternalTrafficPolicy: pointer(corev1.ServiceInternalTrafficPolicyLocal)}, want: &index.Topology{Local: true}},
		{name: "internalTrafficPolicy Local", spec: corev1.ServiceSpec{InternalTrafficPolicy: pointer(corev1.ServiceInternalTrafficPolicyLocal)},
			want: &index.Topology{Local: true}},
		{name: "internalTrafficPolicy Cluster", spec: corev1.ServiceSpec{InternalTrafficPolicy: pointer(corev1.ServiceInternalTrafficPolicyCluster)}},
		{name: "mode Auto", annotations: annotation(corev1.AnnotationTopologyMode, "Auto"), want: &index.Topology{Auto: true}},
		{name: "mode auto", annotations: annotation(corev1.AnnotationTopologyMode, "auto"), want: &index.Topology{Auto: true}},
		{name: "mode Disabled", annotations: annotation(corev1.AnnotationTopologyMode, "Disabled")},
		{name: "hints Auto, as it was called", annotations: annotation("service.kubernetes.io/topology-aware-hints", "Auto"), want: &index.Topology{Auto: true}},
		{name: "hints before mode", annotations: map[string]string{
			"service.kubernetes.io/topology-aware-hints": "Disabled", corev1.AnnotationTopologyMode: "Auto"}},
		{name: "PreferClose", spec: distribution("PreferClose"), want: &index.Topology{Distribution: index.PreferSameZone}},
		{name: "PreferSameZone", spec: distribution("PreferSameZone"), want: &index.Topology{Distribution: index.PreferSameZone}},
		{name: "PreferSameNode", spec: distribution("PreferSameNode"), want: &index.Topology{Distribution: index.PreferSameNode}},
		{name: "a distribution of a later version", spec: distribution("example.com/Nearest"), skipped: "traffic distribution"},
		{name: "all", annotations: map[string]string{AnnotationTopologyKeys: "*", corev1.AnnotationTopologyMode: "Auto"},
			spec: corev1.ServiceSpec{InternalTrafficPolicy: pointer(corev1.ServiceInternalTrafficPolicyLocal), TrafficDistribution: pointer("PreferSameNode")},
			want: &index.Topology{Keys: symbols("*"), Local: true, Auto: true, Distribution: index.PreferSameNode}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &corev1.Service{ObjectMeta: meta("shop", "db"), Spec: tc.spec}
			o.Annotations, o.Spec.ClusterIP = tc.annotations, corev1.ClusterIPNone
			counter := skippedObjects.WithLabelValues(Services, "topology keys")
			if tc.skipped != "" {
				counter = skippedObjects.WithLabelValues(Services, tc.skipped)
			}
			before := testutil.ToFloat64(counter)
			if got := topologyStripper().Service(o).Topology; !got.Equal(tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
			if got := testutil.ToFloat64(counter) > before; got != (tc.skipped != "") {
				t.Errorf("reported %v", got)
			}
			if got := NewStripper(Options{}).Service(o).Topology; got != nil {
				t.Errorf("%+v without topology, want none", got)
			}
			o.Spec.ClusterIP = "10.0.0.1"
			if got := topologyStripper().Service(o).Topology; got != nil {
				t.Errorf("%+v of a ClusterIP Service, want none", got)
			}
		})
	}
}

// endpointOn returns an endpoint on a node in a zone with hints for nodes and for zones, separated by commas.
func endpointOn(ip, node, zone, forNodes, forZones string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node, Zone: &zone}
	names := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, ","), func(s string) bool { return s == "" })
	}
	if forNodes+forZones == "" {
		return e
	}
	e.Hints = &discoveryv1.EndpointHints{}
	for _, n := range names(forNodes) {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
	}
	for _, z := range names(forZones) {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
	}
	return e
}

func TestStripEndpointTopology(t *testing.T) {
	object := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			endpointOn("10.1.0.1", "node-a", "Zone-A", "", "Zone-A"),
			endpointOn("10.1.0.2", "node-b", "Zone-B", "node-b,node-c", "Zone-B"),
			endpointOn("10.1.0.3", "node-a", "Zone-A", "", "Zone-A"),
			endpointOn("10.1.0.4", "node-c", "", "", ""),
			{Addresses: []string{"10.1.0.5"}, Hints: &discoveryv1.EndpointHints{}},
		},
	}
	hints := func(nodes, zones []index.Symbol) *index.Hints { return &index.Hints{Nodes: nodes, Zones: zones} }
	a := hints(nil, symbols("Zone-A"))
	want := []index.Endpoint{
		{Node: index.NewSymbol("node-a"), Zone: index.NewSymbol("Zone-A"), Hints: a},
		{Node: index.NewSymbol("node-b"), Zone: index.NewSymbol("Zone-B"), Hints: hints(symbols("node-b", "node-c"), symbols("Zone-B"))},
		{Node: index.NewSymbol("node-a"), Zone: index.NewSymbol("Zone-A"), Hints: a},
		{Node: index.NewSymbol("node-c")},
		{},
	}
	for i := range want {
		want[i].Addr = netip.MustParseAddr(object.Endpoints[i].Addresses[0])
	}
	for _, tc := range []struct {
		name   string
		opts   Options
		change func(*index.Endpoint)
	}{
		{"topology", Options{Topology: true}, func(*index.Endpoint) {}},
		{"zones alone", Options{Zones: true}, func(e *index.Endpoint) { e.Node, e.Hints = index.Symbol{}, nil }},
		{"neither", Options{}, func(e *index.Endpoint) { e.Node, e.Zone, e.Hints = index.Symbol{}, index.Symbol{}, nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := slices.Clone(want)
			for i := range want {
				tc.change(&want[i])
			}
			got := slices.Collect(NewStripper(tc.opts).Slice(object).All())
			if !reflect.DeepEqual(got, want) {
				t.Errorf("endpoints %+v, want %+v", got, want)
			}
		})
	}
	t.Run("equal hints are shared", func(t *testing.T) {
		got := slices.Collect(topologyStripper().Slice(object).All())
		if got[0].Hints != got[2].Hints || got[0].Hints == got[1].Hints {
			t.Error("hints are kept twice, or are those of another endpoint")
		}
	})
}

func TestStripPodNode(t *testing.T) {
	o := &corev1.Pod{ObjectMeta: meta("shop", "db-0"), Spec: corev1.PodSpec{NodeName: "node-a"}}
	if got := topologyStripper().Pod(o).Node.String(); got != "node-a" {
		t.Errorf("on %q, want node-a", got)
	}
	if got := NewStripper(Options{}).Pod(o).Node.String(); got != "" {
		t.Errorf("on %q without topology", got)
	}
}

func TestStripNode(t *testing.T) {
	prefixes := func(all ...string) (parsed []netip.Prefix) {
		for _, p := range all {
			parsed = append(parsed, netip.MustParsePrefix(p))
		}
		return parsed
	}
	for _, tc := range []struct {
		name  string
		cidrs []string
		want  []netip.Prefix
	}{
		{"no range", nil, nil},
		{"both families", []string{"10.1.0.0/24", "fd00:1::/64"}, prefixes("10.1.0.0/24", "fd00:1::/64")},
		{"an address in a range", []string{"10.1.0.7/24"}, prefixes("10.1.0.0/24")},
		{"one that is none", []string{"10.1.0.0", "fd00:1::/64"}, prefixes("fd00:1::/64")},
		{"IPv4 inside of IPv6", []string{"::ffff:10.1.0.0/120"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			labels := map[string]string{"zone": "B", "a.example.com/x": "", "hostname": "n"}
			got := topologyStripper().Node(labels, "n", "uid-1", tc.cidrs...)
			want := &index.Node{Name: index.NewSymbol("n"), UID: index.NewUID("uid-1"), CIDRs: tc.want}
			for _, k := range []string{"a.example.com/x", "hostname", "zone"} {
				want.Labels = append(want.Labels, index.Label{Key: index.NewSymbol(k), Value: index.NewSymbol(labels[k])})
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("record %+v, want %+v", got, want)
			}
		})
	}
}

func TestNodeRanges(t *testing.T) {
	both := []string{"10.1.0.0/24", "fd00:1::/64"}
	own := corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"},
		{Type: corev1.NodeInternalIP, Address: "no address"}, {Type: corev1.NodeInternalIP, Address: "fe80::1%eth0"},
	}}
	for _, tc := range []struct {
		name   string
		spec   corev1.NodeSpec
		status corev1.NodeStatus
		want   []string
		whole  bool
	}{
		{"none", corev1.NodeSpec{}, corev1.NodeStatus{}, nil, false},
		{"of pods", corev1.NodeSpec{PodCIDR: both[0], PodCIDRs: both}, corev1.NodeStatus{}, both, false},
		{"one, as old servers have it", corev1.NodeSpec{PodCIDR: both[0]}, corev1.NodeStatus{}, both[:1], false},
		{"its own", corev1.NodeSpec{}, own, []string{"10.0.0.1/32", "fd00::1/128"}, false},
		{"all", corev1.NodeSpec{PodCIDRs: both}, own, append(both, "10.0.0.1/32", "fd00::1/128"), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, whole := NodeRanges(&corev1.Node{Spec: tc.spec, Status: tc.status})
			if !slices.Equal(got, tc.want) || whole != tc.whole {
				t.Errorf("%q, whole %t, want %q, %t", got, whole, tc.want, tc.whole)
			}
		})
	}
}
