package kubernetes

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// The selection of namespaces applies to both kinds of zones.
func TestClusterset_Namespaces(t *testing.T) {
	db := imported("team", "db", headless, tcp("sql", 5432))
	objects := []runtime.Object{namespace("shop"), namespace("team"), db, importedSlice(db, "east", "e", endpoint("10.2.1.1", hostname("db-0"))),
		imported("shop", "web", []string{"10.100.0.1"}, tcp("http", 80)), imported("team", "web", []string{"10.100.0.2"}, tcp("http", 80)),
		imported("missing", "web", []string{"10.100.0.3"}, tcp("http", 80))}
	for _, options := range []string{"namespaces shop missing", "namespace_labels name=shop"} {
		t.Run(options, func(t *testing.T) {
			k := answering(t, clusterset(options), objects...)
			check(t, k, a("web.shop"+inSet, "10.100.0.1"))
			check(t, k, nodata("shop"+inSet)...)
			for _, name := range []string{"team", "web.team", "db.team", "db-0.east.db.team", "_sql._tcp.db.team", "missing", "web.missing"} {
				check(t, k, nxdomain(name+inSet)...)
			}
		})
	}
}

// A selector applies to ServiceImports and to their EndpointSlices.
func TestClusterset_Labels(t *testing.T) {
	db, hidden := labeled(imported("shop", "db", headless, tcp("sql", 5432)), "show", "yes"), imported("shop", "hidden", headless, tcp("sql", 5432))
	k := answering(t, clusterset("labels show=yes"), namespace("shop"), db, hidden,
		labeled(imported("shop", "web", []string{"10.100.0.1"}, tcp("http", 80)), "show", "yes"),
		labeled(imported("shop", "other", []string{"10.100.0.2"}, tcp("http", 80)), "show", "no"),
		labeled(importedSlice(db, "east", "e", endpoint("10.2.1.1", hostname("db-0"))), "show", "yes"),
		importedSlice(db, "west", "w", endpoint("10.3.1.1", hostname("db-0"))),
		labeled(importedSlice(hidden, "east", "e", endpoint("10.2.1.2")), "show", "yes"))
	check(t, k, a("web.shop"+inSet, "10.100.0.1"), a("db.shop"+inSet, "10.2.1.1"), a("db-0.east.db.shop"+inSet, "10.2.1.1"))
	for _, name := range []string{"other", "hidden", "db-0.west.db", "10-2-1-2.east.hidden"} {
		check(t, k, nxdomain(name+".shop"+inSet)...)
	}
}

func TestClusterset_TTL(t *testing.T) {
	k := answering(t, clusterset("ttl 77"), clustersetObjects()...)
	k.localIPs = []netip.Addr{parsedAddr(t, "10.9.9.9")}
	for _, question := range []string{"web.shop" + inSet + " A", "web.shop" + inSet + " SRV", "db.shop" + inSet + " AAAA", "_sql._tcp.db.shop" + inSet + " SRV",
		"db-0.east.db.shop" + inSet + " A", "clusterset.local NS", "none.shop" + inSet + " A", "noip.shop" + inSet + " A", "clusterset.local SOA"} {
		m := ask(t, k, question)
		if len(m.Answer)+len(m.Ns) == 0 {
			t.Errorf("%s: no records", question)
		}
		for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
			if rr.Header().Ttl != 77 {
				t.Errorf("%s: the TTL is not 77: %v", question, rr)
			}
		}
	}
	if m := ask(t, k, "dns-version.clusterset.local TXT"); m.Answer[0].Header().Ttl != 28800 {
		t.Errorf("the TTL of the version is not 28800: %v", m.Answer)
	}
}

func TestClusterset_NoEndpoints(t *testing.T) {
	k := answering(t, clusterset("noendpoints"), clustersetObjects()...)
	check(t, k, a("web.shop"+inSet, "10.100.0.1"))
	for _, name := range []string{"db", "db-0.east.db", "w.east.web", "bare", "_sql._tcp.db"} {
		check(t, k, nxdomain(name+".shop"+inSet)...)
	}
}

