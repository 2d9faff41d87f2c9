package kubernetes

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

func onNode(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) { e.NodeName = &name }
}

func forZone(name string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
	}
}

func annotated(s *corev1.Service, key, value string) *corev1.Service {
	s.Annotations = map[string]string{key: value}
	return s
}

func withKeys(s *corev1.Service, keys string) *corev1.Service {
	return annotated(s, source.AnnotationTopologyKeys, keys)
}

func distributed(s *corev1.Service, distribution string) *corev1.Service {
	s.Spec.TrafficDistribution = &distribution
	return s
}

func local(s *corev1.Service) *corev1.Service {
	policy := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &policy
	return s
}

// putNode adds a node in a zone and a rack.
func putNode(ix *index.Index, name, zone, rack, cidr string) {
	n := &index.Node{Name: index.NewSymbol(name)}
	for _, l := range [][2]string{{"example.com/rack", rack}, {"kubernetes.io/hostname", name}, {"topology.kubernetes.io/zone", zone}} {
		n.Labels = append(n.Labels, index.Label{Key: index.NewSymbol(l[0]), Value: index.NewSymbol(l[1])})
	}
	if cidr != "" {
		n.CIDRs = []netip.Prefix{netip.MustParsePrefix(cidr)}
	}
	ix.PutNode(n)
}

// placed returns a handler for three nodes in two zones, and Services with an endpoint on two of them. The addresses
// of endpoints are 10.1.NODE.SERVICE.
func placed(t testing.TB, block string) *Kubernetes {
	t.Helper()
	rack := "example.com/rack"
	services := []*corev1.Service{
		service("shop", "plain", headless, tcp("sql", 5432)),
		withKeys(service("shop", "host", headless, tcp("sql", 5432)), "kubernetes.io/hostname"),
		withKeys(service("shop", "wide", headless, tcp("sql", 5432)), "kubernetes.io/hostname, topology.kubernetes.io/zone, *"),
		withKeys(service("shop", "rack", headless, tcp("sql", 5432)), rack),
		local(service("shop", "local", headless, tcp("sql", 5432))),
		distributed(service("shop", "close", headless, tcp("sql", 5432)), corev1.ServiceTrafficDistributionPreferClose),
		distributed(service("shop", "samenode", headless, tcp("sql", 5432)), corev1.ServiceTrafficDistributionPreferSameNode),
		annotated(service("shop", "auto", headless, tcp("sql", 5432)), corev1.AnnotationTopologyMode, "Auto"),
		withKeys(local(service("shop", "both", headless, tcp("sql", 5432))), "topology.kubernetes.io/zone"),
		withKeys(service("shop", "clusterip", []string{"10.96.0.1"}, tcp("sql", 5432)), "kubernetes.io/hostname"),
	}
	objects := []runtime.Object{
		namespace("shop"), externalName("shop", "alias", "local.shop.svc.cluster.local"),
		externalName("shop", "toall", "plain.shop.svc.cluster.local"),
	}
	for i, s := range services {
		octet := string(rune('0' + i))
		hint := func(*discoveryv1.Endpoint) {}
		if s.Name == "auto" {
			hint = forZone("east")
		}
		one := endpoint("10.1.1."+octet, hostname("db-1"), onNode("n1"), inZone("east"), hint)
		if s.Name == "auto" {
			hint = forZone("west")
		}
		objects = append(objects, s, slice(s, "a", one, endpoint("10.1.3."+octet, hostname("db-3"), onNode("n3"), inZone("west"), hint)))
	}
	k := answering(t, block, objects...)
	putNodes(indexOf(k))
	return k
}

func putNodes(ix *index.Index) {
	putNode(ix, "n1", "east", "r1", "10.240.1.0/24")
	putNode(ix, "n2", "east", "r3", "10.240.2.0/24")
	putNode(ix, "n3", "west", "r3", "10.240.3.0/24")
}

