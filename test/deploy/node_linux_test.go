package deploy

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/netns"
)

// The servers behind a node: the addresses of Services in the environment of pods, and the node's resolver.
const (
	kubeDNS     = "10.96.0.10"
	clusterDNS  = "10.96.0.11"
	resolver    = "10.2.0.53"
	ofCluster   = "10.96.12.34"
	ofResolver  = "192.0.2.80"
	questionFor = "web.shop.svc."
)

// node is a node with nodecache, started as by a DaemonSet.
type node struct {
	bed       *netns.Bed
	container corev1.Container
	template  string // of the Corefile
	api       *kubeapi.Server
	mounted   string // the file with the template, of the process that was started last
}

// newNode makes a node with cluster DNS and a resolver behind it, and an API server.
func newNode(t *testing.T, all objects) *node {
	t.Helper()
	return newNodeOf(t, all, cluster(t))
}

// newNodeOf makes a node of the cluster of an API server.
func newNodeOf(t *testing.T, all objects, api *kubeapi.Server) *node {
	t.Helper()
	netns.Require(t, "setpriv")
	n := &node{bed: netns.New(t), api: api}
	serve(t, n.bed.Upstream, clusterDNS, ofCluster)
	serve(t, n.bed.Upstream, resolver, ofResolver)
	n.bed.Node.Etc(t, "resolv.conf", "nameserver "+resolver+"\n")
	n.bed.Node.Forward(t, strings.TrimPrefix(n.api.URL(), "http://"))
	set := find[*appsv1.DaemonSet](t, all, "DaemonSet nodecache")
	n.container = set.Spec.Template.Spec.Containers[0]
	n.template = find[*corev1.ConfigMap](t, all, "ConfigMap nodecache").Data["Corefile.base"]
	return n
}

// serve answers every A question with an address, on port 53 of another address, which it adds to the namespace.
func serve(t *testing.T, n *netns.Namespace, at, address string) {
	t.Helper()
	n.Run(t, "ip", "addr", "add", at+"/32", "dev", "eth0")
	n.Serve(t, at+":53", always(address))
}

// start runs nodecache with the arguments and the capabilities of its container.
func (n *node) start(t *testing.T) *netns.Process {
	t.Helper()
	folder := t.TempDir()
	n.mounted = filepath.Join(folder, "Corefile.base")
	n.mount(t)
	args := []string{"--bounding-set", boundingSet(n.container), "--inh-caps", "-all", "--no-new-privs", daemon.Program(t, "nodecache"), "-basecorefile", n.mounted}
	variables := regexp.MustCompile(`\$\([A-Z0-9_]+_SERVICE_HOST\)`)
	for _, a := range n.container.Args {
		a = variables.ReplaceAllString(a, kubeDNS) // as the kubelet does
		args = append(args, strings.Replace(a, "/run/nodecache/", folder+"/", 1))
	}
	environment := []string{"KUBE_DNS_SERVICE_HOST=" + kubeDNS}
	for i, a := range n.container.Args {
		if a == "-upstreamsvc" {
			environment = append(environment, strings.ToUpper(strings.ReplaceAll(n.container.Args[i+1], "-", "_"))+"_SERVICE_HOST="+clusterDNS)
		}
	}
	for _, e := range n.container.Env {
		switch e.Name {
		case "NODE_NAME":
			environment = append(environment, "NODE_NAME=node-a")
		case "NODE_ZONE":
			environment = append(environment, "NODE_ZONE=") // as before Kubernetes 1.35
		case "POD_IP":
			environment = append(environment, "POD_IP="+n.bed.Node.IPv4.String())
		}
	}
	return n.bed.Node.StartWith(t, environment, "setpriv", args...)
}

// boundingSet returns the argument of setpriv for the capabilities of a container.
func boundingSet(c corev1.Container) string {
	capabilities := "-all"
	for _, added := range c.SecurityContext.Capabilities.Add {
		capabilities += ",+" + strings.ToLower(string(added))
	}
	return capabilities
}