// With the option, a ServiceImport with ClusterSetIPs and without ready endpoints does not exist; endpoints of each
// kind count for their own kind of zone.
func TestClusterset_IgnoreEmpty(t *testing.T) {
	full, idle := imported("shop", "full", []string{"10.100.0.1"}, tcp("http", 80)), imported("shop", "idle", []string{"10.100.0.2"}, tcp("http", 80))
	none := imported("shop", "none", []string{"10.100.0.3"}, tcp("http", 80))
	busy := service("shop", "none", []string{"10.0.0.3"}, tcp("http", 80))
	objects := []runtime.Object{namespace("shop"), full, idle, none, busy,
		importedSlice(full, "east", "e", endpoint("10.2.0.1"), endpoint("10.2.0.2", notReady)),
		importedSlice(idle, "east", "e", endpoint("10.2.0.3", notReady)),
		slice(busy, "own", endpoint("10.1.0.1"))}
	on, off := answering(t, clusterset("ignore empty_service"), objects...), answering(t, clusterset(), objects...)
	check(t, on, a("full.shop"+inSet, "10.100.0.1"), a("none.shop.svc.cluster.local", "10.0.0.3"))
	for _, name := range []string{"idle", "none", "_http._tcp.idle"} {
		check(t, on, nxdomain(name+".shop"+inSet)...)
	}
	check(t, off, a("idle.shop"+inSet, "10.100.0.2"), a("none.shop"+inSet, "10.100.0.3"))
}

func TestClusterset_Fallthrough(t *testing.T) {
	const known, unknown = "web.shop" + inSet + " A", "none.shop" + inSet + " A"
	for _, c := range []struct {
		options, question string
		next              bool
	}{
		{"", unknown, false},
		{"fallthrough", unknown, true},
		{"fallthrough", known, false},
		{"fallthrough", "noip.shop" + inSet + " A", false}, // NODATA
		{"fallthrough", "east.db.shop" + inSet + " A", true},
		{"fallthrough", "pod.clusterset.local A", true},
		{"fallthrough clusterset.local", unknown, true},
		{"fallthrough clusterset.local", "none.shop.svc.cluster.local A", false},
		{"fallthrough cluster.local", unknown, false},
		{"fallthrough shop.svc.clusterset.local", unknown, true},
	} {
		t.Run(c.options+"/"+c.question, func(t *testing.T) {
			if next := passedOn(t, answering(t, clusterset(c.options), clustersetObjects()...), c.question); next != c.next {
				t.Errorf("passed on is %v, want %v", next, c.next)
			}
		})
	}
}

// withStatus sets the status of these resources to another one than synced.
func withStatus(k *Kubernetes, others ...source.Status) *Kubernetes {
	for _, done := range []interface{ Store(bool) }{&k.synced, &k.nodesSynced} {
		done.Store(false)
	}
	resources := k.source.Resources()
	k.status = func() (all []source.Status) {
		for _, r := range resources {
			s := source.Status{Resource: r, Synced: true}
			for _, o := range others {
				if o.Resource == r {
					s = o
				}
			}
			all = append(all, s)
		}
		return all
	}
	return k
}

