//go:build linux

package cluster

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/conformance/report"
	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	// reportsVariable is the variable with the folder for the reports of TestConformance, which is skipped without it: all
	// of its cases take an hour.
	reportsVariable = "NEARSIDE_CONFORMANCE"
	// suiteImages is the registry of the suite's images. None of them can be pulled.
	suiteImages = "nearside.test/e2e"
	// clusterdnsImage is the image of clusterdns in the manifests of deploy/.
	clusterdnsImage = "nearside.invalid/nearside/clusterdns:" + tag
)

// suite is a part of Kubernetes' e2e suite.
type suite struct {
	name string
	// focus and skip are regular expressions that select cases by their names.
	focus, skip string
	// cases is the number of selected cases in the version that test/conformance/suite pins. Without it, an expression that
	// selects none would pass.
	cases int
}

var (
	conformanceSuite = suite{name: "conformance", focus: `\[sig-network\] DNS .*\[Conformance\]`, cases: 8}
	// dnsSuite lacks a case for a cloud, by its label.
	dnsSuite       = suite{name: "dns", focus: `\[sig-network\] DNS `, skip: `\[Conformance\]|\[sig-network\] DNS configMap|\[Provider:`, cases: 9}
	configMapSuite = suite{name: "configmap", focus: `\[sig-network\] DNS configMap`, cases: 3}
	scaleSuite     = suite{name: "scale", focus: `\[sig-network\] \[Feature:PerformanceDNS\]`, cases: 1}
	trafficSuite   = suite{name: "traffic", focus: `\[sig-network\] Traffic Distribution`, cases: 6}
)

// zones are those of the clusters for trafficSuite. Its cases need two nodes in each of three.
const zones, nodesInZone = 3, 2

// queried is a program that the pods of the suite have to query, directly or through another one.
type queried struct {
	pods string // selector of its pods in kube-system
	port string // of its metrics
	each bool   // in every zone, a pod of it is queried
}

var (
	queriedClusterdns = queried{pods: clusterdnsPods, port: "9153"}
	queriedNodecache  = queried{pods: nodecachePods, port: "9253", each: true}
)

// server is a DNS server, or two, on which the suite runs.
type server struct {
	install func(t *testing.T, c *cluster)
	queried []queried
}

// The first one is the control.
var (
	coreDNSServer = server{install: func(t *testing.T, c *cluster) { c.installCoreDNS(t, coreDNSImage) }}
	clusterdns    = server{
		install: func(t *testing.T, c *cluster) { c.installNearside(t, "beside-coredns", "deployment/clusterdns") },
		queried: []queried{queriedClusterdns},
	}
	nodecache = server{
		install: func(t *testing.T, c *cluster) {
			c.installNearside(t, "kube-proxy", "deployment/clusterdns", "daemonset/nodecache")
		},
		queried: []queried{queriedClusterdns, queriedNodecache},
	}
	// The cases of the ConfigMap replace the Corefile of a server whose pods are named coredns, by one without metrics, and
	// delete these pods.
	clusterdnsAsCoreDNS = server{install: func(t *testing.T, c *cluster) { c.installCoreDNS(t, clusterdnsImage) }}
	nodecacheAsCoreDNS  = server{
		install: func(t *testing.T, c *cluster) {
			c.installCoreDNS(t, clusterdnsImage)
			c.installForwarder(t)
		},
		queried: []queried{queriedNodecache},
	}
)

// conformanceClusters are the clusters on which the suite runs.
var conformanceClusters = []struct {
	name   string
	server server
	zones  int // nodesInZone nodes in each, if it is not 0; otherwise the cluster has one node
	suites []suite
}{
	{"coredns", coreDNSServer, 0, []suite{conformanceSuite, dnsSuite, configMapSuite, scaleSuite}},
	{"clusterdns", clusterdns, 0, []suite{conformanceSuite, dnsSuite, scaleSuite}},
	{"nodecache", nodecache, 0, []suite{conformanceSuite, dnsSuite, scaleSuite}},
	{"configmap-clusterdns", clusterdnsAsCoreDNS, 0, []suite{configMapSuite}},
	{"configmap-nodecache", nodecacheAsCoreDNS, 0, []suite{configMapSuite}},
	{"traffic-coredns", coreDNSServer, zones, []suite{trafficSuite}},
	{"traffic-clusterdns", clusterdns, zones, []suite{trafficSuite}},
	{"traffic-nodecache", nodecache, zones, []suite{trafficSuite}},
}

