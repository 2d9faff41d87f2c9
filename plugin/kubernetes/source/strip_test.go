package source

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/kit"
)

func pointer[T any](v T) *T { return &v }

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "7"}
}

func addresses(all ...string) (parsed []netip.Addr) {
	for _, a := range all {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	return parsed
}

func TestStripService(t *testing.T) {
	http := []corev1.ServicePort{{Name: "HTTP", Port: 80}}
	stripped := []index.Port{{Name: index.NewSymbol("http"), Protocol: index.NewSymbol("tcp"), Number: 80}}
	for _, tc := range []struct {
		name string
		spec corev1.ServiceSpec
		want *index.Service
	}{
		{"ClusterIPs", corev1.ServiceSpec{ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"}, Ports: http},
			&index.Service{IPs: addresses("10.0.0.1", "fd00::1"), Ports: stripped}},
		{"one ClusterIP, as old servers have it", corev1.ServiceSpec{ClusterIP: "10.0.0.1"}, &index.Service{IPs: addresses("10.0.0.1")}},
		{"no ClusterIP yet", corev1.ServiceSpec{}, &index.Service{IPs: []netip.Addr{}}},
		{"an address that does not parse", corev1.ServiceSpec{ClusterIPs: []string{"10.0.0.256", "10.0.0.2"}}, &index.Service{IPs: addresses("10.0.0.2")}},
		{"leading zeros, which API servers before 1.36 store and read as decimal", corev1.ServiceSpec{ClusterIPs: []string{"10.010.0.08", "::ffff:010.0.0.9"}},
			&index.Service{IPs: addresses("10.10.0.8", "10.0.0.9")}},
		{"IPv4 inside of IPv6", corev1.ServiceSpec{ClusterIPs: []string{"::ffff:10.0.0.3"}}, &index.Service{IPs: addresses("10.0.0.3")}},
		{"an address with a zone", corev1.ServiceSpec{ClusterIPs: []string{"fe80::1%eth0"}}, &index.Service{IPs: []netip.Addr{}}},
		{"headless", corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, Ports: http}, &index.Service{Kind: index.Headless, Ports: stripped}},
		{"ExternalName", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "Example.com"}, &index.Service{Kind: index.ExternalName, Target: "Example.com."}},
		{"ExternalName, qualified", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com."}, &index.Service{Kind: index.ExternalName, Target: "example.com."}},
		{"ExternalName of an address", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "192.0.2.1"}, &index.Service{Kind: index.ExternalName}},
		{"external addresses", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ExternalIPs: []string{"192.0.2.1", "bad", "2001:DB8::0:1"}},
			&index.Service{IPs: addresses("10.0.0.1"), External: &index.External{IPs: addresses("192.0.2.1", "2001:db8::1")}}},
		{"external addresses of an ExternalName", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", ExternalIPs: []string{"192.0.2.1"}, Ports: http},
			&index.Service{Kind: index.ExternalName, Target: "example.com.", Ports: stripped, External: &index.External{IPs: addresses("192.0.2.1")}}},
		{"a port's name that is a label only without its underscore", corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Name: strings.Repeat("a", 63), Port: 80}}},
			&index.Service{IPs: addresses("10.0.0.1"), Ports: []index.Port{{Protocol: index.NewSymbol("tcp"), Number: 80}}}},
		{"ports of an ExternalName", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: http},
			&index.Service{Kind: index.ExternalName, Target: "example.com."}},
		{"ExternalName that is no name", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: strings.Repeat("a", 64) + ".com"}, &index.Service{Kind: index.ExternalName}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Namespace, tc.want.Name = "shop", "web"
			got := NewStripper(Options{}).Service(&corev1.Service{ObjectMeta: meta("shop", "web"), Spec: tc.spec})
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("record %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestStripLoadBalancer(t *testing.T) {
	long := strings.Repeat("a", 64) + ".example.net"
	o := &corev1.Service{ObjectMeta: meta("shop", "web"), Spec: corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}}}
	o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{Hostname: "lb.example.net"}, {IP: "192.0.2.2", Hostname: "not.used"}, {}, {Hostname: long}, {IP: "192.0.2.1"},
	}
	want := &index.External{IPs: addresses("192.0.2.1", "192.0.2.2", "192.0.2.1"), Hosts: []string{"lb.example.net."}}
	if got := NewStripper(Options{}).Service(o).External; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(o.Spec.ExternalIPs) != 1 {
		t.Errorf("the object has changed: %q", o.Spec.ExternalIPs)
	}
}