// Each kind of zone waits for the resources that its answers need.
func TestClusterset_BeforeTheFirstReading(t *testing.T) {
	const cluster, set, pointer = "web.shop.svc.cluster.local A", "web.shop" + inSet + " A", "1.0.0.10.in-addr.arpa PTR"
	for _, c := range []struct {
		unread string
		waits  []string
	}{
		{source.ServiceImports, []string{set}},
		{source.EndpointSlices, []string{cluster, set, pointer}},
		{source.Namespaces, []string{cluster, set, pointer}},
		{source.ClusterProperties, nil},
		{source.Nodes, nil},
	} {
		t.Run(c.unread, func(t *testing.T) {
			k := withStatus(answering(t, clusterset("topology", "prefer-local-cluster"), clustersetObjects()...), source.Status{Resource: c.unread})
			for _, question := range []string{cluster, set, pointer} {
				want := dns.RcodeSuccess
				if slices.Contains(c.waits, question) {
					want = dns.RcodeServerFailure
				}
				if m := ask(t, k, question); m.Rcode != want || (len(m.Answer) == 1) != (want == dns.RcodeSuccess) {
					t.Errorf("%s: %s, want %s\n%v", question, dns.RcodeToString[m.Rcode], dns.RcodeToString[want], m)
				}
			}
		})
	}
	t.Run("names", func(t *testing.T) {
		k := withStatus(answering(t, clusterset(), clustersetObjects()...), source.Status{Resource: source.ServiceImports})
		for _, name := range []string{"db.shop" + inSet, "none.shop" + inSet, "db-0.east.db.shop" + inSet, "shop" + inSet, "a.b.clusterset.local", "pod.clusterset.local"} {
			check(t, k, empty(name, dns.RcodeServerFailure, []string{"A", "AAAA", "SRV", "MX"})...)
		}
		check(t, k, nodata("clusterset.local", "A")...)
		check(t, k, nodata("svc.clusterset.local", "A")...)
		check(t, k, lookup{name: "schema version", ask: "dns-version.clusterset.local TXT", answer: []string{`dns-version.clusterset.local. 28800 IN TXT "1.0.0"`}},
			lookup{name: "NXDOMAIN of the cluster", ask: "none.shop.svc.cluster.local A", rcode: dns.RcodeNameError})
	})
	t.Run("fallthrough first", func(t *testing.T) {
		k := withStatus(answering(t, clusterset("fallthrough"), clustersetObjects()...), source.Status{Resource: source.ServiceImports})
		if !passedOn(t, k, "none.shop"+inSet+" A") || passedOn(t, k, "web.shop"+inSet+" A") {
			t.Error("before the first sync fallthrough is not as for Services")
		}
	})
	t.Run("there after it was missing", func(t *testing.T) {
		k := answering(t, clusterset(), namespace("shop"))
		check(t, k, nxdomain("web.shop"+inSet)...)
		k.status = func() []source.Status { return []source.Status{{Resource: source.ServiceImports}} }
		check(t, k, empty("web.shop"+inSet, dns.RcodeServerFailure, []string{"A", "AAAA", "SRV"})...)
	})
}

// duringTheLook is an index whose source completes its first sync while ServiceImports are looked up.
type duringTheLook struct {
	*index.Index
	found func()
}

func (d duringTheLook) Import(namespace, name string) *index.Entry {
	e := d.Index.Import(namespace, name)
	d.found()
	return e
}

// The first sync may end during a query: an answer made from a part of the records is not returned.
func TestClusterset_ReadDuringTheLook(t *testing.T) {
	k := answering(t, clusterset(), namespace("shop"))
	read := false
	k.attach(duringTheLook{indexOf(k), func() { read = true }}, func() []source.Status {
		return []source.Status{{Resource: source.ServiceImports, Synced: read}}
	})
	if m := ask(t, k, "web.shop"+inSet+" A"); m.Rcode != dns.RcodeServerFailure || !read {
		t.Errorf("the look ended: %v, and the reply is\n%v", read, m)
	}
	if m := ask(t, k, "web.shop"+inSet+" A"); m.Rcode != dns.RcodeNameError {
		t.Errorf("after the first sync the reply is\n%v", m)
	}
}

func TestClusterset_Ready(t *testing.T) {
	for _, c := range []struct {
		name  string
		is    source.Status
		ready bool
	}{
		{"all synced", source.Status{Resource: "none"}, true},
		{"ServiceImports not synced", source.Status{Resource: source.ServiceImports}, true},
		{"ServiceImports denied", source.Status{Resource: source.ServiceImports, Denied: true}, true},
		{"ServiceImports denied after a sync", source.Status{Resource: source.ServiceImports, Synced: true, Denied: true}, true},
		{"ServiceImports frozen", source.Status{Resource: source.ServiceImports, Synced: true, Frozen: true}, true},
		{"EndpointSlices denied", source.Status{Resource: source.EndpointSlices, Denied: true}, false},
		{"Services denied", source.Status{Resource: source.Services, Denied: true}, false},
		{"ClusterProperties not synced", source.Status{Resource: source.ClusterProperties}, true},
		{"ClusterProperties denied", source.Status{Resource: source.ClusterProperties, Denied: true}, true},
		{"ClusterProperties frozen", source.Status{Resource: source.ClusterProperties, Synced: true, Frozen: true}, true},
		{"Nodes not synced", source.Status{Resource: source.Nodes}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := withStatus(answering(t, clusterset("topology", "prefer-local-cluster")), c.is)
			if got := k.Ready(); got != c.ready {
				t.Errorf("ready is %v, want %v", got, c.ready)
			}
		})
	}
}