// TestConformance runs the cases of Kubernetes' own e2e suite that are about DNS.
func TestConformance(t *testing.T) {
	folder := os.Getenv(reportsVariable)
	if folder == "" {
		t.Skipf("set %s to a folder for the reports, or run make conformance", reportsVariable)
	}
	for _, cc := range conformanceClusters {
		t.Run(cc.name, func(t *testing.T) {
			c := newCluster(t)
			c.startUpstream(t)
			c.importSuiteImage(t)
			c.addZones(t, cc.zones)
			c.apply(t, "kube-dns.yaml", kubeDNS)
			cc.server.install(t, c)
			for _, s := range cc.suites {
				t.Run(s.name, func(t *testing.T) {
					before := map[string]counts{}
					for _, q := range cc.server.queried {
						before[q.pods] = c.counts(t, q)
					}
					c.testSuite(t, s, filepath.Join(folder, cc.name))
					for _, q := range cc.server.queried {
						pods := 1
						if q.each {
							pods = max(1, cc.zones)
						}
						c.counts(t, q).wantMore(t, q.pods, before[q.pods], s.cases, pods)
					}
				})
			}
		})
	}
}

// counts are the numbers of queries that the pods of a program have received, by pod. Self-queries are not counted.
type counts map[string]float64

// counts reads the metrics of the pods of a program.
func (c *cluster) counts(t *testing.T, q queried) counts {
	t.Helper()
	list, err := c.Client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: q.pods})
	kit.Must(t, err)
	all := counts{}
	for _, pod := range list.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			all[pod.Name] = c.metricAt(t, net.JoinHostPort(pod.Status.PodIP, q.port), "coredns_dns_requests_total")
		}
	}
	return all
}

// wantMore fails the test unless the pods have received a number of queries since before, and that number of pods some of them.
func (all counts) wantMore(t *testing.T, program string, before counts, queries, pods int) {
	t.Helper()
	var sum float64
	grown := 0
	for pod, count := range all {
		if more := count - before[pod]; more > 0 {
			sum += more
			grown++
		}
	}
	t.Logf("%s: %.0f queries to %d of %d pods", program, sum, grown, len(all))
	if sum < float64(queries) || grown < pods {
		t.Errorf("%s: %.0f queries to %d pods, want %d to %d or more: before %v, after %v", program, sum, grown, queries, pods, before, all)
	}
}

// addZones adds nodes until there are enough for each zone, and labels them.
func (c *cluster) addZones(t *testing.T, number int) {
	t.Helper()
	for i := range number * nodesInZone {
		name := c.name
		if i > 0 {
			c.addWorker(t)
			name = c.workers[i-1].name
		}
		c.kubectl(t, "label", "node", name, fmt.Sprintf("%s=zone-%d", corev1.LabelTopologyZone, i%number))
	}
}

// installCoreDNS installs CoreDNS as kubeadm does, with CoreDNS's image or that of a replacement.
func (c *cluster) installCoreDNS(t *testing.T, image string) {
	t.Helper()
	if image == coreDNSImage {
		c.importImage(t, writeImage(t, c.folder, image, c.binaries["coredns"]))
	} else {
		c.importImages(t)
	}
	c.apply(t, "coredns.yaml", strings.Replace(coreDNS, coreDNSImage, image, 1))
	c.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=3m")
}

// installNearside installs an overlay of deploy/, and waits for its workloads.
func (c *cluster) installNearside(t *testing.T, name string, workloads ...string) {
	t.Helper()
	c.importImages(t)
	c.kubectl(t, append([]string{"apply"}, overlay(name)(t, c)...)...)
	for _, w := range workloads {
		c.kubectl(t, "-n", "kube-system", "rollout", "status", w, "--timeout=3m")
	}
}

// installForwarder installs nodecache with a Corefile that forwards all queries to cluster DNS, so that the Corefile of
// cluster DNS applies to external names as well.
func (c *cluster) installForwarder(t *testing.T) {
	t.Helper()
	base, _, found := strings.Cut(kit.Read(t, filepath.Join(root, "deploy/nodecache/Corefile.base")), "\n.:53 {")
	if !found {
		t.Fatal("Corefile.base has no block .:53")
	}
	path := filepath.Join(c.folder, "Corefile.base")
	text := base + "\n" + kit.Read(t, filepath.Join(root, "deploy/corefiles/nodecache/cluster-dns-for-all.corefile"))
	kit.Write(t, path, text)
	folder, err := filepath.Abs(filepath.Join(root, "deploy/nodecache"))
	kit.Must(t, err)
	c.kubectl(t, "apply", "-k", folder)
	c.apply(t, "nodecache.yaml", c.kubectl(t, "-n", "kube-system", "create", "configmap", "nodecache", "--from-file="+path, "--dry-run=client", "-o=yaml"))
	c.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/nodecache")
	c.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/nodecache", "--timeout=3m")
}

