package deploy

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// newKernelNode is newNode with an API server that has the pods of the node: with autopath, the kernel answers only pods whose
// search list is known.
func newKernelNode(t *testing.T, all objects) *node {
	t.Helper()
	n := newNode(t, all)
	for i, pod := range n.bed.Pod {
		name, addresses := fmt.Sprintf("client-%d", i), []corev1.PodIP{{IP: pod.IPv4.String()}, {IP: pod.IPv6.String()}}
		err := n.api.Put(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: "node-a"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addresses[0].IP, PodIPs: addresses},
		})
		kit.Must(t, err)
	}
	return n
}

// kernelMetrics returns the metrics of nodecache.
func (n *node) kernelMetrics(t *testing.T) daemon.Samples {
	t.Helper()
	return daemon.Scrape(t, n.bed.Node.Client(), n.bed.Node.IPv4.String()+":9253")
}

// awaitInterfaces waits until nodecache has examined all interfaces: each is in this state.
func (n *node) awaitInterfaces(t *testing.T, state string) {
	t.Helper()
	const interfaces = netns.Pods + 1 // those of the pods, and lo; not that of the default route, whose peer is in another namespace
	kit.Succeeds(t, deadline, "interfaces in state "+state, func() error {
		if got := n.kernelMetrics(t).Sum("nearside_kernel_interfaces", "state", state); got != interfaces {
			return fmt.Errorf("%g of %d", got, interfaces)
		}
		return nil
	})
}

// awaitKernel queries names of the cluster and others until the kernel answers them, at each address.
func (n *node) awaitKernel(t *testing.T) {
	t.Helper()
	for _, address := range n.addresses(t) {
		for name, want := range map[string]string{questionFor + "cluster.local.": ofCluster, "www.example.com.": ofResolver} {
			n.awaitKernelAnswer(t, address, name+" A", "A "+want)
		}
	}
}

func (n *node) awaitKernelAnswer(t *testing.T, address netip.Addr, question, want string) {
	t.Helper()
	before := n.kernelMetrics(t).Sum("nearside_kernel_answered_total")
	kit.Succeeds(t, deadline, fmt.Sprintf("%s from %s in the kernel", question, address), func() error {
		got, err := n.ask("udp", address, question)
		if err == nil && got != want {
			err = fmt.Errorf("got %s, want %s", got, want)
		}
		if err == nil && n.kernelMetrics(t).Sum("nearside_kernel_answered_total") == before {
			err = fmt.Errorf("the kernel has not answered")
		}
		return err
	})
}

// TestKernelAnswers runs nodecache on a node with the component kernel, by the capabilities of its container: the kernel answers
// queries of pods.
func TestKernelAnswers(t *testing.T) {
	for _, resources := range []string{"overlays/kube-proxy", "overlays/ipv6"} {
		t.Run(resources, func(t *testing.T) {
			n := newKernelNode(t, decoded(t, kustomize(t, mine(t, resources, "overlays/components/kernel"))))
			p := n.start(t)
			n.awaitService(t)
			n.awaitTraffic(t, p)
			n.awaitInterfaces(t, "attached")
			n.awaitKernel(t)
			n.awaitProbe(t, n.container.ReadinessProbe)
		})
	}
}

// TestKernelWithoutCapability runs nodecache with the option and without the capability, which is like an old seccomp profile, and
// like a pod that reads a new ConfigMap before it is replaced: the log has the reason once, and nodecache answers.
func TestKernelWithoutCapability(t *testing.T) {
	const reason = "The kernel answers no queries: load the program: "
	with := decoded(t, kustomize(t, mine(t, "overlays/kube-proxy", "overlays/components/kernel")))
	template := find[*corev1.ConfigMap](t, with, "ConfigMap nodecache").Data["Corefile.base"]
	verify := func(t *testing.T, n *node, p *netns.Process) {
		t.Helper()
		kit.Succeeds(t, deadline, "the reason", func() error {
			if got := strings.Count(p.Output(), reason); got != 1 {
				return fmt.Errorf("%d lines with the reason in\n%s", got, p.Output())
			}
			return nil
		})
		n.awaitService(t)
		n.awaitProbe(t, n.container.ReadinessProbe)
		all := n.kernelMetrics(t)
		if loaded, ok := all["nearside_kernel_loaded"]; !ok || loaded != 0 {
			t.Errorf("nearside_kernel_loaded is %v, %t", loaded, ok)
		}
		for name := range all {
			if strings.HasPrefix(name, "nearside_kernel_") && name != "nearside_kernel_loaded" {
				t.Errorf("there is %s", name)
			}
		}
	}
	t.Run("start", func(t *testing.T) {
		n := newKernelNode(t, decoded(t, kustomize(t, deployed+"/overlays/kube-proxy")))
		n.template = template
		p := n.start(t)
		n.awaitTraffic(t, p)
		verify(t, n, p)
	})
	t.Run("reload", func(t *testing.T) {
		n := newKernelNode(t, decoded(t, kustomize(t, deployed+"/overlays/kube-proxy")))
		p := n.start(t)
		n.awaitTraffic(t, p)
		n.template = template
		n.mount(t)
		p.Signal(t, syscall.SIGUSR1)
		verify(t, n, p)
	})
}

// TestKernelBesidePolicies runs nodecache on a node with chains of a policy engine: the kernel answers only with force.
func TestKernelBesidePolicies(t *testing.T) {
	netns.Require(t, "nft")
	for value, state := range map[string]string{"on": "policy", "force": "attached"} {
		t.Run(value, func(t *testing.T) {
			n := newKernelNode(t, decoded(t, templated(t, "nodecache: {kernel: "+value+"}")))
			n.bed.Node.Run(t, "nft", "add table ip filter; add chain ip filter cali-FORWARD")
			p := n.start(t)
			n.awaitService(t)
			n.awaitTraffic(t, p)
			n.awaitInterfaces(t, state)
			if value == "force" {
				n.awaitKernel(t)
				return
			}
			for range 20 {
				n.awaitService(t)
			}
			if got := n.kernelMetrics(t).Sum("nearside_kernel_answered_total"); got != 0 {
				t.Errorf("the kernel has answered %g queries", got)
			}
			if want := "No answers in the kernel: Calico"; !strings.Contains(p.Output(), want) {
				t.Errorf("no %q in\n%s", want, p.Output())
			}
		})
	}
}
