package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"
)

// Names of a clusterset zone: KEP-1645 and its DNS specification 1.0.0; the tests name its sections.

// clustersetObjects are a cluster with ServiceImports of all kinds, and Services with the same and other names.
func clustersetObjects() []runtime.Object {
	web := imported("shop", "web", []string{"10.100.0.1", "2001:db8:100::1"}, tcp("http", 80), udp("quic", 443))
	db := imported("shop", "db", headless, tcp("sql", 5432), tcp("admin", 8080))
	down := imported("shop", "down", headless, tcp("sql", 5432))
	bare := imported("shop", "bare", headless, tcp("sql", 5432))
	six := imported("shop", "only6", headless, tcp("sql", 5432))
	localDB := service("shop", "db", headless, tcp("sql", 5432))
	return []runtime.Object{
		namespace("shop"), namespace("team"),
		service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)),
		service("shop", "local", []string{"10.0.0.2"}, tcp("http", 80)),
		externalName("shop", "ext", "www.example.org"),
		localDB, slice(localDB, "own", endpoint("10.1.0.1", hostname("db-0"))),
		web, importedSlice(web, "east", "e", endpoint("10.2.0.1", hostname("w")), endpoint("10.2.0.2", notReady)),
		imported("shop", "four", []string{"10.100.0.4"}, tcp("http", 80)),
		imported("shop", "six", []string{"2001:db8:100::6"}, tcp("http", 80)),
		imported("shop", "noip", nil, tcp("http", 80)),
		imported("shop", "noports", []string{"10.100.0.5"}),
		imported("shop", "both", []string{"10.100.0.6"}, tcp("tcp", 42), udp("udp", 42)),
		imported("missing", "web", []string{"10.100.0.7"}, tcp("http", 80)),
		db,
		importedSlice(db, "east", "e4", endpoint("10.2.1.1", hostname("db-0")), endpoint("10.2.1.2"), endpoint("10.2.1.3", notReady)),
		importedSlice(db, "east", "e4b", endpoint("10.2.1.1", hostname("db-0"))),
		importedSlice(db, "east", "e6", endpoint("2001:db8:2::1", hostname("db-0"))),
		importedSlice(db, "eu.west-1", "w4", endpoint("10.3.1.1", hostname("db-0")), endpoint("10.3.1.2", hostname("db-1"))),
		down, importedSlice(down, "east", "e", endpoint("10.2.2.1", hostname("x"), notReady)),
		imported("shop", "empty", headless, tcp("sql", 5432)),
		bare, importedSlice(bare, "", "n", endpoint("10.4.1.1", hostname("b-0")), endpoint("10.4.1.2")),
		six, importedSlice(six, "east", "e", endpoint("2001:db8:2::6", hostname("s-0"))),
		importedSlice(imported("shop", "lone", headless), "east", "e", endpoint("10.5.1.1", hostname("x"))),
	}
}

const inSet = ".svc.clusterset.local"

// a returns a lookup of addresses, of type A for IPv4 and AAAA for IPv6.
func a(owner string, ips ...string) lookup {
	qtype := "A"
	if len(ips) > 0 && strings.Contains(ips[0], ":") {
		qtype = "AAAA"
	}
	l := lookup{name: owner + " " + qtype, ask: owner + " " + qtype}
	for _, ip := range ips {
		l.answer = append(l.answer, fmt.Sprintf("%s. 5 IN %s %s", owner, qtype, ip))
	}
	return l
}

// nodata and nxdomain return lookups of a name without an answer, by types, or by all types if none is given.
func nodata(owner string, types ...string) (all []lookup) {
	return empty(owner, dns.RcodeSuccess, types)
}

func nxdomain(owner string, types ...string) (all []lookup) {
	return empty(owner, dns.RcodeNameError, types)
}

func empty(owner string, rcode int, types []string) (all []lookup) {
	if types == nil {
		types = []string{"A", "AAAA", "SRV", "TXT", "CNAME", "PTR", "NS", "SOA", "MX", "HTTPS", "ANY"}
	}
	for _, qtype := range types {
		all = append(all, lookup{name: owner + " " + qtype, ask: owner + " " + qtype, rcode: rcode})
	}
	return all
}

var othersThanAddresses = []string{"TXT", "CNAME", "PTR", "NS", "SOA", "MX", "HTTPS", "ANY"}

