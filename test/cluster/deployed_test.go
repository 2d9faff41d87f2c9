//go:build linux

package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "embed"

	"github.com/nearside-dns/nearside/test/kit"
)

// root is the folder of the module.
const root = "../.."

// tag is the image tag in the kustomize bases.
const tag = "dev"

// Selectors of the pods of both programs.
const (
	nodecachePods  = "app.kubernetes.io/name=nodecache"
	clusterdnsPods = "app.kubernetes.io/name=clusterdns"
)

var (
	//go:embed testdata/workloads.yaml
	workloads string
	//go:embed testdata/kube-dns.yaml
	kubeDNS string
)

// way is one way to install nearside.
type way struct {
	name string
	// service is the Service that the cluster has before.
	service string
	// files are the arguments of kubectl apply: "-k FOLDER" or "-f FILE".
	files func(t *testing.T, c *cluster) []string
	// before prepares the node before the installation.
	before func(t *testing.T, c *cluster)
	// direct is set if nodecache does not take over the address of that Service, which pods have in resolv.conf.
	direct bool
	// more are tests of this way only.
	more func(t *testing.T, c *cluster)
}

var ways = []way{
	{name: "kustomize", service: kubeDNS, files: overlay("kube-proxy"), more: func(t *testing.T, c *cluster) {
		t.Run("resolv.conf of the node", func(t *testing.T) { c.testResolvConf(t) })
		t.Run("confined", func(t *testing.T) { c.testConfined(t) })
		t.Run("doctor", func(t *testing.T) { c.testDoctor(t) })
		t.Run("update of the DaemonSet", func(t *testing.T) { c.testUpdate(t, "daemonset/nodecache", nodecachePods) })
		t.Run("update of the Deployment", func(t *testing.T) { c.testUpdate(t, "deployment/clusterdns", clusterdnsPods) })
		t.Run("nodecache killed", func(t *testing.T) { c.testKilled(t) })
		t.Run("clusterdns killed while the API server hangs", func(t *testing.T) { c.testSnapshot(t) })
	}},
	{name: "helm", service: kubeDNS, files: chart, more: func(t *testing.T, c *cluster) {
		t.Run("resolv.conf of the node", func(t *testing.T) { c.testResolvConf(t) })
	}},
	{name: "dual-stack", service: dualStack(kubeDNS), files: overlay("dual-stack"), more: func(t *testing.T, c *cluster) {
		_, address := c.serviceAddresses(t, "kube-system", "kube-dns")
		t.Run("over IPv6", func(t *testing.T) { c.testAddress(t, address) })
	}},
	// With kube-proxy in nftables mode, as here: the kernel may lack IPVS.
	{name: "ipvs", service: kubeDNS, files: overlay("ipvs"), direct: true, more: func(t *testing.T, c *cluster) {
		t.Run("local address", func(t *testing.T) { c.testAddress(t, "169.254.20.10") })
	}},
	{name: "kernel", service: kubeDNS, files: component("kernel"), more: func(t *testing.T, c *cluster) {
		t.Run("answers in the kernel", func(t *testing.T) { c.testKernel(t) })
		t.Run("doctor", func(t *testing.T) { c.testDoctor(t) })
		t.Run("update of the DaemonSet", func(t *testing.T) { c.testUpdate(t, "daemonset/nodecache", nodecachePods) })
	}},
	{name: "startup-taint", service: kubeDNS, files: component("startup-taint"), before: func(t *testing.T, c *cluster) { c.taintNode(t) },
		more: func(t *testing.T, c *cluster) {
			t.Run("the first pod of the node", func(t *testing.T) { c.testFirstPod(t) })
			t.Run("taint of a node that runs", func(t *testing.T) { c.testTaintLater(t) })
		}},
}

// dualStack gives the Service an address of each family.
func dualStack(service string) string {
	const address = "clusterIP: " + clusterDNS + "\n"
	return strings.Replace(service, address, address+"  clusterIPs: ["+clusterDNS+", \"fd00:96::a\"]\n  ipFamilyPolicy: RequireDualStack\n", 1)
}

// overlay is a folder of deploy/overlays.
func overlay(name string) func(*testing.T, *cluster) []string {
	return func(t *testing.T, _ *cluster) []string {
		folder, err := filepath.Abs(filepath.Join(root, "deploy/overlays", name))
		kit.Must(t, err)
		return []string{"-k", folder}
	}
}

