//go:build linux

package multicluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/config/crd"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

const (
	// resultsVariable is the environment variable with the path of the page that the test writes; all configurations run then.
	resultsVariable = "NEARSIDE_MCS_RESULTS"
	// clusterIPOfDNS and nodeAddress are the addresses of clusterdns and of nodecache in the network of a cluster's pods.
	clusterIPOfDNS = "10.96.0.10"
	nodeAddress    = "169.254.20.10"
)

// configuration is a way to serve the names of a cluster to its pods.
type configuration struct {
	name    string
	coredns bool // instead of clusterdns
	node    bool // nodecache is between the pods and cluster DNS
	control bool // cluster DNS does not have the zone of the clusterset, so that the checks of its names have to fail
	always  bool // runs without resultsVariable as well
}

var configurations = []configuration{
	{name: "clusterdns", always: true},
	{name: "clusterdns behind nodecache", node: true, always: true},
	{name: "CoreDNS", coredns: true},
	{name: "clusterdns without the zone", control: true},
}

// TestConformance does the checks of DNS of the Multi-Cluster Services API's conformance suite, whose module is not on the Go
// module proxy. Objects and commands are those of the suite: it creates a Service with pods and exports it in the first cluster,
// and runs nslookup of busybox in all clusters. The controllers of Kubernetes make the EndpointSlices, from pods that
// run no container; the importer of this package is the controller of the Multi-Cluster Services API.
func TestConformance(t *testing.T) {
	netns.Require(t, "ip", "nft", "busybox")
	cs := start(t)
	networks := map[*cluster]*netns.Namespace{}
	for _, c := range cs.all() {
		c.install(t, crd.ServiceImportCRD, serviceImports)
		c.install(t, crd.ServiceExportCRD, serviceExports)
		networks[c] = c.startPods(t)
	}
	cs.startImporter(t)
	page := os.Getenv(resultsVariable)
	var columns []configuration
	results := map[string][]string{} // by check
	for number, conf := range configurations {
		if !conf.always && page == "" {
			continue
		}
		columns = append(columns, conf)
		t.Run(conf.name, func(t *testing.T) {
			for _, c := range cs.all() {
				c.serveDNS(t, networks[c], conf)
			}
			for i, check := range suiteChecks {
				t.Run(check.name, func(t *testing.T) {
					err := check.try(t, cs, networks, fmt.Sprintf("conformance-%d-%d", number, i), conf.control)
					result := "passed"
					if err != nil {
						result = "failed"
					}
					results[check.name] = append(results[check.name], result)
					if wanted := conf.control && !check.local; wanted != (err != nil) {
						t.Errorf("failed: %t, want %t: %v", err != nil, wanted, err)
					}
				})
			}
		})
	}
	if page != "" && !t.Failed() {
		kit.Must(t, os.WriteFile(page, []byte(conformancePage(columns, results)), 0o644))
	}
}

// conformancePage is the page of results, in Markdown.
func conformancePage(columns []configuration, results map[string][]string) string {
	var page strings.Builder
	page.WriteString(`# Conformance of the names of a clusterset

` + "`make mcs`" + ` writes this page: the checks with the label DNS of the conformance suite of the Multi-Cluster Services API. The
suite is the module sigs.k8s.io/mcs-api/conformance, which the Go module proxy does not have: ` + "`go mod download`" + ` finds no
version of it at latest, v0.5.2 and master, and the archives of sigs.k8s.io/mcs-api up to v0.5.2 lack its folder. So
` + "`TestConformance`" + ` does each check by its published text, of clusterip_service_dns.go at commit 0dfb8b126612 and of
headless_service_dns.go at commit 139a11b171b8 of its repository: the same objects and the same ` + "`nslookup`" + ` of busybox, on
two API servers with the controllers of Kubernetes. No test compares these texts with the suite's. The last column is the
control: cluster DNS without the zone of the clusterset, where the checks of its names have to fail.

| check | rule |`)
	line := "\n|---|---|"
	for _, c := range columns {
		fmt.Fprintf(&page, " %s |", c.name)
		line += "---|"
	}
	page.WriteString(line + "\n")
	for _, check := range suiteChecks {
		name := strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(check.name)
		fmt.Fprintf(&page, "| %s | %s | %s |\n", name, check.rule, strings.Join(results[check.name], " | "))
	}
	return page.String()
}

