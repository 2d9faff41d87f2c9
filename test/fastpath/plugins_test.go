//go:build linux

package fastpath

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestParityWithPlugins has server blocks with one more plugin each: replies are equal with and without the fast path, for ordinary
// queries and for those that the plugin answers or changes. The programs have no race detector, which would double the time of this and the
// next test: there is one query at a time.
func TestParityWithPlugins(t *testing.T) {
	folder := newCluster(t)
	zone := filepath.Join(folder, "example.zone")
	kit.Write(t, zone, "@ 60 IN SOA ns.file.test. admin.file.test. 1 2 3 4 5\n@ 60 IN NS ns.file.test.\nns 60 IN A 192.0.2.53\nwww 60 IN A 192.0.2.80\n")
	manifest(t, folder, "balanced.yaml", balanced("lb", "10.97.0.1", "203.0.113.1", "2001:db8:113::1"))
	externalNames := slices.Concat(
		plain(t, []string{"example.test.", "dns.example.test.", "ns1.dns.example.test.", "shop.example.test.", "none.shop.example.test.", "1.113.0.203.in-addr.arpa.", "9.113.0.203.in-addr.arpa."}),
		variants(t, "lb.shop.example.test.", dns.TypeA), variants(t, "lb.shop.example.test.", dns.TypeSRV), variants(t, "_http._tcp.lb.shop.example.test.", dns.TypeSRV),
		variants(t, "lb.shop.example.test.", dns.TypeTXT), variants(t, "none.shop.example.test.", dns.TypeA), variants(t, "example.test.", dns.TypeA),
		variants(t, "1.113.0.203.in-addr.arpa.", dns.TypePTR), variants(t, "many60.shop.example.test.", dns.TypeA), variants(t, "_http._tcp.many12.shop.example.test.", dns.TypeSRV),
	)
	ordinary := slices.Concat(
		plain(t, clusterNames[:8]),
		variants(t, "web.shop.svc.cluster.local.", dns.TypeA),
		variants(t, "many60.shop.svc.cluster.local.", dns.TypeA),
		variants(t, "_http._tcp.many12.shop.svc.cluster.local.", dns.TypeSRV),
		variants(t, "www.example.org.shop.svc.cluster.local.", dns.TypeA),
	)
	chaos := func(name string) query {
		m := newQuery(name, dns.TypeTXT)
		m.Question[0].Qclass = dns.ClassCHAOS
		return query{name + " CH TXT", pack(t, m)}
	}
	nsid := newQuery("web.shop.svc.cluster.local.", dns.TypeA)
	nsid.SetEdns0(1232, false).IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
	const cache = "cache 30"
	for _, tc := range []struct {
		name    string
		lines   []string
		own     []query
		minimum int // percentage of the ordinary queries that is answered by the fast path
	}{
		{"any", []string{"any"}, []query{{"ANY", pack(t, newQuery("web.shop.svc.cluster.local.", dns.TypeANY))}}, 40},
		{"bufsize", []string{"bufsize 700"}, variants(t, "many12.shop.svc.cluster.local.", dns.TypeA), 40},
		{"bufsize with cache", []string{"bufsize 512", cache}, variants(t, "many12.shop.svc.cluster.local.", dns.TypeA), 40},
		{"cancel", []string{"cancel 2s"}, nil, 40},
		{"chaos", []string{"chaos nearside-1 info@example.org"}, []query{chaos("version.bind."), chaos("authors.bind."), chaos("web.shop.svc.cluster.local.")}, 40},
		{"dns64", []string{"dns64 64:ff9b::/96"}, slices.Concat(plain(t, clusterNames[:8]), variants(t, "web.shop.svc.cluster.local.", dns.TypeAAAA),
			variants(t, "none.shop.svc.cluster.local.", dns.TypeAAAA)), 30},
		{"dns64 for all", []string{"dns64 {\nprefix 64:ff9b::/96\nallow_ipv4\ntranslate_all\n}", cache}, slices.Concat(plain(t, clusterNames[:8]),
			variants(t, "web.shop.svc.cluster.local.", dns.TypeAAAA), variants(t, "db.shop.svc.cluster.local.", dns.TypeAAAA)), 30},
		{"file", []string{"file " + zone + " file.test", cache}, variants(t, "www.file.test.", dns.TypeA), 40},
		{"header", []string{"header {\nresponse set ra\nresponse clear aa\n}", cache}, nil, 40},
		{"header of queries", []string{"header {\nquery clear rd\nresponse set ra rd\n}", cache}, nil, 40},
		{"k8s_external", []string{"k8s_external example.test 113.0.203.in-addr.arpa {\nttl 300\n}"}, externalNames, 40},
		{"k8s_external with cache", []string{"k8s_external example.test 113.0.203.in-addr.arpa {\nheadless\nttl 300\n}", cache}, externalNames, 40},
		{"k8s_external in the same zones", []string{"k8s_external cluster.local in-addr.arpa {\nheadless\nttl 300\nfallthrough\n}"},
			slices.Concat(plain(t, clusterNames[:8]), variants(t, "lb.shop.cluster.local.", dns.TypeA), variants(t, "web.shop.svc.cluster.local.", dns.TypeA)), 0}, // either plugin may answer each name
		{"log of errors", []string{"log . {\nclass error\n}"}, nil, 34}, // an expired signature is an error for log, which sees all queries with DO
		{"log of denials", []string{"log . {\nclass denial error\n}"}, nil, 10},
		{"log of a zone", []string{"log example.org"}, plain(t, []string{"web.example.org."}), 40},
		{"local", []string{"local"}, slices.Concat(plain(t, []string{
			"localhost.", "a.localhost.", "localhost.shop.svc.cluster.local.", "1.0.0.127.in-addr.arpa.", "5.127.in-addr.arpa.", "0.in-addr.arpa.",
		}), variants(t, "localhost.", dns.TypeA)), 40},
		{"minimal", []string{"minimal", cache}, nil, 40},
		{"multisocket", []string{"multisocket 2"}, nil, 40},
		{"nsid", []string{"nsid here"}, []query{{"with NSID", pack(t, nsid)}}, 40},
		{"rewrite", []string{
			"rewrite name exact db.shop.svc.cluster.local web.shop.svc.cluster.local", "rewrite name exact web.shop.svc.cluster.local. many12.shop.svc.cluster.local.",
			"rewrite continue ttl suffix .shop.svc.cluster.local 7",
		}, slices.Concat(variants(t, "many12.shop.svc.cluster.local.", dns.TypeA), variants(t, "web.shop.svc.cluster.local.", dns.TypeA),
			variants(t, "db.shop.svc.cluster.local.", dns.TypeA), variants(t, "kubernetes.default.svc.cluster.local.", dns.TypeA)), 1}, // most of the ordinary names are rewritten
		{"rewrite of other names", []string{"rewrite name regex (.*)\\.example\\.org {1}.shop.svc.cluster.local answer auto", "rewrite type MX TXT", "rewrite class HS IN"},
			plain(t, []string{"web.example.org.", "db.example.org.", "web.shop.svc.cluster.local."}), 40},
		{"shed", []string{"shed"}, nil, 40},
		{"template", []string{"template IN A shop.svc.cluster.local {\nmatch ^db\\.\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\nfallthrough\n}", cache},
			variants(t, "db.shop.svc.cluster.local.", dns.TypeA), 40},
		{"timeouts", []string{"timeouts {\nread 5s\nwrite 5s\nidle 10s\n}"}, nil, 40},
		{"whoami", []string{"whoami"}, nil, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkPlugin(t, startPairFrom(t, daemon.ProgramWithoutRace(t, "clusterdns"), clusterBlock(folder, tc.lines...)), tc.own, ordinary, tc.minimum)
		})
	}
}

