package kubernetes

import (
	"net/netip"
	"testing"

	"github.com/coredns/caddy"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// parsed returns the handler of a block.
func parsed(t testing.TB, d directive, block string) *Kubernetes {
	t.Helper()
	k, err := d.parse(caddy.NewTestController("dns", block))
	if err != nil {
		t.Fatalf("%s: %v", block, err)
	}
	return k
}

// answering returns the handler of a kubernetes block, synced with a cluster of these objects. It differs from the
// result of setup only in the source: the selectors are applied here.
func answering(t testing.TB, block string, objects ...runtime.Object) *Kubernetes {
	t.Helper()
	k := parsed(t, kubernetesDirective, block)
	k.attach(index.New(), func() (all []source.Status) {
		for _, r := range k.source.Resources() {
			all = append(all, source.Status{Resource: r, Synced: true})
		}
		return all
	})
	strip := source.NewStripper(k.source)
	for _, o := range objects {
		put(k, strip, o)
	}
	return k
}

// indexOf returns the index of a handler, to modify it.
func indexOf(k *Kubernetes) *index.Index {
	ix, ok := k.index.(*index.Index)
	if !ok {
		panic("the handler has no index of its own")
	}
	return ix
}

func put(k *Kubernetes, strip source.Stripper, o runtime.Object) {
	ix := indexOf(k)
	selects := func(s labels.Selector, set map[string]string) bool {
		return s == nil || s.Matches(labels.Set(set))
	}
	switch o := o.(type) {
	case *corev1.Service:
		if s := strip.Service(o); s != nil && selects(k.source.Labels, o.Labels) {
			ix.PutService(s)
		}
	case *discoveryv1.EndpointSlice:
		if s := strip.Slice(o); s != nil && k.source.Endpoints && selects(k.source.Labels, o.Labels) {
			ix.PutSlice(s)
		}
	case *corev1.Namespace:
		if name := strip.Namespace(o); name != "" && selects(k.source.NamespaceLabels, o.Labels) {
			ix.PutNamespace(name)
		}
	case *mcsv1beta1.ServiceImport:
		if s := strip.Import(o); s != nil && k.source.Imports && selects(k.source.Labels, o.Labels) {
			ix.PutImport(s)
		}
	case *corev1.Pod:
		if p := strip.Pod(o); p != nil && k.source.Pods && selects(k.source.Labels, o.Labels) {
			ix.PutPod(p)
		}
	}
}

// unsynced sets the source's status to not synced.
func unsynced(k *Kubernetes) *Kubernetes {
	k.synced.Store(false)
	k.status = func() []source.Status { return []source.Status{{Resource: source.Services}} }
	return k
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
}

// service returns a Service with these ClusterIPs, headless for "None".
func service(ns, name string, ips []string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	s.Spec.ClusterIPs, s.Spec.Ports = ips, ports
	if len(ips) > 0 {
		s.Spec.ClusterIP = ips[0]
	}
	return s
}

var headless = []string{corev1.ClusterIPNone}

func externalName(ns, name, target string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, target
	return s
}

func tcp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number}
}

func udp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolUDP, Port: number}
}

// slice returns an EndpointSlice of a Service in its namespace; the ports are those of the Service.
func slice(service *corev1.Service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace,
			Name:      service.Name + "-" + name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
	}
	if len(endpoints) > 0 && len(endpoints[0].Addresses) > 0 {
		if a, err := netip.ParseAddr(endpoints[0].Addresses[0]); err == nil && a.Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
	}
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
	}
	return s
}

// endpoint returns a ready endpoint with one address.
func endpoint(address string, with ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	ready := true
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	e.Conditions.Ready = &ready
	for _, w := range with {
		w(&e)
	}
	return e
}

func hostname(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.Hostname = &name }
}

func inZone(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.Zone = &name }
}

func ofPod(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: name} }
}

func conditions(c discoveryv1.EndpointConditions) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.Conditions = c }
}

func notReady(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(bool) }

func podIn(ns, name string, phase corev1.PodPhase, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	p.Status.Phase = phase
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}
