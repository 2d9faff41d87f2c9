package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// placedImports returns a handler for the nodes of placed, in cluster west, and ServiceImports with endpoints in two
// clusters, whose nodes have the same names. The third number of an address is that of the node, the fourth that of
// the cluster: 1 is west, 2 is east, and 3 is none.
func placedImports(t testing.TB, block string) *Kubernetes {
	t.Helper()
	ports := []corev1.ServicePort{tcp("sql", 5432)}
	withPolicy := func(name string, change func(i *mcsv1beta1.ServiceImport)) *mcsv1beta1.ServiceImport {
		i := imported("shop", name, headless, ports...)
		change(i)
		return i
	}
	distributed := func(name string) func(*mcsv1beta1.ServiceImport) {
		return func(i *mcsv1beta1.ServiceImport) { i.Spec.TrafficDistribution = &name }
	}
	keys := func(text string) func(*mcsv1beta1.ServiceImport) {
		return func(i *mcsv1beta1.ServiceImport) {
			i.Annotations = map[string]string{source.AnnotationTopologyKeys: text}
		}
	}
	local := corev1.ServiceInternalTrafficPolicyLocal
	vip := withPolicy("vip", keys("kubernetes.io/hostname"))
	vip.Spec.Type, vip.Spec.IPs = mcsv1beta1.ClusterSetIP, []string{"10.100.0.1"}
	all := []*mcsv1beta1.ServiceImport{
		withPolicy("plain", func(*mcsv1beta1.ServiceImport) {}),
		withPolicy("host", keys("kubernetes.io/hostname")),
		withPolicy("zone", keys("topology.kubernetes.io/zone")),
		withPolicy("wide", keys("kubernetes.io/hostname, topology.kubernetes.io/zone, *")),
		withPolicy("local", func(i *mcsv1beta1.ServiceImport) { i.Spec.InternalTrafficPolicy = &local }),
		withPolicy("close", distributed(corev1.ServiceTrafficDistributionPreferClose)),
		withPolicy("samenode", distributed(corev1.ServiceTrafficDistributionPreferSameNode)),
		withPolicy("auto", func(i *mcsv1beta1.ServiceImport) {
			i.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		}),
		vip,
	}
	objects := []runtime.Object{namespace("shop")}
	for _, i := range all {
		objects = append(objects, i)
		for n, cluster := range map[string]string{"1": "west", "2": "East"} {
			hint := func(zone string) func(*discoveryv1.Endpoint) {
				if i.Name != "auto" {
					return func(*discoveryv1.Endpoint) {}
				}
				return forZone(zone)
			}
			objects = append(objects, importedSlice(i, cluster, cluster,
				endpoint("10.1.1."+n, hostname("h-1"), onNode("n1"), inZone("east"), hint("east")),
				endpoint("10.1.3."+n, hostname("h-3"), onNode("n3"), inZone("west"), hint("west"))))
		}
	}
	k := answering(t, block, objects...)
	putNodes(indexOf(k))
	indexOf(k).SetClusterID(index.NewSymbol("west"))
	return k
}