// checkPlugin compares the replies of both programs to the queries that concern a plugin, and to ordinary ones, of which the fast path
// answers the minimum, a percentage.
func checkPlugin(t *testing.T, p pair, own, ordinary []query, minimum int) {
	t.Helper()
	compare := comparison{ttl: 1}
	before := p.on.scrape(t)
	p.counted(t, before, compare.checkAll(t, p, own, 2)) // a query may be counted after its reply
	before = p.on.scrape(t)
	sent := compare.checkAll(t, p, ordinary, 2)
	answered, _ := p.counted(t, before, sent)
	if percent := 100 * answered / sent; percent < minimum {
		t.Errorf("%d of %d queries were answered by the fast path, want %d%%", answered, sent, minimum)
	}
}

// withSearchList is a query with the search list of nodecache, for a client that receives 4,096 bytes.
func withSearchList(t *testing.T, name string, qtype uint16) query {
	t.Helper()
	domain := make([]byte, 64)
	n, err := dns.PackDomainName("shop.svc.cluster.local.", domain, 0, nil, false)
	kit.Must(t, err)
	m := newQuery(name, qtype)
	m.SetEdns0(4096, false).IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65314, Data: domain[:n]}}
	return query{name + " with a search list", pack(t, m)}
}

// TestParityOfCacheWithPlugins is TestParityWithPlugins for nodecache: the plugins are before and behind cache and forward, and misses are
// queries in wire form where the plugins permit it.
func TestParityOfCacheWithPlugins(t *testing.T) {
	u := startUpstream(t, answerScript(t))
	ordinary := slices.Concat(
		plain(t, scriptedNames()),
		variants(t, "a.test.", dns.TypeA),
		variants(t, "chain.test.", dns.TypeA),
		variants(t, "many.test.", dns.TypeA),
		variants(t, "none.test.", dns.TypeA),
	)
	for _, tc := range []struct {
		name    string
		lines   []string
		own     []query
		minimum int // percentage of the ordinary queries that is answered by the fast path
	}{
		{"any", []string{"any"}, []query{{"ANY", pack(t, newQuery("any.test.", dns.TypeANY))}}, 50},
		{"any and rewrite", []string{"any", "rewrite type MX ANY"}, []query{{"MX", pack(t, newQuery("a.test.", dns.TypeMX))}, {"ANY", pack(t, newQuery("a.test.", dns.TypeANY))}}, 50},
		{"bufsize", []string{"bufsize 700"}, append(variants(t, "many.test.", dns.TypeAAAA), withSearchList(t, "most.test.", dns.TypeA), withSearchList(t, "big.test.", dns.TypeTXT)), 40},
		{"cancel", []string{"cancel 2s"}, nil, 50},
		{"dns64", []string{"dns64"}, slices.Concat(variants(t, "a.test.", dns.TypeAAAA), variants(t, "chain.test.", dns.TypeAAAA), variants(t, "secure.test.", dns.TypeAAAA)), 40},
		{"dns64 for all", []string{"dns64 {\nallow_ipv4\ntranslate_all\n}"}, slices.Concat(variants(t, "a.test.", dns.TypeAAAA), variants(t, "chain.test.", dns.TypeAAAA),
			variants(t, "blocked.test.", dns.TypeAAAA)), 40},
		{"header", []string{"header {\nresponse set aa\nresponse clear ra\n}"}, nil, 50},
		{"hosts", []string{"hosts {\n192.0.2.99 a.test b.test\nfallthrough\n}"}, variants(t, "b.test.", dns.TypeA), 40},
		{"local", []string{"local"}, slices.Concat(plain(t, []string{"localhost.", "a.localhost.", "localhost.test.", "1.0.0.127.in-addr.arpa."}), variants(t, "localhost.", dns.TypeA)), 50},
		{"log of errors", []string{"log . {\nclass error\n}"}, variants(t, "fail.test.", dns.TypeA), 40},
		{"minimal", []string{"minimal"}, variants(t, "mx.test.", dns.TypeMX), 50},
		{"rewrite", []string{"rewrite name exact chain.test many.test", "rewrite name suffix .example.org .test answer auto"}, plain(t, []string{"a.example.org.", "none.example.org.", "chain.example.org."}), 40},
		{"template", []string{"template IN A test {\nmatch ^none[.]\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\nfallthrough\n}"}, nil, 50},
		{"several", []string{"bufsize 1232", "dns64 {\nallow_ipv4\n}", "log . {\nclass error\n}", "local", "rewrite name exact chain.test many.test", "minimal", "nsid a"},
			variants(t, "a.test.", dns.TypeAAAA), 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkPlugin(t, startPairFrom(t, daemon.ProgramWithoutRace(t, "nodecache"), cacheBlock(u, append([]string{"cache"}, tc.lines...)...)), tc.own, ordinary, tc.minimum)
		})
	}
}

