package apiserver

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// ofNode are the options of a source of the pods of one node.
var ofNode = source.Options{Pods: true, PodsOnly: true, SearchPaths: true, Node: "node-1"}

// podOn returns a pod that runs on a node.
func podOn(node, name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodRunning
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		p.Status.PodIP = ips[0]
	}
	return p
}

// deleted returns a pod that is being deleted.
func deleted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(30 * time.Second)}
	return p
}

// podsText returns the pods that have an address, and marks those that are ending.
func podsText(ix *index.Index, ip string) (text string) {
	for _, p := range ix.PodsByIP(netip.MustParseAddr(ip)) {
		text += " " + p.Name
		if p.Ending {
			text += " ending"
		}
	}
	return text
}

// nodePods is a source of the pods of a node.
type nodePods struct {
	t   *testing.T
	api *kubeapi.Server
	*Source
	ix *index.Index
	n  int
}

func startPods(t *testing.T, pods ...*corev1.Pod) *nodePods {
	n := &nodePods{t: t, api: kubeapi.New(t)}
	for _, p := range pods {
		n.api.Put(p)
	}
	n.Source, n.ix = run(t, n.api, ofNode, nil)
	kit.Eventually(t, "synced", func() bool { return synced(n.Source) })
	return n
}

// settle waits until the index has all earlier changes, by two more pods. The first may be part of a list, whose deletions
// follow its objects; the second is created later, so that its event follows the list.
func (n *nodePods) settle() {
	n.t.Helper()
	for range 2 {
		n.n++
		ip := netip.AddrFrom4([4]byte{10, 9, byte(n.n >> 8), byte(n.n)}).String()
		n.api.Put(podOn("node-1", fmt.Sprintf("last-%d", n.n), ip))
		kit.Eventually(n.t, "the last event", func() bool { return podsText(n.ix, ip) != "" })
	}
}

// want compares the pods of each address.
func (n *nodePods) want(step string, all map[string]string) {
	n.t.Helper()
	for ip, want := range all {
		if got := podsText(n.ix, ip); got != want {
			n.t.Errorf("%s: %s has %q, want %q", step, ip, got, want)
		}
	}
}

func TestPodsOfNode(t *testing.T) {
	n := startPods(t, podOn("node-1", "here", "10.1.0.1", "fd00::1"), podOn("node-2", "there", "10.1.0.2"), podOn("", "nowhere", "10.1.0.3"))
	n.api.Put(namespace("shop"), service("web", "10.96.0.1", nil))
	n.settle()
	n.want("first", map[string]string{"10.1.0.1": " here", "fd00::1": " here", "10.1.0.2": "", "10.1.0.3": ""})
	if n.ix.HasNamespace("shop") || n.ix.Service("shop", "web") != nil {
		t.Error("more than pods was read")
	}
	if all := n.Status(); len(all) != 1 || all[0].Resource != source.Pods {
		t.Errorf("status %+v", all)
	}
}

