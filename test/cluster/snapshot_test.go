//go:build linux

package cluster

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/kit"
)

// testSnapshot kills the processes of clusterdns while the API server hangs. The kubelet starts them again in their pods, where they
// answer from the snapshots in their volumes.
func (c *cluster) testSnapshot(t *testing.T) {
	pods, err := c.Client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: clusterdnsPods})
	kit.Must(t, err)
	client := c.pod(t, "client")
	c.wait(t, "a snapshot of each pod", startTimeout, func() error {
		found, err := c.try(t.Context(), "find", "/var/lib/kubelet/pods", "-path", "*~empty-dir/snapshot/records")
		if err == nil && len(strings.Fields(found)) != len(pods.Items) {
			err = fmt.Errorf("%q, want one for each of %d pods", found, len(pods.Items))
		}
		return err // also that of a folder which the kubelet has removed meanwhile
	})
	c.signal(t, "kube-apiserver", syscall.SIGSTOP)
	stopped := true
	resume := func() {
		if stopped {
			stopped = false
			c.signal(t, "kube-apiserver", syscall.SIGCONT)
		}
	}
	defer resume()
	old, err := c.servers(t)
	kit.Must(t, err)
	c.run(t, append([]string{"kill", "-KILL"}, old...)...)
	c.wait(t, "new processes", startTimeout, func() error {
		now, err := c.servers(t)
		if err == nil && (len(now) != len(old) || slices.ContainsFunc(now, func(pid string) bool { return slices.Contains(old, pid) })) {
			err = fmt.Errorf("processes %q, before %q", now, old)
		}
		return err
	})
	for _, p := range pods.Items {
		c.wait(t, "an answer of "+p.Name, startTimeout, func() error {
			got, err := client.request("GET", "/ask", url.Values{"name": {"web.shop.svc.cluster.local"}, "server": {p.Status.PodIP}})
			if err == nil && !strings.HasPrefix(got, "NOERROR\n") {
				err = fmt.Errorf("it answers %q", got)
			}
			return err
		})
	}
	resume()
	c.kubectl(t, "-n", "kube-system", "wait", "--for=condition=Ready", "--timeout=2m", "pod", "-l="+clusterdnsPods)
	for _, p := range pods.Items {
		if log := c.kubectl(t, "-n", "kube-system", "logs", p.Name); !strings.Contains(log, "answering from snapshot /var/lib/clusterdns/records") {
			t.Errorf("%s did not answer from its snapshot:\n%s", p.Name, log)
		}
	}
}

// servers returns the processes of clusterdns, without those of its probes.
func (c *cluster) servers(t *testing.T) (pids []string, err error) {
	t.Helper()
	out, err := c.try(t.Context(), "ps", "-C", "clusterdns", "-o", "pid=,args=")
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); slices.Contains(words, "-conf") {
			pids = append(pids, words[0])
		}
	}
	return pids, err
}
