package kubernetes

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Bugs of CoreDNS that this plugin does not have. Those of zone transfers are in transfer_test.go, those of
// startup_timeout and the apiserver options in setup_test.go and parse_test.go.

func TestBug_TXTAtEmptyNonTerminals(t *testing.T) {
	k := answering(t, "kubernetes cluster.local", namespace("shop"))
	for _, owner := range []string{"cluster.local", "svc.cluster.local", "pod.cluster.local", "shop.svc.cluster.local"} {
		check(t, k, lookup{name: owner, ask: owner + " TXT"})
	}
}

func TestBug_SOAOfNothing(t *testing.T) {
	check(t, answering(t, "kubernetes cluster.local", namespace("shop")),
		lookup{name: "Service", ask: "none.shop.svc.cluster.local SOA", rcode: dns.RcodeNameError},
		lookup{name: "outside of the schema", ask: "none.cluster.local SOA", rcode: dns.RcodeNameError})
}

func TestBug_MixedCaseApex(t *testing.T) {
	k := answering(t, "kubernetes cluster.local")
	k.localIPs = []netip.Addr{netip.MustParseAddr("10.1.0.9")}
	check(t, k,
		lookup{name: "NS", ask: "cluSter.local NS", answer: []string{"ns.dns.cluSter.local."}, extra: []string{"ns.dns.cluSter.local. 5 IN A 10.1.0.9"}},
		lookup{name: "ns.dns", ask: "NS.dns.cluSter.local A", answer: []string{"10.1.0.9"}})
}

func TestBug_OtherTypesAtSchemaVersion(t *testing.T) {
	for _, qtype := range []string{"A", "AAAA", "SRV", "MX", "CNAME"} {
		check(t, answering(t, "kubernetes cluster.local"), lookup{name: qtype, ask: "dns-version.cluster.local " + qtype})
	}
}

func TestBug_PointersOfHiddenNamespaces(t *testing.T) {
	db := service("other", "db", headless)
	k := answering(t, allZones+" {\nnamespace_labels name=shop\n}", namespace("shop"), namespace("other"), db,
		slice(db, "a", endpoint("10.1.0.1")), service("other", "web", []string{"10.0.0.1"}, tcp("", 80)))
	check(t, k,
		lookup{name: "ClusterIP", ask: "1.0.0.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "endpoint", ask: "1.0.1.10.in-addr.arpa PTR", rcode: dns.RcodeNameError})
}

func TestBug_SlicesOfNoService(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	unlabelled := slice(db, "a", endpoint("10.1.0.1"))
	unlabelled.Labels = map[string]string{"multicluster.kubernetes.io/service-name": "db"}
	orphan := slice(service("shop", "gone", headless), "a", endpoint("10.1.0.2"))
	check(t, answering(t, allZones, namespace("shop"), db, unlabelled, orphan),
		lookup{name: "no label", ask: "1.0.1.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "no label, headless", ask: "db.shop.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "no Service", ask: "2.0.1.10.in-addr.arpa PTR", rcode: dns.RcodeNameError})
}

func TestBug_SlicesOfNames(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	names := slice(db, "a", endpoint("db.example.org"))
	names.AddressType = discoveryv1.AddressTypeFQDN
	k := answering(t, allZones, namespace("shop"), db, names)
	for _, qtype := range []string{"A", "AAAA", "CNAME", "SRV"} {
		check(t, k, lookup{name: qtype, ask: "db.shop.svc.cluster.local " + qtype, rcode: dns.RcodeNameError})
	}
}

// Names of a reverse zone that are not an address have no records, with any labels.
func TestBug_OddReverseNames(t *testing.T) {
	db := service("shop", "db", headless)
	zones := "kubernetes cluster.local in-addr.arpa ip6.arpa"
	k := answering(t, zones, namespace("shop"), db, slice(db, "a", endpoint("10.1.0.1")), slice(db, "b", endpoint("2001:db8::1"), endpoint("::9")))
	six := "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"
	check(t, k,
		lookup{name: "IPv4", ask: "1.0.1.10.in-addr.arpa PTR", answer: []string{"10-1-0-1.db.shop.svc.cluster.local."}},
		lookup{name: "IPv6", ask: six + " PTR", answer: []string{"2001-db8--1.db.shop.svc.cluster.local."}},
		lookup{name: "IPv4, one label more", ask: "x.1.0.1.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "IPv4, one label less", ask: "0.1.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "IPv4, leading zero", ask: "01.0.1.10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "IPv4, inside of IPv6", ask: "1.0.1.::ffff:10.in-addr.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "IPv6, one label more", ask: "x." + six + " PTR", rcode: dns.RcodeNameError},
		lookup{name: "IPv6, colons", ask: "::9.0.0.0.ip6.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "IPv6, two digits in a label", ask: "9.00.0.:.ip6.arpa PTR", rcode: dns.RcodeNameError},
		lookup{name: "service name below a reverse zone", ask: "db.shop.svc.in-addr.arpa A", rcode: dns.RcodeNameError},
	)
}

// A reverse zone may have a single address.
func TestBug_ReverseZoneOfOneAddress(t *testing.T) {
	check(t, answering(t, "kubernetes cluster.local 1.0.0.10.in-addr.arpa", namespace("shop"), service("shop", "web", []string{"10.0.0.1"}, tcp("", 80))),
		lookup{name: "PTR", ask: "1.0.0.10.in-addr.arpa PTR", answer: []string{"web.shop.svc.cluster.local."}},
		lookup{name: "A", ask: "1.0.0.10.in-addr.arpa A"})
}
