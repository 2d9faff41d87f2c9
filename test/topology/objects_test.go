//go:build linux

package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	shop = "shop" // namespace of all objects
	rack = "example.com/rack"
	port = "db"
)

// object is a Service with its endpoints. Endpoint number k is on node k.
type object struct {
	name        string
	annotations map[string]string
	spec        corev1.ServiceSpec
	endpoints   []int
	forNodes    map[int]string // hints, by endpoint
	forZones    map[int]string
}

// objects returns all Services. Their hints differ from the nodes and zones of the endpoints.
func objects() []object {
	keys := func(text string) map[string]string { return map[string]string{"nearside.dev/topology-keys": text} }
	all := []int{1, 2, 3}
	return []object{
		{name: "keys", annotations: keys("kubernetes.io/hostname,topology.kubernetes.io/zone,*"), endpoints: all},
		{name: "rack", annotations: keys("- " + rack + "\n"), endpoints: []int{1, 3}},
		{name: "local", spec: corev1.ServiceSpec{InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal)}, endpoints: []int{1, 2}},
		{name: "close", spec: corev1.ServiceSpec{TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferClose)}, endpoints: all},
		{
			name: "same", spec: corev1.ServiceSpec{TrafficDistribution: new(corev1.ServiceTrafficDistributionPreferSameNode)},
			endpoints: all, forNodes: map[int]string{1: "n2", 2: "n3", 3: "n1"},
		},
		{
			name: "auto", annotations: map[string]string{corev1.AnnotationTopologyMode: "Auto"},
			endpoints: all, forZones: map[int]string{1: "east", 2: "west", 3: "west"},
		},
		{name: "plain", endpoints: all},
		{name: "web", annotations: keys("kubernetes.io/hostname"), endpoints: []int{1}, spec: corev1.ServiceSpec{ClusterIP: webIP}},
	}
}

// webIP is the ClusterIP of the Service web, the only one that is not headless.
const webIP = "10.96.7.7"

// zones and racks are the initial labels of the nodes.
var (
	zones = [nodes]string{"east", "east", "west"}
	racks = [nodes]string{"a", "b", "a"}
)

// address returns the address of an endpoint.
func address(endpoint int, family discoveryv1.AddressType) string {
	if family == discoveryv1.AddressTypeIPv6 {
		return fmt.Sprintf("fd01:0:0:%d::a", endpoint)
	}
	return fmt.Sprintf("10.1.%d.10", endpoint)
}

var families = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

// api creates and changes objects in an API server.
type api struct {
	kubernetes.Interface
}

func (c api) fill(t *testing.T) {
	t.Helper()
	ctx, created := t.Context(), metav1.CreateOptions{}
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}, created); err != nil {
		t.Fatal(err)
	}
	for k := 1; k <= nodes; k++ {
		name := fmt.Sprint("n", k)
		labels := map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zones[k-1], rack: racks[k-1]}
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.NodeSpec{PodCIDR: podRanges(k)[0], PodCIDRs: podRanges(k)},
		}
		if _, err := c.CoreV1().Nodes().Create(ctx, n, created); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects() {
		c.create(t, o)
	}
	alias := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "alias"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: strings.TrimSuffix(owner("keys"), ".")},
	}
	if _, err := c.CoreV1().Services(shop).Create(ctx, alias, created); err != nil {
		t.Fatal(err)
	}
	c.createAgent(t)
	c.createPod(t)
}

