//go:build linux

package nodelocal

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/netns"
)

// nodeName is the name of kube-proxy's Node.
const nodeName = "node"

// newKubernetesNode makes a node with a real kube-proxy in a mode, and waits until pods reach cluster DNS at the cluster
// IPs of kube-dns and of kube-dns-upstream.
func newKubernetesNode(t *testing.T, mode string) *node {
	t.Helper()
	proxy := controlplane.RequireBinary(t, "kube-proxy")
	n := newNode(t)
	plane := controlplane.Start(t)
	makeObjects(t, plane.Client(), n.Bed)
	n.Node.Forward(t, strings.TrimPrefix(plane.URL(), "https://"))
	n.Node.Start(t, proxy,
		"--kubeconfig="+plane.Kubeconfig(),
		"--hostname-override="+nodeName,
		"--proxy-mode="+mode,
		"--cluster-cidr="+netns.PodCIDRs,
		// These parameters of the kernel cannot be set in a network namespace.
		"--conntrack-max-per-core=0", "--conntrack-min=0",
		"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
	)
	for _, a := range []netip.Addr{kubeDNS4, kubeDNS6, upstream4, upstream6} {
		n.waitAnswer(t, startTimeout, a, "upstream")
	}
	return n
}

// makeObjects makes the Node, and two Services whose endpoint is cluster DNS: as no controllers run,
// its EndpointSlices are made here too.
func makeObjects(t *testing.T, client kubernetes.Interface, bed *netns.Bed) {
	t.Helper()
	ctx := t.Context()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	made, err := client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	kit.Must(t, err)
	for _, a := range []netip.Addr{bed.Node.IPv4, bed.Node.IPv6} {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	makeService(ctx, t, client, bed, "kube-dns", kubeDNS4, kubeDNS6)
	makeService(ctx, t, client, bed, "kube-dns-upstream", upstream4, upstream6)
}

// makeService makes a dual-stack Service for DNS with the endpoints of cluster DNS.
func makeService(ctx context.Context, t *testing.T, client kubernetes.Interface, bed *netns.Bed, name string, v4, v6 netip.Addr) {
	t.Helper()
	dualStack := corev1.IPFamilyPolicyRequireDualStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: v4.String(), ClusterIPs: []string{v4.String(), v6.String()},
			IPFamilyPolicy: &dualStack,
			Ports: []corev1.ServicePort{
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
				{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
			},
		},
	}
	if _, err := client.CoreV1().Services(metav1.NamespaceSystem).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{bed.Upstream.IPv4, bed.Upstream.IPv6} {
		if _, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Create(ctx, slice(name, a), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// slice is an EndpointSlice of a Service with one ready endpoint.
func slice(service string, endpoint netip.Addr) *discoveryv1.EndpointSlice {
	family, suffix := discoveryv1.AddressTypeIPv4, "-4"
	if endpoint.Is6() {
		family, suffix = discoveryv1.AddressTypeIPv6, "-6"
	}
	port, udp, tcp := int32(53), corev1.ProtocolUDP, corev1.ProtocolTCP
	dns, dnsTCP, ready := "dns", "dns-tcp", true
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + suffix, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{endpoint.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports: []discoveryv1.EndpointPort{
			{Name: &dns, Port: &port, Protocol: &udp},
			{Name: &dnsTCP, Port: &port, Protocol: &tcp},
		},
	}
}