// askAs returns the reply to a query from an address, with options that name the caller.
func askAs(t testing.TB, k *Kubernetes, from, owner string, qtype uint16, options ...[]byte) *dns.Msg {
	t.Helper()
	r := test.Case{Qname: owner, Qtype: qtype}.Msg()
	if options != nil {
		r.SetEdns0(1232, false)
		for _, data := range options {
			r.IsEdns0().Option = append(r.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: data})
		}
	}
	w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: from})
	if rcode, err := k.ServeDNS(context.Background(), w, r); err != nil || rcode != dns.RcodeSuccess {
		t.Fatalf("%s: ServeDNS returned %s and error %v", owner, dns.RcodeToString[rcode], err)
	}
	return w.Msg
}

func naming(t testing.TB, node, zone string) []byte {
	t.Helper()
	data, ok := caller.Append(nil, node, zone)
	if !ok {
		t.Fatalf("no caller %q in %q", node, zone)
	}
	return data
}

// seenBy returns the nodes whose endpoints are in a reply, or the rcode without an answer.
func seenBy(m *dns.Msg) string {
	if m.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[m.Rcode]
	}
	var nodes []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			nodes = append(nodes, "n"+strings.Split(rr.A.String(), ".")[2])
		case *dns.SRV:
			nodes = append(nodes, "n"+rr.Target[3:4])
		}
	}
	return strings.Join(nodes, " ")
}

// TestSelected sends queries of callers on each node, by address and by option, and of an unknown caller.
func TestSelected(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	for name, want := range map[string]struct{ n1, n2, n3, unknown string }{
		"plain":          {"n1 n3", "n1 n3", "n1 n3", "n1 n3"},
		"host":           {"n1", "", "n3", ""},
		"wide":           {"n1", "n1", "n3", "n1 n3"},
		"rack":           {"n1", "n3", "n3", ""},
		"local":          {"n1", "", "n3", ""},
		"close":          {"n1", "n1", "n3", "n1 n3"},
		"samenode":       {"n1", "n1", "n3", "n1 n3"},
		"auto":           {"n1", "n1", "n3", "n1 n3"},
		"both":           {"n1", "n1", "n3", ""},
		"clusterip":      {"n0", "n0", "n0", "n0"}, // its ClusterIP
		"db-3.host":      {"n3", "n3", "n3", "n3"},
		"db-3.clusterip": {"n3", "n3", "n3", "n3"},
		"alias":          {"n1", "", "n3", ""},
		"toall":          {"n1 n3", "n1 n3", "n1 n3", "n1 n3"},
	} {
		t.Run(name, func(t *testing.T) {
			for who, want := range map[string]string{"n1": want.n1, "n2": want.n2, "n3": want.n3, "unknown": want.unknown} {
				owner, from := name+".shop.svc.cluster.local.", "192.0.2.1"
				if who != "unknown" {
					from = "10.240." + who[1:] + ".9"
					if got := seenBy(askAs(t, k, "10.99.0.1", owner, dns.TypeA, naming(t, who, ""))); got != want {
						t.Errorf("%s by option gets %q, want %q", who, got, want)
					}
				}
				if got := seenBy(askAs(t, k, from, owner, dns.TypeA)); got != want {
					t.Errorf("%s gets %q, want %q", who, got, want)
				}
				if name == "clusterip" || strings.HasPrefix(name, "db-") || name == "alias" || name == "toall" {
					continue
				}
				for _, owner := range []string{owner, "_sql._tcp." + owner} {
					m := askAs(t, k, from, owner, dns.TypeSRV)
					if got := seenBy(m); got != want || len(m.Extra) != len(m.Answer) {
						t.Errorf("%s: %s gets %q with %d addresses, want %q", owner, who, got, len(m.Extra), want)
					}
				}
				if m := askAs(t, k, from, owner, dns.TypeAAAA); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 {
					t.Errorf("AAAA: %v", m)
				}
			}
		})
	}
}