// endpointsIn returns the third and fourth numbers of the addresses in a reply, or the rcode without an answer.
func endpointsIn(m *dns.Msg) string {
	if m.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[m.Rcode]
	}
	var all []string
	for _, rr := range append(slices.Clone(m.Answer), m.Extra...) {
		if a, ok := rr.(*dns.A); ok {
			all = append(all, strings.Join(strings.Split(a.A.String(), ".")[2:], "."))
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// askedOf queries a ServiceImport for callers on nodes and an unknown one, by A and by SRV.
func askedOf(t *testing.T, k *Kubernetes, name string, want map[string]string) {
	t.Helper()
	from := map[string]string{"n1": "10.240.1.9", "n2": "10.240.2.9", "n3": "10.240.3.9", "unknown": "192.0.2.1"}
	for who, want := range want {
		for _, ask := range []struct {
			owner string
			qtype uint16
		}{{name + ".shop.svc." + modelZone, dns.TypeA}, {name + ".shop.svc." + modelZone, dns.TypeSRV}, {"_sql._tcp." + name + ".shop.svc." + modelZone, dns.TypeSRV}} {
			if got := endpointsIn(askAs(t, k, from[who], ask.owner, ask.qtype)); got != want {
				t.Errorf("%s %s: %s gets %q, want %q", ask.owner, dns.TypeToString[ask.qtype], who, got, want)
			}
		}
	}
}

// TestClusterset_Topology sends queries of callers on each node: nodes of east never match theirs, zones do.
func TestClusterset_Topology(t *testing.T) {
	const everything = "1.1 1.2 3.1 3.2"
	for name, want := range map[string]map[string]string{
		"plain":    {"n1": everything, "n3": everything, "unknown": everything},
		"host":     {"n1": "1.1", "n2": "", "n3": "3.1", "unknown": ""},
		"zone":     {"n1": "1.1 1.2", "n2": "1.1 1.2", "n3": "3.1 3.2", "unknown": ""},
		"wide":     {"n1": "1.1", "n2": "1.1 1.2", "n3": "3.1", "unknown": everything},
		"local":    {"n1": "1.1", "n2": "", "n3": "3.1", "unknown": ""},
		"close":    {"n1": "1.1 1.2", "n2": "1.1 1.2", "n3": "3.1 3.2", "unknown": everything},
		"samenode": {"n1": "1.1", "n2": "1.1 1.2", "n3": "3.1", "unknown": everything},
		"auto":     {"n1": "1.1 1.2", "n2": "1.1 1.2", "n3": "3.1 3.2", "unknown": everything},
	} {
		t.Run(name, func(t *testing.T) { askedOf(t, placedImports(t, clusterset("topology")), name, want) })
	}
	t.Run("the name of an endpoint", func(t *testing.T) {
		k := placedImports(t, clusterset("topology", "prefer-local-cluster"))
		for owner, want := range map[string]string{"h-3.east.host": "3.2", "h-1.west.local": "1.1", "h-3.east.vip": "3.2"} {
			if got := endpointsIn(askAs(t, k, "10.240.1.9", owner+".shop.svc."+modelZone, dns.TypeA)); got != want {
				t.Errorf("%s has %q, want %q", owner, got, want)
			}
		}
	})
	t.Run("a ClusterSetIP", func(t *testing.T) {
		if got := endpointsIn(askAs(t, placedImports(t, clusterset("topology", "prefer-local-cluster")), "10.240.1.9", "vip.shop.svc."+modelZone, dns.TypeA)); got != "0.1" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("keys of the block", func(t *testing.T) {
		askedOf(t, placedImports(t, clusterset("topology keys kubernetes.io/hostname *")), "plain", map[string]string{"n1": "1.1", "n2": everything, "unknown": everything})
	})
	t.Run("off", func(t *testing.T) {
		for _, name := range []string{"host", "local", "close", "auto"} {
			askedOf(t, placedImports(t, clusterset()), name, map[string]string{"n1": everything, "unknown": everything})
		}
	})
	t.Run("own ID not known: nodes count by their names", func(t *testing.T) {
		k := placedImports(t, clusterset("topology"))
		indexOf(k).SetClusterID(index.Symbol{})
		askedOf(t, k, "host", map[string]string{"n1": "1.1 1.2", "n3": "3.1 3.2"})
	})
	t.Run("another ID", func(t *testing.T) {
		k := placedImports(t, clusterset("topology"))
		indexOf(k).SetClusterID(index.NewSymbol("east"))
		askedOf(t, k, "host", map[string]string{"n1": "1.2", "n3": "3.2"})
	})
}

// TestClusterset_PreferLocalCluster prefers the endpoints of the own cluster, if any are selected.
func TestClusterset_PreferLocalCluster(t *testing.T) {
	const everything = "1.1 1.2 3.1 3.2"
	t.Run("alone", func(t *testing.T) {
		k := placedImports(t, clusterset("prefer-local-cluster"))
		for _, name := range []string{"plain", "host", "close"} {
			askedOf(t, k, name, map[string]string{"n1": "1.1 3.1", "unknown": "1.1 3.1"})
		}
		for id, want := range map[string]string{"east": "1.2 3.2", "west": "1.1 3.1", "north": everything, "": everything} {
			indexOf(k).SetClusterID(index.NewSymbol(id))
			askedOf(t, k, "plain", map[string]string{"n1": want, "unknown": want})
		}
	})
	t.Run("its ID in the Corefile is above the ClusterProperty", func(t *testing.T) {
		askedOf(t, placedImports(t, clusterset("prefer-local-cluster East")), "plain", map[string]string{"n1": "1.2 3.2"})
		askedOf(t, placedImports(t, clusterset("prefer-local-cluster east", "topology")), "host", map[string]string{"n1": "1.2", "n2": ""})
	})
	t.Run("with topology", func(t *testing.T) {
		k := placedImports(t, clusterset("prefer-local-cluster", "topology"))
		askedOf(t, k, "plain", map[string]string{"n1": "1.1 3.1", "unknown": "1.1 3.1"})
		askedOf(t, k, "zone", map[string]string{"n1": "1.1", "n2": "1.1", "n3": "3.1", "unknown": ""})
		askedOf(t, k, "close", map[string]string{"n1": "1.1", "n3": "3.1", "unknown": "1.1 3.1"})
		askedOf(t, k, "auto", map[string]string{"n1": "1.1", "n3": "3.1", "unknown": "1.1 3.1"})
		s := *indexOf(k).SliceRecord("shop", "zone-west")
		s.Endpoints = slices.Collect(s.All())[1:]
		indexOf(k).PutSlice(&s)
		askedOf(t, k, "zone", map[string]string{"n1": "1.2", "n2": "1.2", "n3": "3.1"}) // no endpoint of this cluster in zone east
	})
	t.Run("Services have no clusters", func(t *testing.T) {
		k := placed(t, clusterset("prefer-local-cluster"))
		indexOf(k).SetClusterID(index.NewSymbol("west"))
		both := *indexOf(k).SliceRecord("shop", "plain-a") // as an imported slice of one cluster may be
		both.Name, both.Import, both.Cluster, both.Endpoints = "plain-b", "plain", index.NewSymbol("west"), slices.Collect(both.All())[:1]
		indexOf(k).PutSlice(&both)
		if got := seenBy(askAs(t, k, "10.240.1.9", "plain.shop.svc.cluster.local.", dns.TypeA)); got != "n1 n3" {
			t.Errorf("plain: %q", got)
		}
	})
}

// A and AAAA have the same endpoints: for a ServiceImport they are selected from both families together, for a Service
// separately, as in kube-proxy.
func TestClusterset_FamiliesTogether(t *testing.T) {
	db := imported("shop", "db", headless, tcp("sql", 5432))
	zone := "topology.kubernetes.io/zone, *"
	db.Annotations = map[string]string{source.AnnotationTopologyKeys: zone}
	local := withKeys(service("shop", "db", headless, tcp("sql", 5432)), zone)
	four, six := endpoint("10.1.1.1", hostname("a"), inZone("east")), endpoint("2001:db8::3", hostname("b"), inZone("west"))
	k := answering(t, clusterset("topology"), namespace("shop"), db, local,
		importedSlice(db, "west", "w4", four), importedSlice(db, "west", "w6", six), slice(local, "4", four), slice(local, "6", six))
	putNode(indexOf(k), "n1", "east", "r1", "10.240.1.0/24")
	putNode(indexOf(k), "n3", "west", "r3", "10.240.3.0/24")
	count := func(from, name string, qtype uint16) int { return len(askAs(t, k, from, name, qtype).Answer) }
	const set, cluster = "db.shop.svc.clusterset.local.", "db.shop.svc.cluster.local."
	for _, c := range []struct {
		from, name   string
		a, aaaa, srv int
	}{
		{"10.240.1.9", set, 1, 0, 1}, {"10.240.3.9", set, 0, 1, 1}, {"192.0.2.1", set, 1, 1, 2},
		{"10.240.1.9", cluster, 1, 1, 2}, {"10.240.3.9", cluster, 1, 1, 2},
	} {
		if a, aaaa, srv := count(c.from, c.name, dns.TypeA), count(c.from, c.name, dns.TypeAAAA), count(c.from, c.name, dns.TypeSRV); a != c.a || aaaa != c.aaaa || srv != c.srv {
			t.Errorf("%s, queries for %s: %d A, %d AAAA and %d SRV records, want %d, %d and %d", c.from, c.name, a, aaaa, srv, c.a, c.aaaa, c.srv)
		}
	}
	if m := askAs(t, k, "10.240.1.9", set, dns.TypeAAAA); m.Rcode != dns.RcodeSuccess {
		t.Errorf("no NODATA for a family without endpoints for the caller:\n%v", m)
	}
	if m := askAs(t, k, "10.240.1.9", set, dns.TypeSRV); endpointsIn(m) != "1.1" || len(m.Extra) != 1 {
		t.Errorf("SRV has other endpoints than A:\n%v", m)
	}
}

// Queries without a selected endpoint get SERVFAIL until Nodes are synced, others are answered; the cluster's own ID
// is not waited for.
func TestClusterset_TopologyBeforeNodes(t *testing.T) {
	for _, c := range []struct{ unread, name, want string }{
		{source.Nodes, "plain", "1.1 1.2 3.1 3.2"},
		{source.Nodes, "local", "SERVFAIL"},
		{source.Nodes, "zone", "SERVFAIL"},
		{source.Nodes, "wide", "1.1 1.2 3.1 3.2"},
		{source.ClusterProperties, "local", "1.1 1.2"},
		{source.ClusterProperties, "zone", "1.1 1.2"},
	} {
		t.Run(c.unread+"/"+c.name, func(t *testing.T) {
			k := withStatus(placedImports(t, clusterset("topology")), source.Status{Resource: c.unread})
			if c.unread == source.Nodes {
				indexOf(k).ReplaceNodes(nil)
			} else {
				indexOf(k).SetClusterID(index.Symbol{})
			}
			if got := endpointsIn(askAs(t, k, "10.240.1.9", c.name+".shop.svc."+modelZone, dns.TypeA)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Only answers that depend on the caller are counted, and stored by caller.
func TestClusterset_TopologyCountsCallers(t *testing.T) {
	k := placedImports(t, clusterset("topology", "prefer-local-cluster"))
	for name, want := range map[string]float64{"plain": 0, "host": 1, "vip": 0, "h-1.west.host": 0, "none": 0} {
		before := counted(callersTotal[byPodCIDR])
		askAs(t, k, "10.240.1.9", name+".shop.svc."+modelZone, dns.TypeA)
		if n := counted(callersTotal[byPodCIDR]) - before; n != want {
			t.Errorf("%s: %v answers are counted, want %v", name, n, want)
		}
	}
	for name, views := range map[string]bool{"plain": false, "host": true, "vip": false} {
		s, _ := newStoring(t, clusterset("topology", "prefer-local-cluster"))
		other := placedImports(t, clusterset("topology", "prefer-local-cluster"))
		for _, h := range []*Kubernetes{s.k, s.plain} {
			h.attach(other.index, other.status)
		}
		r := questionFor(t, name+".shop"+inSet+" A")
		r.SetEdns0(1232, false)
		r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: naming(t, "n1", "")}}
		if e := s.storedFor(t, r); e == nil || (e.Views != nil) != views {
			t.Errorf("%s: the entry is %+v, want one by callers: %t", name, e, views)
		}
	}
}

// A transfer has every endpoint, for any caller.
func TestTransfer_WithTopology(t *testing.T) {
	for zone, k := range map[string]func(options ...string) *Kubernetes{
		"cluster.local.": func(options ...string) *Kubernetes { return placed(t, clusterset(options...)) },
		modelZone:        func(options ...string) *Kubernetes { return placedImports(t, clusterset(options...)) },
	} {
		t.Run(zone, func(t *testing.T) {
			sameRecords(t, "the transfer", transferred(t, k("topology"), zone), texts(transferred(t, k(), zone)))
		})
	}
}
