package kubernetes

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Behaviour of CoreDNS beyond or against the specification that users rely on.

func quirky(t *testing.T, block string) *Kubernetes {
	db := service("shop", "db", headless, tcp("sql", 5432))
	return answering(t, block,
		namespace("shop"),
		service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80), udp("quic", 443)),
		service("shop", "dual", []string{"10.0.0.2", "2001:db8::2"}, tcp("http", 80)),
		db, slice(db, "a", endpoint("10.1.0.1", hostname("db-0"))))
}

func TestQuirk_Underscores(t *testing.T) {
	srv := func(owner string) lookup {
		return lookup{name: owner, ask: owner + ".web.shop.svc.cluster.local SRV", answer: []string{"0 100 80 web.shop.svc.cluster.local."},
			extra: []string{"web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}}
	}
	check(t, quirky(t, "kubernetes cluster.local"),
		srv("_http._tcp"), srv("http.tcp"), srv("_http.tcp"), srv("http._tcp"), srv("_http._"), srv("_._tcp"), srv("_HTTP._Tcp"),
		lookup{name: "one is taken off, not two", ask: "__http._tcp.web.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "one label is an endpoint", ask: "_tcp.web.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "one label is an endpoint, headless", ask: "_tcp.db.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "one label is an endpoint, A", ask: "_tcp.web.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "alone it is any", ask: "_._.web.shop.svc.cluster.local SRV",
			answer: []string{"0 50 80 web.shop.svc.cluster.local.", "0 50 443 web.shop.svc.cluster.local."},
			extra:  []string{"web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}},
		lookup{name: "alone it is no endpoint", ask: "_.web.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
	)
}

func TestQuirk_AddressesAtPortNames(t *testing.T) {
	check(t, quirky(t, "kubernetes cluster.local"),
		lookup{name: "ClusterIP A", ask: "_http._tcp.dual.shop.svc.cluster.local A", answer: []string{"10.0.0.2"}},
		lookup{name: "ClusterIP AAAA", ask: "_http._tcp.dual.shop.svc.cluster.local AAAA", answer: []string{"2001:db8::2"}},
		lookup{name: "headless", ask: "sql.tcp.db.shop.svc.cluster.local A", answer: []string{"10.1.0.1"}},
		lookup{name: "no such port", ask: "_http._udp.dual.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "headless, no such port", ask: "http.tcp.db.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "other type", ask: "_http._tcp.dual.shop.svc.cluster.local TXT"},
	)
}

func TestQuirk_Names(t *testing.T) {
	check(t, quirky(t, "kubernetes cluster.local"),
		lookup{name: "three labels", ask: "a.b.c.web.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "four labels", ask: "a._http._tcp.db-0.db.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "* is no wildcard for a Service", ask: "*.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "* is no wildcard for a namespace", ask: "web.*.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "* is no wildcard for a port", ask: "*._tcp.web.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "any is no wildcard", ask: "any._tcp.web.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "neither svc nor pod", ask: "web.shop.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "one label", ask: "web.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "escaped dot", ask: `web\.shop.svc.cluster.local A`, rcode: dns.RcodeNameError},
	)
}

func TestQuirk_SRVWeights(t *testing.T) {
	portless := service("shop", "portless", headless)
	noNumber := service("shop", "nonumber", headless, tcp("http", 80))
	noNumberSlice := slice(noNumber, "a", endpoint("10.1.0.6", hostname("x")))
	noNumberSlice.Ports[0].Port = nil
	twice := service("shop", "twice", headless, tcp("http", 80))
	mixed := service("shop", "mixed", headless, tcp("http", 80))
	mixedPortless := slice(mixed, "b", endpoint("10.1.0.2"))
	mixedPortless.Ports = nil
	many := service("shop", "many", headless, tcp("http", 80))
	objects := []runtime.Object{namespace("shop"),
		service("shop", "dual", []string{"10.0.0.2", "2001:db8::2"}, tcp("http", 80)),
		portless, slice(portless, "a", endpoint("10.1.0.5")),
		noNumber, noNumberSlice,
		twice, slice(twice, "a", endpoint("10.1.0.1", hostname("x"))), slice(twice, "b", endpoint("10.1.0.1", hostname("x"))),
		mixed, slice(mixed, "a", endpoint("10.1.0.1", hostname("x"))), mixedPortless,
		many,
	}
	manySlice := slice(many, "a")
	for i := range 150 {
		manySlice.Endpoints = append(manySlice.Endpoints, endpoint(fmt.Sprint("10.2.0.", i), hostname("x")))
	}
	objects = append(objects, manySlice)
	k := answering(t, "kubernetes cluster.local", objects...)
	check(t, k,
		lookup{name: "dual stack, one target", ask: "_http._tcp.dual.shop.svc.cluster.local SRV",
			answer: []string{"0 50 80 dual.shop.svc.cluster.local."},
			extra:  []string{"dual.shop.svc.cluster.local. 5 IN A 10.0.0.2", "dual.shop.svc.cluster.local. 5 IN AAAA 2001:db8::2"}},
		lookup{name: "the same endpoint twice", ask: "twice.shop.svc.cluster.local SRV", answer: []string{"0 50 80 x.twice.shop.svc.cluster.local."},
			extra: []string{"x.twice.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
		lookup{name: "no ports", ask: "portless.shop.svc.cluster.local SRV"},
		lookup{name: "no ports, A", ask: "portless.shop.svc.cluster.local A", answer: []string{"10.1.0.5"}},
		lookup{name: "no ports, port name", ask: "_http._tcp.portless.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "a port without a number", ask: "_http._tcp.nonumber.shop.svc.cluster.local SRV"},
		lookup{name: "an endpoint without ports counts", ask: "mixed.shop.svc.cluster.local SRV",
			answer: []string{"0 50 80 x.mixed.shop.svc.cluster.local."}, extra: []string{"x.mixed.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
		lookup{name: "an endpoint without ports does not count at a port", ask: "http.tcp.mixed.shop.svc.cluster.local SRV",
			answer: []string{"0 100 80 x.mixed.shop.svc.cluster.local."}, extra: []string{"x.mixed.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
	)
	t.Run("at least 1", func(t *testing.T) {
		m := ask(t, k, "many.shop.svc.cluster.local SRV")
		sameRecords(t, "answer", m.Answer, []string{"many.shop.svc.cluster.local. 5 IN SRV 0 1 80 x.many.shop.svc.cluster.local."})
		if len(m.Extra) != 150 {
			t.Errorf("%d addresses, want 150", len(m.Extra))
		}
	})
}

func TestQuirk_UnnamedPorts(t *testing.T) {
	db := service("shop", "db", headless, udp("", 53))
	check(t, answering(t, "kubernetes cluster.local", namespace("shop"), db, slice(db, "a", endpoint("10.1.0.1", hostname("x")))),
		lookup{name: "by protocol", ask: "_._udp.db.shop.svc.cluster.local SRV", answer: []string{"0 100 53 x.db.shop.svc.cluster.local."},
			extra: []string{"x.db.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
		lookup{name: "other protocol", ask: "_._tcp.db.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "of the Service", ask: "db.shop.svc.cluster.local SRV", answer: []string{"0 100 53 x.db.shop.svc.cluster.local."},
			extra: []string{"x.db.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
	)
}

func TestQuirk_EndpointsOfClusterIP(t *testing.T) {
	web := service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80))
	k := answering(t, allZones, namespace("shop"), web, slice(web, "a", endpoint("10.1.0.1", hostname("x")), endpoint("10.1.0.2", notReady)))
	check(t, k,
		lookup{name: "A", ask: "x.web.shop.svc.cluster.local A", answer: []string{"10.1.0.1"}},
		lookup{name: "SRV", ask: "x.web.shop.svc.cluster.local SRV", answer: []string{"0 100 80 x.web.shop.svc.cluster.local."},
			extra: []string{"x.web.shop.svc.cluster.local. 5 IN A 10.1.0.1"}},
		lookup{name: "not ready", ask: "10-1-0-2.web.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "PTR", ask: "1.0.1.10.in-addr.arpa PTR", answer: []string{"x.web.shop.svc.cluster.local."}},
	)
}

func TestQuirk_Pointers(t *testing.T) {
	a := service("shop", "a", headless)
	b := service("shop", "b", []string{"10.0.0.1"}, tcp("http", 80))
	other := service("other", "a", headless)
	vip := service("shop", "vip", []string{"10.1.0.9"}, tcp("http", 80))
	k := answering(t, "kubernetes 10.in-addr.arpa first.local second.local", namespace("shop"), namespace("other"), a, b, other, vip,
		slice(a, "1", endpoint("10.1.0.1", hostname("x")), endpoint("10.1.0.1", hostname("y")), endpoint("10.1.0.9")),
		slice(a, "2", endpoint("10.1.0.1", hostname("x"))),
		slice(b, "1", endpoint("10.1.0.1")), slice(other, "1", endpoint("10.1.0.1")))
	check(t, k,
		lookup{name: "one for each Service and name, in the first zone", ask: "1.0.1.10.in-addr.arpa PTR", answer: []string{
			"x.a.shop.svc.first.local.", "y.a.shop.svc.first.local.",
			"10-1-0-1.b.shop.svc.first.local.", "10-1-0-1.a.other.svc.first.local."}},
		lookup{name: "ClusterIP first", ask: "9.0.1.10.in-addr.arpa PTR", answer: []string{"vip.shop.svc.first.local."}},
		lookup{name: "other type", ask: "9.0.1.10.in-addr.arpa A"},
		lookup{name: "in no reverse zone", ask: "web.shop.svc.first.local PTR", rcode: dns.RcodeNameError},
		lookup{name: "of a Service name", ask: "vip.shop.svc.first.local PTR"},
	)
}

func TestQuirk_SyncAndFallthrough(t *testing.T) {
	soa := func(block, zone string) []string {
		return []string{text(answering(t, block).soa(zone))}
	}
	plain := "kubernetes cluster.local"
	check(t, unsynced(quirky(t, plain)),
		lookup{name: "a Service that is known", ask: "web.shop.svc.cluster.local A", rcode: dns.RcodeServerFailure},
		lookup{name: "other type", ask: "web.shop.svc.cluster.local MX", rcode: dns.RcodeServerFailure},
		lookup{name: "a namespace", ask: "shop.svc.cluster.local A", rcode: dns.RcodeServerFailure},
		lookup{name: "nothing", ask: "none.shop.svc.cluster.local A", rcode: dns.RcodeServerFailure},
		lookup{name: "outside of the schema", ask: "a.b.cluster.local A", rcode: dns.RcodeServerFailure},
		lookup{name: "apex", ask: "cluster.local A"},
		lookup{name: "svc", ask: "svc.cluster.local A"},
		lookup{name: "schema version", ask: "dns-version.cluster.local TXT", answer: []string{`dns-version.cluster.local. 28800 IN TXT "1.1.0"`}},
	)
	t.Run("SOA", func(t *testing.T) {
		sameRecords(t, "answer", ask(t, unsynced(answering(t, plain)), "cluster.local SOA").Answer, soa(plain, "cluster.local."))
	})
	for _, in := range []string{"unsynced", "synced"} {
		t.Run("fallthrough first, "+in, func(t *testing.T) {
			k := quirky(t, plain+" {\nfallthrough\n}")
			if in == "unsynced" {
				unsynced(k)
			}
			if next := passedOn(t, k, "none.shop.svc.cluster.local A"); !next {
				t.Error("the question was not passed on")
			}
			if next := passedOn(t, k, "web.shop.svc.cluster.local MX"); next {
				t.Error("the question for a name that exists was passed on")
			}
		})
	}
}

func TestQuirk_IgnoreEmpty(t *testing.T) {
	web, full := service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)), service("shop", "full", []string{"10.0.0.2"}, tcp("http", 80))
	objects := []runtime.Object{namespace("shop"), web, full, externalName("shop", "ext", "web.shop.svc.cluster.local"),
		slice(web, "a", endpoint("10.1.0.1", notReady)), slice(full, "a", endpoint("10.1.0.1"))}
	check(t, answering(t, "kubernetes cluster.local {\nignore empty_service\n}", objects...),
		lookup{name: "none ready", ask: "web.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "none ready, SRV", ask: "_http._tcp.web.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "one ready", ask: "full.shop.svc.cluster.local A", answer: []string{"10.0.0.2"}},
		lookup{name: "ExternalName stays", ask: "ext.shop.svc.cluster.local CNAME", answer: []string{"web.shop.svc.cluster.local."}},
		lookup{name: "ExternalName to one", ask: "ext.shop.svc.cluster.local A"},
	)
	check(t, answering(t, "kubernetes cluster.local", objects...),
		lookup{name: "not ignored", ask: "web.shop.svc.cluster.local A", answer: []string{"10.0.0.1"}})
}

func TestQuirk_NoEndpoints(t *testing.T) {
	check(t, quirky(t, "kubernetes cluster.local {\nnoendpoints\n}"),
		lookup{name: "ClusterIP", ask: "web.shop.svc.cluster.local A", answer: []string{"10.0.0.1"}},
		lookup{name: "headless", ask: "db.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "endpoint", ask: "db-0.db.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
	)
}

func TestQuirk_Namespaces(t *testing.T) {
	objects := []runtime.Object{namespace("shop"), namespace("other"), podIn("other", "p", corev1.PodRunning, "10.1.0.7"),
		service("shop", "web", []string{"10.0.0.1"}, tcp("", 80)), service("other", "web", []string{"10.0.0.2"}, tcp("", 80)),
		service("missing", "web", []string{"10.0.0.3"}, tcp("", 80))}
	for _, block := range []string{"namespaces shop missing", "namespace_labels name=shop"} {
		t.Run(block, func(t *testing.T) {
			check(t, answering(t, allZones+" {\npods insecure\n"+block+"\n}", objects...),
				lookup{name: "in", ask: "web.shop.svc.cluster.local A", answer: []string{"10.0.0.1"}},
				lookup{name: "out", ask: "web.other.svc.cluster.local A", rcode: dns.RcodeNameError},
				lookup{name: "out, itself", ask: "other.svc.cluster.local A", rcode: dns.RcodeNameError},
				lookup{name: "out, pod", ask: "10-1-0-7.other.pod.cluster.local A", rcode: dns.RcodeNameError},
				lookup{name: "out, PTR", ask: "2.0.0.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
				lookup{name: "in, PTR", ask: "1.0.0.10.in-addr.arpa PTR", answer: []string{"web.shop.svc.cluster.local."}},
				lookup{name: "without its namespace", ask: "web.missing.svc.cluster.local A", rcode: dns.RcodeNameError},
				lookup{name: "without its namespace, PTR", ask: "3.0.0.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
			)
		})
	}
}