// Without permission for ServiceImports, names in their zones are SERVFAIL, and others are not.
func TestClusterset_Denied(t *testing.T) {
	k := withStatus(answering(t, clusterset(), clustersetObjects()...), source.Status{Resource: source.ServiceImports, Denied: true})
	check(t, k, a("web.shop.svc.cluster.local", "10.0.0.1"), a("db-0.db.shop.svc.cluster.local", "10.1.0.1"))
	check(t, k, empty("web.shop"+inSet, dns.RcodeServerFailure, []string{"A", "SRV"})...)
	check(t, k, empty("none.shop"+inSet, dns.RcodeServerFailure, []string{"A", "SRV"})...)
}

// The start waits for ServiceImports, unless the permission is missing.
func TestClusterset_StartWaits(t *testing.T) {
	start := func(timeout time.Duration, is ...source.Status) time.Duration {
		k := withStatus(answering(t, clusterset("prefer-local-cluster")), is...)
		begin := time.Now()
		k.awaitSync(timeout, func() bool { return false })
		return time.Since(begin)
	}
	if took := start(300*time.Millisecond, source.Status{Resource: source.ServiceImports}); took < 300*time.Millisecond {
		t.Errorf("the start took %s while ServiceImports are not synced, want at least 300ms", took)
	}
	for _, r := range []string{source.ServiceImports, source.ClusterProperties} {
		if took := start(time.Minute, source.Status{Resource: r, Denied: true}); took > 30*time.Second {
			t.Errorf("the start took %s while %s are denied", took, r)
		}
	}
}

