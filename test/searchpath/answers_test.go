package searchpath

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// upstream is the resolver of the node. It records queries.
type upstream struct {
	mu      sync.Mutex
	queried []string // names and types, in order
}

// records are those of the upstream. Its answer for other names is NXDOMAIN.
var records = []string{
	"www.outside.example. 3600 IN A 192.0.2.80", "www.outside.example. 3600 IN AAAA 2001:db8::80",
	"four.outside.example. 3600 IN A 192.0.2.81",
	"intra.corp.example. 3600 IN A 192.0.2.82",
	"payments.example.com. 3600 IN A 192.0.2.83",
}

// ServeDNS implements dns.Handler.
func (u *upstream) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	q := r.Question[0]
	if q.Name != "." { // the query by which package daemon waits for a server
		u.mu.Lock()
		u.queried = append(u.queried, strings.ToLower(q.Name)+" "+dns.TypeToString[q.Qtype])
		u.mu.Unlock()
	}
	m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil || !strings.EqualFold(rr.Header().Name, q.Name) {
			continue
		}
		m.Rcode = dns.RcodeSuccess
		if rr.Header().Rrtype == q.Qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	if len(m.Answer) == 0 {
		soa, err := dns.NewRR("example. 3600 IN SOA ns.example. hostmaster.example. 1 2 3 4 3600")
		if err == nil {
			m.Ns = []dns.RR{soa}
		}
	}
	_ = w.WriteMsg(m) // without a reply, the test fails
}

// take returns the queries since the last call, in order. Retries count as one query.
func (u *upstream) take() (queried []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	queried, u.queried = slices.Compact(u.queried), nil
	return queried
}

// startUpstream starts the upstream and returns its address, for UDP and TCP.
func startUpstream(t *testing.T) (*upstream, string) {
	t.Helper()
	u := new(upstream)
	return u, kit.Serve(t, "127.0.0.1:0", u.ServeDNS)
}

// withoutCache is the server without the plugin cache.
const withoutCache = "clusterdns"

// servers starts the servers and returns their addresses by name.
func servers(t *testing.T, upstream string) map[string]string {
	t.Helper()
	demo, err := filepath.Abs(filepath.Join("..", "..", "deploy", "demo"))
	kit.Must(t, err)
	resolvConf := kit.File(t, "resolv.conf", "nameserver 192.0.2.53\nsearch corp.example\n")
	directive := "searchpath {\n zone cluster.local\n resolv_conf " + resolvConf + "\n }\n"
	kubernetes := "kubernetes cluster.local {\n manifests " + demo + "\n ttl 3600\n }\n"
	cluster := func(plugins string) string {
		return daemon.Start(t, daemon.Program(t, "clusterdns"), ".:PORT {\n bind 127.0.0.1\n"+plugins+kubernetes+"forward . "+upstream+"\n}\n").Addr
	}
	plain := cluster("")
	return map[string]string{
		withoutCache:            cluster(directive),
		"clusterdns with cache": cluster(directive + "cache\n"),
		"nodecache": daemon.Start(t, daemon.Program(t, "nodecache"), "ap.k8s.io:PORT {\n bind 127.0.0.1\n"+directive+"}\n"+
			"cluster.local:PORT {\n bind 127.0.0.1\n cache\n forward . "+plain+" {\n force_tcp\n caller node-a1\n }\n}\n"+
			".:PORT {\n bind 127.0.0.1\n cache\n forward . "+upstream+"\n}\n").Addr,
	}
}

// exchange sends a query and returns the reply.
func exchange(t *testing.T, server, network string, r *dns.Msg) *dns.Msg {
	t.Helper()
	m, err := kit.Exchange(network, server, r)
	kit.Must(t, err)
	return m
}

// text returns the response code and the answer section of a reply, without TTLs.
func text(m *dns.Msg) string {
	all := dns.RcodeToString[m.Rcode]
	for _, rr := range m.Answer {
		h := rr.Header()
		all += "; " + h.Name + " " + dns.TypeToString[h.Rrtype] + " " + strings.TrimPrefix(rr.String(), h.String())
	}
	return all
}

// entry is the search entry of a pod in the namespace shop.
const entry = ".v1.search.shop.cluster.local.ap.k8s.io."

