package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/randomcluster"
)

// edge is the namespace of the objects that randomcluster does not make.
const edge = "edge"

// additions returns objects that random clusters lack: the server's own Service, long chains of
// aliases, aliases of odd targets, crowds, slices of names.
func additions(r *rand.Rand, own []netip.Addr) []runtime.Object {
	objs := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: edge}},
		service("crowd", corev1.ClusterIPNone),
		service("vip-with-names", "10.0.0.200"),
		service("names", corev1.ClusterIPNone),
		service("zones", corev1.ClusterIPNone),
		service("10-1-0-1", "10.0.0.201"),
		fqdnSlice("names"), fqdnSlice("vip-with-names"),
		slice("names", "10.1.0.90", "10.1.0.91"),
	}
	crowd := make([]string, 120)
	for i := range crowd {
		crowd[i] = fmt.Sprintf("10.9.%d.%d", i%3, i)
	}
	objs = append(objs, slice("crowd", crowd...))

	zones := slice("zones", "10.1.0.80", "10.1.0.81", "10.1.0.80")
	for i, zone := range []string{"zone-a", "zone-b", "zone-b"} {
		zones.Endpoints[i].Zone = &zone
	}
	last := slice("zones", "fd00:3::", "fd00:3::1", "FD00:3:0::2")
	last.Name, last.AddressType = "zones-6", discoveryv1.AddressTypeIPv6
	objs = append(objs, zones, last)

	// 13 links: more than the limit.
	for i := range 13 {
		objs = append(objs, alias(fmt.Sprintf("chain-%d", i), fmt.Sprintf("chain-%d.%s.svc.%s", i+1, edge, randomcluster.Zone)))
	}
	objs = append(objs, service("chain-13", "10.0.0.210"))
	for i, target := range []string{
		"names.edge.svc.cluster.local", "Crowd.Edge.SVC.Cluster.Local.", "alias-3.edge.svc.cluster.local", "alias-2.edge.svc.cluster.local",
		"cluster.local", "ns.dns.cluster.local", "dns-version.cluster.local", "10-1-0-7.edge.pod.cluster.local",
		"_http._tcp.crowd.edge.svc.cluster.local", "10-9-0-0.crowd.edge.svc.cluster.local", "crowd.edge.svc.k8s.example.net",
		"svc", "cluster", "big.example.org", "refused.example.org", "x.y", "edge.svc.cluster.local",
		"zone-a.prefer._zone.zones.edge.svc.cluster.local", "fd00::7", "web.default.svc.cluster.local", "web.edge",
		"crowd.edge.svc.clusterset.local", "vip.Edge.svc.ClusterSet.local.", "10-9-0-0.eu.west.crowd.edge.svc.clusterset.local",
	} {
		objs = append(objs, alias(fmt.Sprintf("alias-%d", i), target))
	}

	for i := range 3 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: edge, Name: fmt.Sprintf("host-%d", i)},
			Spec:       corev1.PodSpec{HostNetwork: true},
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.3"}, {IP: "fd00:2::3"}}
		objs = append(objs, pod)
	}
	return append(objs, ownObjects(r, own)...)
}

