package kubernetes

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestApex_NoData(t *testing.T) {
	k := answering(t, allZones+" {\npods insecure\n}", namespace("shop"), service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)))
	for _, owner := range []string{"cluster.local", "svc.cluster.local", "pod.cluster.local", "shop.svc.cluster.local",
		"shop.pod.cluster.local", "10.in-addr.arpa", "Cluster.Local", "SVC.cluster.local"} {
		for _, qtype := range []string{"A", "AAAA", "SRV", "TXT", "CNAME", "PTR", "MX", "HTTPS", "ANY"} {
			check(t, k, lookup{name: owner + " " + qtype, ask: owner + " " + qtype})
		}
	}
	check(t, k,
		lookup{name: "missing namespace", ask: "none.svc.cluster.local A", rcode: dns.RcodeNameError},
		lookup{name: "missing namespace of pods", ask: "none.pod.cluster.local A", rcode: dns.RcodeNameError},
	)
}

func TestOtherTypes(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	k := answering(t, allZones, namespace("shop"), service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)), db, slice(db, "a", endpoint("10.1.0.1", hostname("x"))))
	for _, qtype := range []string{"MX", "TXT", "CNAME", "NS", "SOA", "PTR", "HTTPS", "CAA", "ANY", "DS", "RRSIG"} {
		check(t, k,
			lookup{name: "exists " + qtype, ask: "web.shop.svc.cluster.local " + qtype},
			lookup{name: "endpoint " + qtype, ask: "x.db.shop.svc.cluster.local " + qtype},
			lookup{name: "missing " + qtype, ask: "none.shop.svc.cluster.local " + qtype, rcode: dns.RcodeNameError})
	}
}

func TestApex_SOA(t *testing.T) {
	for _, c := range []struct{ option, ttl, minttl int }{{0, 0, 0}, {5, 5, 5}, {30, 30, 30}, {300, 300, 300}, {301, 300, 301}, {3600, 300, 3600}} {
		t.Run(fmt.Sprint(c.option), func(t *testing.T) {
			k := answering(t, fmt.Sprintf("kubernetes cluster.local 10.in-addr.arpa {\nttl %d\n}", c.option), namespace("shop"))
			soa := func(zone string) string {
				return fmt.Sprintf("%s %d IN SOA ns.dns.%s hostmaster.%s %d 7200 1800 86400 %d", zone, c.ttl, zone, zone, k.index.Modified(), c.minttl)
			}
			if k.index.Modified() == 0 {
				t.Fatal("nothing was modified")
			}
			check(t, k,
				lookup{name: "apex", ask: "cluster.local SOA", answer: []string{soa("cluster.local.")}},
				lookup{name: "mixed case", ask: "Cluster.LOCAL SOA", answer: []string{soa("Cluster.LOCAL.")}},
				lookup{name: "reverse zone", ask: "10.in-addr.arpa SOA", answer: []string{soa("10.in-addr.arpa.")}},
				lookup{name: "below the apex", ask: "svc.cluster.local SOA"},
				lookup{name: "nonexistent name", ask: "none.cluster.local SOA", rcode: dns.RcodeNameError},
			)
			sameRecords(t, "NXDOMAIN", ask(t, k, "none.shop.svc.cluster.LOCAL A").Ns, []string{soa("cluster.LOCAL.")})
			sameRecords(t, "NODATA", ask(t, k, "shop.svc.CLUSTER.local A").Ns, []string{soa("CLUSTER.local.")})
			sameRecords(t, "SERVFAIL", ask(t, unsynced(k), "shop.svc.cluster.local A").Ns, []string{soa("cluster.local.")})
		})
	}
}

func TestTTL(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	k := answering(t, allZones+" {\nttl 77\n}", namespace("shop"), db, slice(db, "a", endpoint("10.1.0.1")), externalName("shop", "ext", "example.org"))
	k.localIPs = []netip.Addr{netip.MustParseAddr("10.1.0.1")}
	k.upstream = upstreamOf(t)
	for _, question := range []string{"db.shop.svc.cluster.local A", "db.shop.svc.cluster.local SRV", "1.0.1.10.in-addr.arpa PTR",
		"ext.shop.svc.cluster.local CNAME", "ext.shop.svc.cluster.local A", "cluster.local NS"} {
		m := ask(t, k, question)
		if len(m.Answer) == 0 {
			t.Errorf("%s: no answer", question)
		}
		for _, r := range append(m.Answer, m.Extra...) {
			if r.Header().Ttl != 77 {
				t.Errorf("%s: the TTL is not 77: %v", question, r)
			}
		}
	}
}

