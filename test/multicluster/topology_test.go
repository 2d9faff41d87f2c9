//go:build linux

package multicluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// placed is an endpoint with its cluster, node and zone.
type placed struct {
	cluster string
	endpoint
}

// placement has the endpoints of imports by name, one digit. Node n1 exists in both clusters, in different zones.
var placement = map[string]placed{
	"1": {"west", endpoint{number: 51, hostname: "e1", node: "n1", zone: "zone-a"}},
	"2": {"west", endpoint{number: 52, hostname: "e2", node: "n2", zone: "zone-b"}},
	"3": {"east.prod", endpoint{number: 53, hostname: "e3", node: "n1", zone: "zone-b"}},
	"4": {"east.prod", endpoint{number: 54, hostname: "e4", node: "n3", zone: "zone-a"}},
	"5": {"west", endpoint{number: 55, hostname: "e5", node: "n1", zone: "zone-a", onlyV4: true}},
	"6": {"east.prod", endpoint{number: 56, hostname: "e6", node: "n3", zone: "zone-b", onlyV6: true}},
	"7": {"west", endpoint{number: 57, hostname: "e7", node: "n1", zone: "zone-a", hint: forZone("zone-b")}},
	"8": {"east.prod", endpoint{number: 58, hostname: "e8", node: "n3", zone: "zone-b", hint: forZone("zone-a")}},
	"9": {"west", endpoint{number: 59, hostname: "e9", node: "n1", zone: "zone-a", hint: forNode("n2")}},
	"0": {"east.prod", endpoint{number: 50, hostname: "e0", node: "n3", zone: "zone-b", hint: forNode("n1")}},
}

func forZone(name string) discoveryv1.EndpointHints {
	return discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
}

func forNode(name string) discoveryv1.EndpointHints {
	return discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: name}}}
}

// policy is a headless import with a policy, and its endpoints.
type policy struct {
	name        string
	annotations map[string]string
	spec        mcsv1beta1.ServiceImportSpec
	endpoints   string
}

// policies are all headless imports with a policy.
func policies() []policy {
	distribution := func(text string) mcsv1beta1.ServiceImportSpec {
		return mcsv1beta1.ServiceImportSpec{TrafficDistribution: &text}
	}
	return []policy{
		{name: "near", spec: distribution(corev1.ServiceTrafficDistributionPreferSameZone), endpoints: "1234"},
		{name: "close", spec: distribution(corev1.ServiceTrafficDistributionPreferClose), endpoints: "1234"},
		{name: "node", spec: distribution(corev1.ServiceTrafficDistributionPreferSameNode), endpoints: "134"},
		{name: "local", spec: mcsv1beta1.ServiceImportSpec{InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal)}, endpoints: "1234"},
		{name: "keys", annotations: map[string]string{"nearside.dev/topology-keys": "kubernetes.io/hostname,*"}, endpoints: "134"},
		{name: "auto", annotations: map[string]string{corev1.AnnotationTopologyMode: "Auto"}, endpoints: "78"},
		{name: "hinted", annotations: map[string]string{corev1.AnnotationTopologyMode: "Auto"}, endpoints: "90"},
		{name: "mixed", spec: distribution(corev1.ServiceTrafficDistributionPreferSameZone), endpoints: "56"},
		{name: "away", spec: distribution(corev1.ServiceTrafficDistributionPreferSameZone), endpoints: "24"},
		{name: "plain", endpoints: "1234"},
	}
}

// importPolicies creates all of them in a cluster, with the endpoints that a filter selects.
func (c *cluster) importPolicies(t *testing.T, ready func(e placed) bool) {
	t.Helper()
	for _, p := range policies() {
		s := &mcsv1beta1.ServiceImport{ObjectMeta: meta(p.name), Spec: p.spec}
		s.Annotations = p.annotations
		s.Spec.Type, s.Spec.Ports = mcsv1beta1.Headless, []mcsv1beta1.ServicePort{{Name: postgres, Port: 5432}}
		c.applyImport(t, s)
		for _, id := range []string{"west", "east.prod"} {
			for _, family := range families {
				var all []endpoint
				for digit := range strings.SplitSeq(p.endpoints, "") {
					if e := placement[digit]; e.cluster == id {
						e.unready = !ready(e)
						all = append(all, e.endpoint)
					}
				}
				c.applySlice(t, c.sliceOf(nameOf(family, p.name, id), importedLabels(p.name, id), family, all...))
			}
		}
	}
}

// createNodes creates the nodes of west.
func (c *cluster) createNodes(t *testing.T) {
	t.Helper()
	for name, zone := range map[string]string{"n1": "zone-a", "n2": "zone-b"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}}}
		if _, err := c.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// setClusterID sets the property with the ID of the cluster.
func (c *cluster) setClusterID(t *testing.T, id string) {
	t.Helper()
	p := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"value": id}}}
	p.SetName("cluster.clusterset.k8s.io")
	p.SetAPIVersion(clusterProperties.GroupVersion().String())
	p.SetKind("ClusterProperty")
	options := metav1.ApplyOptions{FieldManager: importer, Force: true}
	if _, err := c.objects.Resource(clusterProperties).Apply(t.Context(), p.GetName(), p, options); err != nil {
		t.Fatal(err)
	}
}

// sees are the endpoints of imports that a caller must receive.
type sees map[string]string

// but returns a copy with other rows.
func (s sees) but(rows sees) sees {
	all := sees{}
	for _, m := range []sees{s, rows} {
		for name, digits := range m {
			all[name] = digits
		}
	}
	return all
}

