//go:build linux

package cluster

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// nodecacheLabel is the label of the nodes on which the overlays labelled-nodes and labelled-nodes-ipvs start nodecache.
const nodecacheLabel = "nearside.dev/nodecache"

// localAddress is the address of nodecache that no Service has.
const localAddress = "169.254.20.10"

// besideLoads are sent while nodecache is added to a cluster that has DNS, and removed. When the address of the Service
// becomes one of the node, and when it no longer is, a connection in progress may be reset: clients open another one.
var besideLoads = []load{
	{"cluster name, UDP", "name=web.shop.svc.cluster.local", 0},
	{"new cluster names, UDP", "type=AAAA&name=fd00--1-#.shop.pod.cluster.local", 0},
	{"new external names, UDP", "name=n#." + anyName, 0},
	{"new cluster names, TCP", "type=AAAA&name=fd00--2-#.shop.pod.cluster.local&network=tcp", 0.01},
	{"new external names, TCP", "name=t#." + anyName + "&network=tcp", 0.01},
}

// testLabelledNodes follows the README in a cluster that has DNS: it applies the overlay, labels the node, and deletes the
// overlay. Pods that started before, between and after always have DNS.
func (c *cluster) testLabelledNodes(t *testing.T) {
	overlay := overlay("labelled-nodes")(t, c)
	services := c.kubectl(t, "get", "services", "-A", "-o=name")
	c.during(t, besideLoads, func() {
		c.kubectl(t, append([]string{"apply"}, overlay...)...)
		c.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/nodecache", "--timeout=1m")
		if pods := c.podsOf(t, nodecachePods); len(pods) > 0 {
			t.Errorf("on a node without the label: %q", pods)
		}
		c.kubectl(t, "label", "node", c.name, nodecacheLabel+"=true")
		c.waitNodecache(t)
		before := c.requests(t)
		c.startPods(t, clusterDNS, "between")
		c.wantAnswers(t, "client", "host-client", "between")
		if c.requests(t) == before {
			t.Error("nodecache receives no queries")
		}
		c.deleteNodecache(t, overlay)
		c.startPods(t, clusterDNS, "after")
		c.wantAnswers(t, "client", "host-client", "between", "after")
	})
	if left := c.kubectl(t, "get", "services", "-A", "-o=name"); left != services {
		t.Errorf("Services\n%s\nbefore\n%s", left, services)
	}
	c.kubectl(t, "-n", shop, "delete", "pod", "between", "after", "--timeout=1m")
}

// testWayBackFromLocalAddress follows the way back of clusters whose pods query nodecache at 169.254.20.10, as with
// kube-proxy in IPVS mode: the configuration of the kubelet, then the pods, then nodecache. The kernel of the tests may lack
// IPVS, and kube-proxy is in nftables mode: the order depends on the address, which running pods keep, and not on the mode.
// The node has the label.
func (c *cluster) testWayBackFromLocalAddress(t *testing.T) {
	overlay := overlay("labelled-nodes-ipvs")(t, c)
	c.kubectl(t, append([]string{"apply"}, overlay...)...)
	c.waitNodecache(t)
	c.setClusterDNS(t, localAddress)
	c.startPods(t, localAddress, "restarted", "forgotten")
	c.wantAnswers(t, "client", "restarted", "forgotten")
	c.setClusterDNS(t, clusterDNS)
	c.wantAnswers(t, "client", "restarted", "forgotten")
	c.kubectl(t, "-n", shop, "delete", "pod", "restarted", "--timeout=1m")
	c.startPods(t, clusterDNS, "restarted")
	c.wantAnswers(t, "client", "restarted", "forgotten")
	c.deleteNodecache(t, overlay)
	c.wantAnswers(t, "client", "restarted")
	// The control, and the reason for the order.
	forgotten := c.pod(t, "forgotten")
	forgotten.client.Timeout = 2 * time.Second
	if text, err := forgotten.ask("udp"); err == nil {
		t.Errorf("a pod that was not restarted is still answered: %s", text)
	}
	c.kubectl(t, "-n", shop, "delete", "pod", "restarted", "forgotten", "--timeout=1m")
}

// waitNodecache waits until nodecache is ready on the node.
func (c *cluster) waitNodecache(t *testing.T) {
	t.Helper()
	c.wait(t, "a pod of nodecache", startTimeout, func() error {
		if len(c.podsOf(t, nodecachePods)) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
	c.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/nodecache", "--timeout=3m")
}

// deleteNodecache deletes an overlay, as a user does.
func (c *cluster) deleteNodecache(t *testing.T, overlay []string) {
	t.Helper()
	old := c.podsOf(t, nodecachePods)
	c.kubectl(t, append([]string{"delete", "--wait", "--timeout=2m"}, overlay...)...)
	c.waitGone(t, nodecachePods, old)
}

// startPods starts pods and checks the server in their resolv.conf.
func (c *cluster) startPods(t *testing.T, server string, names ...string) {
	t.Helper()
	var manifests []string
	for _, name := range names {
		manifests = append(manifests, strings.Replace(firstPod, "name: first", "name: "+name, 1))
	}
	c.apply(t, names[0]+".yaml", strings.Join(manifests, "---\n"))
	for _, name := range names {
		c.kubectl(t, "-n", shop, "wait", "--for=condition=Ready", "pod", name, "--timeout=2m")
		c.wait(t, "the program in pod "+name, startTimeout, func() error {
			text, err := c.pod(t, name).request("GET", "/resolv.conf", nil)
			if err == nil && !strings.Contains(text, "nameserver "+server+"\n") {
				t.Fatalf("resolv.conf of pod %s is %q, want server %s", name, text, server)
			}
			return err
		})
	}
}

// wantAnswers checks that pods are answered by the server in their resolv.conf.
func (c *cluster) wantAnswers(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		for _, network := range []string{"udp", "tcp"} {
			if text, err := c.pod(t, name).ask(network); err != nil || !strings.HasPrefix(text, "NOERROR") {
				t.Errorf("pod %s over %s: %s, %v", name, network, text, err)
			}
		}
	}
}

// ask has the pod send a query to the server in its resolv.conf.
func (p *pod) ask(network string) (string, error) {
	return p.request("GET", "/ask", url.Values{"name": {"web.shop.svc.cluster.local"}, "network": {network}})
}

// setClusterDNS restarts the kubelet with another address for the resolv.conf of the pods that start from then on.
func (c *cluster) setClusterDNS(t *testing.T, address string) {
	t.Helper()
	path := filepath.Join(c.folder, "kubelet.yaml")
	var lines []string
	for line := range strings.Lines(kit.Read(t, path)) {
		if strings.HasPrefix(line, "clusterDNS: ") {
			line = "clusterDNS: [" + address + "]\n"
		}
		lines = append(lines, line)
	}
	kit.Must(t, os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600))
	i := slices.IndexFunc(c.programs, func(p *program) bool { return p.name == "kubelet" })
	c.signal(t, "kubelet", syscall.SIGTERM)
	select {
	case <-c.programs[i].ended:
	case <-time.After(cleanupTimeout):
		t.Fatal("the kubelet does not end")
	}
	c.programs = slices.Delete(c.programs, i, i+1)
	c.startKubelet(t)
}