// startPods starts the controllers of Kubernetes and a node without containers, and returns the network of its pods, which has
// the address of cluster DNS.
func (c *cluster) startPods(t *testing.T) *netns.Namespace {
	t.Helper()
	n := netns.Add(t, "pods")
	n.Run(t, "ip", "addr", "add", clusterIPOfDNS+"/32", "dev", "lo")
	n.Forward(t, strings.TrimPrefix(c.URL(), "https://"))
	ctx, cancel := context.WithCancel(context.Background())
	kit.Start(t, exec.Command(controlplane.RequireBinary(t, "kube-controller-manager"),
		"--kubeconfig="+c.Kubeconfig(), "--leader-elect=false", "--secure-port=0",
		"--controllers=deployment-controller,replicaset-controller,statefulset-controller,endpointslice-controller"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeOfPods}}
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.runPods(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; t.Failed() {
			t.Logf("the pods of %s: %v", c.id, err)
		}
	})
	return n
}

// nodeOfPods is the only node of a cluster.
const nodeOfPods = "node"

// runPods does a kubelet's part in the state of pods until the context ends: each pod is bound to the node, and is running and
// ready with an address. It returns the errors of its last round.
func (c *cluster) runPods(ctx context.Context) (err error) {
	used := 0
	for ; ctx.Err() == nil; time.Sleep(importInterval) {
		list, failed := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if failed != nil {
			err = failed
			continue
		}
		for i := range list.Items {
			pod := &list.Items[i]
			pods := c.client.CoreV1().Pods(pod.Namespace)
			switch {
			case pod.Spec.NodeName == "":
				binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
				binding.Target = corev1.ObjectReference{Kind: "Node", Name: nodeOfPods}
				err = pods.Bind(ctx, binding, metav1.CreateOptions{})
			case pod.Status.Phase == corev1.PodPending:
				used++
				pod.Status.Phase = corev1.PodRunning
				pod.Status.PodIP = fmt.Sprintf("10.1%d.1.%d", c.subnet, used)
				pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
				_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			}
		}
	}
	return err
}

// startImporter imports exports until the end of the test.
func (cs *clusterset) startImporter(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cs.importAll(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && t.Failed() {
			t.Logf("last round of the importer: %v", err)
		}
	})
}

// serveDNS starts the servers of a configuration in the network of a cluster's pods, and waits until pods get answers.
func (c *cluster) serveDNS(t *testing.T, n *netns.Namespace, conf configuration) {
	t.Helper()
	write := func(text string) string {
		return kit.File(t, "Corefile", text)
	}
	block := imports()
	if conf.control {
		block = "kubernetes cluster.local in-addr.arpa ip6.arpa {\n        kubeconfig KUBECONFIG\n    }\n"
	}
	block = strings.ReplaceAll(block, "KUBECONFIG", c.KubeconfigFor(account))
	var program string
	if conf.coredns {
		program = controlplane.RequireBinary(t, "coredns")
	} else {
		program = daemon.Program(t, "clusterdns")
	}
	n.Start(t, program, "-conf", write(".:53 {\n    bind "+clusterIPOfDNS+"\n    errors\n    "+block+"}\n"))
	server := clusterIPOfDNS
	if conf.node {
		server = nodeAddress
		var corefile strings.Builder
		for _, zone := range []string{"cluster.local", "clusterset.local"} {
			// A name that is queried before clusterdns has its import stays absent for a second.
			block := strings.NewReplacer("ZONE", zone, "NODEPORT", "53", "CLUSTERDNS", clusterIPOfDNS,
				"bind 127.0.0.1", "bind "+nodeAddress, "denial 9984 5", "denial 9984 1").Replace(nodeBlock)
			corefile.WriteString(block)
		}
		n.StartWith(t, []string{clusterVariable + "=" + clusterIPOfDNS}, daemon.Program(t, "nodecache"),
			"-conf", write(corefile.String()), "-localip", nodeAddress, "-syncinterval", "1")
	}
	n.Etc(t, "resolv.conf", "search svc.cluster.local cluster.local\nnameserver "+server+"\noptions ndots:5\n")
	kit.Succeeds(t, bounded, "pods get answers", func() error {
		out, err := n.Try("dig", "@"+server, "+time=1", "+tries=1", "+short", "kubernetes.default.svc.cluster.local")
		if err == nil && net.ParseIP(strings.TrimSpace(out)) == nil {
			err = fmt.Errorf("dig: %q, want an address", out)
		}
		return err
	})
}
