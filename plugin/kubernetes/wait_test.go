package kubernetes

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// waitsFor returns a headless Service whose names queries wait for.
func waitsFor(ns, name, wait string, ports ...corev1.ServicePort) *corev1.Service {
	s := service(ns, name, headless, ports...)
	s.Annotations = map[string]string{source.AnnotationWaitForNames: wait}
	return s
}

// awaited returns what queries for a name wait for, with a search list.
func awaited(t *testing.T, k *Kubernetes, name string, suffixes ...string) (block.NameWait, bool) {
	t.Helper()
	wire := make([]byte, 256)
	n, err := dns.PackDomainName(name, wire, 0, nil, false)
	kit.Must(t, err)
	data, ok := searchlist.AppendSuffixes(nil, suffixes)
	if !ok && len(suffixes) > 0 {
		t.Fatalf("%v is no search list", suffixes)
	}
	return k.AwaitName(wire[:n], data)
}

const clusterOnly = "kubernetes cluster.local in-addr.arpa"

func TestAwaitName(t *testing.T) {
	jobs, ready := waitsFor("ml", "jobs", "4s", tcp("http", 80)), waitsFor("ml", "ready", "300ms")
	virtual := service("ml", "virtual", []string{"10.96.0.9"})
	virtual.Annotations = jobs.Annotations
	k := answering(t, clusterOnly+" {\n zonal\n}", namespace("ml"), namespace("shop"), jobs, ready, virtual,
		waitsFor("gone", "jobs", "4s"), service("ml", "plain", headless), externalName("ml", "alias", "example.com"),
		slice(ready, "1", discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, Hostname: pointerTo("ready-0")}),
	)
	for name, want := range map[string]time.Duration{
		"jobs.ml.svc.cluster.local.":                             4 * time.Second,
		"jobs-0.jobs.ml.svc.cluster.local.":                      4 * time.Second,
		"10-1-0-1.jobs.ml.svc.cluster.local.":                    4 * time.Second,
		"_http._tcp.jobs.ml.svc.cluster.local.":                  4 * time.Second,
		"_other._tcp.jobs.ml.svc.cluster.local.":                 0,
		"a.b.c.jobs.ml.svc.cluster.local.":                       0,
		"zone.pin._zone.jobs.ml.svc.cluster.local.":              0,
		"ready-1.ready.ml.svc.cluster.local.":                    300 * time.Millisecond,
		"ready-0.ready.ml.svc.cluster.local.":                    0,
		"ready.ml.svc.cluster.local.":                            0,
		"virtual-0.virtual.ml.svc.cluster.local.":                0,
		"virtual.ml.svc.cluster.local.":                          0,
		"plain.ml.svc.cluster.local.":                            0,
		"alias.ml.svc.cluster.local.":                            0,
		"none.ml.svc.cluster.local.":                             0,
		"jobs.gone.svc.cluster.local.":                           0, // the namespace does not exist
		"jobs.ml.pod.cluster.local.":                             0,
		"ml.svc.cluster.local.":                                  0,
		"cluster.local.":                                         0,
		"jobs-0.jobs.ml.svc.cluster.local.ml.svc.cluster.local.": 0, // a candidate of a search list
		"jobs.ml.svc.example.org.":                               0,
		"1.0.1.10.in-addr.arpa.":                                 0,
		".":                                                      0,
	} {
		t.Run(name, func(t *testing.T) {
			w, ok := awaited(t, k, name)
			if ok != (want > 0) || w.Timeout != want && ok {
				t.Errorf("waits: %t, for %s, want %s", ok, w.Timeout, want)
			}
		})
	}
	k.Fall = fall.Root
	if _, ok := awaited(t, k, "jobs.ml.svc.cluster.local."); ok {
		t.Error("a name waits that falls through")
	}
	k.Fall = fall.Zero
	if _, ok := awaited(t, unsynced(k), "jobs.ml.svc.cluster.local."); ok {
		t.Error("a name waits before the sync")
	}
}

func pointerTo[T any](v T) *T { return &v }

// TestAwaitGeneration: the Generation advances from its number with each event that may end the waiting.
func TestAwaitGeneration(t *testing.T) {
	jobs := waitsFor("ml", "jobs", "4s")
	const name = "jobs-0.jobs.ml.svc.cluster.local."
	endpoint := discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, Hostname: pointerTo("jobs-0")}
	plain := service("ml", "jobs", headless)
	for what, change := range map[string]func(*Kubernetes){
		"endpoint":   func(k *Kubernetes) { put(k, source.NewStripper(k.source), slice(jobs, "1", endpoint)) },
		"annotation": func(k *Kubernetes) { put(k, source.NewStripper(k.source), plain) },
		"deleted":    func(k *Kubernetes) { indexOf(k).DeleteService("ml", "jobs") },
		"replaced":   func(k *Kubernetes) { indexOf(k).ReplaceServices([]*index.Service{}) },
	} {
		t.Run(what, func(t *testing.T) {
			k := answering(t, clusterOnly, namespace("ml"), jobs)
			w, ok := awaited(t, k, name)
			if !ok || w.Generation.Load() != w.Number {
				t.Fatalf("waits: %t", ok)
			}
			change(k)
			if w.Generation.Load() == w.Number {
				t.Error("the Generation has not advanced")
			}
			if _, ok := awaited(t, k, name); ok {
				t.Error("the name is still waited for")
			}
			if has := indexOf(k).HasWaits(); has != (what == "endpoint") {
				t.Errorf("HasWaits is %t", has)
			}
		})
	}
}