// Section 2.3.1: A and AAAA of a ClusterSetIP.
func TestClusterset_2_3_1_ClusterSetIPs(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	check(t, k, a("web.shop"+inSet, "10.100.0.1"), a("web.shop"+inSet, "2001:db8:100::1"),
		a("four.shop"+inSet, "10.100.0.4"), a("six.shop"+inSet, "2001:db8:100::6"), a("noports.shop"+inSet, "10.100.0.5"))
	check(t, k, nodata("four.shop"+inSet, "AAAA")...)
	check(t, k, nodata("six.shop"+inSet, "A")...)
	check(t, k, nodata("noip.shop"+inSet)...)
	check(t, k, nodata("noports.shop"+inSet, "AAAA", "SRV")...)
	check(t, k, nodata("web.shop"+inSet, othersThanAddresses...)...)
	check(t, k, nxdomain("none.shop"+inSet)...)
	check(t, k, nxdomain("web.team"+inSet)...)
	check(t, k, nxdomain("web.missing"+inSet)...)
	check(t, k, nxdomain("lone.shop"+inSet)...) // an EndpointSlice without a ServiceImport
}

// Each zone has its own names: a Service has none in the clusterset, and a ServiceImport none in the cluster.
func TestClusterset_ZonesApart(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	check(t, k, a("web.shop.svc.cluster.local", "10.0.0.1"), a("db.shop.svc.cluster.local", "10.1.0.1"),
		a("db-0.db.shop.svc.cluster.local", "10.1.0.1"), a("local.shop.svc.cluster.local", "10.0.0.2"))
	check(t, k, nodata("web.shop.svc.cluster.local", "AAAA")...)
	check(t, k, nodata("db.shop.svc.cluster.local", "AAAA")...)
	for _, name := range []string{"local", "ext", "db-0.db", "_http._tcp.local"} {
		check(t, k, nxdomain(name+".shop"+inSet)...)
	}
	for _, name := range []string{"four", "noip", "bare", "w.east.web", "db-0.east.db", "x.east.lone", "east.db", "b-0.bare"} {
		check(t, k, nxdomain(name+".shop.svc.cluster.local")...)
	}
	check(t, k, lookup{name: "SRV", ask: "db.shop.svc.cluster.local SRV", answer: []string{"0 100 5432 db-0.db.shop.svc.cluster.local."},
		extra: []string{"db-0.db.shop.svc.cluster.local. 5 IN A 10.1.0.1"}})
}

// Section 2.4.1: A and AAAA of a headless one, and of its endpoints.
func TestClusterset_2_4_1_Headless(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	check(t, k, a("db.shop"+inSet, "10.2.1.1", "10.2.1.2", "10.3.1.1", "10.3.1.2"), a("db.shop"+inSet, "2001:db8:2::1"),
		a("only6.shop"+inSet, "2001:db8:2::6"), a("bare.shop"+inSet, "10.4.1.1", "10.4.1.2"))
	check(t, k, nodata("only6.shop"+inSet, "A")...)
	check(t, k, nodata("bare.shop"+inSet, "AAAA")...)
	check(t, k, nodata("db.shop"+inSet, othersThanAddresses...)...)
	check(t, k, nxdomain("down.shop"+inSet)...)
	check(t, k, nxdomain("empty.shop"+inSet)...)
	check(t, k, nxdomain("x.east.down.shop"+inSet)...)
}