// mount writes the template.
func (n *node) mount(t *testing.T) {
	t.Helper()
	text := pods.ReplaceAllString(n.template, "$1 {\n        endpoint "+n.api.URL()+"\n    }\n")
	kit.Write(t, n.mounted, text)
}

// addresses are the node-local addresses that pods use.
func (n *node) addresses(t *testing.T) (all []netip.Addr) {
	t.Helper()
	i := slices.Index(n.container.Args, "-localip")
	if i < 0 {
		return []netip.Addr{n.bed.Node.IPv4}
	}
	for text := range strings.SplitSeq(n.container.Args[i+1], ",") {
		if strings.HasPrefix(text, "$(") {
			text = kubeDNS
		}
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// awaitService waits until a pod gets names of the cluster from cluster DNS, and others from the resolver of the node,
// on each address, over UDP and TCP.
func (n *node) awaitService(t *testing.T) {
	t.Helper()
	zone := regexp.MustCompile(`^\S+?:`).FindString(n.template)
	for _, address := range n.addresses(t) {
		for _, network := range []string{"udp", "tcp"} {
			for name, want := range map[string]string{questionFor + strings.TrimSuffix(zone, ":") + ".": ofCluster, "www.example.com.": ofResolver} {
				kit.Succeeds(t, deadline, fmt.Sprintf("%s from %s over %s", name, address, network), func() error {
					got, err := n.ask(network, address, name+" A")
					if err == nil && got != "A "+want {
						err = fmt.Errorf("got %s, want %s", got, want)
					}
					return err
				})
			}
		}
	}
}

// ask sends a query from a pod.
func (n *node) ask(network string, address netip.Addr, question string) (string, error) {
	conn, err := n.bed.Pod[0].Dial(net.Dialer{Timeout: 2 * time.Second}, network, netip.AddrPortFrom(address, 53).String())
	if err != nil {
		return "", err
	}
	return exchange(conn, question)
}

// awaitProbe waits until a probe of the container, sent like the kubelet's, returns 200.
func (n *node) awaitProbe(t *testing.T, probe *corev1.Probe) {
	t.Helper()
	if probe.Exec != nil {
		n.awaitExec(t, probe.Exec.Command)
		return
	}
	get := probe.HTTPGet
	host := get.Host
	if host == "" { // the pod's address
		host = n.bed.Node.IPv4.String()
	}
	url := fmt.Sprintf("http://%s%s", net.JoinHostPort(host, get.Port.String()), get.Path)
	kit.Succeeds(t, deadline, url, func() error {
		_, err := kit.Get(n.bed.Node.Client(), url)
		return err
	})
}

// TestNodecache runs nodecache on a node with each DaemonSet and ConfigMap, each once.
func TestNodecache(t *testing.T) {
	seen := map[string]bool{}
	everything := rendered(t)
	for _, name := range slices.Sorted(maps.Keys(everything)) {
		all := everything[name]
		config, ok := all["ConfigMap nodecache"].(*corev1.ConfigMap)
		if !ok || name == "chart own Corefiles" { // which has no block for the cluster
			continue
		}
		container := find[*appsv1.DaemonSet](t, all, "DaemonSet nodecache").Spec.Template.Spec.Containers[0]
		key := fmt.Sprint(config.Data, container.Args, container.Env, container.SecurityContext)
		if seen[key] {
			continue
		}
		seen[key] = true
		t.Run(name, func(t *testing.T) {
			n := newNode(t, all)
			p := n.start(t)
			n.awaitService(t)
			n.awaitProbe(t, n.container.LivenessProbe)
			n.awaitProbe(t, n.container.ReadinessProbe)
			if !slices.Contains(n.container.Args, "-localip") {
				return
			}
			n.awaitTraffic(t, p)
			// The container's capabilities permit the devices of self-queries.
			if out := n.bed.Node.Run(t, "ip", "link"); !strings.Contains(out, "nodelocaldns-q1") || strings.Contains(p.Output(), "to itself take lo") {
				t.Errorf("interfaces\n%s\nnodecache logs\n%s", out, p.Output())
			}
		})
	}
	if len(seen) < 6 {
		t.Errorf("only %d configurations were found", len(seen))
	}
}

// TestSurge starts a second nodecache beside the first, as an update does, and then ends the first.
func TestSurge(t *testing.T) {
	n := newNode(t, decoded(t, kustomize(t, deployed+"/nodecache")))
	first := n.start(t)
	n.awaitService(t)
	second := n.start(t)
	kit.Succeeds(t, deadline, "the second answers itself", func() error {
		if strings.Count(second.Output(), "acquired: this server answers") < len(n.addresses(t)) {
			return fmt.Errorf("it says\n%s", second.Output())
		}
		return nil
	})
	n.awaitProbe(t, n.container.ReadinessProbe)
	end(t, first)
	n.awaitProbe(t, n.container.ReadinessProbe)
	n.awaitProbe(t, n.container.LivenessProbe)
	n.awaitService(t)
}

// startPredecessor starts a DNS server as node-local-dns, with its interface, addresses and ports.
func (n *node) startPredecessor(t *testing.T) *netns.Process {
	t.Helper()
	coredns := controlplane.RequireBinary(t, "coredns")
	if _, err := n.bed.Node.Try("ip", "link", "add", "nodelocaldns", "type", "dummy"); err != nil {
		n.bed.Node.Run(t, "ip", "link", "add", "nodelocaldns", "type", "bridge") // nodecache's device without a dummy driver
	}
	n.bed.Node.Run(t, "ip", "link", "set", "nodelocaldns", "up")
	for _, a := range n.addresses(t) {
		n.bed.Node.Run(t, "ip", "addr", "add", a.String()+"/32", "dev", "nodelocaldns")
	}
	corefile := filepath.Join(t.TempDir(), "Corefile")
	text := strings.NewReplacer("__PILLAR__CLUSTER__DNS__", clusterDNS, "__PILLAR__UPSTREAM__SERVERS__", resolver).Replace(installed(t, kubeDNS))
	kit.Write(t, corefile, text)
	return n.bed.Node.Start(t, coredns, "-conf", corefile)
}

// end ends a process as the kubelet does.
func end(t *testing.T, p *netns.Process) {
	t.Helper()
	p.Signal(t, syscall.SIGTERM)
	select {
	case <-p.Ended():
	case <-time.After(deadline):
		t.Fatal("it does not end")
	}
}

// awaitTraffic waits until nodecache receives the queries of the node.
func (n *node) awaitTraffic(t *testing.T, p *netns.Process) {
	t.Helper()
	kit.Succeeds(t, deadline, "nodecache receives the traffic", func() error {
		if strings.Count(p.Output(), "acquired: this server answers") < len(n.addresses(t)) {
			return fmt.Errorf("it says\n%s", p.Output())
		}
		return nil
	})
}

// TestReplaceNodeLocalDNS starts nodecache on a node with a running node-local-dns. Then node-local-dns ends, and removes the
// interface.
func TestReplaceNodeLocalDNS(t *testing.T) {
	n := newNode(t, decoded(t, kustomize(t, deployed+"/nodecache")))
	predecessor := n.startPredecessor(t)
	n.awaitService(t)
	p := n.start(t)
	kit.Succeeds(t, deadline, "nodecache answers beside it", func() error {
		if !strings.Contains(p.Output(), "nodecache-") {
			return fmt.Errorf("it says\n%s", p.Output())
		}
		return nil
	})
	n.awaitService(t)
	end(t, predecessor)
	n.bed.Node.Run(t, "ip", "link", "del", "nodelocaldns")
	n.awaitProbe(t, n.container.LivenessProbe)
	n.awaitService(t)
	n.awaitTraffic(t, p)
	n.awaitService(t)
}

// TestReturnToNodeLocalDNS ends nodecache, as with a node label that neither DaemonSet selects, and then starts node-local-dns: the
// node is as it was before nodecache.
func TestReturnToNodeLocalDNS(t *testing.T) {
	netns.Require(t, "nft")
	n := newNode(t, decoded(t, kustomize(t, deployed+"/nodecache")))
	state := func() string {
		return n.bed.Node.Run(t, "ip", "-brief", "address") + n.bed.Node.Run(t, "nft", "list", "ruleset")
	}
	before := state()
	p := n.start(t)
	n.awaitTraffic(t, p)
	n.awaitService(t)
	if state() == before {
		t.Fatal("nodecache has changed nothing, so this test proves nothing")
	}
	end(t, p)
	if after := state(); after != before {
		t.Errorf("nodecache leaves\n%s\nwhere there was\n%s", after, before)
	}
	n.startPredecessor(t)
	n.awaitService(t)
}

// TestTemplateOfNodeLocalDNS runs nodecache with the installation's template of node-local-dns, without and with the
// block that docs/migration.md adds for the readiness probe.
func TestTemplateOfNodeLocalDNS(t *testing.T) {
	netns.Require(t, "nft")
	all := decoded(t, kustomize(t, deployed+"/nodecache"))
	t.Run("as it is", func(t *testing.T) {
		n := newNode(t, all)
		n.template = installed(t, kubeDNS)
		n.start(t)
		n.awaitService(t)
		n.awaitProbe(t, n.container.LivenessProbe)
		get := n.container.ReadinessProbe.HTTPGet
		if r, err := n.bed.Node.Client().Get(fmt.Sprintf("http://%s%s", net.JoinHostPort(get.Host, get.Port.String()), get.Path)); err == nil {
			_ = r.Body.Close()
			t.Errorf("the readiness probe gets %s: what the page adds is not needed", r.Status)
		}
	})
	t.Run("with ready", func(t *testing.T) {
		n := newNode(t, all)
		n.template = inFirstBlock(t, installed(t, kubeDNS), ofTemplate(t))
		n.start(t)
		n.awaitService(t)
		n.awaitProbe(t, n.container.LivenessProbe)
		n.awaitProbe(t, n.container.ReadinessProbe)
		n.readinessFollows(t)
	})
}

// readinessFollows drops the self-queries of nodecache: it is not ready until they are answered again.
func (n *node) readinessFollows(t *testing.T) {
	t.Helper()
	n.bed.Node.Run(t, "nft", "add table inet firewall; add chain inet firewall input { type filter hook input priority 0; }; add rule inet firewall input ip daddr 169.254.20.10 udp dport 53 drop")
	get := n.container.ReadinessProbe.HTTPGet
	url := fmt.Sprintf("http://%s%s", net.JoinHostPort(get.Host, get.Port.String()), get.Path)
	kit.Succeeds(t, deadline, "not ready", func() error {
		r, err := n.bed.Node.Client().Get(url)
		if err != nil {
			return err
		}
		if err := r.Body.Close(); err != nil || r.StatusCode != http.StatusServiceUnavailable {
			return fmt.Errorf("%s, %v", r.Status, err)
		}
		return nil
	})
	n.bed.Node.Run(t, "nft", "delete table inet firewall")
	n.awaitProbe(t, n.container.ReadinessProbe)
}

// TestReadiness has a firewall that drops nodecache's self-queries.
func TestReadiness(t *testing.T) {
	netns.Require(t, "nft")
	n := newNode(t, decoded(t, kustomize(t, deployed+"/nodecache")))
	n.start(t)
	n.awaitProbe(t, n.container.ReadinessProbe)
	n.readinessFollows(t)
}