// TestAwaitWithSearchList: queries wait for the first candidate of an annotated Service, unless an earlier one has records.
func TestAwaitWithSearchList(t *testing.T) {
	jobs := waitsFor("ml", "jobs", "4s")
	k := answering(t, clusterOnly, namespace("ml"), namespace("jobs"), namespace("shop"), jobs,
		service("jobs", "web", []string{"10.96.0.1"}))
	list := func(ns string, more ...string) []string {
		return append([]string{ns + ".svc.cluster.local.", "svc.cluster.local.", "cluster.local."}, more...)
	}
	for _, tc := range []struct {
		base     string
		suffixes []string
		waits    bool
	}{
		{"jobs-0.jobs", list("ml"), true},
		{"jobs-0.jobs.ml", list("shop"), true},
		{"jobs-0.jobs.ml.svc", list("shop"), true},
		{"jobs", list("ml"), true},
		{"jobs.ml", list("ml"), true},
		{"web.jobs", list("shop"), false}, // exists
		{"web.jobs", list("ml"), true},    // the first candidate is a name of Service jobs
		{"jobs-0.jobs.ml", list("shop", "example.org."), false},
		{"none.ml", list("shop"), false},
	} {
		t.Run(tc.base+" "+tc.suffixes[0], func(t *testing.T) {
			if _, ok := awaited(t, k, tc.base+"."+tc.suffixes[0], tc.suffixes...); ok != tc.waits {
				t.Errorf("waits: %t, want %t", ok, tc.waits)
			}
		})
	}
}

// TestStoredForWaited: a negative answer for a name that queries wait for is stored only for those that have waited, and has
// the TTL 0 for other caches.
func TestStoredForWaited(t *testing.T) {
	jobs := waitsFor("ml", "jobs", "4s")
	s, _ := newStoring(t, clusterOnly, namespace("ml"), jobs, service("ml", "plain", headless),
		slice(jobs, "1", discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, Hostname: pointerTo("jobs-0")}))
	for name, want := range map[string]bool{
		"jobs-1.jobs.ml.svc.cluster.local.":   true,
		"jobs-0.jobs.ml.svc.cluster.local.":   false,
		"plain-0.plain.ml.svc.cluster.local.": false,
		"none.ml.svc.cluster.local.":          false,
	} {
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		checkDenialTTL(t, askMsg(t, s.k, m), want)
		var q wire.Query
		packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), m)
		if !ok {
			t.Fatal("no key")
		}
		e := s.store.Get(s.space.Key(nil, packed, &q))
		if e == nil || e.Waits != want {
			t.Errorf("%s: entry %v, want Waits %t", name, e, want)
		}
	}
}

// checkDenialTTL checks the TTL of a reply, if it is negative.
func checkDenialTTL(t *testing.T, m *dns.Msg, waits bool) {
	t.Helper()
	if len(m.Answer) > 0 {
		return
	}
	soa, ok := m.Ns[0].(*dns.SOA)
	if !ok || (soa.Hdr.Ttl == 0) != waits || (soa.Minttl == 0) != waits {
		t.Errorf("%s: authority section %v; queries wait for the name: %t", m.Question[0].Name, m.Ns, waits)
	}
}

// TestDenialForWaited has a cache in front, and search lists of which queries wait for a candidate.
func TestDenialForWaited(t *testing.T) {
	k := answering(t, clusterOnly, namespace("ml"), namespace("shop"), waitsFor("ml", "jobs", "4s"), service("ml", "plain", headless))
	list := []string{"shop.svc.cluster.local.", "svc.cluster.local."}
	for _, tc := range []struct {
		name     string
		suffixes []string
		waits    bool
	}{
		{"jobs-1.jobs.ml.svc.cluster.local.", nil, true},
		{"jobs-1.plain.ml.svc.cluster.local.", nil, false},
		{"jobs-1.jobs.ml.shop.svc.cluster.local.", list, true}, // the second candidate
		{"jobs-1.plain.ml.shop.svc.cluster.local.", list, false},
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeMX} {
			t.Run(tc.name+" "+dns.TypeToString[qtype], func(t *testing.T) {
				m := new(dns.Msg).SetQuestion(tc.name, qtype)
				if tc.suffixes != nil {
					data, _ := searchlist.AppendSuffixes(nil, tc.suffixes)
					m = searchlist.WithOption(m, data)
				}
				ctx, recorded := store.Record(t.Context(), m)
				w := dnstest.NewRecorder(&test.ResponseWriter{})
				if _, err := k.ServeDNS(ctx, w, m); err != nil {
					t.Fatal(err)
				}
				if recorded.Waits != tc.waits {
					t.Errorf("queries wait: %t, want %t", recorded.Waits, tc.waits)
				}
				checkDenialTTL(t, w.Msg, tc.waits)
			})
		}
	}
}