// chart is the output of helm for deploy/helm.
func chart(t *testing.T, c *cluster) []string {
	t.Helper()
	out, err := exec.Command(c.binaries["helm"], "template", "nearside", filepath.Join(root, "deploy/helm/nearside"), "--namespace=kube-system",
		"--set=proxyMode=nftables", "--set=clusterdns.image.tag="+tag, "--set=nodecache.image.tag="+tag).Output()
	if err != nil {
		t.Fatalf("helm template: %v", err)
	}
	path := filepath.Join(c.folder, "helm.yaml")
	kit.Write(t, path, string(out))
	return []string{"-f", path}
}

// apply applies a manifest.
func (c *cluster) apply(t *testing.T, name, manifest string) {
	t.Helper()
	path := filepath.Join(c.folder, name)
	kit.Write(t, path, manifest)
	c.kubectl(t, "apply", "-f", path)
}

// importImages builds the images as "make image" does, and imports them into containerd.
func (c *cluster) importImages(t *testing.T) {
	t.Helper()
	folder := filepath.Join(c.folder, "images")
	kit.Output(t, exec.Command("make", "-C", root, "image", "VERSION="+tag, "IMAGES="+folder))
	for _, name := range []string{"clusterdns", "nodecache"} {
		c.importImage(t, filepath.Join(folder, name+".tar"))
	}
}

func TestDeployed(t *testing.T) {
	c := newCluster(t)
	c.startUpstream(t)
	c.importImages(t)
	c.startWorkloads(t)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) { c.testWay(t, w) })
	}
	t.Run("from CoreDNS and back", func(t *testing.T) { c.testMigration(t) })
}

// testWay installs nearside, tests it, removes it, and compares the node with its state before.
func (c *cluster) testWay(t *testing.T, w way) {
	t.Cleanup(func() {
		if t.Failed() {
			c.showPods(t)
		}
	})
	before := c.state(t)
	c.apply(t, "kube-dns.yaml", w.service)
	if w.before != nil {
		w.before(t, c)
	}
	files := w.files(t, c)
	c.kubectl(t, append([]string{"apply"}, files...)...)
	for _, what := range []string{"daemonset/nodecache", "deployment/clusterdns"} {
		c.kubectl(t, "-n", "kube-system", "rollout", "status", what, "--timeout=3m")
	}
	c.waitAnswers(t)
	t.Run("in a pod", func(t *testing.T) { c.testAnswers(t, "client", !w.direct) })
	t.Run("in the network of the node", func(t *testing.T) { c.testAnswers(t, "host-client", !w.direct) })
	if w.more != nil {
		w.more(t, c)
	}
	c.kubectl(t, append([]string{"delete", "--wait", "--timeout=2m"}, files...)...)
	c.waitNothingLeft(t, before)
}

// waitNothingLeft waits until the cluster has no objects of nearside, and the node is in its state before.
func (c *cluster) waitNothingLeft(t *testing.T, before state) {
	t.Helper()
	c.wait(t, "nothing left on the node", cleanupTimeout, func() error {
		if left := c.kubectl(t, "get", "all,configmaps,serviceaccounts,clusterroles,clusterrolebindings,poddisruptionbudgets,validatingadmissionpolicies,validatingadmissionpolicybindings",
			"-A", "-o=name", "-l=app.kubernetes.io/part-of=nearside"); left != "" {
			return fmt.Errorf("objects: %s", left)
		}
		return same(before, c.state(t))
	})
}

// state is the network state of a node: the sorted output of commands, by command.
type state map[string][]string

// state reads everything that a program of nearside could leave on the node: interfaces, addresses, routes, rules,
// tables, listeners, processes and files of /run. The node's own programs start others, such as kube-proxy's nft, at any
// time.
func (c *cluster) state(t *testing.T) state {
	t.Helper()
	now := state{}
	for _, look := range []struct {
		show  string
		lines func(output string) []string
	}{
		{"ip -brief address", allLines}, {"ip rule", allLines}, {"ip -6 rule", allLines},
		{"ip route show table all", allLines}, {"ip -6 route show table all", allLines},
		{"nft list tables", allLines}, {"cat /proc/net/ip_tables_names", allLines}, {"cat /proc/net/ip6_tables_names", allLines},
		{"ss -Hlntu", listeners}, {"ls /run", allLines}, {"ps -e ww -o comm=,cgroup=", processes},
	} {
		output, err := c.try(t.Context(), strings.Fields(look.show)...)
		if err != nil && !strings.HasPrefix(look.show, "cat ") { // a kernel may have no tables of iptables
			t.Fatal(err)
		}
		if err == nil {
			lines := look.lines(output)
			slices.Sort(lines)
			now[look.show] = lines
		}
	}
	return now
}

func allLines(output string) []string { return strings.Split(output, "\n") }

