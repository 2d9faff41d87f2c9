//go:build linux

package coherence

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/kubeapi"
)

// changes writes random objects to the API server.
type changes struct {
	*rand.Rand
	api *kubeapi.Server
}

// changeEvery is the mean time between two changes.
const changeEvery = 25 * time.Millisecond

// existing are the namespaces that most objects are in.
var existing = namespaces[:3]

// fill writes every object once.
func (c *changes) fill(t testing.TB) {
	t.Helper()
	var all []runtime.Object
	for _, ns := range existing {
		all = append(all, namespaceObject(ns))
		for _, s := range services {
			all = append(all, c.service(ns, s), c.slice(ns, s, "1"), c.slice(ns, s, "6"))
		}
		for _, s := range imports {
			all = append(all, c.imported(ns, s), c.importedSlice(ns, s, clusters[0]), c.importedSlice(ns, s, clusters[1]))
		}
		for _, p := range podNames {
			all = append(all, c.pod(ns, p))
		}
	}
	for _, n := range nodes {
		all = append(all, c.node(n))
	}
	kit.Must(t, c.api.Load(all...))
}

// run makes changes until stop is set. It returns the number of changes.
func (c *changes) run(stop *atomic.Bool) (n int, err error) {
	for !stop.Load() {
		time.Sleep(time.Duration(c.Int64N(int64(2 * changeEvery))))
		if err := c.change(); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// touchEvery is the time between two events of each resource that change no answer: the watchdog of clusterdns takes watches
// for frozen that have no events (see shortWatchdog).
const touchEvery = 500 * time.Millisecond

// touch makes such events until stop is set.
func (c *changes) touch(stop *atomic.Bool) error {
	all := []runtime.Object{
		namespaceObject("touched"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "touched"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "touched", Name: "touched"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "touched", Name: "touched"}},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "touched", Name: "touched", Labels: map[string]string{discoveryv1.LabelServiceName: "touched"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		},
		&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "touched", Name: "touched"}, Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless}},
		touchedProperty,
	}
	for !stop.Load() {
		if err := c.api.Put(all...); err != nil {
			return err
		}
		time.Sleep(touchEvery)
	}
	return nil
}

// touchedProperty is the only ClusterProperty that clusterdns watches. No answer of a history depends on it.
var touchedProperty = &unstructured.Unstructured{Object: map[string]any{
	"apiVersion": "about.k8s.io/v1", "kind": "ClusterProperty",
	"metadata": map[string]any{"name": "cluster.clusterset.k8s.io"}, "spec": map[string]any{"value": clusters[0]},
}}

// change makes one change, of each kind of object several per second.
func (c *changes) change() error {
	ns, s := pick(c.Rand, existing), pick(c.Rand, services)
	switch k := c.IntN(100); {
	case k < 22:
		return c.putOrDelete(c.service(ns, s), 15)
	case k < 50:
		return c.putOrDelete(c.slice(ns, s, pick(c.Rand, []string{"1", "1", "2", "6"})), 15)
	case k < 60:
		return c.putOrDelete(c.pod(ns, pick(c.Rand, podNames)), 30)
	case k < 70:
		return c.changeNamespace()
	case k < 80:
		return c.putOrDelete(c.node(pick(c.Rand, nodes)), 20)
	case k < 90:
		return c.putOrDelete(c.imported(ns, pick(c.Rand, imports)), 20)
	}
	return c.putOrDelete(c.importedSlice(ns, pick(c.Rand, imports), pick(c.Rand, clusters)), 20)
}

func (c *changes) putOrDelete(o runtime.Object, percent int) error {
	if c.IntN(100) < percent {
		return c.api.Delete(o)
	}
	return c.api.Put(o)
}

// changeNamespace makes the namespace temp or, rarely and for a moment, another.
func (c *changes) changeNamespace() error {
	switch k := c.IntN(20); {
	case k == 0:
		o := namespaceObject(pick(c.Rand, existing[:2]))
		if err := c.api.Delete(o); err != nil {
			return err
		}
		time.Sleep(time.Duration(c.Int64N(int64(time.Second))))
		return c.api.Put(o)
	case k < 6:
		return c.api.Delete(namespaceObject("temp"))
	}
	return c.api.Put(namespaceObject("temp"))
}

func namespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
}

func (c *changes) service(ns, name string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}}
	for _, p := range []string{"http", "dns"}[:1+c.IntN(2)] {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p, Port: 80 + c.Int32N(3), Protocol: corev1.ProtocolTCP})
	}
	if name == "alias" && c.IntN(3) > 0 {
		s.Spec.Type = corev1.ServiceTypeExternalName
		s.Spec.ExternalName = pick(c.Rand, []string{"web", "db"}) + "." + pick(c.Rand, existing) + ".svc.cluster.local"
		return s
	}
	isHeadless := name == "db" || name == "peers" || name == "near"
	if c.IntN(10) == 0 {
		isHeadless = !isHeadless
	}
	if !isHeadless {
		s.Spec.ClusterIPs = []string{pick(c.Rand, serviceIPs).String()}
		if name == "api" && c.IntN(3) > 0 {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, pick(c.Rand, servicesV6).String())
		}
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		return s
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	switch k := c.IntN(8); {
	case name != "near":
	case k == 0:
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	case k < 4:
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
	case k < 7:
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode)
	}
	return s
}

// slice returns an EndpointSlice of a Service; number 6 is of IPv6.
func (c *changes) slice(ns, service, number string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: service + "-" + number, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(8080 + c.Int32N(2)), Protocol: new(corev1.ProtocolTCP)}},
	}
	from := podIPs
	if number == "6" {
		s.AddressType, from = discoveryv1.AddressTypeIPv6, podIPs6
	}
	for range c.IntN(4) {
		s.Endpoints = append(s.Endpoints, c.endpoint(service, pick(c.Rand, from)))
	}
	return s
}

func (c *changes) endpoint(service string, a netip.Addr) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(c.IntN(6) > 0)},
		Zone: new(pick(c.Rand, zones)), NodeName: new(pick(c.Rand, nodes)),
	}
	switch {
	case service == "peers":
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pick(c.Rand, podNames)}
	case c.IntN(2) == 0:
		e.Hostname = new(pick(c.Rand, hostnames))
	}
	return e
}

// pod returns a pod, every second one with an address of IPv6, too.
func (c *changes) pod(ns, name string) *corev1.Pod {
	n := c.IntN(len(podIPs))
	ips := []corev1.PodIP{{IP: podIPs[n].String()}}
	if n%2 == 0 {
		ips = append(ips, corev1.PodIP{IP: podIPs6[n/2%len(podIPs6)].String()})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.PodSpec{NodeName: pick(c.Rand, nodes), Containers: []corev1.Container{{Name: "main", Image: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ips[0].IP, PodIPs: ips},
	}
}

func (c *changes) node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	if c.IntN(4) > 0 {
		n.Labels[corev1.LabelTopologyZone] = pick(c.Rand, zones)
	}
	return n
}

func (c *changes) imported(ns, name string) *mcsv1beta1.ServiceImport {
	s := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: mcsv1beta1.ServiceImportSpec{
		Type:  mcsv1beta1.Headless,
		Ports: []mcsv1beta1.ServicePort{{Name: "http", Port: 80 + c.Int32N(3), Protocol: corev1.ProtocolTCP}},
	}}
	if name == "web" {
		s.Spec.Type, s.Spec.IPs = mcsv1beta1.ClusterSetIP, []string{fmt.Sprint("10.99.0.", 1+c.IntN(4))}
	}
	return s
}

// importedSlice returns the EndpointSlice of a ServiceImport in a cluster.
func (c *changes) importedSlice(ns, name, cluster string) *discoveryv1.EndpointSlice {
	s := c.slice(ns, name, "import-"+cluster)
	s.Labels = map[string]string{mcsv1beta1.LabelServiceName: name, mcsv1beta1.LabelSourceCluster: cluster}
	return s
}