// Names of endpoints have the host, the cluster and the ServiceImport.
func TestClusterset_2_4_1_Endpoints(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	check(t, k,
		a("db-0.east.db.shop"+inSet, "10.2.1.1"), a("db-0.east.db.shop"+inSet, "2001:db8:2::1"), // several slices, each address once
		a("10-2-1-2.east.db.shop"+inSet, "10.2.1.2"),
		a("db-0.eu.west-1.db.shop"+inSet, "10.3.1.1"), a("db-1.eu.west-1.db.shop"+inSet, "10.3.1.2"),
		a("s-0.east.only6.shop"+inSet, "2001:db8:2::6"),
		a("w.east.web.shop"+inSet, "10.2.0.1"), // also below a ClusterSetIP
	)
	check(t, k, lookup{name: "SRV", ask: "db-0.east.db.shop" + inSet + " SRV",
		answer: []string{"0 16 5432 db-0.east.db.shop.svc.clusterset.local.", "0 16 8080 db-0.east.db.shop.svc.clusterset.local."},
		extra:  []string{"db-0.east.db.shop.svc.clusterset.local. 5 IN A 10.2.1.1", "db-0.east.db.shop.svc.clusterset.local. 5 IN AAAA 2001:db8:2::1"}},
		lookup{name: "SRV below a ClusterSetIP", ask: "w.east.web.shop" + inSet + " SRV",
			answer: []string{"0 50 80 w.east.web.shop.svc.clusterset.local.", "0 50 443 w.east.web.shop.svc.clusterset.local."},
			extra:  []string{"w.east.web.shop.svc.clusterset.local. 5 IN A 10.2.0.1"}})
	check(t, k, nodata("db-0.east.db.shop"+inSet, othersThanAddresses...)...)
	check(t, k, nodata("s-0.east.only6.shop"+inSet, "A")...)
	check(t, k, nodata("10-2-1-2.east.db.shop"+inSet, "AAAA")...)
	for _, name := range []string{
		"10-2-1-1.east.db",  // the endpoint has a hostname
		"db-1.east.db",      // the endpoint is in another cluster
		"db-0.west.db",      // no such cluster
		"db-0.west-1.db",    // part of an ID
		"db-0.eu.db",        // the other part
		"db-0.west-1.eu.db", // reversed
		"db-0.x.eu.west-1.db", "db-0.eu.west-1.x.db", "x.db-0.eu.west-1.db",
		`db-0.eu\.west-1.db`, // a label with a dot
		"10-2-1-3.east.db",   // not ready
		"10-2-0-2.east.web",  // not ready
		"10-2-1-2.eu.west-1.db", "2001-db8-2--1.east.db", "10.2.1.2.east.db", "x.east.db", "db-0.east.none", "x.east.lone",
	} {
		check(t, k, nxdomain(name+".shop"+inSet)...)
	}
}

// Endpoints of a slice without a cluster ID, or with one that cannot be part of a name.
func TestClusterset_EndpointsOfNoCluster(t *testing.T) {
	db := imported("shop", "db", headless, tcp("sql", 5432))
	k := answering(t, clusterset(), namespace("shop"), db,
		importedSlice(db, "", "n", endpoint("10.4.1.1", hostname("b-0")), endpoint("10.4.1.2")),
		importedSlice(db, "a_b", "i", endpoint("10.4.1.3", hostname("b-1"))),
		importedSlice(db, "east", "e", endpoint("10.2.1.1", hostname("b-0"))))
	check(t, k, a("b-0.db.shop"+inSet, "10.4.1.1"), a("10-4-1-2.db.shop"+inSet, "10.4.1.2"), a("b-1.db.shop"+inSet, "10.4.1.3"),
		a("b-0.east.db.shop"+inSet, "10.2.1.1"), a("db.shop"+inSet, "10.4.1.1", "10.4.1.2", "10.4.1.3", "10.2.1.1"),
		lookup{name: "SRV", ask: "_sql._tcp.db.shop" + inSet + " SRV", answer: []string{"0 25 5432 b-0.db.shop.svc.clusterset.local.",
			"0 25 5432 10-4-1-2.db.shop.svc.clusterset.local.", "0 25 5432 b-1.db.shop.svc.clusterset.local.",
			"0 25 5432 b-0.east.db.shop.svc.clusterset.local."},
			extra: []string{"b-0.db.shop.svc.clusterset.local. 5 IN A 10.4.1.1",
				"10-4-1-2.db.shop.svc.clusterset.local. 5 IN A 10.4.1.2", "b-1.db.shop.svc.clusterset.local. 5 IN A 10.4.1.3",
				"b-0.east.db.shop.svc.clusterset.local. 5 IN A 10.2.1.1"}})
	check(t, k, nodata("b-0.db.shop"+inSet, othersThanAddresses...)...)
	for _, name := range []string{"b-1.a_b.db", "b-0.a.db", "10-4-1-1.db", "b-1.east.db", "10-4-1-2.east.db", "east.db"} {
		check(t, k, nxdomain(name+".shop"+inSet)...)
	}
}

