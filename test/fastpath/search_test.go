//go:build linux

package fastpath

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// searchPods are pods with loopback addresses, from which tests can send queries.
const searchPods = `
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: shop}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 127.1.1.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: bank}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 127.1.1.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: more, namespace: shop}
spec: {nodeName: n1, dnsConfig: {searches: [corp.test, eu.corp.test]}}
status: {phase: Running, podIPs: [{ip: 127.1.1.3}]}
---
apiVersion: v1
kind: Pod
metadata: {name: own, namespace: bank}
spec: {nodeName: n1, dnsPolicy: None, dnsConfig: {nameservers: [127.0.0.1], searches: [shop.svc.cluster.local, corp.test]}}
status: {phase: Running, podIPs: [{ip: 127.1.1.4}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: kube-system}
spec: {nodeName: n1, hostNetwork: true}
status: {phase: Running, podIPs: [{ip: 127.1.1.5}]}
---
apiVersion: v1
kind: Pod
metadata: {name: going, namespace: shop, deletionTimestamp: "2026-01-01T00:00:00Z"}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 127.1.1.6}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gone, namespace: shop}
spec: {nodeName: n1}
status: {phase: Succeeded, podIPs: [{ip: 127.1.1.10}]}
---
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: shop}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 127.1.1.8}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: bank}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 127.1.1.8}]}
---
apiVersion: v1
kind: Pod
metadata: {name: outside, namespace: shop}
spec: {nodeName: n1, dnsPolicy: None, dnsConfig: {nameservers: [127.0.0.1], searches: [corp.test, shop.svc.cluster.local]}}
status: {phase: Running, podIPs: [{ip: 127.1.1.9}]}
`

// searchServices are Services in two namespaces: one name in both, one of each, one with IPv6 alone, and one with the
// name of a namespace.
const searchServices = `
apiVersion: v1
kind: Service
metadata: {name: both, namespace: shop}
spec: {clusterIP: 10.96.1.1, clusterIPs: ["10.96.1.1"], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: both, namespace: bank}
spec: {clusterIP: 10.96.1.2, clusterIPs: ["10.96.1.2", "fd96::2"], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: till, namespace: bank}
spec: {clusterIP: 10.96.1.3, clusterIPs: ["10.96.1.3"], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: six, namespace: shop}
spec: {clusterIP: "fd96::4", clusterIPs: ["fd96::4"], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: corp, namespace: shop}
spec: {type: ExternalName, externalName: both.corp.test}
`

// asker is a client, and the search list of its resolver if the server knows it; nil if its names are not expanded.
type asker struct {
	address string
	list    []string
}

// askers returns all kinds of clients, given the search list of the machine.
func askers(host []string) []asker {
	cluster := func(namespace string, more ...string) []string {
		return slices.Concat([]string{namespace + ".svc.cluster.local.", "svc.cluster.local.", "cluster.local."}, host, more)
	}
	return []asker{
		{"127.1.1.1", cluster("shop")},
		{"127.1.1.2", cluster("bank")},
		{"127.1.1.3", cluster("shop", "corp.test.", "eu.corp.test.")},
		{"127.1.1.4", []string{"shop.svc.cluster.local.", "corp.test."}},
		{"127.1.1.5", nil},  // the host network
		{"127.1.1.6", nil},  // about to go
		{"127.1.1.10", nil}, // has ended
		{"127.1.1.7", nil},  // address without a pod
		{"127.1.1.8", nil},  // of two pods
		{"127.1.1.9", nil},  // the first suffix is not in the zone
	}
}

// hostSearch returns the search list of this machine, from which the program under test makes those of pods.
func hostSearch(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Log(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "search" {
			list = nil
			for _, s := range fields[1:] {
				if s != "." {
					list = append(list, strings.ToLower(strings.TrimSuffix(s, "."))+".")
				}
			}
		}
	}
	return list
}

// searchBases are the names that clients look up; searchTypes are the types.
var (
	searchBases = []string{
		"both.", "till.", "six.", "corp.", "both.bank.", "six.shop.", "none.", "www.example.org.", "four.example.org.", "empty.example.org.",
		"alias.example.org.", "lost.example.org.", "fails.example.org.", "_http._tcp.both.", "none.example.org.",
	}
	searchTypes = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeSRV}
)