// importSuiteImage makes one image for all images that the cases use, and imports it: Debian packages with a shell, dig and
// getent, agnhost, and the CoreDNS that cases start as an upstream.
func (c *cluster) importSuiteImage(t *testing.T) {
	t.Helper()
	c.binaries["e2e.test"] = controlplane.RequireBinary(t, "e2e.test")
	c.binaries["agnhost"] = controlplane.RequireBinary(t, "agnhost")
	packages, err := os.ReadFile(filepath.Join(filepath.Dir(c.binaries["e2e.test"]), "dig-image.tar"))
	if err != nil {
		kit.Lacking(t, fmt.Sprintf("%v; run test/install.sh dig-image", err))
	}
	kit.Write(t, c.repositories(), "promoterE2eRegistry: "+suiteImages+"\n")
	list := exec.Command(c.binaries["e2e.test"], "-list-images")
	list.Env = c.suiteEnvironment()
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list images: %v\n%s", err, out)
	}
	var names []string
	for _, image := range strings.Fields(string(out)) {
		name, _, _ := strings.Cut(strings.TrimPrefix(image, suiteImages+"/"), ":")
		if strings.HasPrefix(image, suiteImages) && (name == "agnhost" || name == "glibc-dns-testing") {
			names = append(names, image)
		}
	}
	programs := archiveOf(t, 0o755, "agnhost", []byte(kit.Read(t, c.binaries["agnhost"])), "coredns", []byte(kit.Read(t, c.binaries["coredns"])))
	archive := filepath.Join(c.folder, "suite.tar")
	kit.Must(t, os.WriteFile(archive, archiveOfImage(t, names, "/agnhost", packages, programs), 0o600))
	c.importImage(t, archive)
}

// repositories is the path of the list of registries for the suite.
func (c *cluster) repositories() string { return filepath.Join(c.folder, "repositories.yaml") }

func (c *cluster) suiteEnvironment() []string {
	return append(os.Environ(), "KUBE_TEST_REPO_LIST="+c.repositories())
}

// testSuite runs cases on the node. Their report and their log go to the folder.
func (c *cluster) testSuite(t *testing.T, s suite, folder string) {
	t.Cleanup(func() {
		if t.Failed() {
			c.showPods(t)
		}
	})
	kit.Must(t, os.MkdirAll(folder, 0o755))
	path := filepath.Join(folder, s.name)
	if err := os.RemoveAll(path + ".json"); err != nil { // of an earlier run
		t.Fatal(err)
	}
	log, err := os.Create(path + ".log")
	kit.Must(t, err)
	// The folder that nsenter enters is not below the root of the node's mounts, where e2e.test needs one.
	run := c.command(t.Context(), "env", "--chdir=/", c.binaries["e2e.test"],
		"-kubeconfig="+c.keys.path("admin.kubeconfig"), "-kubectl-path="+c.binaries["kubectl"], "-provider=skeleton",
		"-e2e-output-dir="+c.folder, "-ginkgo.focus="+s.focus, "-ginkgo.skip="+s.skip,
		"-ginkgo.json-report="+path+".json", "-ginkgo.v", "-ginkgo.no-color", "-ginkgo.seed=1", "-ginkgo.timeout=1h")
	run.Env, run.Stdout, run.Stderr = c.suiteEnvironment(), log, log
	failure := run.Run()
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	result, err := report.Read(path + ".json")
	if err != nil {
		t.Fatalf("%v, after %v; the log is %s.log", err, failure, path)
	}
	for _, b := range result.Broken {
		t.Error(b)
	}
	for _, tc := range result.Cases {
		t.Logf("%s: %s (%.0f s) %s", tc.State, tc.Name, tc.Time.Seconds(), tc.Reason)
		if tc.State != report.Passed { // a case is skipped if the cluster lacks nodes, zones or a feature
			t.Errorf("%s: %s %s", tc.Name, tc.State, tc.Reason)
		}
	}
	if failure != nil {
		t.Errorf("e2e.test: %v; its log is %s.log", failure, path)
	}
	if len(result.Cases) != s.cases {
		t.Errorf("%d cases, want %d", len(result.Cases), s.cases)
	}
}