// Endpoints are named after pods if the block has that option, as those of Services are.
func TestClusterset_EndpointPodNames(t *testing.T) {
	db := imported("shop", "db", headless, tcp("sql", 5432))
	objects := []runtime.Object{namespace("shop"), db,
		importedSlice(db, "east", "e", endpoint("10.2.1.1", ofPod("db-x7")), endpoint("10.2.1.2", hostname("h"), ofPod("db-x8")), endpoint("10.2.1.3", ofPod("a.b")))}
	on, off := answering(t, clusterset("endpoint_pod_names"), objects...), answering(t, clusterset(), objects...)
	check(t, on, a("db-x7.east.db.shop"+inSet, "10.2.1.1"), a("h.east.db.shop"+inSet, "10.2.1.2"), a("10-2-1-3.east.db.shop"+inSet, "10.2.1.3"))
	check(t, off, a("10-2-1-1.east.db.shop"+inSet, "10.2.1.1"), a("h.east.db.shop"+inSet, "10.2.1.2"))
	check(t, on, nxdomain("10-2-1-1.east.db.shop"+inSet)...)
	check(t, on, nxdomain("db-x8.east.db.shop"+inSet)...)
	check(t, off, nxdomain("db-x7.east.db.shop"+inSet)...)
}

// Sections 2.3.4 and 2.4.4: no name selects a cluster by its ID.
func TestClusterset_2_4_4_NoNamesOfClusters(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	for _, name := range []string{"east.db", "east.web", "west-1.db", "db-0.db", "10-2-1-2.db", "w.web", "_tcp.db", "_http.web", "_.db", "x.db", "east.bare",
		"east.down", "east.lone"} {
		check(t, k, nxdomain(name+".shop"+inSet)...)
	}
	// Two labels are a host and a cluster, so that they do not select a cluster either.
	check(t, k, nxdomain("eu.west-1.db.shop"+inSet)...)
}

// Sections 2.3.2 and 2.4.2: SRV by port. One underscore in the two labels distinguishes a port from a host.
func TestClusterset_2_3_2_Ports(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	web := func(owner string) lookup {
		return lookup{name: owner, ask: owner + ".web.shop" + inSet + " SRV",
			answer: []string{owner + ".web.shop.svc.clusterset.local. 5 IN SRV 0 50 80 web.shop.svc.clusterset.local."},
			extra:  []string{"web.shop.svc.clusterset.local. 5 IN A 10.100.0.1", "web.shop.svc.clusterset.local. 5 IN AAAA 2001:db8:100::1"}}
	}
	check(t, k, web("_http._tcp"), web("_http.tcp"), web("http._tcp"), web("_._tcp"), web("_http._"), web("_HTTP._Tcp"),
		a("_http._tcp.web.shop"+inSet, "10.100.0.1"), a("_http._tcp.web.shop"+inSet, "2001:db8:100::1"),
		a("_sql._tcp.db.shop"+inSet, "10.2.1.1", "10.2.1.2", "10.3.1.1", "10.3.1.2"), a("_sql._tcp.db.shop"+inSet, "2001:db8:2::1"),
		lookup{name: "headless", ask: "_sql._tcp.db.shop" + inSet + " SRV", answer: []string{"0 16 5432 db-0.east.db.shop.svc.clusterset.local.",
			"0 16 5432 10-2-1-2.east.db.shop.svc.clusterset.local.", "0 16 5432 db-0.eu.west-1.db.shop.svc.clusterset.local.",
			"0 16 5432 db-1.eu.west-1.db.shop.svc.clusterset.local."},
			extra: []string{"db-0.east.db.shop.svc.clusterset.local. 5 IN A 10.2.1.1",
				"db-0.east.db.shop.svc.clusterset.local. 5 IN AAAA 2001:db8:2::1", "10-2-1-2.east.db.shop.svc.clusterset.local. 5 IN A 10.2.1.2",
				"db-0.eu.west-1.db.shop.svc.clusterset.local. 5 IN A 10.3.1.1", "db-1.eu.west-1.db.shop.svc.clusterset.local. 5 IN A 10.3.1.2"}})
	check(t, k, nodata("_http._tcp.web.shop"+inSet, othersThanAddresses...)...)
	check(t, k, nodata("_http._tcp.noip.shop"+inSet)...)
	for _, name := range []string{"_http._udp.web", "_ftp._tcp.web", "__http._tcp.web", "http.tcp.web", "sql.tcp.db", "_ftp._tcp.db", "_sql._udp.db", "_sql._tcp.down",
		"_sql._tcp.empty", "_http._tcp.noports", "_http._tcp.none", "_http._tcp.local"} {
		check(t, k, nxdomain(name+".shop"+inSet)...)
	}
}