// searchUpstream answers names outside of the cluster.
func searchUpstream(w dns.ResponseWriter, r *dns.Msg) {
	script := map[string]string{
		"both.corp.test.":       "A AAAA",
		"till.eu.corp.test.":    "A",
		"six.corp.test.":        "A",
		"www.example.org.":      "A AAAA TXT",
		"four.example.org.":     "A",
		"four.example.org.eu.":  "A AAAA",
		"empty.example.org.":    "",
		"alias.example.org.":    "CNAME www.example.org.",
		"lost.example.org.":     "CNAME none.example.org.",
		"none.corp.test.":       "TXT",
		"lost.shop.corp.test.":  "A",
		"none.eu.corp.test.":    "A",
		"both.":                 "A",
		"fails.eu.corp.test.":   "A",
		"empty.example.org.io.": "A",
	}
	m, q := new(dns.Msg).SetReply(r), r.Question[0]
	add := func(name string, data string) {
		rr, err := dns.NewRR(name + " 300 IN " + data)
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	name := strings.ToLower(q.Name)
	text, exists := script[name]
	if target, is := strings.CutPrefix(text, "CNAME "); is {
		add(q.Name, text)
		name = target
		text, exists = script[name]
	}
	switch {
	case strings.HasPrefix(name, "fails.example.org."):
		m.Rcode = dns.RcodeServerFailure
	case !exists:
		m.Rcode = dns.RcodeNameError
	}
	for _, rrtype := range strings.Fields(text) {
		if dns.StringToType[rrtype] == q.Qtype {
			add(name, rrtype+" "+map[string]string{"A": "192.0.2." + strconv.Itoa(len(name)), "AAAA": "2001:db8::" + strconv.Itoa(len(name)), "TXT": name}[rrtype])
		}
	}
	if len(m.Answer) == 0 && m.Rcode != dns.RcodeServerFailure {
		soa, err := dns.NewRR("test. 300 IN SOA ns.test. hostmaster.test. 1 300 300 300 300")
		if err != nil {
			panic(err)
		}
		m.Ns = []dns.RR{soa}
	}
	_ = w.WriteMsg(m) // the client may have closed its socket
}

// searching is a pair of programs that expand names, and a reference that neither expands nor caches: its answers to
// single names are the truth.
type searching struct {
	pair
	plain   *server
	clients []asker
}

// ask queries one name.
func (s *searching) ask(t *testing.T, name string, qtype uint16) *dns.Msg {
	t.Helper()
	return over(t, "tcp", s.plain, "127.0.0.1", newQuery(name, qtype))
}

// over sends a query from an address.
func over(t *testing.T, network string, s *server, address string, m *dns.Msg) *dns.Msg {
	t.Helper()
	var local net.Addr = &net.TCPAddr{IP: net.ParseIP(address)}
	if network == "udp" {
		local = &net.UDPAddr{IP: net.ParseIP(address)}
	}
	client := dns.Client{Net: network, Timeout: bounded, Dialer: &net.Dialer{LocalAddr: local, Timeout: bounded}}
	reply, _, err := client.Exchange(m, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)))
	if err != nil {
		t.Fatalf("%v over %s from %s: %v", m.Question, network, address, err)
	}
	return reply
}

// answersOf returns a reply as text: the code, the records in order, and the owner of a denial's SOA.
func answersOf(m *dns.Msg, rest []dns.RR) string {
	var all []string
	for _, rr := range rest {
		fields := strings.SplitN(rr.String(), "\t", 3) // without the TTL
		all = append(all, strings.ToLower(fields[0]+" "+fields[2]))
	}
	slices.Sort(all)
	if len(rest) == 0 && len(m.Ns) > 0 {
		all = append(all, "denied by "+strings.ToLower(m.Ns[0].Header().Name))
	}
	return dns.RcodeToString[m.Rcode] + ": " + strings.Join(all, "; ")
}

