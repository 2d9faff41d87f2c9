//go:build linux

package multicluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/mcs-api/config/crd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	shop     = "shop" // the namespace of all objects here
	postgres = "postgres"
)

// The parts of zones that names of Services are in.
const (
	inSet     = "." + shop + ".svc.clusterset.local."
	inCluster = "." + shop + ".svc.cluster.local."
)

// endpoint is a pod of a headless Service. Its number is a part of its addresses.
type endpoint struct {
	number         int
	hostname       string
	node, zone     string
	unready        bool
	onlyV4, onlyV6 bool
	hint           discoveryv1.EndpointHints
}

// v4 and v6 are the addresses of the endpoint with a number in a cluster.
func (c *cluster) v4(number int) string { return fmt.Sprintf("10.1%d.0.%d", c.subnet, number) }
func (c *cluster) v6(number int) string { return fmt.Sprintf("fd00:1%d::%d", c.subnet, number) }

var families = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

// sliceOf is the EndpointSlice of endpoints of a cluster, of one family.
func (c *cluster) sliceOf(name string, labels map[string]string, family discoveryv1.AddressType, all ...endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(name), AddressType: family}
	s.Labels = labels
	s.Ports = []discoveryv1.EndpointPort{{Name: new(postgres), Port: new(int32(5432)), Protocol: new(corev1.ProtocolTCP)}}
	for _, e := range all {
		if e.onlyV4 && family == discoveryv1.AddressTypeIPv6 || e.onlyV6 && family == discoveryv1.AddressTypeIPv4 {
			continue
		}
		ready := discoveryv1.Endpoint{
			Addresses:  []string{c.v4(e.number)},
			Hostname:   given(e.hostname),
			NodeName:   given(e.node),
			Zone:       given(e.zone),
			Conditions: discoveryv1.EndpointConditions{Ready: new(!e.unready)},
		}
		if family == discoveryv1.AddressTypeIPv6 {
			ready.Addresses[0] = c.v6(e.number)
		}
		if len(e.hint.ForZones)+len(e.hint.ForNodes) > 0 {
			ready.Hints = &e.hint
		}
		s.Endpoints = append(s.Endpoints, ready)
	}
	return s
}

// given is a field that is left out if it is empty.
func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// create creates a Service of a cluster, and EndpointSlices as its controller does.
func (c *cluster) create(t *testing.T, s *corev1.Service, all ...endpoint) {
	t.Helper()
	if _, err := c.client.CoreV1().Services(shop).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return
	}
	for _, family := range families {
		c.applySlice(t, c.sliceOf(nameOf(family, s.Name), ofService(s.Name), family, all...))
	}
}

// ofService are the labels of an EndpointSlice of a Service.
func ofService(name string) map[string]string {
	return map[string]string{discoveryv1.LabelServiceName: name}
}

// nameOf is the name of an EndpointSlice of a family.
func nameOf(family discoveryv1.AddressType, parts ...string) string {
	return strings.ToLower(strings.Join(append(parts, string(family)), "-"))
}

// headless is a Service of pods.
func headless(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{
		ClusterIP:      corev1.ClusterIPNone,
		IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
		Ports:          []corev1.ServicePort{{Name: postgres, Port: 5432}},
	}}
}

// clusterIP is a Service with addresses of its own, by one port that has two protocols.
func clusterIP(name string, policy corev1.IPFamilyPolicy) *corev1.Service {
	return &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{
		IPFamilyPolicy: &policy,
		Ports:          []corev1.ServicePort{{Name: "tcp", Port: 42}, {Name: "udp", Port: 42, Protocol: corev1.ProtocolUDP}},
	}}
}

// The endpoints of db in both clusters: the same hostname in each, one that is not ready, and one without a hostname.
var (
	westDB = []endpoint{
		{number: 10, hostname: "db-0", node: "n1", zone: "zone-a"},
		{number: 11, hostname: "db-1", node: "n2", zone: "zone-b"},
		{number: 12, hostname: "db-2", node: "n2", zone: "zone-b", unready: true},
	}
	eastDB = []endpoint{
		{number: 10, hostname: "db-0", node: "n1", zone: "zone-b"},
		{number: 13, node: "n3", zone: "zone-a"},
	}
)