// TestPodsPassAddresses tests the ways in which an address passes from one pod to another.
func TestPodsPassAddresses(t *testing.T) {
	const ip, other, six = "10.1.0.1", "10.1.0.2", "fd00::1"
	a := podOn("node-1", "a", ip, six)
	for name, steps := range map[string][]struct {
		do   func(n *nodePods)
		want map[string]string
	}{
		"deleted in time": {
			{func(n *nodePods) { n.api.Put(deleted(a)) }, map[string]string{ip: " a ending", six: " a ending"}},
			{func(n *nodePods) { n.api.Put(podOn("node-1", "b", ip)) }, map[string]string{ip: " a ending b", six: " a ending"}},
			{func(n *nodePods) { n.api.Delete(a) }, map[string]string{ip: " b", six: ""}},
		},
		"deleted, and its status loses the address": {
			{func(n *nodePods) { n.api.Put(deleted(podOn("node-1", "a"))) }, map[string]string{ip: " a ending"}},
		},
		"deleted at once": {
			{func(n *nodePods) { n.api.Delete(a) }, map[string]string{ip: "", six: ""}},
		},
		"ended by itself": {
			{func(n *nodePods) {
				p := a.DeepCopy()
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
				n.api.Put(p)
			}, map[string]string{ip: " a ending", six: " a ending"}},
			{func(n *nodePods) {
				p := a.DeepCopy()
				p.Status.Phase = corev1.PodSucceeded
				n.api.Put(p)
			}, map[string]string{ip: "", six: ""}},
		},
		"another sandbox": {
			{func(n *nodePods) { n.api.Put(podOn("node-1", "a")) }, map[string]string{ip: "", six: ""}},
			{func(n *nodePods) { n.api.Put(podOn("node-1", "b", ip), podOn("node-1", "a", other, six)) }, map[string]string{ip: " b", other: " a", six: " a"}},
		},
		"by another order of events": {
			{func(n *nodePods) { n.api.Put(podOn("node-1", "b", ip)) }, map[string]string{ip: " a b"}},
			{func(n *nodePods) { n.api.Delete(a) }, map[string]string{ip: " b"}},
		},
		"made anew with the same name": {
			{func(n *nodePods) { n.api.Delete(a); n.api.Put(podOn("node-1", "a", other)) }, map[string]string{ip: "", six: "", other: " a"}},
		},
		"while the API server is away": {
			{func(n *nodePods) {
				n.api.Refuse(true)
				n.api.DropWatches("pods")
				n.api.Delete(a)
				n.api.Put(podOn("node-1", "b", ip), podOn("node-2", "c", six))
				n.api.Expire()
				n.want("away", map[string]string{ip: " a", six: " a"})
				n.api.Refuse(false)
			}, map[string]string{ip: " b", six: ""}},
		},
		"deleted while the API server is away": {
			{func(n *nodePods) {
				n.api.Refuse(true)
				n.api.DropWatches("pods")
				n.api.Put(deleted(a), deleted(podOn("node-1", "b", other)))
				n.api.Expire()
				n.api.Refuse(false)
			}, map[string]string{ip: " a ending", other: ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := startPods(t, a)
			n.want("first", map[string]string{ip: " a", six: " a"})
			for i, step := range steps {
				step.do(n)
				n.settle()
				n.want(fmt.Sprintf("step %d", i+1), step.want)
			}
		})
	}
}

// TestPodsForbidden: without the permission to read pods, the consequence and the error of the server are logged once.
func TestPodsForbidden(t *testing.T) {
	log := kit.Logged(t)
	api := kubeapi.New(t)
	api.Forbid(kubeapi.Pods, true)
	api.Put(podOn("node-1", "a", "10.1.0.1"))
	asked := func() (n int) {
		for _, times := range api.Requests() {
			n += times
		}
		return n
	}
	s, err := New(Connection{Endpoint: api.URL(), QPS: 1000, Burst: 1000}, ofNode)
	kit.Must(t, err)
	s.pace.retry, s.pace.maxRefused = 50*time.Millisecond, 100*time.Millisecond // the running watchdog logs after 10 s, too
	ix := runSource(t, s)
	r, state := theResource(s, source.Pods), new(watching)
	kit.Eventually(t, "several attempts", func() bool { return asked() > 4 })
	r.health.mu.Lock()
	r.health.closed = r.health.closed.Add(-lostAfter) // long without a watch
	r.health.mu.Unlock()
	for range 3 {
		r.check(t.Context(), state)
	}
	if got := log.Lines("[WARNING]", "pods: no watch on the API server", "no search path is expanded until they have been read", `resource "pods"`); len(got) != 1 {
		t.Errorf("logged %q, want one line", got)
	}
	if got := log.Lines("[ERROR]", "client-go", "Failed to watch"); len(got) != 1 {
		t.Errorf("logged %q, want one line", got)
	}
	if st := status(s, source.Pods); st.Synced || st.Resource != source.Pods {
		t.Errorf("status %+v", st)
	}
	api.Forbid(kubeapi.Pods, false)
	kit.Eventually(t, "the pod, once it may be read", func() bool { return podsText(ix, "10.1.0.1") == " a" })
}