// listeners returns protocol and address of each line of ss. The queue of a socket differs from time to time.
func listeners(ss string) (all []string) {
	for line := range strings.Lines(ss) {
		if words := strings.Fields(line); len(words) > 4 {
			all = append(all, words[0]+" "+words[4])
		}
	}
	return all
}

// processes returns the names of the processes of ps that are in pods or are those of nearside.
func processes(ps string) (all []string) {
	for line := range strings.Lines(ps) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		name, cgroup := words[0], words[len(words)-1]
		if name == "nodecache" || name == "clusterdns" || strings.Contains(cgroup, "kubepods") {
			all = append(all, name)
		}
	}
	return all
}

// mountPoints are created by the kubelet in /run for manifests that mount them, if the node does not have them: the lock
// file of iptables, and the folder of systemd-resolved.
var mountPoints = []string{"xtables.lock", "systemd"}

// same returns an error with the differences of two states.
func same(before, after state) error {
	var differences []string
	for show, lines := range after {
		for _, line := range lines {
			if !slices.Contains(before[show], line) && !slices.Contains(mountPoints, line) {
				differences = append(differences, show+" has now "+line)
			}
		}
		for _, line := range before[show] {
			if !slices.Contains(lines, line) {
				differences = append(differences, show+" has no longer "+line)
			}
		}
	}
	if len(differences) > 0 {
		return fmt.Errorf("%s", strings.Join(differences, "\n"))
	}
	return nil
}

// TestStateChanges has changes that the node's own programs make between two states, and leftovers of nearside.
func TestStateChanges(t *testing.T) {
	const (
		node = "systemd         0::/init.scope\nkubelet         0::/system.slice/kubelet.service\nkube-proxy      0::/nearside/node\n" +
			"pause           0::/kubepods/besteffort/pod1/2\nclient           0::/kubepods/besteffort/pod1/3\n"
		nft       = "nft             0::/nearside/node\n"
		left      = "iptables        0::/kubepods/burstable/pod4/5\n"
		nodecache = "nodecache       0::/nearside/node\n"
		sockets   = "tcp LISTEN 0 4096 127.0.0.1:10248 0.0.0.0:*\nudp UNCONN 0 0 10.2.0.1:53 0.0.0.0:*\n"
	)
	for _, tc := range []struct {
		name, before, after string
		lines               func(string) []string
		same                bool
	}{
		{"nft of kube-proxy, before", node + nft, node, processes, true},
		{"nft of kube-proxy, after", node, node + nft, processes, true},
		{"nodecache", node, node + nodecache, processes, false},
		{"a program that nodecache started", node, node + left, processes, false},
		{"a connection that waits", sockets, strings.Replace(sockets, "LISTEN 0", "LISTEN 3", 1), listeners, true},
		{"a listener", sockets, sockets + "tcp LISTEN 0 4096 10.2.0.1:53 0.0.0.0:*\n", listeners, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := same(state{"x": tc.lines(tc.before)}, state{"x": tc.lines(tc.after)}); (err == nil) != tc.same {
				t.Errorf("difference %v", err)
			}
		})
	}
}

func TestStateDifference(t *testing.T) {
	before := state{"ip": {"lo", "eth0"}, "ls": {"containerd"}}
	for _, c := range []struct {
		name  string
		after state
		want  string
	}{
		{"the same", state{"ip": {"eth0", "lo"}, "ls": {"containerd", "systemd", "xtables.lock"}}, ""},
		{"an interface more", state{"ip": {"eth0", "lo", "nodelocaldns"}, "ls": {"containerd"}}, "ip has now nodelocaldns"},
		{"one less", state{"ip": {"lo"}, "ls": {"containerd"}}, "ip has no longer eth0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := same(before, c.after); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// requests returns the number of queries that nodecache has counted.
func (c *cluster) requests(t *testing.T) float64 {
	t.Helper()
	return c.metric(t, "coredns_dns_requests_total")
}

// showPods logs the state of the cluster's pods, and their logs.
func (c *cluster) showPods(t *testing.T) {
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A"},
		{"-n", "kube-system", "logs", "-l", nodecachePods, "--prefix", "--tail=60"},
		{"-n", "kube-system", "logs", "-l", clusterdnsPods, "--prefix", "--tail=60"},
	} {
		out, err := c.try(context.Background(), append([]string{c.binaries["kubectl"], "--kubeconfig=" + c.keys.path("admin.kubeconfig")}, args...)...)
		if err != nil {
			t.Log(err)
			continue
		}
		t.Logf("kubectl %s:\n%s", strings.Join(args, " "), out)
	}
}
