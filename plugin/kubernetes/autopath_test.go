package kubernetes

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

func hostNetwork(p *corev1.Pod) *corev1.Pod {
	p.Spec.HostNetwork = true
	return p
}

func withDNS(p *corev1.Pod, policy corev1.DNSPolicy, searches ...string) *corev1.Pod {
	p.Spec.DNSPolicy, p.Spec.DNSConfig = policy, &corev1.PodDNSConfig{Searches: searches}
	return p
}

func TestSearchPaths(t *testing.T) {
	k := answering(t, "kubernetes 10.in-addr.arpa cluster.local other.local {\npods verified\n}", []runtime.Object{
		podIn("shop", "p", corev1.PodRunning, "10.1.0.1", "2001:db8::1"),
		withDNS(podIn("shop", "own", corev1.PodRunning, "10.1.0.2"), corev1.DNSClusterFirst, "corp.example"),
		withDNS(podIn("shop", "none", corev1.PodRunning, "10.1.0.3"), corev1.DNSNone, "corp.example"),
		hostNetwork(podIn("shop", "host", corev1.PodRunning, "10.1.0.4")),
	}...)
	k.resolvConf = kit.File(t, "resolv.conf", "nameserver 10.0.0.10\nsearch Lab.Example rack.lab.example.\n")
	k.status = func() []source.Status {
		return []source.Status{{Resource: source.Pods, Synced: true, Heard: time.Now()}}
	}
	paths, err := k.SearchLists()
	kit.Must(t, err)
	shop := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "lab.example.", "rack.lab.example."}
	for _, c := range []struct {
		name, from string
		want       []string
		why        searchlist.Unknown
	}{
		{"pod", "10.1.0.1", shop, searchlist.Known},
		{"pod over IPv6", "2001:db8::1", shop, searchlist.Known},
		{"with searches of its own", "10.1.0.2", append(slices.Clone(shop), "corp.example."), searchlist.Known},
		{"with no others", "10.1.0.3", []string{"corp.example."}, searchlist.Known},
		{"host network", "10.1.0.4", nil, searchlist.HostNetwork},
		{"unknown", "10.1.0.5", nil, searchlist.NoPod},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, why := paths.Find(netip.MustParseAddr(c.from))
			var got []string
			if p != nil {
				got = p.Suffixes
			}
			if why != c.why || !slices.Equal(got, c.want) {
				t.Errorf("the list is %q, %q, want %q, %q", got, why, c.want, c.why)
			}
		})
	}
}

// Plugin autopath looks up clients before this plugin has started: all are unknown then.
func TestSearchPaths_BeforeTheStart(t *testing.T) {
	k := parsed(t, kubernetesDirective, "kubernetes cluster.local {\npods verified\n}")
	paths, err := k.SearchLists()
	kit.Must(t, err)
	client := netip.MustParseAddr("10.1.0.1")
	if p, why := paths.Find(client); p != nil || why != searchlist.Outdated {
		t.Errorf("before the start the list is %v, %q", p, why)
	}
	started := answering(t, "kubernetes cluster.local {\npods verified\n}", podIn("shop", "p", corev1.PodRunning, "10.1.0.1"))
	k.attach(started.index, func() []source.Status {
		return []source.Status{{Resource: source.Pods, Synced: true, Heard: time.Now()}}
	})
	if p, why := paths.Find(client); p == nil || p.First() != "shop.svc.cluster.local." {
		t.Errorf("after the start the list is %v, %q", p, why)
	}
}

// Only a block that watches pods has their search lists, and reads the fields that they depend on.
func TestSearchPaths_PodsVerified(t *testing.T) {
	for _, c := range []struct {
		block string
		known bool
	}{{"", false}, {"pods disabled", false}, {"pods insecure", false}, {"pods verified", true}} {
		t.Run(c.block, func(t *testing.T) {
			k := parsed(t, kubernetesDirective, "kubernetes cluster.local {\n"+c.block+"\n}")
			if _, err := k.SearchLists(); (err == nil) != c.known {
				t.Errorf("error is %v", err)
			}
			if k.source.SearchPaths != c.known {
				t.Errorf("fields of search lists are stored: %v", k.source.SearchPaths)
			}
		})
	}
}

// Without a resolv.conf, search lists lack the domains of the node, as in CoreDNS.
func TestSearchPaths_NoResolvConf(t *testing.T) {
	k := answering(t, "kubernetes cluster.local {\npods verified\n}", podIn("shop", "p", corev1.PodRunning, "10.1.0.1"))
	k.resolvConf = t.TempDir() + "/none"
	k.status = func() []source.Status {
		return []source.Status{{Resource: source.Pods, Synced: true, Heard: time.Now()}}
	}
	paths, err := k.SearchLists()
	kit.Must(t, err)
	if p, why := paths.Find(netip.MustParseAddr("10.1.0.1")); p == nil || !slices.Equal(p.Suffixes, listShop) {
		t.Errorf("the list is %v, %q", p, why)
	}
}
