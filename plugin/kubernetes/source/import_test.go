package source

import (
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// skips runs f and returns the reasons for which it left out parts of a resource, one for each part.
func skips(resource string, f func()) (reasons []string) {
	all := []string{"name", "address", "hostname", "topology keys", "traffic distribution", "service import", "source cluster", "cluster ID"}
	before := map[string]float64{}
	for _, reason := range all {
		before[reason] = testutil.ToFloat64(skippedObjects.WithLabelValues(resource, reason))
	}
	f()
	for _, reason := range all {
		for range int(testutil.ToFloat64(skippedObjects.WithLabelValues(resource, reason)) - before[reason]) {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

func TestResources(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options Options
		want    []string
	}{
		{"the least", Options{}, []string{Services, Namespaces}},
		{"all of a cluster", Options{Endpoints: true, Pods: true, Topology: true}, []string{Services, Namespaces, EndpointSlices, Pods, Nodes}},
		{"imports", Options{Endpoints: true, Imports: true}, []string{Services, Namespaces, EndpointSlices, ServiceImports}},
		{"imports and all", Options{Endpoints: true, Pods: true, Topology: true, Imports: true, ClusterID: true},
			[]string{Services, Namespaces, EndpointSlices, Pods, ServiceImports, Nodes, ClusterProperties}},
		{"imports only", Options{Imports: true, ImportsOnly: true}, []string{Namespaces, ServiceImports}},
		{"imports only, and all of them", Options{Endpoints: true, Pods: true, Topology: true, Imports: true, ImportsOnly: true, ClusterID: true},
			[]string{Namespaces, EndpointSlices, ServiceImports, Nodes, ClusterProperties}},
		{"pods only", Options{Pods: true, PodsOnly: true}, []string{Pods}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.options.Resources(); !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestStripImport(t *testing.T) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	ports := []mcsv1beta1.ServicePort{{Name: "HTTP", Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}}
	stripped := []index.Port{
		{Name: index.NewSymbol("http"), Protocol: index.NewSymbol("tcp"), Number: 80},
		{Protocol: index.NewSymbol("udp"), Number: 53},
	}
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		spec        mcsv1beta1.ServiceImportSpec
		want        *index.Service
		skipped     []string
	}{
		{name: "ClusterSetIP", spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.0.0.1", "fd00::1"}, Ports: ports},
			want: &index.Service{IPs: addresses("10.0.0.1", "fd00::1"), Ports: stripped}},
		{name: "ClusterSetIP without an address yet", spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, Ports: ports},
			want: &index.Service{IPs: []netip.Addr{}, Ports: stripped}},
		{name: "ClusterSetIP without ports", spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.0.0.1"}, Ports: []mcsv1beta1.ServicePort{}},
			want: &index.Service{IPs: addresses("10.0.0.1")}},
		{name: "addresses that are none", spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"", "10.0.0.256", "::ffff:10.0.0.3", "None"}},
			want: &index.Service{IPs: addresses("10.0.0.3")}, skipped: []string{"address", "address", "address"}},
		{name: "headless", spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, Ports: ports},
			want: &index.Service{Kind: index.Headless, Ports: stripped}},
		{name: "headless with addresses, which are of no use", spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, IPs: []string{"10.0.0.1", "bad"}},
			want: &index.Service{Kind: index.Headless}},
		{name: "headless with a policy", annotations: map[string]string{AnnotationTopologyKeys: "*", corev1.AnnotationTopologyMode: "Auto"},
			spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, InternalTrafficPolicy: &local, TrafficDistribution: pointer("PreferSameZone")},
			want: &index.Service{Kind: index.Headless, Topology: &index.Topology{Keys: symbols("*"), Local: true, Auto: true, Distribution: index.PreferSameZone}}},
		{name: "headless with a policy of a later version", annotations: map[string]string{AnnotationTopologyKeys: "a b"},
			spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, TrafficDistribution: pointer("Nearest")},
			want: &index.Service{Kind: index.Headless}, skipped: []string{"topology keys", "traffic distribution"}},
		{name: "ClusterSetIP with a policy", annotations: map[string]string{AnnotationTopologyKeys: "a b"},
			spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.0.0.1"}, InternalTrafficPolicy: &local},
			want: &index.Service{IPs: addresses("10.0.0.1")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &mcsv1beta1.ServiceImport{ObjectMeta: meta("shop", "web"), Spec: tc.spec}
			o.Annotations = tc.annotations
			tc.want.Namespace, tc.want.Name = "shop", "web"
			var got *index.Service
			if reasons := skips(ServiceImports, func() { got = topologyStripper().Import(o) }); !slices.Equal(reasons, tc.skipped) {
				t.Errorf("reported %q, want %q", reasons, tc.skipped)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("record %+v, want %+v", got, tc.want)
			}
			if got := NewStripper(Options{}).Import(o); got.Topology != nil {
				t.Errorf("%+v kept without topology", got.Topology)
			}
		})
	}
	for _, name := range []string{"", "Upper", "with.dots", strings.Repeat("a", 64)} {
		reasons := skips(ServiceImports, func() {
			if r := topologyStripper().Import(&mcsv1beta1.ServiceImport{ObjectMeta: meta("shop", name)}); r != nil {
				t.Errorf("record %+v of the name %q", r, name)
			}
		})
		if !slices.Equal(reasons, []string{"name"}) {
			t.Errorf("reported %q of the name %q", reasons, name)
		}
	}
}