// TestLogged counts the lines of plugin log for answers that are stored: there is one for each query that its rules name.
func TestLogged(t *testing.T) {
	folder := newCluster(t)
	const web, none = "web.shop.svc.cluster.local.", "none.shop.svc.cluster.local."
	for _, tc := range []struct {
		name, rules string
		data, other int // lines of three queries each
		hits        int // of the fast path, which leaves the first query for each name to the plugins; -1 without a fast path
	}{
		{"errors", "log . {\nclass error\n}", 0, 0, 4},
		{"denials", "log . {\nclass denial\n}", 0, 3, 2},
		{"answers", "log . {\nclass success\n}", 3, 0, -1},
		{"a zone", "log svc.cluster.local", 3, 3, 0},
		{"another zone", "log pod.cluster.local {\nclass all\n}", 0, 0, 4},
		{"the first rule of several", "log web.shop.svc.cluster.local {\nclass error\n}\nlog shop.svc.cluster.local", 0, 3, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, "clusterdns", strings.ReplaceAll(clusterBlock(folder, tc.rules), "FASTPATH", ""))
			before := s.scrape(t)
			udp := dial(t, "udp", "127.0.0.1", s)
			for range 3 {
				udp.ask(t, pack(t, newQuery(web, dns.TypeA)))
				udp.ask(t, pack(t, newQuery(none, dns.TypeA)))
			}
			lines := func(name string) int { return strings.Count(s.Output(), "\"A IN "+name+" udp") }
			kit.Eventually(t, "all lines", func() bool { return lines(web) >= tc.data && lines(none) >= tc.other })
			if lines(web) != tc.data || lines(none) != tc.other {
				t.Errorf("%d lines of answers and %d of denials, want %d and %d", lines(web), lines(none), tc.data, tc.other)
			}
			if tc.hits < 0 {
				return
			}
			if hits := int(s.counted(t, before, 6).Since(before).Sum(answeredTotal)); hits != tc.hits {
				t.Errorf("the fast path has answered %d queries, want %d", hits, tc.hits)
			}
		})
	}
}
