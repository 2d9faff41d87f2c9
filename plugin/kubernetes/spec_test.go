package kubernetes

import (
	"testing"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The clauses of https://github.com/kubernetes/dns/blob/master/docs/specification.md, version 1.1.0.

const allZones = "kubernetes cluster.local 10.in-addr.arpa 8.b.d.0.1.0.0.2.ip6.arpa"

func TestSpec_2_1_Hostname(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	k := answering(t, allZones, namespace("shop"), db,
		slice(db, "4", endpoint("10.1.0.1", hostname("db-0")), endpoint("10.1.0.2")),
		slice(db, "6", endpoint("2001:db8::2"), endpoint("2001:db8:0:1::")))
	check(t, k,
		lookup{name: "its own", ask: "db-0.db.shop.svc.cluster.local A", answer: []string{"10.1.0.1"}},
		lookup{name: "one with a name of its own has no other", ask: "10-1-0-1.db.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "assigned", ask: "10-1-0-2.db.shop.svc.cluster.local A", answer: []string{"10.1.0.2"}},
		lookup{name: "assigned, IPv6", ask: "2001-db8--2.db.shop.svc.cluster.local AAAA", answer: []string{"2001:db8::2"}},
		lookup{name: "assigned, IPv6, no dash at the end", ask: "2001-db8-0-1--0.db.shop.svc.cluster.local AAAA", answer: []string{"2001:db8:0:1::"}},
		lookup{name: "unknown", ask: "db-1.db.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
	)
}

// Section 2: names are DNS names, and so case-insensitive.
func TestSpec_2_CaseInsensitive(t *testing.T) {
	web := service("shop", "web", []string{"10.0.0.1", "2001:db8::1"}, tcp("HTTP", 80))
	db := service("shop", "db", headless, tcp("sql", 5432))
	k := answering(t, allZones, namespace("shop"), web, db, slice(db, "a", endpoint("10.1.0.1", hostname("DB-0"))))
	check(t, k,
		lookup{name: "A", ask: "WEB.Shop.sVc.Cluster.LOCAL A", answer: []string{"10.0.0.1"}},
		lookup{name: "SRV", ask: "_hTTp._TCP.WEB.Shop.SVC.Cluster.LOCAL SRV", answer: []string{"0 50 80 web.shop.svc.Cluster.LOCAL."},
			extra: []string{"web.shop.svc.Cluster.LOCAL. 5 IN A 10.0.0.1", "web.shop.svc.Cluster.LOCAL. 5 IN AAAA 2001:db8::1"}},
		lookup{name: "hostname", ask: "Db-0.db.shop.svc.cluster.local A", answer: []string{"10.1.0.1"}},
		lookup{name: "PTR", ask: "1.0.0.10.In-Addr.ARPA PTR", answer: []string{"web.shop.svc.cluster.local."}},
		lookup{name: "schema version", ask: "DNS-Version.cluster.LOCAL TXT", answer: []string{`DNS-Version.cluster.LOCAL. 28800 IN TXT "1.1.0"`}},
	)
}

func TestSpec_2_2_SchemaVersion(t *testing.T) {
	check(t, answering(t, allZones),
		lookup{name: "TXT", ask: "dns-version.cluster.local TXT", answer: []string{`dns-version.cluster.local. 28800 IN TXT "1.1.0"`}})
}

func TestSpec_2_3_1_ClusterIPAddresses(t *testing.T) {
	k := answering(t, allZones, namespace("shop"),
		service("shop", "four", []string{"10.0.0.4"}, tcp("", 80)),
		service("shop", "six", []string{"2001:db8::6"}, tcp("", 80)),
		service("shop", "dual", []string{"10.0.0.5", "2001:db8::5"}, tcp("a", 80), udp("b", 81)))
	check(t, k,
		lookup{name: "A", ask: "four.shop.svc.cluster.local A", answer: []string{"10.0.0.4"}},
		lookup{name: "AAAA of IPv4", ask: "four.shop.svc.cluster.local AAAA"},
		lookup{name: "AAAA", ask: "six.shop.svc.cluster.local AAAA", answer: []string{"2001:db8::6"}},
		lookup{name: "A of IPv6", ask: "six.shop.svc.cluster.local A"},
		lookup{name: "dual stack A", ask: "dual.shop.svc.cluster.local A", answer: []string{"10.0.0.5"}},
		lookup{name: "dual stack AAAA", ask: "dual.shop.svc.cluster.local AAAA", answer: []string{"2001:db8::5"}},
		lookup{name: "no such Service", ask: "none.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "no such namespace", ask: "four.none.svc.cluster.local A", rcode: dns.RcodeNameError},
	)
}

func TestSpec_2_3_2_ClusterIPServices(t *testing.T) {
	k := answering(t, allZones, namespace("shop"),
		service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80), tcp("https", 443), udp("quic", 443)),
		service("shop", "plain", []string{"10.0.0.2"}, tcp("", 80)))
	glue := []string{"web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}
	check(t, k,
		lookup{name: "tcp", ask: "_https._tcp.web.shop.svc.cluster.local SRV", extra: glue, answer: []string{"0 100 443 web.shop.svc.cluster.local."}},
		lookup{name: "udp", ask: "_quic._udp.web.shop.svc.cluster.local SRV", extra: glue, answer: []string{"0 100 443 web.shop.svc.cluster.local."}},
		lookup{name: "other protocol", ask: "_https._udp.web.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "no such port", ask: "_ftp._tcp.web.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
		lookup{name: "an unnamed port has no name", ask: "_http._tcp.plain.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
	)
}

func TestSpec_2_3_3_ClusterIPPointers(t *testing.T) {
	k := answering(t, allZones, namespace("shop"), service("shop", "dual", []string{"10.0.0.5", "2001:db8::5"}, tcp("a", 80)))
	six := "5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa."
	check(t, k,
		lookup{name: "IPv4", ask: "5.0.0.10.in-addr.arpa PTR", answer: []string{"dual.shop.svc.cluster.local."}},
		lookup{name: "IPv6", ask: six + " PTR", answer: []string{six + " 5 IN PTR dual.shop.svc.cluster.local."}},
		lookup{name: "no such address", ask: "6.0.0.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
	)
}

func TestSpec_2_4_1_HeadlessAddresses(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	down := service("shop", "down", headless, tcp("sql", 5432))
	empty := service("shop", "empty", headless, tcp("sql", 5432))
	k := answering(t, allZones, namespace("shop"), db, down, empty,
		slice(db, "a", endpoint("10.1.0.1", hostname("db-0")), endpoint("10.1.0.2", hostname("db-0")), endpoint("10.1.0.3", hostname("db-1"))),
		slice(db, "b", endpoint("10.1.0.3", hostname("db-1")), endpoint("10.1.0.4", hostname("db-0"), notReady)),
		slice(db, "c", endpoint("2001:db8::1", hostname("db-0")), endpoint("2001:db8::2", hostname("db-0"))),
		slice(down, "a", endpoint("10.1.0.9", hostname("x"), notReady)))
	check(t, k,
		lookup{name: "A, each once", ask: "db.shop.svc.cluster.local A", answer: []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}},
		lookup{name: "AAAA", ask: "db.shop.svc.cluster.local AAAA", answer: []string{"2001:db8::1", "2001:db8::2"}},
		lookup{name: "hostname with several A", ask: "db-0.db.shop.svc.cluster.local A", answer: []string{"10.1.0.1", "10.1.0.2"}},
		lookup{name: "hostname with several AAAA", ask: "db-0.db.shop.svc.cluster.local AAAA", answer: []string{"2001:db8::1", "2001:db8::2"}},
		lookup{name: "hostname in two slices", ask: "db-1.db.shop.svc.cluster.local A", answer: []string{"10.1.0.3"}},
		lookup{name: "hostname without IPv6", ask: "db-1.db.shop.svc.cluster.local AAAA"},
		lookup{name: "none ready", ask: "down.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "none ready AAAA", ask: "down.shop.svc.cluster.local AAAA", rcode: dns.RcodeNameError},
		lookup{name: "none ready by hostname", ask: "x.down.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "no slice", ask: "empty.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
	)
}

func TestSpec_2_4_1_Readiness(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name  string
		is    discoveryv1.EndpointConditions
		ready bool
	}{
		{"unknown is ready", discoveryv1.EndpointConditions{}, true},
		{"ready", discoveryv1.EndpointConditions{Ready: &yes}, true},
		{"not ready", discoveryv1.EndpointConditions{Ready: &no}, false},
		{"serving while it terminates", discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}, false},
		{"publishNotReadyAddresses, whose controller says ready", discoveryv1.EndpointConditions{Ready: &yes, Serving: &no}, true},
		{"publishNotReadyAddresses while it terminates", discoveryv1.EndpointConditions{Ready: &yes, Serving: &no, Terminating: &yes}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := service("shop", "db", headless)
			db.Spec.PublishNotReadyAddresses = true // the controller uses it, not DNS
			k := answering(t, allZones, namespace("shop"), db, slice(db, "a", endpoint("10.1.0.1", conditions(c.is))))
			want := lookup{name: "A", ask: "db.shop.svc.cluster.local A", rcode: dns.RcodeNameError}
			if c.ready {
				want.rcode, want.answer = dns.RcodeSuccess, []string{"db.shop.svc.cluster.local. 5 IN A 10.1.0.1"}
			}
			check(t, k, want)
		})
	}
}

func TestSpec_2_4_2_HeadlessServices(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432), tcp("admin", 8080))
	k := answering(t, allZones, namespace("shop"), db,
		slice(db, "a", endpoint("10.1.0.1", hostname("db-0")), endpoint("10.1.0.2"), endpoint("10.1.0.3", notReady)),
		slice(db, "b", endpoint("2001:db8::3")))
	glue := []string{"db-0.db.shop.svc.cluster.local. 5 IN A 10.1.0.1", "10-1-0-2.db.shop.svc.cluster.local. 5 IN A 10.1.0.2",
		"2001-db8--3.db.shop.svc.cluster.local. 5 IN AAAA 2001:db8::3"}
	check(t, k,
		lookup{name: "one port of each endpoint", ask: "_sql._tcp.db.shop.svc.cluster.local SRV", extra: glue,
			answer: []string{"0 33 5432 db-0.db.shop.svc.cluster.local.", "0 33 5432 10-1-0-2.db.shop.svc.cluster.local.",
				"0 33 5432 2001-db8--3.db.shop.svc.cluster.local."}},
		lookup{name: "every port of each endpoint", ask: "db.shop.svc.cluster.local SRV", extra: glue,
			answer: []string{"0 16 5432 db-0.db.shop.svc.cluster.local.", "0 16 8080 db-0.db.shop.svc.cluster.local.",
				"0 16 5432 10-1-0-2.db.shop.svc.cluster.local.", "0 16 8080 10-1-0-2.db.shop.svc.cluster.local.",
				"0 16 5432 2001-db8--3.db.shop.svc.cluster.local.", "0 16 8080 2001-db8--3.db.shop.svc.cluster.local."}},
		lookup{name: "no such port", ask: "_ftp._tcp.db.shop.svc.cluster.local SRV", rcode: dns.RcodeNameError},
	)
}

func TestSpec_2_4_3_HeadlessPointers(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	k := answering(t, allZones, namespace("shop"), db,
		slice(db, "a", endpoint("10.1.0.1", hostname("db-0")), endpoint("10.1.0.2"), endpoint("10.1.0.3", notReady)),
		slice(db, "b", endpoint("2001:db8::3", hostname("db-0"))))
	six := "3.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa."
	check(t, k,
		lookup{name: "hostname", ask: "1.0.1.10.in-addr.arpa PTR", answer: []string{"db-0.db.shop.svc.cluster.local."}},
		lookup{name: "assigned", ask: "2.0.1.10.in-addr.arpa PTR", answer: []string{"10-1-0-2.db.shop.svc.cluster.local."}},
		lookup{name: "IPv6", ask: six + " PTR", answer: []string{six + " 5 IN PTR db-0.db.shop.svc.cluster.local."}},
		lookup{name: "not ready", ask: "3.0.1.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
	)
}

func TestSpec_2_5_ExternalName(t *testing.T) {
	k := answering(t, allZones, namespace("shop"), externalName("shop", "ext", "www.example.org"))
	k.upstream = upstreamOf(t, "www.example.org. 60 IN A 192.0.2.1", "www.example.org. 60 IN AAAA 2001:db8:f::1")
	cname := "ext.shop.svc.cluster.local. 5 IN CNAME www.example.org."
	check(t, k,
		lookup{name: "CNAME", ask: "ext.shop.svc.cluster.local CNAME", answer: []string{cname}},
		lookup{name: "A", ask: "ext.shop.svc.cluster.local A", answer: []string{cname, "www.example.org. 60 IN A 192.0.2.1"}},
		lookup{name: "AAAA", ask: "ext.shop.svc.cluster.local AAAA", answer: []string{cname, "www.example.org. 60 IN AAAA 2001:db8:f::1"}},
	)
}

func TestSpec_2_6_Pods(t *testing.T) {
	k := answering(t, allZones+" {\npods insecure\n}", namespace("shop"))
	check(t, k,
		lookup{name: "A", ask: "10-1-0-7.shop.pod.cluster.local A", answer: []string{"10.1.0.7"}},
		lookup{name: "AAAA", ask: "2001-db8--7.shop.pod.cluster.local AAAA", answer: []string{"2001:db8::7"}},
	)
}
