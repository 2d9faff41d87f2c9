package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/kit"
)

func pointer[T any](v T) *T { return &v }

// fill creates the objects that the tests query, in the namespace shop.
func fill(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx, created := t.Context(), metav1.CreateOptions{}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, created); err != nil {
		t.Fatal(err)
	}
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: pointer(corev1.IPFamilyPolicyRequireDualStack),
			Ports:          []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	payments := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "payments"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "payments.example.com"},
	}
	for _, s := range []*corev1.Service{web, payments, headless("db")} {
		if _, err := client.CoreV1().Services("shop").Create(ctx, s, created); err != nil {
			t.Fatal(err)
		}
	}
	v4 := slice("db-v4", "db", "10.244.0.10", "10.244.1.10", "10.244.2.10")
	v4.Endpoints[0].Hostname, v4.Endpoints[1].Hostname, v4.Endpoints[2].Hostname = pointer("db-0"), pointer("db-1"), pointer("db-2")
	v4.Endpoints[2].Conditions.Ready = pointer(false)
	v6 := slice("db-v6", "db", "fd00:10:244::a")
	v6.AddressType = discoveryv1.AddressTypeIPv6
	v6.Endpoints[0].Hostname = pointer("db-0")
	for _, s := range []*discoveryv1.EndpointSlice{v4, v6} {
		if _, err := client.DiscoveryV1().EndpointSlices("shop").Create(ctx, s, created); err != nil {
			t.Fatal(err)
		}
	}
	createPod(t, client, "db-0", "10.244.0.10")
}

func headless(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Ports:     []corev1.ServicePort{{Name: "postgres", Port: 5432}},
		},
	}
}

func slice(name, service string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: pointer("postgres"), Port: pointer(int32(5432))}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func createPod(t *testing.T, client kubernetes.Interface, name, ip string) {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "db", Image: "db"}}},
	}
	p, err := client.CoreV1().Pods("shop").Create(t.Context(), p, metav1.CreateOptions{})
	kit.Must(t, err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	if _, err := client.CoreV1().Pods("shop").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func clusterIPs(t *testing.T, client kubernetes.Interface, name string) []string {
	t.Helper()
	return clusterIPsIn(t, client, "shop", name)
}

func clusterIPsIn(t *testing.T, client kubernetes.Interface, namespace, name string) []string {
	t.Helper()
	s, err := client.CoreV1().Services(namespace).Get(t.Context(), name, metav1.GetOptions{})
	kit.Must(t, err)
	return s.Spec.ClusterIPs
}