var answers = []struct {
	name    string
	qtype   uint16
	want    string   // the records after the CNAME, or NXDOMAIN
	target  string   // of the CNAME; "" for none
	queried []string // of the upstream; once, if there is a cache
}{
	{"web" + entry, dns.TypeA, "web.shop.svc.cluster.local. A 10.96.12.34", "web.shop.svc.cluster.local.", nil},
	{"web" + entry, dns.TypeAAAA, "web.shop.svc.cluster.local. AAAA fd00:96::1234", "web.shop.svc.cluster.local.", nil},
	{"web.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, "web.shop.svc.cluster.local. A 10.96.12.34", "web.shop.svc.cluster.local.", nil},
	{"web.shop.v1.search.default.cluster.local.ap.k8s.io.", dns.TypeA, "web.shop.svc.cluster.local. A 10.96.12.34", "web.shop.svc.cluster.local.", nil},
	{"web.shop.svc.v1.search.nowhere.cluster.local.ap.k8s.io.", dns.TypeA, "web.shop.svc.cluster.local. A 10.96.12.34", "web.shop.svc.cluster.local.", nil},
	{"_http._tcp.web" + entry, dns.TypeSRV, "_http._tcp.web.shop.svc.cluster.local. SRV 0 50 80 web.shop.svc.cluster.local.", "_http._tcp.web.shop.svc.cluster.local.", nil},
	{"web" + entry, dns.TypeMX, "", "", []string{"web.corp.example. MX", "web. MX"}},
	{"payments" + entry, dns.TypeA, "payments.shop.svc.cluster.local. CNAME payments.example.com.; payments.example.com. A 192.0.2.83", "payments.shop.svc.cluster.local.", []string{"payments.example.com. A"}},
	{"www.outside.example" + entry, dns.TypeA, "www.outside.example. A 192.0.2.80", "www.outside.example.", []string{"www.outside.example.corp.example. A", "www.outside.example. A"}},
	{"www.outside.example" + entry, dns.TypeAAAA, "www.outside.example. AAAA 2001:db8::80", "www.outside.example.", []string{"www.outside.example.corp.example. AAAA", "www.outside.example. AAAA"}},
	{"four.outside.example" + entry, dns.TypeAAAA, "", "", []string{"four.outside.example.corp.example. AAAA", "four.outside.example. AAAA"}},
	{"intra" + entry, dns.TypeA, "intra.corp.example. A 192.0.2.82", "intra.corp.example.", []string{"intra.corp.example. A"}},
	{"none.outside.example" + entry, dns.TypeA, "NXDOMAIN", "", []string{"none.outside.example.corp.example. A", "none.outside.example. A"}},
	{"Four.Outside.Example.V1.Search.Shop.Cluster.Local.Ap.K8s.io.", dns.TypeA, "four.outside.example. A 192.0.2.81", "four.outside.example.", []string{"four.outside.example.corp.example. A", "four.outside.example. A"}},
	{"ap.k8s.io.", dns.TypeNS, "ap.k8s.io. NS ap.k8s.io.", "", nil},
	{"web.shop.cluster.local.ap.k8s.io.", dns.TypeA, "NXDOMAIN", "", nil},
	{"web.v2.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, "NXDOMAIN", "", nil},
	{"v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, "", "", nil},
}

// TestAnswers sends queries for search names to each server.
func TestAnswers(t *testing.T) {
	u, address := startUpstream(t)
	for server, addr := range servers(t, address) {
		t.Run(server, func(t *testing.T) {
			testAnswers(t, u, server, addr)
			testUnknownVersion(t, addr)
			if m := exchange(t, addr, "tcp", new(dns.Msg).SetAxfr("ap.k8s.io.")); m.Rcode != dns.RcodeRefused {
				t.Errorf("reply to a transfer: %v", m)
			}
		})
	}
}

// testAnswers sends each query several times: stored answers are the same as the first, without queries to the upstream.
func testAnswers(t *testing.T, u *upstream, server, addr string) {
	for _, a := range answers {
		want := "NOERROR"
		switch {
		case a.want == "NXDOMAIN":
			want = a.want
		case a.target != "":
			want += "; " + a.name + " CNAME " + a.target + "; " + a.want
		case a.want != "":
			want += "; " + a.want
		}
		u.take()
		for i, network := range []string{"udp", "udp", "tcp"} {
			m := exchange(t, addr, network, new(dns.Msg).SetQuestion(a.name, a.qtype))
			if got := text(m); got != want || len(m.Answer) == 0 && len(m.Ns) != 1 {
				t.Errorf("%s %s over %s:\n got %s\nwant %s", a.name, dns.TypeToString[a.qtype], network, got, want)
			}
			queried := a.queried
			if i > 0 && server != withoutCache {
				queried = nil
			}
			if got := u.take(); !slices.Equal(got, queried) {
				t.Errorf("%s %s over %s: upstream received %q, want %q", a.name, dns.TypeToString[a.qtype], network, got, queried)
			}
		}
	}
}

// testUnknownVersion checks the extended error of replies for an unknown version.
func testUnknownVersion(t *testing.T, addr string) {
	for _, network := range []string{"udp", "tcp"} {
		r := new(dns.Msg).SetQuestion("web.v2.search.shop.cluster.local.ap.k8s.io.", dns.TypeA)
		if m := exchange(t, addr, network, r); m.Rcode != dns.RcodeNameError || m.IsEdns0() != nil {
			t.Errorf("over %s without EDNS: %v", network, m)
		}
		r.SetEdns0(1232, true)
		m := exchange(t, addr, network, r)
		opt := m.IsEdns0()
		if m.Rcode != dns.RcodeNameError || opt == nil || len(opt.Option) != 1 || !opt.Do() {
			t.Errorf("over %s: %v", network, m)
			continue
		}
		if e, ok := opt.Option[0].(*dns.EDNS0_EDE); !ok || e.InfoCode != dns.ExtendedErrorCodeNotSupported || e.ExtraText != `unknown search path version "v2": want v1` {
			t.Errorf("over %s: %v", network, opt)
		}
	}
}
