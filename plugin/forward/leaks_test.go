package forward

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

// wireOf returns a name in wire form with the bytes of a question behind it.
func wireOf(t testing.TB, name string) []byte {
	t.Helper()
	wire := newZone(name)
	if wire == nil {
		t.Fatalf("invalid name %s", name)
	}
	return append(wire, 0, 1, 0, 1)
}

// textOf returns type and zone of a leak, and the local zone, as "search ec2.internal." or "special_use local., local local.".
func (n *names) textOf(t testing.TB, name string, qtype uint16) string {
	t.Helper()
	if n == nil {
		return ""
	}
	l, local := n.classify(wireOf(t, name), qtype)
	return text(l, local)
}

func text(l *leak, local *localZone) (text string) {
	if l != nil {
		text = l.kind + " " + l.zone
	}
	if local != nil {
		text += ", local " + local.name
	}
	return text
}

// stanzaIn returns the configuration of a stanza in a server block.
func stanzaIn(from string, blockZones ...string) *config {
	return &config{from: from, blockZones: blockZones}
}

func TestNames(t *testing.T) {
	root := newNames(stanzaIn(".", "."), []string{"k8s.example.", "in-addr.arpa.", "ip6.arpa."}, []string{"ec2.internal.", "corp.example.", "default.svc.cluster.local.", "k8s.example.", "."})
	for _, tt := range []struct{ name, want string }{
		{".", ""},
		{"www.example.com.", ""},
		{"a.b.c.d.e.f.example.", ""},

		{"web.", "single_label ."},
		{"WEB.", "single_label ."},
		{"com.", "single_label ."},

		{"cluster.local.", "cluster cluster.local., local local."},
		{"svc.cluster.local.", "cluster cluster.local., local local."},
		{"default.svc.cluster.local.", "cluster cluster.local., local local."},
		{"web.default.svc.cluster.local.", "cluster cluster.local., local local."},
		{"WEB.default.SVC.Cluster.Local.", "cluster cluster.local., local local."},
		{"web-0.web.default.svc.cluster.local.", "cluster cluster.local., local local."},
		{"_https._tcp.web.default.svc.cluster.local.", "cluster cluster.local., local local."},
		{"_a._tcp.b.web.default.svc.cluster.local.", "search cluster.local., local local."},
		{"www.example.com.default.svc.cluster.local.", "search cluster.local., local local."},
		{"example.com.svc.cluster.local.", "cluster cluster.local., local local."},
		{"www.cluster.local.", "search cluster.local., local local."},
		{"www.example.com.cluster.local.", "search cluster.local., local local."},
		{"10-0-0-1.default.pod.cluster.local.", "cluster cluster.local., local local."},
		{"a.10-0-0-1.default.pod.cluster.local.", "search cluster.local., local local."},
		{"dns-version.cluster.local.", "cluster cluster.local., local local."},
		{"a.dns-version.cluster.local.", "search cluster.local., local local."},
		{"web.default.svc.clusterset.local.", "cluster clusterset.local., local local."},
		{"web.default.svc.k8s.example.", "cluster k8s.example."},
		{"www.example.com.default.svc.k8s.example.", "search k8s.example."},
		{"xk8s.example.", ""},

		{"ec2.internal.", ""},
		{"ip-10-0-0-5.ec2.internal.", ""},
		{"a.ip-10-0-0-5.ec2.internal.", ""},
		{"www.example.com.ec2.internal.", "search ec2.internal."},
		{"example.COM.ec2.Internal.", "search ec2.internal."},
		{"example.xn--p1ai.ec2.internal.", "search ec2.internal."},
		{"example.c.ec2.internal.", ""},
		{"web.default.svc.cluster.local.ec2.internal.", "search ec2.internal."},
		{"5.0.0.10.in-addr.arpa.ec2.internal.", "search ec2.internal."},
		{"dc1.corp.example.", ""},
		{"_ldap._tcp.dc._msdcs.corp.example.", ""},
		{"api.staging.corp.example.", "search corp.example."},

		{"5.0.0.10.in-addr.arpa.", "private_reverse 10.in-addr.arpa., local 10.in-addr.arpa."},
		{"10.in-addr.arpa.", "private_reverse 10.in-addr.arpa., local 10.in-addr.arpa."},
		{"1.15.172.in-addr.arpa.", ""},
		{"1.16.172.IN-ADDR.arpa.", "private_reverse 16.172.in-addr.arpa., local 16.172.in-addr.arpa."},
		{"1.31.172.in-addr.arpa.", "private_reverse 31.172.in-addr.arpa., local 31.172.in-addr.arpa."},
		{"1.32.172.in-addr.arpa.", ""},
		{"172.in-addr.arpa.", ""},
		{"1.63.100.in-addr.arpa.", ""},
		{"1.64.100.in-addr.arpa.", "private_reverse 64.100.in-addr.arpa., local 64.100.in-addr.arpa."},
		{"1.127.100.in-addr.arpa.", "private_reverse 127.100.in-addr.arpa., local 127.100.in-addr.arpa."},
		{"1.128.100.in-addr.arpa.", ""},
		{"8.8.8.8.in-addr.arpa.", ""},
		{"1.0.0.127.in-addr.arpa.", "private_reverse 127.in-addr.arpa., local 127.in-addr.arpa."},
		{"170.0.0.192.in-addr.arpa.", ""},
		{dnsReverse(t, "::1"), "private_reverse " + dnsReverse(t, "::1") + ", local " + dnsReverse(t, "::1")},
		{dnsReverse(t, "fd00::1"), "private_reverse d.f.ip6.arpa., local d.f.ip6.arpa."},
		{dnsReverse(t, "fc00::1"), ""},
		{dnsReverse(t, "febf::1"), "private_reverse b.e.f.ip6.arpa., local b.e.f.ip6.arpa."},
		{dnsReverse(t, "fec0::1"), ""},
		{dnsReverse(t, "2001:db8::1"), "private_reverse 8.b.d.0.1.0.0.2.ip6.arpa., local 8.b.d.0.1.0.0.2.ip6.arpa."},
		{dnsReverse(t, "2001:4860::1"), ""},

		{"test.", "special_use test., local test."},
		{"a.b.test.", "special_use test., local test."},
		{"localhost.", "special_use localhost., local localhost."},
		{"www.invalid.", "special_use invalid., local invalid."},
		{"printer.local.", "special_use local., local local."},
		{"abc.onion.", "special_use onion., local onion."},
		{"router.home.arpa.", "special_use home.arpa., local home.arpa."},
		{"_dns.resolver.arpa.", "special_use resolver.arpa., local resolver.arpa."},
		{"ipv4only.arpa.", ""},
		{"www.example.", ""},
		{"www.internal.", ""},
		{"www.alt.", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := root.textOf(t, tt.name, dns.TypeA); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	t.Run("types", func(t *testing.T) {
		for _, tt := range []struct {
			name, want string
			qtype      uint16
		}{
			{"com.", "", dns.TypeNS}, {"com.", "", dns.TypeDNSKEY}, {"com.", "", dns.TypeSOA}, {"com.", "", dns.TypeDS},
			{"10.in-addr.arpa.", "", dns.TypeDS}, {"local.", "", dns.TypeDS},
			{"a.local.", "special_use local., local local.", dns.TypeDS},
			{"local.", "special_use local., local local.", dns.TypeNS},
		} {
			if got := root.textOf(t, tt.name, tt.qtype); got != tt.want {
				t.Errorf("%s %s: %q, want %q", tt.name, dns.TypeToString[tt.qtype], got, tt.want)
			}
		}
	})
}

func dnsReverse(t *testing.T, address string) string {
	t.Helper()
	name, err := dns.ReverseAddr(address)
	kit.Must(t, err)
	return name
}

// TestNames_Stanzas has stanzas and server blocks that name private zones themselves.
func TestNames_Stanzas(t *testing.T) {
	const reverse, cluster, single = "5.0.0.10.in-addr.arpa.", "web.default.svc.cluster.local.", "web."
	const reverseLeak = "private_reverse 10.in-addr.arpa., local 10.in-addr.arpa."
	for name, tt := range map[string]struct {
		config config
		query  string
		want   string
	}{
		"root, reverse":                      {config{from: "."}, reverse, reverseLeak},
		"root, single label":                 {config{from: "."}, single, "single_label ."},
		"root, search domain":                {config{from: "."}, "www.example.com.corp.example.", "search corp.example."},
		"cluster DNS":                        {config{from: ".", toClusterDNS: true}, reverse, ""},
		"cluster zone":                       {config{from: "cluster.local."}, cluster, ""},
		"block of the cluster zone":          {config{from: ".", blockZones: []string{"cluster.local."}}, cluster, ""},
		"search in the cluster zone":         {config{from: "cluster.local."}, "www.example.com.default.svc.cluster.local.", ""},
		"above the cluster zone":             {config{from: "local."}, cluster, ""},
		"block of root and cluster zone":     {config{from: ".", blockZones: []string{".", "cluster.local."}}, cluster, ""},
		"block of root and another":          {config{from: ".", blockZones: []string{".", "a.example."}}, cluster, "cluster cluster.local., local local."},
		"stub zone with a search domain":     {config{from: "example."}, "www.example.com.corp.example.", ""},
		"search domain":                      {config{from: "corp.example."}, "www.example.com.corp.example.", ""},
		"block of root and search domain":    {config{from: ".", blockZones: []string{".", "corp.example."}}, "www.example.com.corp.example.", ""},
		"all reverse zones":                  {config{from: ".", blockZones: []string{"in-addr.arpa.", "ip6.arpa."}}, reverse, reverseLeak},
		"all reverse zones, stanza":          {config{from: "in-addr.arpa.", blockZones: []string{"."}}, reverse, reverseLeak},
		"the private reverse zone":           {config{from: "10.in-addr.arpa."}, reverse, ""},
		"below the private reverse zone":     {config{from: "0.10.in-addr.arpa."}, reverse, ""},
		"block of root and the reverse zone": {config{from: ".", blockZones: []string{".", "0.10.in-addr.arpa."}}, reverse, ""},
		"beside the reverse zone":            {config{from: ".", blockZones: []string{".", "1.10.in-addr.arpa."}}, reverse, reverseLeak},
		"below a special zone":               {config{from: ".", blockZones: []string{"consul.local."}}, "a.consul.local.", ""},
		"top-level domain":                   {config{from: "test."}, "test.", ""},
		"disjoint":                           {config{from: "a.example.", blockZones: []string{"b.example."}}, reverse, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := newNames(&tt.config, nil, []string{"corp.example."}).textOf(t, tt.query, dns.TypeA); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestParse_Block takes the zones of the server block from the Corefile.
func TestParse_Block(t *testing.T) {
	c := caddy.NewTestController("dns", "forward . 192.0.2.1")
	c.ServerBlockKeys = []string{"dns://.:53", "dns://10.in-addr.arpa.:53"}
	all, err := parse(c)
	kit.Must(t, err)
	if got, want := all[0].blockZones, []string{".", "10.in-addr.arpa."}; !slices.Equal(got, want) {
		t.Errorf("zones %q, want %q", got, want)
	}
}

// TestParse_ClusterDNS takes from the facts of the node that the upstreams are cluster DNS: no name leaks, and private_names is an
// error.
func TestParse_ClusterDNS(t *testing.T) {
	t.Cleanup(func() { nodefacts.Set(nodefacts.Facts{}) })
	nodefacts.Set(nodefacts.Facts{Corefile: "Testfile", Forward: map[int]nodefacts.Forward{1: {ClusterDNS: true}}})
	all := configured(t, "forward . 192.0.2.1\nforward . 192.0.2.2")
	if newNames(&all[0], nil, nil) != nil || newNames(&all[1], nil, nil) == nil {
		t.Errorf("stanzas %+v, want cluster DNS as the upstream of the first alone", all)
	}
	_, err := parse(caddy.NewTestController("dns", "forward . 192.0.2.1 {\nprivate_names nxdomain\n}"))
	if err == nil || !strings.Contains(err.Error(), "Testfile:2 - Error during parsing: invalid private_names: the upstreams are cluster DNS") {
		t.Errorf("error %v", err)
	}
}

// TestSearchDomains reads the search domains of the files in TO.
func TestSearchDomains(t *testing.T) {
	one := resolvConf(t, "nameserver 192.0.2.1\nsearch EC2.internal a..b corp.example.\n")
	two := resolvConf(t, "nameserver 192.0.2.2\n")
	c := config{to: []target{{file: one}, {file: two}, {file: "/nonexistent/resolv.conf"}}}
	if got, want := c.readSearchDomains(), []string{"ec2.internal.", "corp.example."}; !slices.Equal(got, want) {
		t.Errorf("search domains %q, want %q", got, want)
	}
}

// slowNames is the model of names: it compares a name with each zone.
type slowNames struct {
	own, cluster, search []string
	root                 bool
}

func newSlowNames(c *config, cluster, search []string) (m slowNames) {
	m.own = c.ownZones()
	m.root = slices.Contains(m.own, ".")
	for _, zone := range append(slices.Clone(defaultClusterZones), cluster...) {
		if m.root && zone != "." && !dns.IsSubDomain("arpa.", zone) {
			m.cluster = append(m.cluster, zone)
		}
	}
	for _, zone := range search {
		if m.root && zone != "." && zoneOf(m.cluster, zone) == "" {
			m.search = append(m.search, zone)
		}
	}
	return m
}

// zoneOf returns the longest zone of a name, "" for none.
func zoneOf(zones []string, name string) (longest string) {
	for _, zone := range zones {
		if zone != "." && dns.IsSubDomain(zone, name) && len(zone) > len(longest) {
			longest = zone
		}
	}
	return longest
}

// before returns the labels before a zone, in lower case.
func before(name, zone string) []string {
	labels := dns.SplitDomainName(strings.ToLower(name))
	return labels[:len(labels)-dns.CountLabel(zone)]
}

func (m slowNames) classify(name string, qtype uint16) string {
	name = strings.ToLower(name)
	var localNames []string
	byName := map[string]*localZone{}
	for i := range localZones {
		z := &localZones[i]
		if slices.ContainsFunc(m.own, func(own string) bool { return own != z.name && dns.IsSubDomain(own, z.name) }) {
			localNames, byName[z.name] = append(localNames, z.name), z
		}
	}
	own, local, cluster := zoneOf(m.own, name), zoneOf(localNames, name), zoneOf(m.cluster, name)
	search := zoneOf(slices.DeleteFunc(slices.Clone(m.search), func(zone string) bool {
		return !dns.IsSubDomain(zone, name) || !looksExpanded(before(name, zone))
	}), name)
	result := func(kind, zone string) string {
		l := &leak{kind: kind, zone: zone}
		if len(local) < len(own) || local == "" || local == own {
			return text(l, nil)
		}
		return text(l, byName[local])
	}
	longest := max(len(own), len(local), len(cluster), len(search))
	switch {
	case longest == 0:
		if m.root && dns.CountLabel(name) == 1 && !slices.Contains([]uint16{dns.TypeNS, dns.TypeSOA, dns.TypeDS, dns.TypeDNSKEY}, qtype) {
			return result(leakSingle, ".")
		}
		return ""
	case len(own) == longest, local == name && qtype == dns.TypeDS:
		return ""
	case len(cluster) == longest && isOfCluster(before(name, cluster)):
		return result(leakCluster, cluster)
	case len(cluster) == longest:
		return result(leakSearch, cluster)
	case len(search) == longest:
		return result(leakSearch, search)
	}
	return result(byName[local].kind, local)
}

func looksExpanded(labels []string) bool {
	if len(labels) < 2 {
		return false
	}
	top := labels[len(labels)-1]
	return strings.HasPrefix(top, "xn--") && len(top) > 4 || len(top) > 1 && strings.Trim(top, "abcdefghijklmnopqrstuvwxyz") == ""
}

func isOfCluster(labels []string) bool {
	if len(labels) == 0 {
		return true
	}
	switch labels[len(labels)-1] { // a label may have an escaped dot
	case "svc":
		return len(labels) <= 4 || len(labels) == 5 && labels[0][0] == '_'
	case "pod":
		return len(labels) <= 3
	case "dns-version":
		return len(labels) == 1
	}
	return false
}

// pieces are the labels of random names and zones.
var pieces = []string{
	"a", "WEB", "com", "example", "svc", "Pod", "default", "cluster", "local", "LOCAL", "internal", "ec2", "10", "16", "172", "192", "168", "in-addr", "ip6", "arpa",
	"d", "f", "home", "test", "localhost", "_tcp", "_http", "dns-version", "xn--p1ai", "xn--", "node-1", `a\.b`, `\000`, "resolver", "clusterset",
}

// zoneEndings are the ends of random names.
var zoneEndings = []string{
	"", "", "cluster.local.", "svc.cluster.local.", "in-addr.arpa.", "10.in-addr.arpa.", "ip6.arpa.", "f.ip6.arpa.", "ec2.internal.", "corp.example.", "k8s.example.", "local.", "test.",
}

func randomName(r *rand.Rand, labels int) string {
	var b strings.Builder
	for range r.IntN(labels + 1) {
		b.WriteString(pieces[r.IntN(len(pieces))] + ".")
	}
	b.WriteString(zoneEndings[r.IntN(len(zoneEndings))])
	if b.Len() == 0 {
		return "."
	}
	return b.String()
}

func randomZones(r *rand.Rand, limit int) (all []string) {
	for range r.IntN(limit + 1) {
		all = append(all, strings.ToLower(randomName(r, 1)))
	}
	return all
}

var types = []uint16{dns.TypeA, dns.TypeA, dns.TypePTR, dns.TypeNS, dns.TypeDS, dns.TypeSOA, dns.TypeDNSKEY}

// TestNames_Model compares names with the model, for random stanzas and names.
func TestNames_Model(t *testing.T) {
	property.Seeds(t, 1, 100, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := config{from: ".", blockZones: append(randomZones(r, 2), ".")}
		if r.IntN(3) == 0 {
			c = config{from: strings.ToLower(randomName(r, 1)), blockZones: randomZones(r, 2)}
		}
		cluster, search := randomZones(r, 2), append(randomZones(r, 2), "ec2.internal.")
		fast, slow := newNames(&c, cluster, search), newSlowNames(&c, cluster, search)
		for range 200 {
			name, qtype := randomName(r, 6), types[r.IntN(len(types))]
			if got, want := fast.textOf(t, name, qtype), slow.classify(name, qtype); got != want {
				t.Fatalf("%s %s: %q, want %q; stanza %+v, cluster zones %q, search domains %q", name, dns.TypeToString[qtype], got, want, c, cluster, search)
			}
		}
	})
}

// FuzzNames compares names with the model for names in wire form.
func FuzzNames(f *testing.F) {
	c, search := config{from: ".", blockZones: []string{".", "corp.example.", "1.10.in-addr.arpa."}}, []string{"ec2.internal.", "corp.example."}
	cluster := []string{"k8s.example."}
	fast, slow := newNames(&c, cluster, search), newSlowNames(&c, cluster, search)
	for _, name := range []string{".", "web.", "www.example.com.ec2.internal.", "_a._tcp.b.default.svc.k8s.example.", "5.1.10.in-addr.arpa.", "a.Local."} {
		f.Add([]byte(newZone(name)), uint16(dns.TypeA))
	}
	f.Fuzz(func(t *testing.T, name []byte, qtype uint16) {
		m := append(append([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...), byte(qtype>>8), byte(qtype), 0, 1)
		var q wire.Query
		if !q.Parse(m) {
			return
		}
		sent := slices.Clone(m)
		l, local := fast.classify(m[wire.HeaderLen:], qtype)
		text1 := text(l, local)
		presentation, _, err := dns.UnpackDomainName(m, wire.HeaderLen)
		kit.Must(t, err)
		if want := slow.classify(presentation, qtype); text1 != want || !slices.Equal(m, sent) {
			t.Errorf("%s: %q, want %q", presentation, text1, want)
		}
	})
}

// TestNames_Allocs: recognizing and counting a leak causes no allocations.
func TestNames_Allocs(t *testing.T) {
	n := newNames(stanzaIn("."), nil, []string{"ec2.internal."})
	for _, name := range []string{"www.example.com.", "www.example.com.ec2.internal.", "5.0.0.10.in-addr.arpa.", "web.default.svc.cluster.local."} {
		wire := wireOf(t, name)
		count := func() {
			if l, _ := n.classify(wire, dns.TypeA); l != nil {
				l.inc()
			}
		}
		count() // makes the series
		if allocs := testing.AllocsPerRun(100, count); allocs > 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// BenchmarkNames measures the cost of a query for an ordinary name and for leaks.
func BenchmarkNames(b *testing.B) {
	n := newNames(stanzaIn("."), nil, []string{"ec2.internal."})
	for _, name := range []string{"www.example.com.", "www.example.com.ec2.internal.", "5.0.0.10.in-addr.arpa.", "web.default.svc.cluster.local."} {
		b.Run(name, func(b *testing.B) {
			wire := wireOf(b, name)
			b.ReportAllocs()
			for b.Loop() {
				n.classify(wire, dns.TypeA)
			}
		})
	}
}