// TestStripImportedSlice strips EndpointSlices with labels of Services, ServiceImports and clusters.
func TestStripImportedSlice(t *testing.T) {
	const service, imported, cluster = discoveryv1.LabelServiceName, mcsv1beta1.LabelServiceName, mcsv1beta1.LabelSourceCluster
	with := Options{Imports: true}
	only := Options{Imports: true, ImportsOnly: true}
	for _, tc := range []struct {
		name    string
		options Options
		labels  map[string]string
		want    string // service, import and cluster; "none" without a record
		skipped []string
	}{
		{"of a Service, without imports", Options{}, map[string]string{service: "web"}, "web//", nil},
		{"of an import, without imports", Options{}, map[string]string{imported: "web", cluster: "east"}, "none", nil},
		{"of both, without imports", Options{}, map[string]string{service: "web-x", imported: "web_", cluster: "-"}, "web-x//", nil},
		{"of a Service", with, map[string]string{service: "web"}, "web//", nil},
		{"of a Service, with a cluster", with, map[string]string{service: "web", cluster: "_"}, "web//", nil},
		{"of an import", with, map[string]string{imported: "web", cluster: "east"}, "/web/east", nil},
		{"of both", with, map[string]string{service: "derived-x", imported: "web", cluster: "east"}, "derived-x/web/east", nil},
		{"of nothing", with, map[string]string{cluster: "east"}, "none", nil},
		{"of a Service, imports only", only, map[string]string{service: "web"}, "none", nil},
		{"of an import, imports only", only, map[string]string{imported: "web", cluster: "east"}, "/web/east", nil},
		{"of both, imports only", only, map[string]string{service: "derived-x", imported: "web", cluster: "east"}, "/web/east", nil},
		{"of no cluster", with, map[string]string{imported: "web"}, "/web/", nil},
		{"of a cluster with dots", with, map[string]string{imported: "web", cluster: "a.east"}, "/web/a.east", nil},
		{"of a cluster with capitals", with, map[string]string{imported: "web", cluster: "Cluster-A"}, "/web/cluster-a", nil},
		{"of a cluster that cannot be part of a name", with, map[string]string{imported: "web", cluster: "a_b"}, "/web/", []string{"source cluster"}},
		{"of a cluster with an empty label", with, map[string]string{imported: "web", cluster: "a..b"}, "/web/", []string{"source cluster"}},
		{"of an import with capitals", with, map[string]string{imported: "Web", cluster: "east"}, "none", []string{"service import"}},
		{"of an import with dots, and a Service", with, map[string]string{service: "web", imported: "web.shop", cluster: "a_b"}, "web//", []string{"service import"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: tc.labels},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
			}
			got := "none"
			reasons := skips(EndpointSlices, func() {
				if r := NewStripper(tc.options).Slice(o); r != nil {
					got = r.Service + "/" + r.Import + "/" + r.Cluster.String()
					if r.Len() != 1 || r.Namespace != "shop" || r.Name != "web-1" {
						t.Errorf("record %+v", r)
					}
				}
			})
			if got != tc.want {
				t.Errorf("belongs to %s, want %s", got, tc.want)
			}
			if !slices.Equal(reasons, tc.skipped) {
				t.Errorf("reported %q, want %q", reasons, tc.skipped)
			}
			o.AddressType = discoveryv1.AddressTypeFQDN
			if reasons := skips(EndpointSlices, func() {
				if r := NewStripper(tc.options).Slice(o); r != nil {
					t.Errorf("record %+v of names", r)
				}
			}); len(reasons) > 0 {
				t.Errorf("reported %q of a slice that is not read", reasons)
			}
		})
	}
}