func TestStripSlice(t *testing.T) {
	long := strings.Repeat("p", 64)
	object := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{}, {Name: pointer("dns"), Protocol: pointer(corev1.ProtocolUDP), Port: pointer(int32(53))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1", "bad"}, Hostname: pointer("db-0"), Zone: pointer("Zone-A"), TargetRef: &corev1.ObjectReference{Name: "pod-0"}},
			{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: pointer(false), Serving: pointer(true)}},
			{Addresses: []string{"10.1.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: pointer(true)}, TargetRef: &corev1.ObjectReference{Name: "pod-3"}},
			{Addresses: []string{"10.1.0.4"}, TargetRef: &corev1.ObjectReference{Name: long}},
			{Addresses: []string{"10.1.0.5"}, TargetRef: &corev1.ObjectReference{Name: "pod.five"}},
			{Addresses: []string{"10.1.0.6"}, Hostname: pointer("not_a_label")},
		},
	}
	endpoint := func(ip, name, zone string) string { return ip + " " + name + " " + zone }
	for _, tc := range []struct {
		name    string
		options Options
		want    []string
	}{
		{"as it is", Options{}, []string{endpoint("10.1.0.1", "db-0", ""), endpoint("10.1.0.3", "", ""), endpoint("10.1.0.4", "", ""), endpoint("10.1.0.5", "", ""), endpoint("10.1.0.6", "", "")}},
		{"with names of pods and zones", Options{EndpointPodNames: true, Zones: true},
			[]string{endpoint("10.1.0.1", "db-0", "Zone-A"), endpoint("10.1.0.3", "pod-3", ""), endpoint("10.1.0.4", "", ""), endpoint("10.1.0.5", "", ""), endpoint("10.1.0.6", "", "")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewStripper(tc.options).Slice(object)
			var got []string
			for e := range r.All() {
				got = append(got, endpoint(e.Addr.String(), e.Name, e.Zone.String()))
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("endpoints %q, want %q", got, tc.want)
			}
			if ports := fmt.Sprint(r.Ports); ports != "[{ tcp -1} {dns udp 53}]" {
				t.Errorf("ports %s", ports)
			}
		})
	}
	for name, change := range map[string]func(*discoveryv1.EndpointSlice){
		"of no Service":     func(s *discoveryv1.EndpointSlice) { s.Labels = nil },
		"of names, not IPs": func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN },
	} {
		t.Run(name, func(t *testing.T) {
			other := object.DeepCopy()
			change(other)
			if r := NewStripper(Options{}).Slice(other); r != nil {
				t.Errorf("record %+v, want none", r)
			}
		})
	}
}

// TestSkipped: objects that DNS cannot carry are left out, counted each time and logged once.
func TestSkipped(t *testing.T) {
	logged := kit.Logged(t)
	s := NewStripper(Options{})
	counter := skippedObjects.WithLabelValues(Services, "name")
	before := testutil.ToFloat64(counter)
	long := &corev1.Service{ObjectMeta: meta("shop", strings.Repeat("a", 64))}
	for range 3 {
		if r := s.Service(long); r != nil {
			t.Fatalf("record %+v of a name of 64 characters", r)
		}
	}
	if n := testutil.ToFloat64(counter) - before; n != 3 {
		t.Errorf("counted %v times, want 3", n)
	}
	want := "[WARNING] plugin/kubernetes: services shop/" + long.Name + ": name left out: no DNS label: must be no more than 63"
	if got := logged.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
		t.Errorf("logged %q, want one line with %q", got, want)
	}

	logged.Reset()
	port := strings.Repeat("p", 63)
	for range 3 {
		s.Service(&corev1.Service{ObjectMeta: meta("shop", "web"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: port}}}})
	}
	if got, want := logged.String(), fmt.Sprintf("services shop/web: port name left out: %q has more than 62 characters", port); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
		t.Errorf("logged %q, want one line with %q", got, want)
	}

	logged.Reset()
	for i := range 3 * maxLogged {
		s.Service(&corev1.Service{ObjectMeta: meta("shop", fmt.Sprintf("Upper-%d", i))})
	}
	if n := strings.Count(logged.String(), "\n"); n > maxLogged+1 {
		t.Errorf("%d lines for different objects, want at most %d and one about the others", n, maxLogged)
	}
	if n := len(s.skipped.logged); n > maxLogged+1 {
		t.Errorf("%d objects are remembered", n)
	}
}