// want walks through a search list as a resolver does, and returns the wanted reply.
func (s *searching) want(t *testing.T, list []string, base, question string, qtype uint16) string {
	t.Helper()
	var none, empty *dns.Msg
	failed := false
	names := make([]string, 0, len(list)+1)
	for _, suffix := range list {
		names = append(names, base+suffix)
	}
	names = append(names, base)
	for i, name := range names {
		m := s.ask(t, name, qtype)
		wins := m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0
		if other := map[uint16]uint16{dns.TypeA: dns.TypeAAAA, dns.TypeAAAA: dns.TypeA}[qtype]; m.Rcode == dns.RcodeSuccess && !wins && other != 0 && i < len(names)-1 {
			wins = len(s.ask(t, name, other).Answer) > 0
		}
		switch {
		case wins && (len(m.Answer) == 0 || strings.EqualFold(name, question)):
			return answersOf(m, m.Answer)
		case wins:
			alias := &dns.CNAME{Hdr: dns.RR_Header{Name: question, Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: name}
			return answersOf(m, append([]dns.RR{alias}, m.Answer...))
		case m.Rcode == dns.RcodeNameError && none == nil:
			none = m
		case m.Rcode == dns.RcodeSuccess && empty == nil:
			empty = m
		case m.Rcode != dns.RcodeNameError && m.Rcode != dns.RcodeSuccess:
			failed = true
		}
	}
	switch {
	case failed:
		return "SERVFAIL: "
	case empty != nil:
		return answersOf(empty, nil)
	}
	return answersOf(none, nil)
}

// carried splits a name that has its search list in it.
func carried(name string) (base string, list []string) {
	const suffix = ".cluster.local.ap.k8s.io."
	rest, is := strings.CutSuffix(strings.ToLower(name), suffix)
	if !is {
		return "", nil
	}
	at := strings.LastIndex(rest, ".search.")
	namespace := rest[at+len(".search."):]
	return strings.TrimSuffix(rest[:at], ".v1") + ".", []string{namespace + ".svc.cluster.local.", "svc.cluster.local.", "cluster.local."}
}

// check queries all programs over all transports, from a client, and compares the replies.
func (s *searching) check(t *testing.T, from asker, w wires, m *dns.Msg, ttl uint32) {
	t.Helper()
	question := m.Question[0]
	(&comparison{ttl: ttl}).check(t, w, query{name: fmt.Sprintf("%s from %s", question.String(), from.address), packet: pack(t, m)})
	tcp := over(t, "tcp", s.on, from.address, m)
	off := over(t, "tcp", s.off, from.address, m)
	list, base := from.list, ""
	if carriedBase, carriedList := carried(question.Name); carriedList != nil {
		base, list = carriedBase, carriedList
	} else if list != nil {
		if rest, is := strings.CutSuffix(strings.ToLower(question.Name), "."+list[0]); is {
			base = rest + "."
		}
	}
	want := ""
	if base != "" {
		want = s.want(t, list, base, question.Name, question.Qtype)
	} else {
		alone := s.ask(t, question.Name, question.Qtype)
		want = answersOf(alone, alone.Answer)
	}
	for way, got := range map[string]*dns.Msg{"over TCP": tcp, "over TCP without the fast path": off} {
		if answer := answersOf(got, got.Answer); answer != want {
			t.Errorf("%v from %s, %s:\n%s\nwant\n%s", question.String(), from.address, way, answer, want)
		}
	}
	udp := new(dns.Msg)
	kit.Must(t, udp.Unpack(w.on.ask(t, pack(t, m))))
	w.off.ask(t, pack(t, m)) // as often
	if answer := answersOf(udp, udp.Answer); answer != want && !udp.Truncated {
		t.Errorf("%v from %s, over UDP:\n%s\nwant\n%s", question.String(), from.address, answer, want)
	}
}

// randomSearch returns a random query of a resolver with one of the lists.
func randomSearch(random *rand.Rand, carries bool) *dns.Msg {
	base := searchBases[random.IntN(len(searchBases))]
	name := base
	switch n := random.IntN(10); {
	case n < 6:
		name += "shop.svc.cluster.local."
	case n < 8:
		name += "bank.svc.cluster.local."
	case n < 9 && carries:
		name += []string{"v1.search.shop.", "search.bank.", "v1.search.bank."}[random.IntN(3)] + "cluster.local.ap.k8s.io."
	default:
		name += []string{"svc.cluster.local.", "cluster.local.", "corp.test.", ""}[random.IntN(4)]
	}
	if random.IntN(10) == 0 {
		name = mixCase(name)
	}
	m := newQuery(name, searchTypes[random.IntN(len(searchTypes))])
	if random.IntN(3) == 0 {
		m.SetEdns0(1232, random.IntN(3) == 0)
	}
	return m
}

// ofSearches returns the samples of searches.
func ofSearches(all daemon.Samples) daemon.Samples {
	selected := exact(all)
	for key, value := range all {
		if name, _, _ := strings.Cut(key, "{"); strings.Contains(name, "_autopath_") || strings.Contains(name, "_searchpath_") {
			selected[key] = value
		}
	}
	return selected
}

// searchFolder returns a folder with the manifests of the cluster of these tests.
func searchFolder(t *testing.T) string {
	t.Helper()
	folder := newCluster(t)
	manifest(t, folder, "search-pods.yaml", searchPods)
	manifest(t, folder, "search-services.yaml", searchServices)
	return folder
}

// searchKinds are configurations that expand names. EXPAND stands for the directive, and CACHE for a cache; the
// reference has neither.
func searchKinds(t *testing.T, folder string) map[string]struct{ program, corefile, expand, carry string } {
	t.Helper()
	up := startUpstream(t, searchUpstream).address
	conf := kit.File(t, "resolv.conf", "nameserver 127.0.0.1\n"+"search "+strings.Join(hostSearch(t), " ")+"\n")
	kubernetes := "kubernetes cluster.local {\n manifests " + folder + "\n pods verified\n ttl 300\n}\n"
	const head = "bind 127.0.0.1\nprometheus METRICS\nerrors\nFASTPATH\n"
	const cached = "CACHE\n"
	const carry = "searchpath {\n zone cluster.local\n host-searches off\n}\n"
	node := "autopath cluster.local @nodelocal {\n node n1\n manifests " + folder + "\n resolv_conf " + conf + "\n}\n"
	forward := "forward . " + up + "\n"
	clusterDNS := start(t, "clusterdns", ".:PORT {\nbind 127.0.0.1\n"+kubernetes+forward+"}\n")
	to := fmt.Sprintf("forward . 127.0.0.1:%d", clusterDNS.Port)
	return map[string]struct{ program, corefile, expand, carry string }{
		"clusterdns, one block": {"clusterdns", ".:PORT {\n" + head + "EXPAND" + kubernetes + forward + "}\n", "autopath cluster.local @kubernetes\n", ""},
		"clusterdns, one block with a cache and searchpath": {
			"clusterdns", ".:PORT {\n" + head + "CARRYEXPAND" + cached + kubernetes + forward + "}\n", "autopath cluster.local @kubernetes\n", carry,
		},
		"clusterdns, all zones in one block": {
			"clusterdns", ".:PORT {\n" + head + "CARRYEXPAND" + cached + kubernetes + forward + "}\n", "autopath @kubernetes\n", carry,
		},
		"clusterdns, two blocks": {
			"clusterdns", "cluster.local:PORT {\n" + head + "EXPAND" + kubernetes + "}\n.:PORT {\n" + head + "CARRY" + cached + forward + "}\n",
			"autopath @kubernetes\n", carry,
		},
		"nodecache in front of clusterdns": {
			"nodecache", "cluster.local:PORT {\n" + head + "EXPAND" + cached + to + " {\n caller n1\n}\n}\n.:PORT {\n" + head + "CARRY" + cached + forward + "}\n", node, carry,
		},
		"nodecache in front of a server without search lists": {
			"nodecache", "cluster.local:PORT {\n" + head + "EXPAND" + cached + to + "\n}\n.:PORT {\n" + head + "CARRY" + cached + forward + "}\n", node, carry,
		},
		"nodecache without a cache": {
			"nodecache", "cluster.local:PORT {\n" + head + "EXPAND" + to + " {\n caller n1\n}\n}\n.:PORT {\n" + head + forward + "}\n", node, "",
		},
	}
}

// startSearching starts the programs of a kind.
func startSearching(t *testing.T, program, corefile, expand, carry string) *searching {
	t.Helper()
	fill := func(expand, carry, cache string) string {
		return strings.NewReplacer("EXPAND", expand, "CARRY", carry, "CACHE", cache).Replace(corefile)
	}
	// A failure is not cached, so that the duration of the test has no effect.
	s := &searching{pair: startPair(t, program, fill(expand, carry, "cache {\n servfail 0\n}")), clients: askers(hostSearch(t))}
	s.plain = start(t, program, strings.NewReplacer("FASTPATH", "fastpath off").Replace(fill("", "", "")))
	return s
}

// wiresOf opens sockets over UDP from all clients.
func (s *searching) wiresOf(t *testing.T) (all []wires) {
	t.Helper()
	for _, from := range s.clients {
		all = append(all, wires{on: fromAddress(t, s.on, from.address), off: fromAddress(t, s.off, from.address)})
	}
	return all
}

// TestSearches sends random queries from random clients, over UDP and TCP, with and without the fast path. All replies
// are the result of a resolver that walks through that client's list itself. And all metrics are the same.
func TestSearches(t *testing.T) {
	const questions = 250
	folder := searchFolder(t)
	for name, kind := range searchKinds(t, folder) {
		t.Run(name, func(t *testing.T) {
			s := startSearching(t, kind.program, kind.corefile, kind.expand, kind.carry)
			if last := &s.clients[len(s.clients)-1]; strings.Contains(name, "all zones") {
				last.list = []string{"corp.test.", "shop.svc.cluster.local."}
			}
			ways := s.wiresOf(t)
			beforeOn, beforeOff := s.on.scrape(t), s.off.scrape(t)
			random := rand.New(rand.NewPCG(3, 4))
			for range questions {
				i := random.IntN(len(s.clients))
				s.check(t, s.clients[i], ways[i], randomSearch(random, kind.carry != ""), 120)
				if t.Failed() {
					return
				}
			}
			var on, off daemon.Samples
			counted := func() bool {
				on, off = s.on.scrape(t).Since(beforeOn), s.off.scrape(t).Since(beforeOff)
				return len(differences(ofSearches(on), ofSearches(off))) == 0
			}
			if !soon(counted) {
				t.Errorf("with the fast path and without:\n%s", strings.Join(differences(ofSearches(on), ofSearches(off)), "\n"))
			}
			expanded, answered := on.Sum("nearside_autopath_expansions_total"), on.Sum(answeredTotal)
			if hasCache := !strings.Contains(name, "without a cache"); expanded < questions/2 || hasCache && answered < questions*3/4 {
				t.Errorf("%v queries were expanded, and %v answered by the fast path, of %d", expanded, answered, questions)
			}
			for _, why := range []string{"host_network", "no_pod", "ambiguous", "ending"} {
				if on.Sum("nearside_autopath_unknown_clients_total", "reason", why) == 0 {
					t.Errorf("no query was counted for %s", why)
				}
			}
			if on.Sum("nearside_autopath_namespace_queries_total", "namespace", "shop") < expanded/4 {
				t.Errorf("queries by namespace: %v in shop of %v that were expanded", on.Sum("nearside_autopath_namespace_queries_total", "namespace", "shop"), expanded)
			}
			t.Logf("%v expanded, %v by the fast path", expanded, answered)
		})
	}
}

// TestSearchesOfOneList has the list of a file, for all clients.
func TestSearchesOfOneList(t *testing.T) {
	folder := searchFolder(t)
	file := kit.File(t, "resolv.conf", "search shop.svc.cluster.local svc.cluster.local cluster.local corp.test\nnameserver 127.0.0.1\n")
	up := startUpstream(t, searchUpstream).address
	s := startSearching(t, "clusterdns", fmt.Sprintf(`.:PORT {
    bind 127.0.0.1
    prometheus METRICS
    FASTPATH
    EXPAND
    CACHE
    kubernetes cluster.local {
        manifests %s
        ttl 300
    }
    forward . %s
}
`, folder, up), "autopath cluster.local "+file, "")
	list := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "corp.test."}
	s.clients = []asker{{"127.1.1.1", list}, {"127.1.1.7", list}}
	ways := s.wiresOf(t)
	random := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		i := random.IntN(len(s.clients))
		s.check(t, s.clients[i], ways[i], randomSearch(random, false), 120)
	}
}