// importAdditions returns imports that random clusters lack: one of many endpoints in clusters with the same addresses,
// one with a port without a protocol, one without ports, one whose endpoints are a Service's as well, one without a
// valid cluster ID, and ones with slices of names.
// cluster that has a name, and ones with slices of names.
func importAdditions() []runtime.Object {
	plain := serviceImport("plain", mcsv1beta1.ClusterSetIP, "10.3.0.201")
	plain.Spec.Ports[0].Protocol = ""
	portless := serviceImport("portless", mcsv1beta1.ClusterSetIP, "10.3.0.202", "fd00:30::202")
	portless.Spec.Ports = []mcsv1beta1.ServicePort{}
	ofBoth := importedSlice("both", "west", "10.2.0.95", "10.2.0.96")
	ofBoth.Labels[discoveryv1.LabelServiceName] = "both"
	nobodys := importedSlice("adrift", "", "10.2.0.93", "10.2.0.94")
	delete(nobodys.Labels, mcsv1beta1.LabelSourceCluster)
	objs := []runtime.Object{
		serviceImport("crowd", mcsv1beta1.Headless),
		serviceImport("names", mcsv1beta1.Headless),
		serviceImport("vip", mcsv1beta1.ClusterSetIP, "10.3.0.200", "fd00:30::200"),
		plain, portless,
		service("both", corev1.ClusterIPNone), serviceImport("both", mcsv1beta1.Headless), ofBoth,
		serviceImport("adrift", mcsv1beta1.Headless),
		importedSlice("adrift", "under_score", "10.2.0.92"), nobodys,
		importedSlice("names", "west", "10.2.0.90"),
		importedSlice("vip", "East-1", "10.2.0.91"),
	}
	for i, cluster := range []string{"east", "eu.west", "0b1c7a3e-5d2f-4e6a-9b8c-1d2e3f4a5b6c"} {
		var ips []string
		for j := range 15 {
			ips = append(ips, fmt.Sprintf("10.9.%d.%d", j%(i+1), j))
		}
		objs = append(objs, importedSlice("crowd", cluster, ips...))
	}
	for _, name := range []string{"names", "vip"} {
		s := importedSlice(name, "west", "www.example.org", "crowd.edge.svc.clusterset.local")
		s.Name, s.AddressType = "imported-"+name+"-fqdn", discoveryv1.AddressTypeFQDN
		objs = append(objs, s)
	}
	return objs
}

func serviceImport(name string, kind mcsv1beta1.ServiceImportType, ips ...string) *mcsv1beta1.ServiceImport {
	return &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: edge, Name: name},
		Spec: mcsv1beta1.ServiceImportSpec{Type: kind, IPs: ips, Ports: []mcsv1beta1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
		}},
	}
}

// importedSlice returns a slice of an import's endpoints in a cluster.
func importedSlice(name, cluster string, ips ...string) *discoveryv1.EndpointSlice {
	s := slice(name, ips...)
	s.Name = strings.ToLower("imported-" + name + "-" + cluster)
	s.Labels = map[string]string{mcsv1beta1.LabelServiceName: name, mcsv1beta1.LabelSourceCluster: cluster}
	return s
}

// ownObjects returns, in some rounds, a Service with the servers under test as endpoint, or a slice with their address
// that belongs to none.
func ownObjects(r *rand.Rand, own []netip.Addr) (objs []runtime.Object) {
	if len(own) == 0 {
		return nil
	}
	name, v4, v6 := "own", []string{"10.1.0.70"}, []string{"fd00:1::70"}
	for i, a := range own {
		switch {
		case i > 0 && r.IntN(2) == 0:
		case a.Is4():
			v4 = append(v4, a.String())
		default:
			v6 = append(v6, a.String())
		}
	}
	switch r.IntN(4) {
	case 0:
		objs = append(objs, service(name, "10.0.0.220"))
	case 1:
		objs = append(objs, service(name, corev1.ClusterIPNone))
	case 2:
		name = "own-without-service"
	default:
		return nil
	}
	six := slice(name, v6...)
	six.Name, six.AddressType = name+"-6", discoveryv1.AddressTypeIPv6
	return append(objs, slice(name, v4...), six)
}

func service(name, ip string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: edge, Name: name}}
	s.Spec.Type = corev1.ServiceTypeClusterIP
	s.Spec.ClusterIP, s.Spec.ClusterIPs = ip, []string{ip}
	s.Spec.Ports = []corev1.ServicePort{
		{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
		{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
	}
	return s
}

func alias(name, target string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: edge, Name: name}}
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, target
	return s
}

func slice(service string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: edge, Name: service + "-4", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	name, protocol, number := "http", corev1.ProtocolTCP, int32(8080)
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
	}
	return s
}

// fqdnSlice returns a slice whose addresses are names, which the API allows.
func fqdnSlice(service string) *discoveryv1.EndpointSlice {
	s := slice(service, "www.example.org", "crowd.edge.svc.cluster.local")
	s.Name, s.AddressType = service+"-fqdn", discoveryv1.AddressTypeFQDN
	return s
}
