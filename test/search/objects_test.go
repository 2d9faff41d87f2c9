//go:build linux

package search

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/kit"
)

// The namespaces of Kubernetes.
const (
	shop = "shop"
	bank = "bank"
)

// The accounts of the programs.
const (
	clusterAccount = "system:serviceaccount:kube-system:cluster-dns"
	nodeAccount    = "system:serviceaccount:kube-system:node-local-dns"
)

// service is a Service with one port. The endpoints of each family are in an EndpointSlice.
type service struct {
	namespace, name string
	ips             []string // cluster IPs; none for a headless one
	alias           string   // target of an ExternalName
	endpoints       []string
}

var services = []service{
	{namespace: shop, name: "dual", ips: []string{"10.96.1.1", "fd00:96::101"}},
	{namespace: shop, name: "web", ips: []string{"10.96.1.2"}},
	{namespace: bank, name: "web", ips: []string{"10.96.2.2"}},
	{namespace: shop, name: "sixth", ips: []string{"fd00:96::103"}},
	{namespace: shop, name: "db", endpoints: []string{"10.0.1.1", "10.0.1.2", "fd01:1::1"}},
	{namespace: bank, name: "vault", endpoints: []string{"10.0.2.1"}},
	{namespace: shop, name: "abroad", alias: "target-0." + outside},
	{namespace: shop, name: "inland", alias: "db.shop.svc.cluster.local."},
	{namespace: shop, name: "search", ips: []string{"10.96.1.8"}},
	{namespace: shop, name: "v1", ips: []string{"10.96.1.9"}},
}

// objects returns the service's objects of the API.
func (s service) objects() []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}
	types := runtimeType("v1", "Service")
	ports := []corev1.ServicePort{{Name: "main", Port: 80}}
	switch {
	case s.alias != "":
		return []runtime.Object{&corev1.Service{TypeMeta: types, ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: strings.TrimSuffix(s.alias, ".")}}}
	case len(s.ips) > 0:
		spec := corev1.ServiceSpec{Ports: ports, ClusterIP: s.ips[0], ClusterIPs: s.ips, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack)}
		if len(s.ips) > 1 {
			spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		}
		for _, ip := range s.ips {
			spec.IPFamilies = append(spec.IPFamilies, family(ip))
		}
		return []runtime.Object{&corev1.Service{TypeMeta: types, ObjectMeta: meta, Spec: spec}}
	}
	all := []runtime.Object{&corev1.Service{TypeMeta: types, ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: ports, ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}}}}
	slices := map[corev1.IPFamily]*discoveryv1.EndpointSlice{}
	for i, a := range s.endpoints {
		f := family(a)
		if slices[f] == nil {
			slices[f] = &discoveryv1.EndpointSlice{
				TypeMeta: runtimeType("discovery.k8s.io/v1", "EndpointSlice"),
				ObjectMeta: metav1.ObjectMeta{
					Namespace: s.namespace, Name: s.name + "-" + strings.ToLower(string(f)),
					Labels: map[string]string{discoveryv1.LabelServiceName: s.name},
				},
				AddressType: discoveryv1.AddressType(f),
				Ports:       []discoveryv1.EndpointPort{{Name: new("main"), Port: new(int32(80))}},
			}
			all = append(all, slices[f])
		}
		slices[f].Endpoints = append(slices[f].Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Hostname: new(fmt.Sprint("e", i)), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return all
}

func runtimeType(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func family(address string) corev1.IPFamily {
	if strings.Contains(address, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// podObject returns a pod of the API, with its node and addresses.
func podObject(p *pod, node string, options ...func(*corev1.Pod)) *corev1.Pod {
	o := &corev1.Pod{
		TypeMeta:   runtimeType("v1", "Pod"),
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name},
		Spec:       corev1.PodSpec{NodeName: node, DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.IPv4.String()},
	}
	for _, a := range p.addresses() {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	for _, set := range options {
		set(o)
	}
	return o
}

// searches adds suffixes by dnsConfig.
func searches(suffixes ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: suffixes} }
}

// policyNone sets the policy None with this search list.
func policyNone(suffixes ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.DNSPolicy = corev1.DNSNone
		p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{local}, Searches: suffixes, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("5")}}}
	}
}

// inHostNetwork sets the network of the node.
func inHostNetwork(p *corev1.Pod) {
	p.Spec.HostNetwork, p.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
}

// api creates objects in an API server.
type api struct{ kubernetes.Interface }

// fill creates the namespaces and the services.
func (c api) fill(t *testing.T) {
	t.Helper()
	for _, name := range []string{shop, bank} {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.CoreV1().Namespaces().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range services {
		for _, o := range s.objects() {
			var err error
			switch o := o.(type) {
			case *corev1.Service:
				_, err = c.CoreV1().Services(s.namespace).Create(t.Context(), o, metav1.CreateOptions{})
			case *discoveryv1.EndpointSlice:
				_, err = c.DiscoveryV1().EndpointSlices(s.namespace).Create(t.Context(), o, metav1.CreateOptions{})
			}
			kit.Must(t, err)
		}
	}
}

// put creates a pod, in the API with its node and status, or as a manifest.
func (w *world) put(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if w.plane == nil {
		w.writeManifest(t, p)
		return
	}
	w.create(t, p)
}

// create creates a pod with its status.
func (c api) create(t *testing.T, p *corev1.Pod) {
	t.Helper()
	made, err := c.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{})
	kit.Must(t, err)
	made.Status = p.Status
	if _, err := c.CoreV1().Pods(p.Namespace).UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// deletePod deletes a pod with a grace period, as kubectl does, or at once, as the kubelet does after its end.
func (c api) deletePod(t *testing.T, p *pod, atOnce bool) {
	t.Helper()
	grace := int64(30)
	if atOnce {
		grace = 0
	}
	kit.Must(t, c.CoreV1().Pods(p.namespace).Delete(t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

// setPhase sets the phase of a pod.
func (c api) setPhase(t *testing.T, p *pod, phase corev1.PodPhase) {
	t.Helper()
	o, err := c.CoreV1().Pods(p.namespace).Get(t.Context(), p.name, metav1.GetOptions{})
	kit.Must(t, err)
	o.Status.Phase = phase
	if _, err := c.CoreV1().Pods(p.namespace).UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// grant permits an account to list and watch resources.
func (c api) grant(t *testing.T, account string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	object := metav1.ObjectMeta{Name: account}
	for i := range rules {
		rules[i].Verbs = []string{"list", "watch"}
	}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: object, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: object,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: account}},
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
