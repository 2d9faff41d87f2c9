package kubernetes

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// Directive multicluster answers queries in zones of clustersets only.
func TestMulticluster(t *testing.T) {
	db := imported("shop", "db", headless, tcp("sql", 5432))
	both := ofService(importedSlice(db, "north", "both", endpoint("10.7.1.1", hostname("n-0"))), "db")
	k := multiclustering(t, "multicluster clusterset.local 10.in-addr.arpa", append(clustersetObjects(), both)...)
	k.localIPs = addrs(t, "10.1.0.1") // an endpoint of a Service
	check(t, k, a("web.shop"+inSet, "10.100.0.1"), a("db.shop"+inSet, "10.2.1.1", "10.2.1.2", "10.3.1.1", "10.3.1.2", "10.7.1.1"),
		a("db-0.eu.west-1.db.shop"+inSet, "10.3.1.1"), a("n-0.north.db.shop"+inSet, "10.7.1.1"),
		lookup{name: "NS", ask: "clusterset.local NS", answer: []string{"ns.dns.clusterset.local."}, extra: []string{"ns.dns.clusterset.local. 5 IN A 10.1.0.1"}},
		lookup{name: "NS of a reverse zone", ask: "10.in-addr.arpa NS", answer: []string{"ns.dns.10.in-addr.arpa."}, extra: []string{"ns.dns.10.in-addr.arpa. 5 IN A 10.1.0.1"}},
		lookup{name: "TXT", ask: "dns-version.clusterset.local TXT", answer: []string{`dns-version.clusterset.local. 28800 IN TXT "1.0.0"`}})
	for _, name := range []string{"local.shop" + inSet, "pod.clusterset.local", "1.1.7.10.in-addr.arpa", "1.0.100.10.in-addr.arpa", "1.0.1.10.in-addr.arpa"} {
		check(t, k, nxdomain(name)...)
	}
	if !passedOn(t, k, "web.shop.svc.cluster.local A") {
		t.Error("a name of the cluster is not the next plugin's")
	}
	if !k.Ready() {
		t.Error("not ready")
	}
	if n := len(slices.Collect(k.index.Addresses())) + len(k.index.Services()); n > 0 {
		t.Errorf("there are %d addresses and Services", n)
	}
}

func TestMulticluster_Options(t *testing.T) {
	objects := clustersetObjects()
	for _, c := range []struct {
		options  string
		question string
		rcode    int
	}{
		{"noendpoints", "db.shop" + inSet + " A", dns.RcodeNameError},
		{"noendpoints", "web.shop" + inSet + " A", dns.RcodeSuccess},
		{"namespaces team", "web.shop" + inSet + " A", dns.RcodeNameError},
		{"namespace_labels name=shop", "web.shop" + inSet + " A", dns.RcodeSuccess},
		{"labels a=b", "web.shop" + inSet + " A", dns.RcodeNameError},
		{"ignore empty_service", "four.shop" + inSet + " A", dns.RcodeNameError},
	} {
		t.Run(c.options+"/"+c.question, func(t *testing.T) {
			k := multiclustering(t, "multicluster clusterset.local {\n"+c.options+"\n}", objects...)
			if m := ask(t, k, c.question); m.Rcode != c.rcode {
				t.Errorf("%s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[c.rcode])
			}
		})
	}
	k := multiclustering(t, "multicluster clusterset.local {\nfallthrough\n}", objects...)
	if !passedOn(t, k, "none.shop"+inSet+" A") || passedOn(t, k, "web.shop"+inSet+" A") {
		t.Error("fallthrough is not as in a kubernetes block")
	}
}

// Before the first sync every name is SERVFAIL. The directive is ready without ServiceImports, since the server may
// have other names, but not without the other resources.
func TestMulticluster_BeforeTheFirstReading(t *testing.T) {
	objects := []runtime.Object{namespace("shop"), imported("shop", "web", []string{"10.100.0.1"}, tcp("http", 80))}
	for _, r := range []string{source.ServiceImports, source.Namespaces, source.EndpointSlices} {
		k := withStatus(multiclustering(t, "multicluster clusterset.local", objects...), source.Status{Resource: r})
		check(t, k, empty("web.shop"+inSet, dns.RcodeServerFailure, []string{"A"})...)
		if k.Ready() != (r == source.ServiceImports) {
			t.Errorf("ready before the first sync of %s: %v", r, k.Ready())
		}
	}
	for _, r := range []string{source.Services, source.Pods} {
		if slices.Contains(multiclustering(t, "multicluster clusterset.local").source.Resources(), r) {
			t.Errorf("it reads %s", r)
		}
	}
}

// registerMulticluster adds the directive to the servers of the tests, after kubernetes.
var registerMulticluster = sync.OnceFunc(func() {
	plugin.Register("multicluster", SetupMulticluster)
	at := slices.Index(dnsserver.Directives, "kubernetes") + 1
	dnsserver.Directives = slices.Insert(slices.Clone(dnsserver.Directives), at, "multicluster")
})

// Both directives may be in one server block: each answers its own zones, and kubernetes tries the candidates in its
// own.
func TestMulticluster_BesideKubernetes(t *testing.T) {
	registerMulticluster()
	dir := t.TempDir()
	const objects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: team}
spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceImport
metadata: {name: web, namespace: team}
spec: {type: ClusterSetIP, ips: [10.100.0.1], ports: [{port: 80}]}
`
	kit.Write(t, dir+"/all.yaml", objects)
	ask := askServer(t, "local:0 {\nkubernetes cluster.local {\nmanifests "+dir+"\n}\nmulticluster clusterset.local {\nmanifests "+dir+"\n}\n}")
	for owner, want := range map[string]string{"web.team.svc.cluster.local.": "10.0.0.1", "web.team.svc.clusterset.local.": "10.100.0.1"} {
		sameRecords(t, owner, ask(new(dns.Msg).SetQuestion(owner, dns.TypeA)).Answer, []string{owner + " 5 IN A " + want})
	}
	r := withList(t, new(dns.Msg).SetQuestion("web.team.shop.svc.cluster.local.", dns.TypeA), listShop...)
	if m := ask(r); resultOf(m) != listShop[1] {
		t.Errorf("the reply to a search list is\n%v", m)
	}
	r = withList(t, new(dns.Msg).SetQuestion("web.shop.svc.clusterset.local.", dns.TypeA), "shop.svc.clusterset.local.", "team.svc.clusterset.local.")
	if m := ask(r); resultOf(m) != notTried || m.Rcode != dns.RcodeNameError { // the other block precedes, and may have names below the zone
		t.Errorf("the reply to a search list of the clusterset is\n%v", m)
	}
}

// Search lists of pods have a zone of the cluster.
func TestSearchPaths_NoZoneOfTheCluster(t *testing.T) {
	for block, want := range map[string]error{
		"kubernetes cluster.local clusterset.local {\nmulticluster clusterset.local\npods verified\n}": nil,
		"kubernetes clusterset.local in-addr.arpa {\nmulticluster clusterset.local\npods verified\n}":  errNoClusterZone,
	} {
		k := parsed(t, kubernetesDirective, block)
		if _, err := k.SearchLists(); !errors.Is(err, want) {
			t.Errorf("%s: error is %v, want %v", block, err, want)
		}
	}
	k := parsed(t, multiclusterDirective, "multicluster clusterset.local")
	if _, err := k.SearchLists(); err == nil {
		t.Error("the directive multicluster has search lists")
	}
}
