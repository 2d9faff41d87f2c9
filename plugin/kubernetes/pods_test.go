package kubernetes

import (
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func manyPods() []runtime.Object {
	ending := podIn("shop", "ending", corev1.PodRunning, "10.1.0.5")
	ending.DeletionTimestamp = &metav1.Time{}
	return []runtime.Object{namespace("shop"), namespace("other"),
		podIn("shop", "p", corev1.PodRunning, "10.1.0.7", "2001:db8::7"),
		podIn("shop", "waiting", corev1.PodPending, "10.1.0.8"),
		podIn("shop", "done", corev1.PodSucceeded, "10.1.0.1"),
		podIn("shop", "failed", corev1.PodFailed, "10.1.0.2"),
		podIn("shop", "lost", corev1.PodUnknown, "10.1.0.3"),
		podIn("missing", "p", corev1.PodRunning, "10.1.0.4"),
		ending,
	}
}

func TestPods_Disabled(t *testing.T) {
	for _, block := range []string{"kubernetes cluster.local", "kubernetes cluster.local {\npods disabled\n}"} {
		check(t, answering(t, block, manyPods()...),
			lookup{name: "pod", ask: "10-1-0-7.shop.pod.cluster.local A", rcode: dns.RcodeNameError},
			lookup{name: "namespace", ask: "shop.pod.cluster.local A", rcode: dns.RcodeNameError},
			lookup{name: "pod itself", ask: "pod.cluster.local A"})
	}
}

func TestPods_Insecure(t *testing.T) {
	check(t, answering(t, "kubernetes cluster.local {\npods insecure\n}", manyPods()...),
		lookup{name: "any address", ask: "192-0-2-1.shop.pod.cluster.local A", answer: []string{"192.0.2.1"}},
		lookup{name: "other family", ask: "192-0-2-1.shop.pod.cluster.local AAAA"},
		lookup{name: "IPv6", ask: "2001-db8--f.shop.pod.cluster.local AAAA", answer: []string{"2001:db8::f"}},
		lookup{name: "IPv6 not in its shortest form", ask: "2001-0DB8-0-0-0-0-0-f.shop.pod.cluster.local AAAA", answer: []string{"2001:db8::f"}},
		lookup{name: "IPv4 inside of IPv6", ask: "--ffff-c000-201.shop.pod.cluster.local A", answer: []string{"192.0.2.1"}},
		lookup{name: "no address", ask: "p.shop.pod.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "out of range", ask: "192-0-2-256.shop.pod.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "leading zero", ask: "192-0-2-01.shop.pod.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "zone of an address", ask: "fe80--1%eth0.shop.pod.cluster.local AAAA", rcode: dns.RcodeNameError},
		lookup{name: "missing namespace", ask: "10-1-0-4.missing.pod.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "namespace", ask: "shop.pod.cluster.local A"},
		lookup{name: "other types", ask: "192-0-2-1.shop.pod.cluster.local TXT"},
	)
}

func TestPods_Verified(t *testing.T) {
	nothing := func(name, ask string) lookup {
		return lookup{name: name, ask: ask + ".pod.cluster.local A", rcode: dns.RcodeNameError}
	}
	check(t, answering(t, "kubernetes cluster.local {\npods verified\n}", manyPods()...),
		lookup{name: "IPv4", ask: "10-1-0-7.shop.pod.cluster.local A", answer: []string{"10.1.0.7"}},
		lookup{name: "IPv6", ask: "2001-db8--7.shop.pod.cluster.local AAAA", answer: []string{"2001:db8::7"}},
		lookup{name: "other family", ask: "10-1-0-7.shop.pod.cluster.local AAAA"},
		lookup{name: "pending", ask: "10-1-0-8.shop.pod.cluster.local A", answer: []string{"10.1.0.8"}},
		lookup{name: "terminating stays", ask: "10-1-0-5.shop.pod.cluster.local A", answer: []string{"10.1.0.5"}},
		lookup{name: "namespace", ask: "shop.pod.cluster.local A"},
		nothing("no pod", "10-1-0-9.shop"),
		nothing("another namespace", "10-1-0-7.other"),
		nothing("missing namespace", "10-1-0-4.missing"),
		nothing("succeeded", "10-1-0-1.shop"),
		nothing("failed", "10-1-0-2.shop"),
		nothing("unknown", "10-1-0-3.shop"),
		nothing("by its name", "p.shop"),
		// Unlike in CoreDNS, a name matches its address in every form of writing.
		lookup{name: "IPv6 not in its shortest form", ask: "2001-db8-0-0-0-0-0-7.shop.pod.cluster.local AAAA", answer: []string{"2001:db8::7"}},
	)
}

func TestPods_Oddities(t *testing.T) {
	for _, mode := range []string{"insecure", "verified"} {
		t.Run(mode, func(t *testing.T) {
			check(t, answering(t, "kubernetes cluster.local {\npods "+mode+"\n}", manyPods()...),
				lookup{name: "one more label", ask: "a.10-1-0-7.shop.pod.cluster.local A", answer: []string{"10.1.0.7"}},
				lookup{name: "two more labels", ask: "a.b.10-1-0-7.shop.pod.cluster.local A", answer: []string{"10.1.0.7"}},
				lookup{name: "three more labels", ask: "a.b.c.10-1-0-7.shop.pod.cluster.local A", rcode: dns.RcodeNameError},
				lookup{name: "SRV has port 0", ask: "10-1-0-7.shop.pod.cluster.local SRV",
					answer: []string{"0 100 0 10-1-0-7.shop.pod.cluster.local."}, extra: []string{"10-1-0-7.shop.pod.cluster.local. 5 IN A 10.1.0.7"}},
				lookup{name: "SRV with more labels", ask: "_http._tcp.10-1-0-7.shop.pod.cluster.local SRV",
					answer: []string{"0 100 0 10-1-0-7.shop.pod.cluster.local."}, extra: []string{"10-1-0-7.shop.pod.cluster.local. 5 IN A 10.1.0.7"}},
			)
		})
	}
}

func TestEndpointPodNames(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	long := "a-name-of-sixty-four-characters-is-one-more-than-fits-in-a-label"
	if len(long) != 64 {
		t.Fatal(len(long))
	}
	objects := []runtime.Object{namespace("shop"), db, slice(db, "a",
		endpoint("10.1.0.1", hostname("host"), ofPod("pod-1")), endpoint("10.1.0.2", ofPod("pod-2")),
		endpoint("10.1.0.3", ofPod(long)), endpoint("10.1.0.4"), endpoint("10.1.0.5", ofPod(long[:63])))}
	name := func(label, ip string) lookup {
		l := lookup{name: label, ask: label + ".db.shop.svc.cluster.local A", rcode: dns.RcodeNameError}
		if ip != "" {
			l.rcode, l.answer = dns.RcodeSuccess, []string{label + ".db.shop.svc.cluster.local. 5 IN A " + ip}
		}
		return l
	}
	t.Run("with", func(t *testing.T) {
		check(t, answering(t, "kubernetes cluster.local {\nendpoint_pod_names\n}", objects...),
			name("host", "10.1.0.1"), name("pod-1", ""), name("pod-2", "10.1.0.2"), name("10-1-0-2", ""),
			name("10-1-0-3", "10.1.0.3"), name("10-1-0-4", "10.1.0.4"), name(long[:63], "10.1.0.5"))
	})
	t.Run("without", func(t *testing.T) {
		check(t, answering(t, "kubernetes cluster.local", objects...),
			name("host", "10.1.0.1"), name("pod-2", ""), name("10-1-0-2", "10.1.0.2"), name("10-1-0-3", "10.1.0.3"))
	})
}