// The server's names are those in the zone of the cluster, which has its Services.
func TestClusterset_ApexNS(t *testing.T) {
	dnsService, peers := service("kube-system", "kube-dns", []string{"10.0.0.10", "2001:db8::10"}, udp("dns", 53)), service("kube-system", "peers", headless, udp("dns", 53))
	remote := imported("kube-system", "kube-dns", []string{"10.100.0.10"}, udp("dns", 53))
	objects := []runtime.Object{namespace("kube-system"), dnsService, peers, remote,
		slice(dnsService, "a", endpoint("10.1.0.1")), slice(peers, "a", endpoint("10.1.0.3", hostname("a"))),
		importedSlice(remote, "east", "e", endpoint("10.1.0.1", hostname("x")), endpoint("10.1.0.5", hostname("y")))}
	for _, c := range []struct {
		name, block, ip string
		ns, extra       []string
	}{
		{"ClusterIP", clusterset(), "10.1.0.1", []string{"kube-dns.kube-system.svc.cluster.local."},
			[]string{"kube-dns.kube-system.svc.cluster.local. 5 IN A 10.0.0.10", "kube-dns.kube-system.svc.cluster.local. 5 IN AAAA 2001:db8::10"}},
		{"headless", clusterset(), "10.1.0.3", []string{"a.peers.kube-system.svc.cluster.local."}, []string{"a.peers.kube-system.svc.cluster.local. 5 IN A 10.1.0.3"}},
		{"no Service", clusterset(), "10.1.0.9", []string{"ns.dns.clusterset.local."}, []string{"ns.dns.clusterset.local. 5 IN A 10.1.0.9"}},
		{"an endpoint of a ServiceImport alone", clusterset(), "10.1.0.5", []string{"ns.dns.clusterset.local."}, []string{"ns.dns.clusterset.local. 5 IN A 10.1.0.5"}},
		{"the clusterset's zone first", "kubernetes clusterset.local in-addr.arpa other.local cluster.local {\nmulticluster clusterset.local\n}", "10.1.0.3",
			[]string{"a.peers.kube-system.svc.other.local."}, []string{"a.peers.kube-system.svc.other.local. 5 IN A 10.1.0.3"}},
		{"no zone of the cluster", "kubernetes clusterset.local {\nmulticluster clusterset.local\n}", "10.1.0.1",
			[]string{"ns.dns.clusterset.local."}, []string{"ns.dns.clusterset.local. 5 IN A 10.1.0.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, c.block, objects...)
			k.localIPs = []netip.Addr{parsedAddr(t, c.ip)}
			want := lookup{name: "NS", ask: "clusterset.local NS", extra: c.extra}
			for _, ns := range c.ns {
				want.answer = append(want.answer, "clusterset.local. 5 IN NS "+ns)
			}
			check(t, k, want)
			for _, ns := range c.ns { // a client may query them
				both := append(ask(t, k, ns+" A").Answer, ask(t, k, ns+" AAAA").Answer...)
				sameRecords(t, ns, both, c.extra)
			}
			if m := ask(t, k, "ns.dns.clusterset.local A"); len(m.Answer) == 0 {
				t.Errorf("the SOA's name server has no address:\n%v", m)
			}
		})
	}
	t.Run("mixed case", func(t *testing.T) {
		k := answering(t, clusterset(), objects...)
		k.localIPs = []netip.Addr{parsedAddr(t, "10.1.0.9")}
		check(t, k, lookup{name: "NS", ask: "ClusterSet.local NS", answer: []string{"ns.dns.ClusterSet.local."},
			extra: []string{"ns.dns.ClusterSet.local. 5 IN A 10.1.0.9"}})
	})
}

func TestClusterset_ApexSOA(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	soa := func(zone string) []string { return []string{text(k.soa(zone))} }
	check(t, k,
		lookup{name: "apex", ask: "clusterset.local SOA", answer: soa("clusterset.local.")},
		lookup{name: "mixed case", ask: "ClusterSet.LOCAL SOA", answer: soa("ClusterSet.LOCAL.")},
		lookup{name: "below it", ask: "svc.clusterset.local SOA"},
		lookup{name: "nonexistent name", ask: "none.clusterset.local SOA", rcode: dns.RcodeNameError})
	sameRecords(t, "NXDOMAIN", ask(t, k, "none.shop.svc.clusterset.LOCAL A").Ns, soa("clusterset.LOCAL."))
	sameRecords(t, "NODATA", ask(t, k, "noip.shop"+inSet+" A").Ns, soa("clusterset.local."))
	withStatus(k, source.Status{Resource: source.ServiceImports})
	sameRecords(t, "SERVFAIL", ask(t, k, "web.shop"+inSet+" A").Ns, soa("clusterset.local."))
}

// In CoreDNS, creating or deleting a ServiceImport does not change the serial.
func TestClusterset_Serial(t *testing.T) {
	k := answering(t, clusterset())
	if n := k.index.Modified(); n != 0 {
		t.Fatalf("the serial of nothing is %d", n)
	}
	indexOf(k).PutImport(&index.Service{Namespace: "shop", Name: "web"})
	if n := k.index.Modified(); n == 0 {
		t.Error("the serial is unchanged after a ServiceImport was created")
	}
}

// An alias in the cluster may have a target in its clusterset, which is another zone: it is resolved through the
// server.
func TestClusterset_Aliases(t *testing.T) {
	web := imported("shop", "web", []string{"10.100.0.1"}, tcp("http", 80))
	k := answering(t, clusterset(), namespace("shop"), web, externalName("shop", "out", "web.shop.svc.clusterset.local"))
	k.upstream = upstreamOf(t, "web.shop.svc.clusterset.local. 5 IN A 10.100.0.1")
	cname := "out.shop.svc.cluster.local. 5 IN CNAME web.shop.svc.clusterset.local."
	check(t, k,
		lookup{name: "A", ask: "out.shop.svc.cluster.local A", answer: []string{cname, "web.shop.svc.clusterset.local. 5 IN A 10.100.0.1"}},
		lookup{name: "AAAA", ask: "out.shop.svc.cluster.local AAAA", answer: []string{cname}})
}