// TestExpansionAfterChange adds and removes Services between queries: a result from before a change is never returned after
// it, wherever it was stored.
func TestExpansionAfterChange(t *testing.T) {
	for _, cache := range []string{"", "cache"} {
		folder := searchFolder(t)
		up := startUpstream(t, searchUpstream).address
		s := startSearching(t, "clusterdns", fmt.Sprintf(".:PORT {\nbind 127.0.0.1\nprometheus METRICS\nFASTPATH\nEXPAND\n%s\nkubernetes cluster.local {\nmanifests %s\npods verified\n}\nforward . %s\n}\n",
			cache, folder, up), "autopath cluster.local @kubernetes", "")
		ways := s.wiresOf(t)
		const service = "till.shop.svc.cluster.local."
		for round := range 6 {
			there := round%2 == 1
			text := searchServices
			if there {
				text += "---\n" + clusterIP("till", fmt.Sprintf("10.96.2.%d", round))
			}
			manifest(t, folder, "search-services.yaml", text)
			for _, program := range []*server{s.on, s.off, s.plain} {
				kit.Eventually(t, "the change is read", func() bool {
					m := over(t, "tcp", program, "127.0.0.1", newQuery(service, dns.TypeA))
					return (len(m.Answer) > 0) == there && (!there || strings.HasSuffix(m.Answer[0].String(), fmt.Sprintf("10.96.2.%d", round)))
				})
			}
			for i, from := range s.clients {
				for range 2 {
					s.check(t, from, ways[i], newQuery(service, dns.TypeA), 300)
					s.check(t, from, ways[i], newQuery("till.bank.svc.cluster.local.", dns.TypeA), 300)
				}
			}
		}
	}
}