// TestSelected_Default applies the keys of the Corefile to headless Services without own settings.
func TestSelected_Default(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology keys kubernetes.io/hostname *\n}")
	for name, want := range map[string]string{"plain": "n1", "close": "n1", "auto": "n1", "rack": "n1", "clusterip": "n0", "db-3.plain": "n3"} {
		if got := seenBy(askAs(t, k, "10.240.1.9", name+".shop.svc.cluster.local.", dns.TypeA)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := seenBy(askAs(t, k, "10.240.2.9", "plain.shop.svc.cluster.local.", dns.TypeA)); got != "n1 n3" {
		t.Errorf("without an endpoint on the node: %q", got)
	}
	if got := seenBy(askAs(t, k, "10.240.2.9", "local.shop.svc.cluster.local.", dns.TypeA)); got != "" {
		t.Errorf("the Service's own policy: %q", got)
	}
}

// TestSelected_Off has the answers of CoreDNS.
func TestSelected_Off(t *testing.T) {
	k := placed(t, "kubernetes cluster.local")
	for _, name := range []string{"plain", "host", "rack", "local", "close", "auto", "both", "alias"} {
		if got := seenBy(askAs(t, k, "10.240.1.9", name+".shop.svc.cluster.local.", dns.TypeA, naming(t, "n1", "east"))); got != "n1 n3" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestSelected_Changes asserts that the next answer after a change has the endpoints that match next.
func TestSelected_Changes(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	ix := indexOf(k)
	see := func(name, want string) {
		t.Helper()
		if got := seenBy(askAs(t, k, "10.240.1.9", name+".shop.svc.cluster.local.", dns.TypeA)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	change := func(name string, change func(*index.Endpoint)) {
		old := ix.SliceRecord("shop", name+"-a")
		s := *old
		s.Endpoints = slices.Collect(old.All())
		change(&s.Endpoints[0])
		ix.PutSlice(&s)
	}
	moved := func(e *index.Endpoint) { e.Node, e.Zone = index.NewSymbol("n3"), index.NewSymbol("west") }
	for _, name := range []string{"wide", "close", "samenode"} {
		see(name, "n1")
		change(name, moved)
		see(name, "n1 n3") // the addresses are unchanged
	}
	see("auto", "n1")
	change("auto", func(e *index.Endpoint) { e.Hints = nil })
	see("auto", "n1 n3")

	see("rack", "n1")
	putNode(ix, "n3", "west", "r1", "10.240.3.0/24")
	see("rack", "n1 n3")
	putNode(ix, "n1", "east", "r7", "10.240.1.0/24")
	see("rack", "n1") // shares the rack with itself
	ix.DeleteNode(index.NewSymbol("n1"))
	see("rack", "")
}

// TestSelected_WithoutNodes has Nodes that are not synced: queries without a selected endpoint get SERVFAIL, others
// are answered.
func TestSelected_WithoutNodes(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	ix, read := indexOf(k), false
	ix.ReplaceNodes(nil)
	k.status = func() []source.Status {
		return []source.Status{{Resource: source.Services, Synced: true}, {Resource: source.Nodes, Synced: read}}
	}
	if !k.Ready() {
		t.Error("not ready without Nodes")
	}
	see := func(name, byOption, byAddress string) {
		t.Helper()
		owner := name + ".shop.svc.cluster.local."
		if got := seenBy(askAs(t, k, "10.0.0.1", owner, dns.TypeA, naming(t, "n1", "east"))); got != byOption {
			t.Errorf("%s by option: %q, want %q", name, got, byOption)
		}
		if got := seenBy(askAs(t, k, "10.240.1.9", owner, dns.TypeA)); got != byAddress {
			t.Errorf("%s by address: %q, want %q", name, got, byAddress)
		}
	}
	see("plain", "n1 n3", "n1 n3")
	see("local", "n1", "SERVFAIL")
	see("host", "n1", "SERVFAIL") // the node's name is the host name
	see("rack", "SERVFAIL", "SERVFAIL")
	see("wide", "n1", "n1 n3")
	see("close", "n1", "n1 n3")
	see("auto", "n1", "n1 n3")
	read = true
	see("local", "n1", "")
	see("host", "n1", "")
	see("rack", "", "")
}

func TestCallers(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\npods verified\n}")
	ix := indexOf(k)
	ix.PutPod(&index.Pod{Namespace: "shop", Name: "a", IPs: []netip.Addr{netip.MustParseAddr("10.250.0.1")}, Node: index.NewSymbol("n2")})
	ix.PutPod(&index.Pod{Namespace: "shop", Name: "b", IPs: []netip.Addr{netip.MustParseAddr("10.240.3.7")}, Node: index.NewSymbol("n2")})
	ix.PutPod(&index.Pod{Namespace: "shop", Name: "c", IPs: []netip.Addr{netip.MustParseAddr("10.250.0.2")}, Node: index.NewSymbol("gone")})
	ix.PutPod(&index.Pod{Namespace: "shop", Name: "d", IPs: []netip.Addr{netip.MustParseAddr("10.1.3.4")}, Node: index.NewSymbol("n2")})
	putNode(ix, "n5", "east", "r1", "10.1.3.0/28")
	putNode(ix, "n6", "east", "r1", "2001:db8:6::/64")
	putNode(ix, "n7", "west", "r1", "10.0.9.1/32")
	here, there := naming(t, "n1", ""), naming(t, "n9", "north")
	for name, c := range map[string]struct {
		from   string
		option []byte
		node   string
		zone   string
		why    evidence
		named  bool // by the option
	}{
		"option":                           {"10.0.0.1", here, "n1", "east", byOption, true},
		"option over loopback":             {"::1", here, "n1", "east", byOption, true},
		"option from a link":               {"fe80::1%eth0", here, "n1", "east", byOption, true},
		"option over IPv4 in IPv6":         {"::ffff:10.0.0.1", here, "n1", "east", byOption, true},
		"option of a node that is not":     {"10.0.0.1", there, "n9", "north", unknownNode, true},
		"the node's own zone counts":       {"10.0.0.1", naming(t, "n3", "elsewhere"), "n3", "west", byOption, true},
		"option precedes the address":      {"10.240.2.1", here, "n1", "east", byOption, true},
		"option of a stranger":             {"192.0.2.1", here, "", "", untrusted, false},
		"option of a stranger, broken":     {"192.0.2.1", []byte{7}, "", "", untrusted, false},
		"option of no use, address":        {"10.240.2.1", []byte{7}, "n2", "east", byPodCIDR, false},
		"option broken":                    {"10.0.0.1", []byte{1, 9, 'n'}, "", "", malformed, false},
		"option empty":                     {"10.0.0.1", []byte{}, "", "", malformed, false},
		"own address":                      {"10.0.9.1", nil, "n7", "west", byNodeAddress, false},
		"another address beside it":        {"10.0.9.2", nil, "", "", unknownAddress, false},
		"endpoint":                         {"10.1.3.0", nil, "n3", "west", byEndpoint, false},
		"range":                            {"10.240.2.200", nil, "n2", "east", byPodCIDR, false},
		"range of IPv6":                    {"2001:db8:6::9", nil, "n6", "east", byPodCIDR, false},
		"pod precedes range":               {"10.240.3.7", nil, "n2", "east", byPod, false},
		"pod precedes endpoint":            {"10.1.3.4", nil, "n2", "east", byPod, false},
		"endpoint precedes range":          {"10.1.3.5", nil, "n3", "west", byEndpoint, false},
		"pod":                              {"10.250.0.1", nil, "n2", "east", byPod, false},
		"pod on a node that is not known":  {"10.250.0.2", nil, "gone", "", byPod, false},
		"unknown":                          {"10.250.0.3", nil, "", "", unknownAddress, false},
		"unknown over IPv6":                {"2001:db8:7::9", nil, "", "", unknownAddress, false},
		"an address of the range next by":  {"10.240.4.0", nil, "", "", unknownAddress, false},
		"an IPv6 address like one of IPv4": {"::10.240.2.1", nil, "", "", unknownAddress, false},
	} {
		t.Run(name, func(t *testing.T) {
			from := netip.MustParseAddr(c.from)
			who, why := k.callers.find(from, c.option, false)
			if who.Name.String() != c.node || who.Zone.String() != c.zone || why != c.why {
				t.Errorf("on node %q in zone %q by %d, want %q, %q, %d", who.Name, who.Zone, why, c.node, c.zone, c.why)
			}
			v := k.callers.View(from, c.option)
			if v.Private || v.Named != c.named || v.Callers != store.Counter(callersTotal[why]) || v.Callers == nil {
				t.Errorf("view %+v", v)
			}
			if n := ix.Node(who.Name); n != nil && v.Number != n.Number() || n == nil && v.Number != unknownCaller {
				t.Errorf("view %d of node %+v", v.Number, n)
			} else if want := (store.View{Number: v.Number, Node: c.node, Zone: c.zone}); n == nil && (v.Node != want.Node || v.Zone != want.Zone) {
				t.Errorf("view %+v of a node without a record, want %+v", v, want)
			} else if n != nil && v.Node+v.Zone != "" {
				t.Errorf("view %+v of a node with a record", v)
			}
		})
	}
}

// TestViewOf asserts that the view of a plugin's own query is not counted, and that answers for names that no node can have, as
// in manifests, are not stored.
func TestViewOf(t *testing.T) {
	for name, tt := range map[string]struct {
		l    location
		by   evidence
		want store.View
	}{
		"no address":   {location{}, noAddress, store.View{}},
		"no record":    {location{name: "n9", zone: "z"}, unknownNode, store.View{Node: "n9", Zone: "z", Named: true, Callers: callersTotal[unknownNode]}},
		"its endpoint": {location{name: "n9"}, byEndpoint, store.View{Node: "n9", Callers: callersTotal[byEndpoint]}},
		"too long": {location{name: strings.Repeat("n", 254)}, byPod,
			store.View{Node: strings.Repeat("n", 254), Private: true, Callers: callersTotal[byPod]}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := viewOf(tt.l, tt.by); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestCallers_Several asserts that two options are ignored.
func TestCallers_Several(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	const owner = "local.shop.svc.cluster.local."
	one := naming(t, "n1", "")
	if got := seenBy(askAs(t, k, "10.0.0.1", owner, dns.TypeA, one, one)); got != "" {
		t.Errorf("sees %q", got)
	}
	if got := seenBy(askAs(t, k, "10.0.0.1", owner, dns.TypeA, one)); got != "n1" {
		t.Errorf("with one of them: %q", got)
	}
}

func TestCallers_Trust(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\ntrust 192.0.2.0/24 2001:db8::1\n}")
	const owner = "local.shop.svc.cluster.local."
	for from, want := range map[string]string{"192.0.2.7": "n1", "2001:db8::1": "n1", "2001:db8::2": "", "10.0.0.1": "", "127.0.0.1": ""} {
		if got := seenBy(askAs(t, k, from, owner, dns.TypeA, naming(t, "n1", ""))); got != want {
			t.Errorf("from %s: %q, want %q", from, got, want)
		}
	}
}

func TestCallers_AllocateNothing(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\npods verified\n}")
	data := naming(t, "n1", "east")
	for name, from := range map[string]string{"endpoint": "10.1.3.0", "range": "10.240.2.1", "unknown": "192.0.2.1"} {
		a := netip.MustParseAddr(from)
		if n := testing.AllocsPerRun(100, func() { k.callers.View(a, nil) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	a := netip.MustParseAddr("10.0.0.1")
	for _, option := range [][]byte{data, naming(t, "n9", "north")} {
		if n := testing.AllocsPerRun(100, func() { k.callers.View(a, option) }); n != 0 {
			t.Errorf("option %q: %v allocations", option, n)
		}
	}
}

func TestMetadata_Caller(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	for name, c := range map[string]struct {
		from, node, zone string
		option           []byte
	}{
		"range":   {"10.240.2.1", "n2", "east", nil},
		"option":  {"10.0.0.1", "n3", "west", naming(t, "n3", "")},
		"unknown": {"10.0.0.1", "", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := metadata.ContextWithMetadata(context.Background())
			r := test.Case{Qname: "example.org.", Qtype: dns.TypeA}.Msg()
			if c.option != nil {
				r.SetEdns0(1232, false)
				r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: c.option}}
			}
			ctx = k.Metadata(ctx, request.Request{W: &test.ResponseWriter{RemoteIP: c.from}, Req: r})
			r.Extra = nil // as the server does before it logs the query
			all := map[string]string{}
			for name, value := range metadata.ValueFuncs(ctx) {
				all[name] = value()
			}
			if want := map[string]string{"nearside/caller-node": c.node, "nearside/caller-zone": c.zone}; !maps.Equal(all, want) {
				t.Errorf("got %v, want %v", all, want)
			}
		})
	}
}
