//go:build linux

package clients

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	namespace  = "shop"
	inServices = "." + namespace + ".svc.cluster.local."
	// endpoints is the number of endpoints of the headless Service. Their addresses do not fit into any UDP reply: the
	// largest is of 4,096 bytes, and a record has 16.
	endpoints = 300
)

// The addresses of the Service web, and the name outside of the cluster that outside is an alias of.
const (
	webIPv4 = "10.96.1.1"
	webIPv6 = "fd00:96::1:1"
	outside = "www.example.com."
)

// endpoint returns the address of an endpoint of the headless Service, from 0 on.
func endpoint(number int) string {
	return netip.AddrFrom4([4]byte{10, 244, byte(number / 200), byte(1 + number%200)}).String()
}

// hostname returns the hostname of an endpoint of the headless Service.
func hostname(number int) string { return fmt.Sprint("many-", number) }

// writeManifests writes the objects of the cluster to a new folder.
func writeManifests(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for name, object := range objects() {
		text, err := json.Marshal(object)
		kit.Must(t, err)
		kit.Write(t, filepath.Join(folder, name+".json"), string(text))
	}
	return folder
}

// generated is a Service of many with addresses, for random messages. Its name, families and ports depend on its number.
type generated struct {
	name, v4, v6 string // without an IPv6 address, v6 is ""
	ports        []corev1.ServicePort
}

// services is the number of generated Services.
const services = 250

func generate(number int) generated {
	g := generated{
		name: fmt.Sprintf("g%d", number) + strings.Repeat("-x", number%30), // of up to 63 bytes
		v4:   netip.AddrFrom4([4]byte{10, 96, 2, byte(1 + number)}).String(),
	}
	if number%2 == 0 {
		g.v6 = fmt.Sprintf("fd00:96::2:%x", 1+number)
	}
	for i := range 1 + number%3 {
		protocol := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}[(number+i)%2]
		g.ports = append(g.ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1000 + number + i), Protocol: protocol})
	}
	return g
}

// checks are questions for the records of a generated Service.
func (g generated) checks() []check {
	name := g.name + inServices
	all := []check{
		{question{"A", name}, found("A " + g.v4)},
		{question{"AAAA", name}, reply{status: "NODATA"}},
		{question{"PTR", reverse(g.v4)}, found("PTR " + name)},
		{question{"A", "p." + name}, reply{status: "NXDOMAIN"}},
	}
	if g.v6 != "" {
		all[1].want = found("AAAA " + g.v6)
		all = append(all, check{question{"PTR", reverse(g.v6)}, found("PTR " + name)})
	}
	for _, p := range g.ports {
		service := fmt.Sprintf("_%s._%s.%s", p.Name, strings.ToLower(string(p.Protocol)), name)
		all = append(all, check{question{"SRV", service}, found(fmt.Sprintf("SRV 0 %d %d %s", g.weight(), p.Port, name))})
	}
	return all
}

// weight is the weight of SRV records, of which a Service has one for each address.
func (g generated) weight() int {
	if g.v6 != "" {
		return 50
	}
	return 100
}

// endpointChecks are questions for the records of an endpoint.
func endpointChecks(number int) []check {
	name := hostname(number) + ".many" + inServices
	return []check{
		{question{"A", name}, found("A " + endpoint(number))}, {question{"PTR", reverse(endpoint(number))}, found("PTR " + name)},
		{question{"TXT", name}, reply{status: "NODATA"}},
	}
}

// reverse returns the name of the PTR record of an address.
func reverse(address string) string {
	name, err := dns.ReverseAddr(address)
	if err != nil {
		panic(err)
	}
	return name
}

func objects() map[string]runtime.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	kind := func(version, kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: version, Kind: kind} }
	service := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		return &corev1.Service{TypeMeta: kind("v1", "Service"), ObjectMeta: meta(name), Spec: spec}
	}
	pods := &discoveryv1.EndpointSlice{
		TypeMeta: kind("discovery.k8s.io/v1", "EndpointSlice"), ObjectMeta: meta("many"), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("peer"), Port: new(int32(7000)), Protocol: new(corev1.ProtocolTCP)}},
	}
	pods.Labels = map[string]string{discoveryv1.LabelServiceName: "many"}
	for i := range endpoints {
		pods.Endpoints = append(pods.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{endpoint(i)}, Hostname: new(hostname(i)), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	target := strings.TrimSuffix("web"+inServices, ".")
	all := map[string]runtime.Object{
		"namespace": &corev1.Namespace{TypeMeta: kind("v1", "Namespace"), ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		"web": service("web", corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: webIPv4, ClusterIPs: []string{webIPv4, webIPv6},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}),
		"many": service("many", corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone},
			Ports: []corev1.ServicePort{{Name: "peer", Port: 7000, Protocol: corev1.ProtocolTCP}},
		}),
		"endpoints": pods,
		"alias":     service("alias", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target}),
		"outside":   service("outside", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: strings.TrimSuffix(outside, ".")}),
	}
	for i := range services {
		g := generate(i)
		spec := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: g.v4, ClusterIPs: []string{g.v4}, Ports: g.ports}
		if g.v6 != "" {
			spec.ClusterIPs = append(spec.ClusterIPs, g.v6)
		}
		all[g.name] = service(g.name, spec)
	}
	return all
}