func TestApex_NS(t *testing.T) {
	server := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	dnsService := service("kube-system", "kube-dns", []string{"10.0.0.10", "2001:db8::10"}, udp("dns", 53))
	peers := service("kube-system", "peers", headless, udp("dns", 53))
	objects := []runtime.Object{namespace("kube-system"), dnsService, peers,
		slice(dnsService, "a", endpoint("10.1.0.1"), endpoint("10.1.0.2")), slice(peers, "a", endpoint("10.1.0.3", hostname("a")), endpoint("10.1.0.4"))}
	own := lookup{name: "no own address", ask: "cluster.local NS", answer: []string{"ns.dns.cluster.local."}, extra: []string{"ns.dns.cluster.local. 5 IN A 10.1.0.9"}}
	for _, c := range []struct {
		name, ip string
		lookup   []lookup
	}{
		{"no Service", "10.1.0.9", []lookup{own,
			{name: "A", ask: "ns.dns.cluster.local A", answer: []string{"ns.dns.cluster.local. 5 IN A 10.1.0.9"}},
			{name: "A, mixed case", ask: "Ns.Dns.Cluster.Local A", answer: []string{"Ns.Dns.Cluster.Local. 5 IN A 10.1.0.9"}},
			{name: "AAAA", ask: "ns.dns.cluster.local AAAA"},
			{name: "above it", ask: "dns.cluster.local A"},
			{name: "beside it", ask: "ns2.dns.cluster.local A", rcode: dns.RcodeNameError},
			{name: "mixed case", ask: "Cluster.LOCAL NS", answer: []string{"Cluster.LOCAL. 5 IN NS ns.dns.Cluster.LOCAL."},
				extra: []string{"ns.dns.Cluster.LOCAL. 5 IN A 10.1.0.9"}}}},
		{"ClusterIP", "10.1.0.1", []lookup{
			{name: "NS", ask: "cluster.local NS", answer: []string{"cluster.local. 5 IN NS kube-dns.kube-system.svc.cluster.local."},
				extra: []string{"kube-dns.kube-system.svc.cluster.local. 5 IN A 10.0.0.10", "kube-dns.kube-system.svc.cluster.local. 5 IN AAAA 2001:db8::10"}},
			{name: "mixed case", ask: "CLUSTER.local NS", answer: []string{"CLUSTER.local. 5 IN NS kube-dns.kube-system.svc.CLUSTER.local."},
				extra: []string{"kube-dns.kube-system.svc.CLUSTER.local. 5 IN A 10.0.0.10", "kube-dns.kube-system.svc.CLUSTER.local. 5 IN AAAA 2001:db8::10"}},
			{name: "ns.dns A", ask: "ns.dns.cluster.local A", answer: []string{"ns.dns.cluster.local. 5 IN A 10.0.0.10"}}}},
		{"headless", "10.1.0.3", []lookup{{name: "NS", ask: "cluster.local NS",
			answer: []string{"cluster.local. 5 IN NS a.peers.kube-system.svc.cluster.local.", "cluster.local. 5 IN NS 10-1-0-4.peers.kube-system.svc.cluster.local."},
			extra:  []string{"a.peers.kube-system.svc.cluster.local. 5 IN A 10.1.0.3", "10-1-0-4.peers.kube-system.svc.cluster.local. 5 IN A 10.1.0.4"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, allZones, objects...)
			k.localIPs = server(c.ip)
			check(t, k, c.lookup...)
		})
	}
}

// The names in NS and SOA records exist and have the addresses in the additional section.
func TestApex_NameServersResolve(t *testing.T) {
	dnsService := service("kube-system", "kube-dns", []string{"10.0.0.10"}, udp("dns", 53))
	for _, c := range []struct{ name, block, zone, ip string }{
		{"Service", allZones, "cluster.local.", "10.1.0.1"},
		{"no Service", allZones, "cluster.local.", "10.1.0.9"},
		{"Service, reverse zone", allZones, "10.in-addr.arpa.", "10.1.0.1"},
		{"no Service, reverse zone", allZones, "10.in-addr.arpa.", "10.1.0.9"},
		{"Service in a namespace that is not shown", allZones + " {\nnamespaces shop\n}", "cluster.local.", "10.1.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, c.block, namespace("kube-system"), namespace("shop"), dnsService, slice(dnsService, "a", endpoint("10.1.0.1")))
			k.localIPs = []netip.Addr{netip.MustParseAddr(c.ip)}
			m := ask(t, k, c.zone+" NS")
			if len(m.Answer) != 1 || len(m.Extra) != 1 {
				t.Fatalf("want one NS with one address, got\n%v", m)
			}
			ns := m.Answer[0].(*dns.NS).Ns
			// A name outside of the zone may be looked up in another zone of this server.
			sameRecords(t, ns, ask(t, k, ns+" A").Answer, texts(m.Extra))
			soa := ask(t, k, c.zone+" SOA").Answer[0].(*dns.SOA)
			if m := ask(t, k, soa.Ns+" A"); len(m.Answer) == 0 {
				t.Errorf("the SOA's name server %s has no address: %s", soa.Ns, dns.RcodeToString[m.Rcode])
			}
		})
	}
}

func TestBoundIPs(t *testing.T) {
	for _, c := range []struct {
		name  string
		hosts []string
		want  string
	}{
		{"addresses of bind", []string{"10.1.0.9", "2001:db8::9"}, "[10.1.0.9 2001:db8::9]"},
		{"no loopback", []string{"127.0.0.1", "::1", "10.1.0.9"}, "[10.1.0.9]"},
		{"no wildcard", []string{"0.0.0.0", "::"}, "[]"},
		{"IPv4 inside of IPv6", []string{"::ffff:10.1.0.9"}, "[10.1.0.9]"},
		{"an interface's zone", []string{"fe80::1%eth0"}, "[fe80::1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			controller := caddy.NewTestController("dns", "")
			dnsserver.GetConfig(controller).ListenHosts = c.hosts
			if got := fmt.Sprint(boundIPs(controller)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("of the machine", func(t *testing.T) {
		for _, a := range boundIPs(caddy.NewTestController("dns", "")) {
			if a.IsLoopback() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%s", a)
			}
		}
	})
}
