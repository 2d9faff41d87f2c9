package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// Search lists of pods with suffixes of the cluster first, and then of its clusterset.
var (
	listBoth = []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "shop.svc.clusterset.local.", "svc.clusterset.local.", "clusterset.local."}
	listSet  = []string{"shop.svc.clusterset.local.", "svc.clusterset.local.", "clusterset.local."}
)

func searchedImports() []runtime.Object {
	return append(clustersetObjects(),
		service("team", "only", []string{"10.0.0.7"}, tcp("http", 80)),
		imported("team", "mail", []string{"10.100.1.3"}, tcp("smtp", 25)), imported("team", "only6", []string{"2001:db8:100::66"}, tcp("http", 80)))
}

// A search list may have candidates in both kinds of zones.
func TestSearch_Clusterset(t *testing.T) {
	k := answering(t, clusterset("zonal", "fallthrough ip6.arpa"), searchedImports()...)
	for _, c := range []struct {
		name, ask string
		list      []string
		says      string
		rcode     int
		answer    []string
	}{
		{name: "a Service before a ServiceImport", ask: "web A", list: listBoth, says: listBoth[0], answer: []string{"web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}},
		{name: "a ServiceImport alone", ask: "four A", list: listBoth, says: listBoth[3], answer: []string{
			"four.shop.svc.cluster.local. 5 IN CNAME four.shop.svc.clusterset.local.", "four.shop.svc.clusterset.local. 5 IN A 10.100.0.4"}},
		{name: "of another namespace", ask: "mail.team A", list: listBoth, says: listBoth[4], answer: []string{
			"mail.team.shop.svc.cluster.local. 5 IN CNAME mail.team.svc.clusterset.local.", "mail.team.svc.clusterset.local. 5 IN A 10.100.1.3"}},
		{name: "with svc", ask: "mail.team.svc A", list: listBoth, says: listBoth[5], answer: []string{
			"mail.team.svc.shop.svc.cluster.local. 5 IN CNAME mail.team.svc.clusterset.local.", "mail.team.svc.clusterset.local. 5 IN A 10.100.1.3"}},
		{name: "an endpoint", ask: "db-0.east.db A", list: listBoth, says: listBoth[3], answer: []string{
			"db-0.east.db.shop.svc.cluster.local. 5 IN CNAME db-0.east.db.shop.svc.clusterset.local.", "db-0.east.db.shop.svc.clusterset.local. 5 IN A 10.2.1.1"}},
		{name: "a port", ask: "_quic._udp.web SRV", list: listBoth, says: listBoth[3], answer: []string{
			"_quic._udp.web.shop.svc.cluster.local. 5 IN CNAME _quic._udp.web.shop.svc.clusterset.local.",
			"_quic._udp.web.shop.svc.clusterset.local. 5 IN SRV 0 50 443 web.shop.svc.clusterset.local."}},
		{name: "the other family of a Service counts before a ServiceImport of it", ask: "web AAAA", list: listBoth, says: listBoth[0]},
		{name: "the other family of a ServiceImport", ask: "six A", list: listBoth, says: listBoth[3]},
		{name: "the other family, headless", ask: "only6 A", list: listSet, says: listSet[0]},
		{name: "the version of the cluster first", ask: "dns-version TXT", list: listBoth, says: listBoth[2], answer: []string{
			"dns-version.shop.svc.cluster.local. 28800 IN CNAME dns-version.cluster.local.", `dns-version.cluster.local. 28800 IN TXT "1.1.0"`}},
		{name: "the version", ask: "dns-version TXT", list: listSet, says: listSet[2], answer: []string{
			"dns-version.shop.svc.clusterset.local. 28800 IN CNAME dns-version.clusterset.local.", `dns-version.clusterset.local. 28800 IN TXT "1.0.0"`}},
		{name: "NODATA", ask: "web TXT", list: listSet, says: saysNone},
		{name: "no addresses yet", ask: "noip A", list: listBoth, says: saysNone},
		{name: "none", ask: "www.example.org A", list: listBoth, says: saysNone, rcode: dns.RcodeNameError},
		{name: "a cluster has no name", ask: "east.db A", list: listSet, says: saysNone, rcode: dns.RcodeNameError},
		{name: "the clusterset first", ask: "only.team.svc A", list: []string{"clusterset.local.", "cluster.local."}, says: "cluster.local.", answer: []string{
			"only.team.svc.clusterset.local. 5 IN CNAME only.team.svc.cluster.local.", "only.team.svc.cluster.local. 5 IN A 10.0.0.7"}},
		{name: "mixed case", ask: "Four.SHOP A", list: listBoth, says: listBoth[4], answer: []string{
			"Four.SHOP.shop.svc.cluster.local. 5 IN CNAME four.shop.svc.clusterset.local.", "four.shop.svc.clusterset.local. 5 IN A 10.100.0.4"}},
		{name: "a suffix outside of the zones", ask: "four A", list: append(slices.Clone(listSet), "example.org."), answer: []string{
			"four.shop.svc.clusterset.local. 5 IN A 10.100.0.4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, says := askSearch(t, k, c.ask, c.list...)
			if m.Rcode != c.rcode || says != c.says {
				t.Errorf("%s, the option has %q, want %s, %q", dns.RcodeToString[m.Rcode], says, dns.RcodeToString[c.rcode], c.says)
			}
			if got := texts(m.Answer); !slices.Equal(got, c.answer) {
				t.Errorf("the answer is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.answer, "\n\t"))
			}
		})
	}
}

// TestSearch_ClustersetWalk is TestSearch_Walk with lists that have candidates in both kinds of zones.
func TestSearch_ClustersetWalk(t *testing.T) {
	k := answering(t, clusterset("zonal", "pods verified"), searchedImports()...)
	k.upstream = upstreamOf(t, "www.example.org. 60 IN A 192.0.2.1")
	lists := [][]string{listBoth, listSet, listBoth[2:], {"clusterset.local.", "cluster.local."}, {"team.svc.clusterset.local.", "team.svc.cluster.local.", "shop.svc.clusterset.local."},
		{"pod.clusterset.local.", "svc.clusterset.local."}}
	bases := []string{"web", "db", "four", "six", "noip", "down", "only", "only6", "mail", "ext", "east.db", "db-0.east.db", "db-1.eu.west-1.db", "_http._tcp.web", "_sql._tcp.db", "web.shop",
		"mail.team", "only.team", "only6.team", "db.shop", "x.pin._zone.db", "web.shop.svc", "mail.team.svc", "svc", "pod", "dns-version", "ns.dns", "dns", "shop", "none.none", `a\.b`}
	results := map[string]int{}
	for _, list := range lists {
		for _, base := range bases {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeNS, dns.TypeMX, dns.TypeHTTPS} {
				q := dns.Question{Name: base + "." + list[0], Qtype: qtype, Qclass: dns.ClassINET}
				want := walk(func(name string, qtype uint16) *dns.Msg {
					return direct(t, k, new(dns.Msg).SetQuestion(name, qtype), "10.240.0.1")
				}, q, list)
				got := walkedOf(direct(t, k, withList(t, new(dns.Msg).SetQuestion(q.Name, qtype), list...), "10.240.0.1"))
				if !got.same(want) {
					t.Errorf("%s %s with %v:\n%+v\nwant\n%+v", q.Name, dns.TypeToString[qtype], list, got, want)
				}
				results[kindOfWalk(got, list)]++
			}
		}
	}
	t.Log(results)
	for _, kind := range []string{"the first", "a later one", "none exists", "none has data", "data of the other family"} {
		if results[kind] < 10 {
			t.Errorf("%q came %d times", kind, results[kind])
		}
	}
}

// While ServiceImports are not synced, it is unknown whether a candidate in the clusterset exists: the reply is that
// for the name, unless an earlier candidate has data.
func TestSearch_ClustersetBeforeTheFirstReading(t *testing.T) {
	for _, c := range []struct {
		ask   string
		list  []string
		rcode int
		tried bool
	}{
		{"four A", listBoth, dns.RcodeNameError, false},
		{"none A", listBoth, dns.RcodeNameError, false},
		{"four A", listSet, dns.RcodeServerFailure, false},
		{"none A", listSet, dns.RcodeServerFailure, false},
		{"only.team.svc A", []string{"clusterset.local.", "cluster.local."}, dns.RcodeServerFailure, false},
		{"web A", listBoth[:3], dns.RcodeSuccess, true},
	} {
		t.Run(fmt.Sprint(c.ask, c.list), func(t *testing.T) {
			k := withStatus(answering(t, clusterset(), searchedImports()...), source.Status{Resource: source.ServiceImports})
			m, says := askSearch(t, k, c.ask, c.list...)
			if m.Rcode != c.rcode || (says != notTried) != c.tried {
				t.Errorf("%s, the option has %q, want %s, tried: %t\n%v", dns.RcodeToString[m.Rcode], says, dns.RcodeToString[c.rcode], c.tried, m)
			}
		})
	}
}

// Another plugin may answer names of one zone and not of the other.
func TestSearch_ClustersetOthersAnswer(t *testing.T) {
	for _, c := range []struct {
		options string
		prepare func(k *Kubernetes)
		tried   bool
	}{
		{tried: true},
		{options: "fallthrough in-addr.arpa", tried: true},
		{options: "fallthrough clusterset.local"},
		{prepare: func(k *Kubernetes) { k.shared = true }},
		{prepare: func(k *Kubernetes) {
			k.serves = func(_ context.Context, name string) bool { return !dns.IsSubDomain(modelZone, name) }
		}},
	} {
		t.Run(fmt.Sprint(c.options, c.prepare != nil), func(t *testing.T) {
			k := answering(t, clusterset(c.options), searchedImports()...)
			if c.prepare != nil {
				c.prepare(k)
			}
			if m, says := askSearch(t, k, "four A", listBoth...); (says != notTried) != c.tried {
				t.Errorf("the option has %q, want tried: %t\n%v", says, c.tried, m)
			}
		})
	}
}

// The caller decides which ServiceImport has data, and A and AAAA are from the same one.
func TestSearch_ClustersetTopology(t *testing.T) {
	k := placedImports(t, clusterset("topology"))
	ix := indexOf(k)
	ix.PutNamespace("team")
	ix.PutImport(&index.Service{Namespace: "team", Name: "local", IPs: addrs(t, "10.1.7.7")})
	for from, want := range map[string]string{"10.240.1.9": "shop.svc.clusterset.local.", "10.240.2.9": "team.svc.clusterset.local."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			r := withList(t, new(dns.Msg).SetQuestion("local.shop.svc.clusterset.local.", qtype), "shop.svc.clusterset.local.", "team.svc.clusterset.local.")
			if says := resultOf(direct(t, k, r, from)); says != want {
				t.Errorf("%s from %s leads to %q, want %q", dns.TypeToString[qtype], from, says, want)
			}
		}
	}
}