// SRV at the name of the ServiceImport has each target and port once.
func TestClusterset_SRVOfAllPorts(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	check(t, k,
		lookup{name: "tcp/42 and udp/42 are one", ask: "both.shop" + inSet + " SRV", answer: []string{"0 50 42 both.shop.svc.clusterset.local."},
			extra: []string{"both.shop.svc.clusterset.local. 5 IN A 10.100.0.6"}},
		lookup{name: "two ports, two addresses", ask: "web.shop" + inSet + " SRV",
			answer: []string{"0 25 80 web.shop.svc.clusterset.local.", "0 25 443 web.shop.svc.clusterset.local."},
			extra:  []string{"web.shop.svc.clusterset.local. 5 IN A 10.100.0.1", "web.shop.svc.clusterset.local. 5 IN AAAA 2001:db8:100::1"}},
		lookup{name: "headless, of no cluster", ask: "bare.shop" + inSet + " SRV",
			answer: []string{"0 50 5432 b-0.bare.shop.svc.clusterset.local.", "0 50 5432 10-4-1-2.bare.shop.svc.clusterset.local."},
			extra:  []string{"b-0.bare.shop.svc.clusterset.local. 5 IN A 10.4.1.1", "10-4-1-2.bare.shop.svc.clusterset.local. 5 IN A 10.4.1.2"}},
		lookup{name: "headless, IPv6", ask: "only6.shop" + inSet + " SRV", answer: []string{"0 100 5432 s-0.east.only6.shop.svc.clusterset.local."},
			extra: []string{"s-0.east.only6.shop.svc.clusterset.local. 5 IN AAAA 2001:db8:2::6"}})
	m := ask(t, k, "db.shop"+inSet+" SRV")
	if len(m.Answer) != 8 || len(m.Extra) != 5 {
		t.Errorf("four endpoints with two ports have %d records and %d addresses:\n%v", len(m.Answer), len(m.Extra), m)
	}
}

// Targets of SRV have the addresses in the additional section.
func TestClusterset_TargetsResolve(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	for _, name := range []string{"web", "four", "six", "both", "db", "bare", "only6", "_sql._tcp.db", "_http._tcp.web", "db-0.eu.west-1.db", "w.east.web"} {
		m := ask(t, k, name+".shop"+inSet+" SRV")
		if len(m.Answer) == 0 {
			t.Errorf("%s has no SRV records", name)
		}
		glue := map[string][]string{}
		for _, rr := range m.Extra {
			glue[rr.Header().Name] = append(glue[rr.Header().Name], text(rr))
		}
		for _, rr := range m.Answer {
			target := rr.(*dns.SRV).Target
			both := append(ask(t, k, target+" A").Answer, ask(t, k, target+" AAAA").Answer...)
			sameRecords(t, target, both, glue[target])
			if len(both) == 0 {
				t.Errorf("%s has the target %s, which has no address", name, target)
			}
		}
	}
}

// Names with three or more labels before the ServiceImport are those of hosts; there are no zonal names.
func TestClusterset_LongNames(t *testing.T) {
	for _, options := range []string{"", "zonal"} {
		t.Run(options, func(t *testing.T) {
			k := answering(t, clusterset(options), clustersetObjects()...)
			for _, name := range []string{"_sql._tcp.db-0.db", "_sql._tcp.east.db", "_sql._tcp.db-0.east.db", "db-0._east.eu.db", "_db-0.eu.west-1.db", "db-0.eu._west-1.db",
				"x.pin._zone.db", "east.prefer._zone.db", "x.y.pin._zone.db", "a.b.c.d.e.f.db", "_sql.x._tcp.db"} {
				check(t, k, nxdomain(name+".shop"+inSet)...)
			}
			check(t, k, a("db-0.eu.west-1.db.shop"+inSet, "10.3.1.1"))
		})
	}
	t.Run("a long ID", func(t *testing.T) {
		db := imported("shop", "db", headless, tcp("sql", 5432))
		k := answering(t, clusterset(), namespace("shop"), db, importedSlice(db, "a.b.c.d", "n", endpoint("10.4.1.1", hostname("h"))))
		check(t, k, a("h.a.b.c.d.db.shop"+inSet, "10.4.1.1"))
		check(t, k, nxdomain("h.b.c.d.db.shop"+inSet)...)
		check(t, k, nxdomain("h.a.b.c.db.shop"+inSet)...)
	})
	t.Run("zonal names of the cluster stay", func(t *testing.T) {
		k := answering(t, clusterset("zonal"), clustersetObjects()...)
		check(t, k, a("x.prefer._zone.db.shop.svc.cluster.local", "10.1.0.1"))
	})
}