func (c api) create(t *testing.T, o object) {
	t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: o.name, Annotations: o.annotations}, Spec: o.spec}
	if s.Spec.ClusterIP == "" {
		s.Spec.ClusterIP = corev1.ClusterIPNone
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	s.Spec.Ports = []corev1.ServicePort{{Name: port, Port: 5432}}
	if _, err := c.CoreV1().Services(shop).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if _, err := c.DiscoveryV1().EndpointSlices(shop).Create(t.Context(), o.slice(family), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// sliceName returns the name of the EndpointSlice of a Service for a family.
func sliceName(service string, family discoveryv1.AddressType) string {
	if family == discoveryv1.AddressTypeIPv6 {
		return service + "-v6"
	}
	return service + "-v4"
}

func (o object) slice(family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: sliceName(o.name, family), Labels: map[string]string{discoveryv1.LabelServiceName: o.name}},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: new(port), Port: new(int32(5432))}},
	}
	for _, k := range o.endpoints {
		e := discoveryv1.Endpoint{
			Addresses:  []string{address(k, family)},
			Hostname:   new(fmt.Sprint("e", k)),
			NodeName:   new(fmt.Sprint("n", k)),
			Zone:       new(zones[k-1]),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		}
		if len(o.forNodes)+len(o.forZones) > 0 {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		if name, ok := o.forNodes[k]; ok {
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: name}}
		}
		if name, ok := o.forZones[k]; ok {
			e.Hints.ForZones = []discoveryv1.ForZone{{Name: name}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// createAgent creates a Service with one endpoint, in the host network of n1, so that clusterdns knows that node's address.
func (c api) createAgent(t *testing.T) {
	t.Helper()
	o := object{name: "agent", endpoints: []int{1}}
	s := o.slice(discoveryv1.AddressTypeIPv4)
	s.Endpoints[0].Addresses = []string{nodeAddress(1)}
	headless := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: o.name},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: port, Port: 5432}}},
	}
	if _, err := c.CoreV1().Services(shop).Create(t.Context(), headless, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DiscoveryV1().EndpointSlices(shop).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createPod creates a Pod on n2, with an address that no EndpointSlice has.
func (c api) createPod(t *testing.T) {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "client"},
		Spec:       corev1.PodSpec{NodeName: "n2", Containers: []corev1.Container{{Name: "client", Image: "client"}}},
	}
	p, err := c.CoreV1().Pods(shop).Create(t.Context(), p, metav1.CreateOptions{})
	kit.Must(t, err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fromPod, PodIPs: []corev1.PodIP{{IP: fromPod}}}
	if _, err := c.CoreV1().Pods(shop).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// change edits the endpoints of a Service, of both families.
func (c api) change(t *testing.T, service string, edit func(*discoveryv1.EndpointSlice)) {
	t.Helper()
	all := c.DiscoveryV1().EndpointSlices(shop)
	for _, family := range families {
		s, err := all.Get(t.Context(), sliceName(service, family), metav1.GetOptions{})
		kit.Must(t, err)
		edit(s)
		if _, err := all.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// remove removes the endpoint on a node.
func (c api) remove(t *testing.T, service, node string) {
	t.Helper()
	c.change(t, service, func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return *e.NodeName == node })
	})
}

// restore restores the initial endpoints of a Service.
func (c api) restore(t *testing.T, service string) {
	t.Helper()
	for _, o := range objects() {
		if o.name == service {
			c.change(t, service, func(s *discoveryv1.EndpointSlice) { s.Endpoints = o.slice(s.AddressType).Endpoints })
		}
	}
}

// unready sets the endpoint on a node to not ready.
func (c api) unready(t *testing.T, service, node string) {
	t.Helper()
	c.change(t, service, func(s *discoveryv1.EndpointSlice) {
		for i := range s.Endpoints {
			if *s.Endpoints[i].NodeName == node {
				s.Endpoints[i].Conditions.Ready = new(false)
			}
		}
	})
}

// withdrawHints removes the hints of all endpoints.
func (c api) withdrawHints(t *testing.T, service string) {
	t.Helper()
	c.change(t, service, func(s *discoveryv1.EndpointSlice) {
		for i := range s.Endpoints {
			s.Endpoints[i].Hints = nil
		}
	})
}

// relabel sets a label of a Node.
func (c api) relabel(t *testing.T, node, key, value string) {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	kit.Must(t, err)
	n.Labels[key] = value
	if _, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// grant grants a user the permissions of the account of clusterdns in README.md, with these verbs for Nodes.
func (c api) grant(t *testing.T, role, user string, nodeVerbs ...string) {
	t.Helper()
	watch := []string{"list", "watch"}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "pods"}, Verbs: watch},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: watch},
	}
	if len(nodeVerbs) > 0 {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: nodeVerbs})
	}
	object := metav1.ObjectMeta{Name: role}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: object, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: object,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
