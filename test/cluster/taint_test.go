//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startupTaint is the taint of the component startup-taint. The pods that run already stay with the effect NoSchedule.
const startupTaint = "nearside.dev/nodecache-not-ready"

// firstPod is a pod that may run only once nodecache has removed the taint.
const firstPod = `apiVersion: v1
kind: Pod
metadata:
  name: first
  namespace: shop
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: nearside.test/client:test
    imagePullPolicy: Never
    args: [serve]
`

// taintNode adds the taint, as the kubelet of a new node does with --register-with-taints, and creates a pod, which has to wait.
func (c *cluster) taintNode(t *testing.T) {
	t.Helper()
	c.kubectl(t, "taint", "node", nodeName, startupTaint+"=:NoSchedule")
	t.Cleanup(func() { c.removeTaint(t) })
	c.apply(t, "first.yaml", firstPod)
	c.wait(t, "the first pod waits for a node", startTimeout, func() error {
		pod, err := c.Client.CoreV1().Pods(shop).Get(t.Context(), "first", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", pod.Status.Conditions)
	})
}

// removeTaint removes the taint and the first pod after a failure. It has no context of the test, which ends before the cleanup.
func (c *cluster) removeTaint(t *testing.T) {
	kubectl := []string{c.binaries["kubectl"], "--kubeconfig=" + c.keys.path("admin.kubeconfig")}
	if keys, err := c.try(context.Background(), append(kubectl, "get", "node", nodeName, "-o=jsonpath={.spec.taints[*].key}")...); err != nil || !strings.Contains(keys, startupTaint) {
		return
	}
	t.Error("the taint is left")
	for _, args := range [][]string{{"taint", "node", nodeName, startupTaint + "-"}, {"-n", shop, "delete", "pod", "first", "--ignore-not-found", "--timeout=1m"}} {
		if _, err := c.try(context.Background(), slices.Concat(kubectl, args)...); err != nil {
			t.Error(err)
		}
	}
}

// testFirstPod waits for the pod of taintNode. Its first queries, over UDP and TCP, are answered by nodecache.
func (c *cluster) testFirstPod(t *testing.T) {
	c.kubectl(t, "-n", shop, "wait", "--for=condition=Ready", "pod", "first", "--timeout=2m")
	log := c.kubectl(t, "-n", "kube-system", "logs", "-l", nodecachePods, "--tail=-1")
	if !strings.Contains(log, "Taint "+startupTaint+" removed from node "+nodeName) {
		t.Errorf("nodecache logs\n%s", log)
	}
	before := c.requests(t)
	for _, network := range []string{"udp", "tcp"} {
		var text string
		var failed error
		c.wait(t, "the program in the first pod", startTimeout, func() error {
			text, failed = c.pod(t, "first").request("GET", "/ask", url.Values{"name": {"web.shop.svc.cluster.local"}, "network": {network}})
			if errors.Is(failed, syscall.ECONNREFUSED) {
				return failed
			}
			return nil // a query without an answer is an error of the program, and not repeated
		})
		if failed != nil || !strings.HasPrefix(text, "NOERROR") {
			t.Errorf("over %s: %s, %v", network, text, failed)
		}
	}
	if c.requests(t) <= before {
		t.Error("nodecache has not answered")
	}
	c.kubectl(t, "-n", shop, "delete", "pod", "first", "--timeout=1m")
}

// testTaintLater adds the taint to the node while nodecache runs: the next pod of nodecache removes it, if this one has not.
func (c *cluster) testTaintLater(t *testing.T) {
	c.kubectl(t, "taint", "node", nodeName, startupTaint+"=:NoSchedule")
	c.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/nodecache") // which reads the Node after up to five minutes
	c.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/nodecache", "--timeout=3m")
	c.wait(t, "the taint is removed again", startTimeout, func() error {
		if keys := c.kubectl(t, "get", "node", nodeName, "-o=jsonpath={.spec.taints[*].key}"); strings.Contains(keys, startupTaint) {
			return fmt.Errorf("taints %s", keys)
		}
		return nil
	})
}