// A name has at most 255 octets in wire form.
func TestClusterset_LongestNames(t *testing.T) {
	name, ns, host := strings.Repeat("s", 63), strings.Repeat("n", 63), strings.Repeat("h", 63)
	base := name + "." + ns + inSet
	room := 254 - len(host+"."+"."+base+".") // for the ID, in a name with its final dot
	db := imported(ns, name, headless, tcp("sql", 5432))
	for _, c := range []struct {
		id    int
		named bool
	}{{room - 1, true}, {room, true}, {room + 1, false}} {
		id := strings.Repeat("c", c.id)
		k := answering(t, clusterset(), namespace(ns), db, importedSlice(db, id, "s", endpoint("10.2.1.1", hostname(host))))
		owner := host + "." + id + "." + base + "."
		if _, err := dns.PackDomainName(owner, make([]byte, 255), 0, nil, false); (err == nil) != c.named {
			t.Fatalf("%d characters in wire form: %v", len(owner), err)
		}
		var want []string
		if c.named {
			want = []string{base + ". 5 IN SRV 0 100 5432 " + owner}
			check(t, k, a(strings.TrimSuffix(owner, "."), "10.2.1.1"))
		}
		sameRecords(t, base, ask(t, k, base+" SRV").Answer, want)
		check(t, k, a(base, "10.2.1.1"))
	}
}

// A clusterset has no names of pods, with any pod mode of the block.
func TestClusterset_NoPods(t *testing.T) {
	for _, mode := range []string{"disabled", "insecure", "verified"} {
		t.Run(mode, func(t *testing.T) {
			objects := append(clustersetObjects(), podIn("shop", "p", "Running", "10.1.0.7"))
			k := answering(t, clusterset("pods "+mode), objects...)
			for _, name := range []string{"pod", "shop.pod", "10-1-0-7.shop.pod", "web.shop.pod", "x.east.db.shop.pod", "_http._tcp.web.shop.pod", "missing.pod"} {
				check(t, k, nxdomain(name+".clusterset.local")...)
			}
			if mode != "disabled" {
				check(t, k, a("10-1-0-7.shop.pod.cluster.local", "10.1.0.7"))
			}
			check(t, k, nodata("pod.cluster.local")...)
		})
	}
}

// Section 2.2, and the names above those of ServiceImports.
func TestClusterset_2_2_SchemaVersionAndNonTerminals(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	check(t, k,
		lookup{name: "TXT", ask: "dns-version.clusterset.local TXT", answer: []string{`dns-version.clusterset.local. 28800 IN TXT "1.0.0"`}},
		lookup{name: "TXT, mixed case", ask: "DNS-Version.ClusterSet.LOCAL TXT", answer: []string{`DNS-Version.ClusterSet.LOCAL. 28800 IN TXT "1.0.0"`}},
		lookup{name: "TXT of the cluster", ask: "dns-version.cluster.local TXT", answer: []string{`dns-version.cluster.local. 28800 IN TXT "1.1.0"`}})
	check(t, k, nodata("dns-version.clusterset.local", "A", "AAAA", "SRV", "MX", "SOA", "NS", "PTR")...)
	check(t, k, nodata("clusterset.local", "A", "AAAA", "SRV", "TXT", "CNAME", "PTR", "MX", "HTTPS")...)
	check(t, k, nodata("svc.clusterset.local")...)
	check(t, k, nodata("shop.svc.clusterset.local")...)
	check(t, k, nodata("team.svc.clusterset.local")...)
	check(t, k, nodata("dns.clusterset.local")...)
	for _, name := range []string{"missing.svc", "other", "web.shop", "x.svc.svc", "x.dns", "ns.dns.svc"} {
		check(t, k, nxdomain(name+".clusterset.local")...)
	}
}

