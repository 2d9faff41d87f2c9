package clients

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// directive is the name of the test's directive.
const directive = "pods"

// parsed are the nodePods of the last configuration, in the order of its server blocks.
var parsed []*nodePods

func TestMain(m *testing.M) {
	caddy.Quiet, dnsserver.Quiet = true, true
	dnsserver.Directives = append(dnsserver.Directives, directive)
	plugin.Register(directive, func(c *caddy.Controller) error {
		c.Next()
		s, err := parseNodePods(c)
		if err != nil {
			return err
		}
		s.start(c)
		parsed = append(parsed, s)
		return nil
	})
	kubeapi.Main(m)
}

func input(text string) caddy.CaddyfileInput {
	parsed = nil
	return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}
}

// start starts a server with a random port, and stops the instance of the last reload at the end of the test.
func start(t *testing.T, text string) (reload func(text string) error) {
	t.Helper()
	instance, err := caddy.Start(input(text))
	kit.Must(t, err)
	t.Cleanup(func() {
		if errs := instance.ShutdownCallbacks(); len(errs) > 0 {
			t.Error(errs)
		}
		if err := instance.Stop(); err != nil {
			t.Error(err)
		}
	})
	return func(text string) error {
		next, err := instance.Restart(input(text))
		if err == nil {
			instance = next
		}
		return err
	}
}

// at returns the name of a pod with an address, or an empty string.
func (s *nodePods) at(ip string) string {
	if p := s.TenantsOf(netip.MustParseAddr(ip)).Pod; p != nil {
		return p.Name
	}
	return ""
}

func (s *nodePods) synced() bool {
	all := s.Status()
	return len(all) == 1 && all[0].Resource == source.Pods && all[0].Synced
}

func podObject(node, name, ip string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	p.Spec.NodeName = node
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	return p
}

func startAPI(t *testing.T, pods ...*corev1.Pod) *kubeapi.Server {
	t.Helper()
	api := kubeapi.New(t)
	for _, p := range pods {
		kit.Must(t, api.Put(p))
	}
	return api
}

func TestBeforeStart(t *testing.T) {
	s, err := parseText("node node-1\nendpoint http://127.0.0.1:1")
	kit.Must(t, err)
	if all := s.Status(); len(all) != 1 || all[0].Resource != source.Pods || all[0].Synced {
		t.Errorf("status %+v", all)
	}
	if names := s.at("10.1.0.1"); names != "" {
		t.Errorf("pod %q", names)
	}
}

// TestStartWaitsForNothing asserts that an API server that is unreachable, or does not answer, does not delay the start.
func TestStartWaitsForNothing(t *testing.T) {
	api := startAPI(t, podObject("node-1", "here", "10.1.0.1"))
	api.Hang(kubeapi.Pods, true)
	begin := time.Now()
	start(t, ".:0 {\npods {\nnode node-1\nendpoint "+api.URL()+"\n}\n}")
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the start took %s", took)
	}
	s := parsed[0]
	if s.synced() || s.at("10.1.0.1") != "" {
		t.Error("pods before the first sync")
	}
	api.Hang(kubeapi.Pods, false)
	kit.Eventually(t, "the pod, once the server answers", func() bool { return s.synced() && s.at("10.1.0.1") == "here" })
}

// TestReload asserts that blocks with the same identity share a source, and that a reload retains pods while the API server is
// unreachable.
func TestReload(t *testing.T) {
	api := startAPI(t, podObject("node-1", "here", "10.1.0.1"), podObject("node-2", "there", "10.1.0.2"))
	block := "pods {\nnode node-1\nendpoint " + api.URL() + "\n}\n"
	reload := start(t, ".:0 {\n"+block+"}\na.example:0 {\n"+block+"}")
	first, second := parsed[0], parsed[1]
	kit.Eventually(t, "the first list", func() bool { return first.synced() })
	if first.at("10.1.0.1") != "here" || first.at("10.1.0.2") != "" || !second.synced() {
		t.Errorf("%q and %q", first.at("10.1.0.1"), first.at("10.1.0.2"))
	}
	if n := api.OpenWatches(kubeapi.Pods); n != 1 {
		t.Errorf("%d watches, want one", n)
	}

	api.Refuse(true)
	kit.Must(t, reload(".:0 {\n"+block+"}\nb.example:0 {\n"+block+"}"))
	if third := parsed[0]; third == first || !third.synced() || third.at("10.1.0.1") != "here" {
		t.Error("the reload lost the pods")
	}
	third := parsed[0]
	if err := reload(".:0 {\npods {\nnode node-1\nendpoint ftp://a\n}\n}"); err == nil {
		t.Fatal("an invalid Corefile was accepted")
	}
	if !third.synced() || third.at("10.1.0.1") != "here" {
		t.Error("the failed reload lost the pods")
	}
	api.Refuse(false)
	kit.Must(t, reload(".:0 {\npods {\nnode node-2\nendpoint "+api.URL()+"\n}\n}"))
	fourth := parsed[0]
	kit.Eventually(t, "the pods of another node", func() bool { return fourth.at("10.1.0.2") == "there" && fourth.at("10.1.0.1") == "" })
	kit.Eventually(t, "the end of the first watch", func() bool { return api.OpenWatches(kubeapi.Pods) == 1 })
}

// TestManifests asserts that manifests are available immediately after the start.
func TestManifests(t *testing.T) {
	folder := t.TempDir()
	const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: here, namespace: shop}\nspec: {nodeName: node-1}\nstatus: {podIP: 10.1.0.1}\n"
	kit.Write(t, filepath.Join(folder, "pods.yaml"), manifest)
	start(t, ".:0 {\npods {\nmanifests "+folder+"\nnode node-1\n}\n}\na.example:0 {\npods {\nmanifests "+folder+"\nnode node-2\n}\n}")
	here, there := parsed[0], parsed[1]
	kit.Eventually(t, "the pod", func() bool { return here.synced() && here.at("10.1.0.1") == "here" })
	if names := there.at("10.1.0.1"); names != "" {
		t.Errorf("another node has %q", names)
	}
}

// TestBooted asserts that the boot time is in the past and constant.
func TestBooted(t *testing.T) {
	first := booted()
	if age := time.Since(first); !first.IsZero() && (age < 0 || age > 100*365*24*time.Hour) {
		t.Errorf("booted %s ago", age)
	}
	if again := booted(); again != first {
		t.Errorf("booted %s and %s", first, again)
	}
}