// wishes are the wanted replies for A, AAAA and SRV, with the same endpoints each.
func (s sees) wishes(c *cluster) (all []wish) {
	for name, digits := range s {
		var v4, v6, targets []string
		for digit := range strings.SplitSeq(digits, "") {
			e := placement[digit]
			if !e.onlyV6 {
				v4 = append(v4, c.v4(e.number))
			}
			if !e.onlyV4 {
				v6 = append(v6, c.v6(e.number))
			}
			targets = append(targets, "5432 "+e.hostname+"."+e.cluster+"."+name+inSet)
		}
		for qtype, data := range map[string][]string{"A": v4, "AAAA": v6, "SRV": targets} {
			if len(data) == 0 {
				all = append(all, wish{name + inSet, qtype, "NODATA"})
				continue
			}
			all = append(all, answer(name+inSet, qtype, data...))
		}
	}
	return all
}

// everything are all endpoints, without a selection.
func everything() sees {
	all := sees{}
	for _, p := range policies() {
		all[p.name] = p.endpoints
	}
	return all
}

// view is the wanted view of a caller with a setup.
type view struct {
	setup, node, zone string
	sees              sees
}

func (c *cluster) wantViews(t *testing.T, s *server, all []view) {
	t.Helper()
	for _, v := range all {
		if !t.Run(strings.TrimSpace(fmt.Sprintf("%s %s %s", v.setup, v.node, v.zone)), func(t *testing.T) {
			s.at(v.setup).as(v.node, v.zone).await(t, "what is seen", v.sees.wishes(c)...)
		}) {
			return // each failure takes as long as the wait
		}
	}
}

// testTopology queries the clusterdns of west from its nodes: first while only the Corefile has the ID of the cluster,
// then with the property, then with another ID, and then while the endpoints of west are removed.
func testTopology(t *testing.T, cs *clusterset, s *server) {
	w := cs.west
	ready := func(placed) bool { return true }
	w.importPolicies(t, ready)

	n1 := sees{"near": "14", "close": "14", "node": "1", "local": "1", "keys": "1", "auto": "8", "hinted": "90", "mixed": "5", "away": "4", "plain": "1234"}
	n2 := sees{"near": "23", "close": "23", "node": "3", "local": "2", "keys": "134", "auto": "7", "hinted": "9", "mixed": "6", "away": "2", "plain": "1234"}
	unknown := everything().but(sees{"local": ""})
	n3 := unknown.but(sees{"near": "14", "close": "14", "node": "4", "auto": "8", "mixed": "5", "away": "4"}) // a node of the other cluster
	local := sees{"near": "12", "close": "12", "node": "1", "local": "12", "keys": "1", "auto": "7", "hinted": "9", "mixed": "5", "away": "2", "plain": "12"}
	localN1 := local.but(sees{"near": "1", "close": "1", "local": "1"})
	localN2 := local.but(sees{"near": "2", "close": "2", "local": "2"})
	always := []view{
		{byArgument, "", "", local},
		{byArgument, "n2", "", local},
		{byBoth, "", "", local.but(sees{"local": ""})},
		{byBoth, "n1", "", localN1},
		{byBoth, "n2", "", localN2},
		{byDirectiveAll, "n1", "", localN1},
		{byDirectiveAll, "n2", "", localN2},
	}
	t.Run("ID not known", func(t *testing.T) {
		w.wantViews(t, s, append(always,
			view{byTopology, "", "", unknown},
			view{byTopology, "n1", "", n1.but(sees{"node": "13", "local": "13", "keys": "13", "hinted": "0"})},
			view{byTopology, "n2", "", n2},
			view{byTopology, "n3", "zone-a", n3.but(sees{"local": "4", "keys": "4"})},
			view{byProperty, "", "", everything()}))
	})
	t.Run("ID known", func(t *testing.T) {
		w.setClusterID(t, "west")
		w.wantViews(t, s, append(always,
			view{byTopology, "", "", unknown},
			view{byTopology, "n1", "", n1},
			view{byTopology, "n2", "", n2},
			view{byTopology, "n3", "zone-a", n3.but(sees{"node": "14"})},
			view{byProperty, "", "", local}))
	})
	t.Run("ID changed", func(t *testing.T) {
		w.setClusterID(t, "east.prod")
		w.wantViews(t, s, append(always,
			view{byTopology, "n1", "", n1.but(sees{"node": "3", "local": "3", "keys": "3", "hinted": "0"})},
			view{byProperty, "", "", sees{"near": "34", "close": "34", "node": "34", "local": "34", "keys": "34", "auto": "8", "hinted": "0", "mixed": "6", "away": "4", "plain": "34"}}))
	})
	t.Run("ID gone", func(t *testing.T) {
		kit.Must(t, w.objects.Resource(clusterProperties).Delete(t.Context(), "cluster.clusterset.k8s.io", metav1.DeleteOptions{}))
		w.wantViews(t, s, []view{{byProperty, "", "", everything()}})
	})
	t.Run("none of the cluster left", func(t *testing.T) {
		w.importPolicies(t, func(e placed) bool { return e.cluster != "west" })
		others := sees{"near": "34", "close": "34", "node": "34", "local": "34", "keys": "34", "auto": "8", "hinted": "0", "mixed": "6", "away": "4", "plain": "34"}
		w.wantViews(t, s, []view{{byArgument, "", "", others}, {byBoth, "n1", "", others.but(sees{"near": "4", "close": "4", "node": "4", "local": ""})}})
		w.importPolicies(t, ready)
		w.wantViews(t, s, always)
	})
	t.Run("Services select as before", func(t *testing.T) {
		for _, setup := range []string{byArgument, byProperty, byBoth} {
			s.at(setup).want(t, answer("db"+inCluster, "A", w.v4(10), w.v4(11)))
		}
	})
}