// createServices creates the objects that exist before any export.
func (cs *clusterset) createServices(t *testing.T) {
	t.Helper()
	for _, c := range cs.all() {
		c.create(t, clusterIP("hello", corev1.IPFamilyPolicyRequireDualStack))
		c.create(t, headless("private"), endpoint{number: 90, hostname: "p"}) // which is never exported
	}
	w := cs.west
	w.create(t, clusterIP("web", corev1.IPFamilyPolicySingleStack))
	w.create(t, headless("db"), westDB...)
	// While endpoints move from one EndpointSlice to another, they are in both.
	w.applySlice(t, w.sliceOf("db-more", ofService("db"), discoveryv1.AddressTypeIPv4, westDB[1:]...))
	w.create(t, headless("idle"), endpoint{number: 20, hostname: "idle-0", unready: true})
	w.create(t, headless("narrow"), endpoint{number: 21, hostname: "narrow-0", onlyV4: true})
	w.create(t, headless("both"))
	cs.east.create(t, headless("db"), eastDB...)
}

// exportServices exports all of them, and imports them.
func (cs *clusterset) exportServices(t *testing.T) {
	t.Helper()
	for _, name := range []string{"hello", "web", "db", "idle", "narrow"} {
		cs.west.export(t, name)
		if name == "hello" || name == "db" {
			cs.east.export(t, name)
		}
		kit.Must(t, cs.importEverywhere(t.Context(), shop, name))
	}
	cs.west.importOddities(t)
}

// importOddities creates in a cluster the objects of other importers, and intermediate states.
func (c *cluster) importOddities(t *testing.T) {
	t.Helper()
	clusterSetIP, ports := mcsv1beta1.ClusterSetIP, []mcsv1beta1.ServicePort{{Name: postgres, Port: 5432}}
	for _, s := range []*mcsv1beta1.ServiceImport{
		{ObjectMeta: meta("pending"), Spec: mcsv1beta1.ServiceImportSpec{Type: clusterSetIP, Ports: ports}},
		{ObjectMeta: meta("bare"), Spec: mcsv1beta1.ServiceImportSpec{Type: clusterSetIP, Ports: []mcsv1beta1.ServicePort{}, IPs: []string{"10.112.1.100"}}},
		{ObjectMeta: meta("lone"), Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, Ports: ports}},
		{ObjectMeta: meta("both"), Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, Ports: ports}},
	} {
		c.applyImport(t, s)
	}
	nowhere := importedLabels("lone", "")
	delete(nowhere, mcsv1beta1.LabelSourceCluster)
	c.applySlice(t, c.sliceOf("lone", nowhere, discoveryv1.AddressTypeIPv4, endpoint{number: 30, hostname: "lone-0"}))
	// An implementation may leave the exported slices unchanged, and add its labels.
	two := importedLabels("both", c.id)
	two[discoveryv1.LabelServiceName] = "both"
	c.applySlice(t, c.sliceOf("both", two, discoveryv1.AddressTypeIPv4, endpoint{number: 31, hostname: "both-0"}))
}

// installDefinitions creates all definitions of the API except that of ClusterProperties.
func (cs *clusterset) installDefinitions(t *testing.T) {
	t.Helper()
	for _, c := range cs.all() {
		c.installImports(t)
		c.install(t, crd.ServiceExportCRD, serviceExports)
	}
}

// importIPs are the addresses that a ServiceImport has in a cluster, IPv4 before IPv6.
func (c *cluster) importIPs(t *testing.T, name string) []string {
	t.Helper()
	u, err := c.objects.Resource(serviceImports).Namespace(shop).Get(t.Context(), name, metav1.GetOptions{})
	kit.Must(t, err)
	imported := new(mcsv1beta1.ServiceImport)
	kit.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, imported))
	return slices.Sorted(slices.Values(imported.Spec.IPs))
}

// clusterIPs are the addresses of a Service of a cluster.
func (c *cluster) clusterIPs(t *testing.T, name string) []string {
	t.Helper()
	s, err := c.client.CoreV1().Services(shop).Get(t.Context(), name, metav1.GetOptions{})
	kit.Must(t, err)
	return s.Spec.ClusterIPs
}

// change assigns an address to the import called version.
func (c *cluster) change(t *testing.T, ip string) {
	t.Helper()
	spec := mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{ip}, Ports: []mcsv1beta1.ServicePort{}}
	c.applyImport(t, &mcsv1beta1.ServiceImport{ObjectMeta: meta("version"), Spec: spec})
}