func TestClusterset_Metadata(t *testing.T) {
	k := answering(t, clusterset())
	in := func(cluster string, parts map[string]string) map[string]string {
		parts["kubernetes/cluster"] = cluster
		return parts
	}
	failed := map[string]string{"kubernetes/parse-error": "invalid query name"}
	for _, c := range []struct {
		owner string
		want  map[string]string
	}{
		{"web.shop" + inSet, in("", parts("svc", "shop", "web", "", "", ""))},
		{"db-0.east.db.shop" + inSet, in("east", parts("svc", "shop", "db", "db-0", "", ""))},
		{"DB-0.Eu.West-1.db.shop.svc.ClusterSet.Local", in("eu.west-1", parts("svc", "shop", "db", "db-0", "", ""))},
		{"b-0.bare.shop" + inSet, in("", parts("svc", "shop", "bare", "b-0", "", ""))},
		{"_http._tcp.web.shop" + inSet, in("", parts("svc", "shop", "web", "", "http", "tcp"))},
		{"http._tcp.web.shop" + inSet, in("", parts("svc", "shop", "web", "", "http", "tcp"))},
		{"shop" + inSet, in("", parts("svc", "shop", "", "", "", ""))},
		{"clusterset.local", in("", parts("", "", "", "", "", ""))},
		{"_http._tcp.x.web.shop" + inSet, failed},
		{"web.shop.clusterset.local", failed},
		{"a.b.web.shop.svc.cluster.local", parts("svc", "shop", "web", "", "a", "b")},
	} {
		t.Run(c.owner, func(t *testing.T) {
			if got := values(k, "10.240.0.1", c.owner); !maps.Equal(got, c.want) {
				t.Errorf("got %v\nwant %v", got, c.want)
			}
		})
	}
}

// Before ServiceImports are synced, answers in a clusterset's zone are not stored; answers in the cluster are.
func TestClusterset_StoredBeforeTheFirstReading(t *testing.T) {
	for question, stored := range map[string]bool{"web.shop" + inSet + " A": false, "none.shop" + inSet + " A": false, "clusterset.local A": false,
		"dns-version.clusterset.local TXT": false, "web.shop.svc.cluster.local A": true, "none.shop.svc.cluster.local A": true} {
		t.Run(question, func(t *testing.T) {
			s, _ := newStoring(t, clusterset(), clustersetObjects()...)
			withStatus(s.k, source.Status{Resource: source.ServiceImports})
			if s.storedFor(t, questionFor(t, question)); s.len() > 0 != stored {
				t.Errorf("stored is %v, want %v", !stored, stored)
			}
		})
	}
}

// A transfer of a clusterset's zone waits only for ServiceImports.
func TestClusterset_TransferBeforeTheFirstReading(t *testing.T) {
	k := withStatus(answering(t, clusterset(), clustersetObjects()...), source.Status{Resource: source.ServiceImports})
	if in, err := k.Transfer("clusterset.local.", 0); err == nil || in != nil {
		t.Errorf("the clusterset is transferred, error %v", err)
	}
	in, err := k.Transfer("cluster.local.", 0)
	kit.Must(t, err)
	n := 0
	for batch := range in {
		n += len(batch)
	}
	if n < 3 {
		t.Errorf("the transfer of the cluster has %d records", n)
	}
}

// Only plugin transfer does transfers: the handler refuses AXFR.
func TestClusterset_TransferRefused(t *testing.T) {
	k := answering(t, clusterset(), clustersetObjects()...)
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	if rcode, err := k.ServeDNS(context.Background(), w, new(dns.Msg).SetAxfr("clusterset.local.")); rcode != dns.RcodeRefused || err != nil {
		t.Errorf("%s, error %v", dns.RcodeToString[rcode], err)
	}
}