func TestClusterIDOf(t *testing.T) {
	for _, tc := range []struct {
		name, value, want string
		skipped           []string
	}{
		{ClusterPropertyName, "east", "east", nil},
		{ClusterPropertyName, "A.East", "a.east", nil},
		{ClusterPropertyName, "", "", nil},
		{ClusterPropertyName, "e_st", "", []string{"cluster ID"}},
		{ClusterPropertyName, "east ", "", []string{"cluster ID"}},
		{"clusterset.k8s.io", "mine", "", nil},
		{"fingerprint.coreos.com", "not an ID", "", nil},
	} {
		t.Run(tc.name+" "+tc.value, func(t *testing.T) {
			o := &ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: tc.name}, Spec: ClusterPropertySpec{Value: tc.value}}
			reasons := skips(ClusterProperties, func() {
				if got := topologyStripper().ClusterIDOf(o); got != index.NewSymbol(tc.want) {
					t.Errorf("%q, want %q", got, tc.want)
				}
			})
			if !slices.Equal(reasons, tc.skipped) {
				t.Errorf("reported %q, want %q", reasons, tc.skipped)
			}
		})
	}
}

// idForm is the form of the ID of a cluster by KEP-1645 and KEP-2149, with labels as in RFC 1123.
var idForm = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)*$`)

func FuzzIsClusterID(f *testing.F) {
	for _, text := range []string{
		"", "a", "A", "a.b", "a.b.c", ".", "a.", ".a", "a..b", "-a", "a-", "a-b", "a_b", "a b", "ä", "\u212a", "1", "10.0.0.1", "a\n",
		strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 127) + "a",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, want := IsClusterID(text), len(text) <= 253 && idForm.MatchString(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	})
}

// TestClusterPropertyCopies: copies share no memory with their original.
func TestClusterPropertyCopies(t *testing.T) {
	withValue := func(value string) *ClusterPropertyList {
		one := ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: ClusterPropertyName, Labels: map[string]string{"a": value}}, Spec: ClusterPropertySpec{Value: value}}
		return &ClusterPropertyList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []ClusterProperty{one}}
	}
	var list runtime.Object = withValue("east")
	copied := list.DeepCopyObject().(*ClusterPropertyList)
	if !reflect.DeepEqual(copied, withValue("east")) {
		t.Errorf("copy %+v", copied)
	}
	copied.Items[0].Labels["a"], copied.Items[0].Spec.Value = "west", "west"
	if !reflect.DeepEqual(list, withValue("east")) {
		t.Errorf("a change of the copy changed the original: %+v", list)
	}
}
