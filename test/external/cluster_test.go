package external

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/randomcluster"
)

// marker is the namespace of objects that are written last in each round: a server that shows them has all others. Each resource
// has its own, since the events of one imply nothing about another.
const marker = "marker"

func markerNamespace(round int) string { return fmt.Sprintf("%s-%d", marker, round%2) }

func markerIP(round int) string { return fmt.Sprintf("10.255.%d.%d", round>>8&0xff, round&0xff) }

// mark writes the markers of a round.
func mark(t *testing.T, api *kubeapi.Server, round int) {
	t.Helper()
	kit.Must(t, api.Delete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: markerNamespace(round + 1)}}))
	kit.Must(t, api.Put(
		namespace(marker), service(marker, "headless", corev1.ClusterIPNone),
		service(marker, "vip", markerIP(round)), slice(marker, "headless", markerIP(round)), namespace(markerNamespace(round)),
	))
}

// await waits until both servers of a variant show the markers of a round.
func (p *pair) await(t *testing.T, round int) {
	t.Helper()
	names := []string{"vip." + marker, markerNamespace(round)}
	if !p.noEndpoints {
		names = append(names, "headless."+marker)
	}
	for _, s := range []*server{&p.stock, &p.ours} {
		for _, name := range names {
			kit.Succeeds(t, time.Minute, fmt.Sprintf("%s, %s shows marker %s of round %d", p.name, s.name, name, round), func() error {
				m, err := s.ask(question(name+".svc.cluster.local.", dns.TypeA))
				if err == nil && (m.Rcode != dns.RcodeSuccess || name != markerNamespace(round) && !strings.Contains(fmt.Sprint(m.Answer), markerIP(round))) {
					err = fmt.Errorf("reply:\n%v", m)
				}
				return err
			})
		}
	}
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func service(ns, name, clusterIP string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.Ports = clusterIP, []string{clusterIP}, ports
	return s
}

func port(name string, protocol corev1.Protocol, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: protocol, Port: number}
}

// slice returns an EndpointSlice of a Service with a port "http" and IPv4 addresses.
func slice(ns, service string, addresses ...string) *discoveryv1.EndpointSlice {
	name, protocol, number := "http", corev1.ProtocolTCP, int32(8080)
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: service + "-slice", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: addresses}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}},
	}
}

// withExternal sets the external addresses of a Service, and the addresses and hosts of its load balancer.
func withExternal(s *corev1.Service, externalIPs []string, balancer ...corev1.LoadBalancerIngress) *corev1.Service {
	s.Spec.ExternalIPs, s.Status.LoadBalancer.Ingress = externalIPs, balancer
	return s
}

func host(name string) corev1.LoadBalancerIngress { return corev1.LoadBalancerIngress{Hostname: name} }

func address(ip string) corev1.LoadBalancerIngress { return corev1.LoadBalancerIngress{IP: ip} }

// steady is a Service in the cluster to which a load balancer's host leads. It does not change: answers with records of hosts are
// stored for their TTL.
const steady = "steady"

// pending is a Service whose load balancer has no address yet.
const pending = "pending"