// Names and cluster IDs are case-insensitive; the records have the case of the query.
func TestClusterset_CaseInsensitive(t *testing.T) {
	db := imported("shop", "db", headless, tcp("SQL", 5432))
	k := answering(t, clusterset(), namespace("shop"), db,
		importedSlice(db, "North", "n", endpoint("10.6.1.1", hostname("DB-0"))), importedSlice(db, "eu.West", "w", endpoint("10.6.1.2", hostname("db-0"))),
		imported("shop", "web", []string{"10.100.0.1"}, tcp("HTTP", 80)))
	check(t, k,
		a("db-0.north.db.shop"+inSet, "10.6.1.1"), a("db-0.NORTH.db.shop"+inSet, "10.6.1.1"), a("Db-0.North.DB.Shop.sVc.ClusterSet.Local", "10.6.1.1"),
		a("db-0.eu.west.db.shop"+inSet, "10.6.1.2"), a("db-0.EU.WEST.db.shop"+inSet, "10.6.1.2"),
		a("WEB.Shop.sVc.ClusterSet.LOCAL", "10.100.0.1"), a("DB.shop.svc.clusterset.local", "10.6.1.1", "10.6.1.2"),
		lookup{name: "SRV of a ClusterSetIP", ask: "_Http._TCP.WEB.shop.svc.ClusterSet.local SRV",
			answer: []string{"0 100 80 web.shop.svc.ClusterSet.local."}, extra: []string{"web.shop.svc.ClusterSet.local. 5 IN A 10.100.0.1"}})
	m := ask(t, k, "_sql._tcp.db.shop"+inSet+" SRV")
	var targets []string
	for _, rr := range m.Answer {
		targets = append(targets, strings.ToLower(rr.(*dns.SRV).Target))
	}
	if len(targets) != 2 || targets[0] != "db-0.north.db.shop.svc.clusterset.local." || targets[1] != "db-0.eu.west.db.shop.svc.clusterset.local." {
		t.Errorf("the targets are %q", targets)
	}
}

// An address has only names in the cluster.
func TestClusterset_NoPointers(t *testing.T) {
	web := imported("shop", "web", []string{"10.100.0.1", "2001:db8:100::1"}, tcp("http", 80))
	db := imported("shop", "db", headless, tcp("sql", 5432))
	local := service("shop", "db", headless, tcp("sql", 5432))
	objects := []runtime.Object{namespace("shop"), web, db, local,
		service("shop", "vip", []string{"10.100.0.9"}, tcp("http", 80)), imported("shop", "vip", []string{"10.100.0.9"}, tcp("http", 80)),
		importedSlice(web, "east", "e", endpoint("10.2.0.1", hostname("w"))),
		importedSlice(db, "east", "e", endpoint("10.2.1.1", hostname("db-0")), endpoint("10.1.0.1", hostname("other"))),
		importedSlice(db, "east", "s", endpoint("2001:db8:2::1", hostname("db-0"))),
		slice(local, "own", endpoint("10.1.0.1", hostname("db-0"))),
		ofService(importedSlice(db, "west", "both", endpoint("10.1.0.2", hostname("db-1"))), "db")}
	for _, zones := range []string{"cluster.local clusterset.local", "clusterset.local cluster.local", "clusterset.local cluster.local other.local"} {
		t.Run(zones, func(t *testing.T) {
			k := answering(t, "kubernetes 10.in-addr.arpa "+zones+" 8.b.d.0.1.0.0.2.ip6.arpa {\nmulticluster clusterset.local\n}", objects...)
			check(t, k,
				lookup{name: "endpoint of both clusters' objects", ask: "1.0.1.10.in-addr.arpa PTR", answer: []string{"db-0.db.shop.svc.cluster.local."}},
				lookup{name: "one slice of both", ask: "2.0.1.10.in-addr.arpa PTR", answer: []string{"db-1.db.shop.svc.cluster.local."}},
				lookup{name: "ClusterIP and ClusterSetIP", ask: "9.0.100.10.in-addr.arpa PTR", answer: []string{"vip.shop.svc.cluster.local."}})
			six := func(ip string) string { return strings.TrimSuffix(reverse(parsedAddr(t, ip)), ".") }
			for _, name := range []string{"1.0.100.10.in-addr.arpa", "1.0.2.10.in-addr.arpa", "1.1.2.10.in-addr.arpa", six("2001:db8:100::1"), six("2001:db8:2::1")} {
				check(t, k, nxdomain(name)...)
			}
		})
	}
}

// Without a zone of the cluster, no address has a name.
func TestClusterset_NoPointersWithoutTheCluster(t *testing.T) {
	k := answering(t, "kubernetes clusterset.local 10.in-addr.arpa {\nmulticluster clusterset.local\n}", clustersetObjects()...)
	for _, name := range []string{"1.0.0.10.in-addr.arpa", "1.0.1.10.in-addr.arpa", "1.0.100.10.in-addr.arpa"} {
		check(t, k, nxdomain(name)...)
	}
	if all := transferred(t, k, "10.in-addr.arpa."); len(all) > 0 {
		t.Errorf("the reverse zone has %v", texts(all))
	}
	check(t, k, a("web.shop"+inSet, "10.100.0.1"))
}