// TestSearchedAlias has a first name with an alias to a name that does not exist. That is NODATA, from every program,
// and at every repetition.
func TestSearchedAlias(t *testing.T) {
	cluster := startUpstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
		name := r.Question[0].Name
		soa, err := dns.NewRR("cluster.local. 300 IN SOA ns.cluster.local. hostmaster.cluster.local. 1 300 300 300 300")
		if err != nil {
			panic(err)
		}
		m.Ns = []dns.RR{soa}
		if strings.HasPrefix(name, "www.example.org.shop.") {
			m.Answer = []dns.RR{&dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 300}, Target: "none.cluster.local."}}
		}
		_ = w.WriteMsg(m) // the client may have closed its socket
	})
	up := startUpstream(t, searchUpstream).address
	folder := searchFolder(t)
	conf := kit.File(t, "resolv.conf", "nameserver 127.0.0.1\n")
	p := startPair(t, "nodecache", fmt.Sprintf("cluster.local:PORT {\nbind 127.0.0.1\nprometheus METRICS\nFASTPATH\nautopath @nodelocal {\nnode n1\nmanifests %s\nresolv_conf %s\n}\ncache\nforward . %s\n}\n.:PORT {\nbind 127.0.0.1\nFASTPATH\ncache\nforward . %s\n}\n",
		folder, conf, cluster.address, up))
	packet := pack(t, newQuery("www.example.org.shop.svc.cluster.local.", dns.TypeA))
	unlisted := fromAddress(t, p.on, "127.1.1.7")
	if got := brief(t, unlisted.ask(t, packet)); !strings.HasPrefix(got, "NXDOMAIN") {
		t.Fatalf("as it is: %s", got)
	}
	unlisted.ask(t, packet) // from the store
	got := fromAddress(t, p.on, "127.1.1.1").ask(t, packet)
	want := fromAddress(t, p.off, "127.1.1.1").ask(t, packet)
	maskSerials(got)
	matchTTLs(want, got, 60)
	if !bytes.Equal(got, want) {
		t.Errorf("with the fast path\n%s\nwithout\n%s", describe(got), describe(want))
	}
	if m := new(dns.Msg); m.Unpack(got) != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 2 {
		t.Errorf("got %s, want what www.example.org has", describe(got))
	}
}