// fixed are Services of every kind, which each cluster has. The server is an endpoint of two of them.
func fixed(own []string) []runtime.Object {
	http, https, quic := port("http", corev1.ProtocolTCP, 80), port("https", corev1.ProtocolTCP, 443), port("quic", corev1.ProtocolUDP, 443)
	alias := withExternal(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "alias"}}, []string{"203.0.113.9"})
	alias.Spec.Type, alias.Spec.ExternalName, alias.Spec.Ports = corev1.ServiceTypeExternalName, "example.com", []corev1.ServicePort{http}
	objs := []runtime.Object{
		namespace("default"), namespace(steady), service(steady, steady, "10.96.1.99", http),
		withExternal(service("default", "lb", "10.96.1.1", http, https, quic), nil, address("203.0.113.1"), address("2001:db8::1")),
		withExternal(service("default", "both", "10.96.1.2", http), []string{"203.0.113.2"}, address("203.0.113.2"), address("203.0.113.3")),
		withExternal(service("default", "host", "10.96.1.3", http, https), nil, host("lb.example.com")),
		withExternal(service("default", "hosts", "10.96.1.4", http), []string{"203.0.113.4"}, host("lb.example.com"), host("lb2.example.com")),
		withExternal(service("default", "missing-host", "10.96.1.5", http), nil, host("missing.example.com")),
		withExternal(service("default", "own-host", "10.96.1.6", http), nil, host("steady.steady.svc.cluster.local")),
		withExternal(service("default", "headless-ip", corev1.ClusterIPNone, http), []string{"203.0.113.5"}),
		withExternal(service("default", "no-ports", "10.96.1.7"), []string{"203.0.113.6"}),
		withExternal(service("default", "unnamed", "10.96.1.8", port("", corev1.ProtocolTCP, 80)), []string{"203.0.113.7"}),
		withExternal(service("default", pending, "10.96.1.9", http), nil, corev1.LoadBalancerIngress{}),
		service("default", "inside", "10.96.1.10", http), slice("default", "inside", "10.128.1.1"),
		service("default", "headless", corev1.ClusterIPNone, http), slice("default", "headless", "10.128.1.2", "10.128.1.3"),
		alias,
		withExternal(service("default", "dns", "10.96.1.11", http), []string{"203.0.113.8"}),
		withExternal(service("dns", "web", "10.96.1.12", http), []string{"203.0.113.8"}), namespace("dns"),
	}
	if len(own) > 0 {
		var four []string
		for _, a := range own {
			if !strings.Contains(a, ":") {
				four = append(four, a)
			}
		}
		objs = append(objs,
			withExternal(service("default", "server", "10.96.1.53", http), []string{"203.0.113.53", "2001:db8::53"}, host("lb.example.com")),
			service("default", "server-headless", corev1.ClusterIPNone, http),
			slice("default", "server", four...), slice("default", "server-headless", append(four, "10.128.1.53")...))
	}
	return objs
}

// plain returns objects as an API server stores them, without the endpoints whose names differ in CoreDNS: those are the subject of
// test/differential.
func plain(objs []runtime.Object) []runtime.Object {
	objs = randomcluster.Stored(objs)
	for i, o := range objs {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		s = s.DeepCopy()
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			s.Endpoints = nil
		}
		for j := range s.Endpoints {
			e := &s.Endpoints[j]
			for k, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					e.Addresses[k] = a.String()
				}
			}
			if e.TargetRef != nil && strings.Contains(e.TargetRef.Name, ".") {
				e.TargetRef = nil
			}
		}
		objs[i] = s
	}
	return objs
}

// newCluster returns a random cluster with the fixed objects.
func newCluster(r *rand.Rand, own []string) []runtime.Object {
	return plain(randomcluster.Apply(randomcluster.Random(r, 8+r.IntN(20)), fixed(own), nil))
}

// mutated makes some changes of a cluster: random ones, and those of load balancers.
func mutated(r *rand.Rand, objs []runtime.Object) (changed, deleted, now []runtime.Object) {
	now = objs
	isSteady := func(o runtime.Object) bool {
		m, err := meta.Accessor(o)
		return err == nil && (m.GetName() == steady || m.GetNamespace() == steady)
	}
	apply := func(c, d []runtime.Object) {
		c, d = slices.DeleteFunc(c, isSteady), slices.DeleteFunc(d, isSteady)
		now = randomcluster.Apply(now, c, d)
		changed, deleted = randomcluster.Apply(changed, c, d), append(deleted, d...)
	}
	for range 2 + r.IntN(10) {
		c, d := randomcluster.Mutate(r, now)
		apply(plain(c), d)
	}
	for range 1 + r.IntN(4) {
		if s, ok := now[r.IntN(len(now))].(*corev1.Service); ok {
			s = s.DeepCopy()
			switch r.IntN(4) {
			case 0:
				s.Status.LoadBalancer.Ingress = nil
			case 1:
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{host([]string{"lb.example.com", "lb3.example.net"}[r.IntN(2)])}
			case 2:
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{address(fmt.Sprintf("203.0.113.%d", 1+r.IntN(9)))}
			default:
				s.Spec.ExternalIPs = []string{fmt.Sprintf("203.0.113.%d", 1+r.IntN(9)), "2001:DB8:0::1"}
			}
			apply([]runtime.Object{s}, nil)
		}
	}
	// Deletion and creation of an object are one update.
	rest := deleted[:0]
	for _, d := range deleted {
		if len(randomcluster.Apply(now, nil, []runtime.Object{d})) == len(now) {
			rest = append(rest, d)
		}
	}
	return changed, rest, now
}