// One EndpointSlice may belong to a Service and to a ServiceImport.
func TestClusterset_SliceOfBoth(t *testing.T) {
	db := imported("shop", "db", headless, tcp("sql", 5432))
	local := service("shop", "store", headless, tcp("sql", 5432))
	k := answering(t, clusterset(), namespace("shop"), db, local,
		ofService(importedSlice(db, "west", "b", endpoint("10.1.0.1", hostname("db-0")), endpoint("10.1.0.2")), "store"))
	check(t, k, a("db.shop"+inSet, "10.1.0.1", "10.1.0.2"), a("db-0.west.db.shop"+inSet, "10.1.0.1"),
		a("store.shop.svc.cluster.local", "10.1.0.1", "10.1.0.2"), a("db-0.store.shop.svc.cluster.local", "10.1.0.1"),
		lookup{name: "SRV of the Service has no cluster in it", ask: "_sql._tcp.store.shop.svc.cluster.local SRV",
			answer: []string{"0 50 5432 db-0.store.shop.svc.cluster.local.", "0 50 5432 10-1-0-2.store.shop.svc.cluster.local."},
			extra:  []string{"db-0.store.shop.svc.cluster.local. 5 IN A 10.1.0.1", "10-1-0-2.store.shop.svc.cluster.local. 5 IN A 10.1.0.2"}})
	for _, name := range []string{"db.shop.svc.cluster.local", "store.shop" + inSet, "db-0.west.store.shop.svc.cluster.local", "db-0.db.shop" + inSet} {
		check(t, k, nxdomain(name)...)
	}
}

// Without multicluster, the zone is one of the cluster, and slices of other clusters have no records.
func TestClusterset_Off(t *testing.T) {
	k := answering(t, "kubernetes cluster.local clusterset.local 10.in-addr.arpa", clustersetObjects()...)
	check(t, k, a("web.shop"+inSet, "10.0.0.1"), a("local.shop"+inSet, "10.0.0.2"), a("db.shop"+inSet, "10.1.0.1"), a("db.shop.svc.cluster.local", "10.1.0.1"),
		lookup{name: "TXT", ask: "dns-version.clusterset.local TXT", answer: []string{`dns-version.clusterset.local. 28800 IN TXT "1.1.0"`}})
	check(t, k, nxdomain("four.shop"+inSet)...)
	check(t, k, nxdomain("1.0.2.10.in-addr.arpa")...)
	check(t, k, nodata("pod.clusterset.local")...)
	if s := indexOf(k).SliceRecord("shop", "db-e4"); s != nil {
		t.Errorf("a slice of another cluster is in the index without a ServiceImport: %+v", *s)
	}
}

// Zones may be below each other: the longest one is used.
func TestClusterset_NestedZones(t *testing.T) {
	for _, zones := range [][2]string{{"local", "clusterset.local"}, {"cluster.set", "set"}, {"cluster.local", "set.svc.cluster.local"}} {
		cluster, set := zones[0], zones[1]
		t.Run(set+" and "+cluster, func(t *testing.T) {
			k := answering(t, "kubernetes "+cluster+" "+set+" {\nmulticluster "+set+"\n}", clustersetObjects()...)
			check(t, k, a("web.shop.svc."+set, "10.100.0.1"), a("web.shop.svc."+cluster, "10.0.0.1"), a("db-0.east.db.shop.svc."+set, "10.2.1.1"))
			check(t, k, nxdomain("local.shop.svc."+set)...)
			check(t, k, nxdomain("four.shop.svc."+cluster)...)
		})
	}
}

// Several zones may be of a clusterset.
func TestClusterset_SeveralZones(t *testing.T) {
	k := answering(t, "kubernetes cluster.local clusterset.local supercluster.local {\nmulticluster clusterset.local SuperCluster.local\n}", clustersetObjects()...)
	for _, zone := range []string{"clusterset.local", "supercluster.local", "SuperCluster.LOCAL"} {
		check(t, k, a("web.shop.svc."+zone, "10.100.0.1"), a("db-1.eu.west-1.db.shop.svc."+zone, "10.3.1.2"))
	}
	check(t, k, a("web.shop.svc.cluster.local", "10.0.0.1"))
}
