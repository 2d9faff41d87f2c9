package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// Search lists of pods in namespaces shop and team.
var (
	listShop = []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."}
	listTeam = []string{"team.svc.cluster.local.", "svc.cluster.local.", "cluster.local."}
)

// withList returns a query with a search list.
func withList(t testing.TB, r *dns.Msg, suffixes ...string) *dns.Msg {
	t.Helper()
	data, ok := searchlist.AppendSuffixes(nil, suffixes)
	if !ok {
		t.Fatalf("%v is no search list", suffixes)
	}
	return searchlist.WithOption(r, data)
}

// askSearch returns the reply to "base TYPE" with a search list, and the result in its option.
func askSearch(t testing.TB, k *Kubernetes, question string, suffixes ...string) (m *dns.Msg, says string) {
	t.Helper()
	base, qtype, _ := strings.Cut(question, " ")
	m = direct(t, k, withList(t, questionFor(t, base+"."+suffixes[0]+" "+qtype), suffixes...), "10.240.0.1")
	return m, resultOf(m)
}

// direct returns the unmodified reply of a handler.
func direct(t testing.TB, h plugin.Handler, r *dns.Msg, from string) *dns.Msg {
	t.Helper()
	w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: from})
	if rcode, err := h.ServeDNS(context.Background(), w, r); err != nil || w.Msg == nil {
		t.Fatalf("%v: %s, error %v, reply %v", r.Question, dns.RcodeToString[rcode], err, w.Msg)
	}
	return w.Msg
}

// Results in the option of a reply, besides the suffix of a candidate.
const (
	notTried = "" // the candidates were not tried
	saysNone = "none"
)

// resultOf returns the result in the option of a reply.
func resultOf(m *dns.Msg) string {
	data, ok := searchlist.OptionOf(m)
	if !ok {
		return notTried
	}
	names, ok := searchlist.ParseSuffixes(data)
	switch {
	case !ok || len(names) > 1:
		return fmt.Sprintf("malformed data: %q", data)
	case len(names) == 0:
		return saysNone
	}
	return names[0]
}

// searchedObjects are a cluster in which a name is a Service in one namespace, and something else in another.
func searchedObjects() []runtime.Object {
	db, far := service("shop", "db", headless, tcp("sql", 5432)), service("team", "far", headless, tcp("http", 80))
	return []runtime.Object{
		namespace("shop"), namespace("team"), db, slice(db, "a", endpoint("10.1.0.1", hostname("db-0"))),
		far, slice(far, "a", endpoint("2001:db8::2")),
		service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)), service("team", "web", []string{"10.0.0.2"}, tcp("http", 80)),
		service("shop", "six", []string{"2001:db8::6"}, tcp("http", 80)), service("team", "six", []string{"10.0.0.6"}, tcp("http", 80)),
		service("team", "mail", []string{"10.0.0.3"}, tcp("smtp", 25)),
		service("shop", "team", []string{"10.0.0.4"}, tcp("http", 80)), // the name of the namespace
		externalName("shop", "out", "www.example.org"), externalName("shop", "in", "mail.team.svc.cluster.local"),
		externalName("shop", "dead", "none.team.svc.cluster.local"), externalName("shop", "gone", "none.example.org"),
		externalName("shop", "half", "six.shop.svc.cluster.local"), service("team", "half", []string{"10.0.0.7"}),
		service("team", "dead", []string{"10.0.0.5"}),
		podIn("team", "p", corev1.PodRunning, "10.1.0.7"),
	}
}

func TestSearch(t *testing.T) {
	k := answering(t, "kubernetes cluster.local other.local 10.in-addr.arpa {\npods verified\nfallthrough ip6.arpa\n}", searchedObjects()...)
	k.upstream = upstreamOf(t, "www.example.org. 60 IN A 192.0.2.1")
	long := strings.Repeat("a23456789.", 20) + "a" // too long with the first suffix of both, and not with the last
	both := []string{"shop.svc.cluster.local.", "team.svc.cluster.local."}
	for _, c := range []struct {
		name, ask string
		list      []string
		says      string
		rcode     int
		answer    []string
	}{
		{name: "the first", ask: "web A", list: listShop, says: listShop[0], answer: []string{"web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}},
		{name: "the second", ask: "web.team A", list: listShop, says: listShop[1], answer: []string{
			"web.team.shop.svc.cluster.local. 5 IN CNAME web.team.svc.cluster.local.", "web.team.svc.cluster.local. 5 IN A 10.0.0.2"}},
		{name: "the third", ask: "web.team.svc A", list: listShop, says: listShop[2], answer: []string{
			"web.team.svc.shop.svc.cluster.local. 5 IN CNAME web.team.svc.cluster.local.", "web.team.svc.cluster.local. 5 IN A 10.0.0.2"}},
		{name: "none", ask: "www.example.org A", list: listShop, says: saysNone, rcode: dns.RcodeNameError},
		{name: "NODATA", ask: "web TXT", list: listShop, says: saysNone},
		{name: "NODATA, then NXDOMAIN: a namespace", ask: "shop A", list: listShop, says: saysNone},
		{name: "NXDOMAIN, then NODATA", ask: "team.svc MX", list: listShop, says: saysNone},
		{name: "NODATA, then data", ask: "half CNAME", list: []string{both[1], both[0]}, says: both[0], answer: []string{
			"half.team.svc.cluster.local. 5 IN CNAME half.shop.svc.cluster.local.", "half.shop.svc.cluster.local. 5 IN CNAME six.shop.svc.cluster.local."}},
		{name: "no data, data of the other namespace", ask: "dead A", list: both, says: both[1], answer: []string{
			"dead.shop.svc.cluster.local. 5 IN CNAME dead.team.svc.cluster.local.", "dead.team.svc.cluster.local. 5 IN A 10.0.0.5"}},
		{name: "the other family", ask: "six A", list: both, says: both[0]},
		{name: "and its own", ask: "six AAAA", list: both, says: both[0], answer: []string{"six.shop.svc.cluster.local. 5 IN AAAA 2001:db8::6"}},
		{name: "the other family, in the second", ask: "far A", list: both, says: both[1]},
		{name: "the other family of an alias in the zone", ask: "half A", list: both, says: both[0]},
		{name: "the other family does not count for SRV", ask: "_sql._tcp.db SRV", list: both, says: both[0],
			answer: []string{"_sql._tcp.db.shop.svc.cluster.local. 5 IN SRV 0 100 5432 db-0.db.shop.svc.cluster.local."}},
		{name: "SRV of a later one", ask: "_http._tcp.web.team SRV", list: listShop, says: listShop[1], answer: []string{
			"_http._tcp.web.team.shop.svc.cluster.local. 5 IN CNAME _http._tcp.web.team.svc.cluster.local.",
			"_http._tcp.web.team.svc.cluster.local. 5 IN SRV 0 100 80 web.team.svc.cluster.local."}},
		{name: "alias of a name elsewhere", ask: "out.shop A", list: listTeam, says: listTeam[1], answer: []string{
			"out.shop.team.svc.cluster.local. 5 IN CNAME out.shop.svc.cluster.local.", "out.shop.svc.cluster.local. 5 IN CNAME www.example.org.",
			"www.example.org. 60 IN A 192.0.2.1"}},
		{name: "alias of a name in the zone", ask: "in A", list: listShop, says: listShop[0], answer: []string{
			"in.shop.svc.cluster.local. 5 IN CNAME mail.team.svc.cluster.local.", "mail.team.svc.cluster.local. 5 IN A 10.0.0.3"}},
		{name: "alias without the family", ask: "out AAAA", list: listShop, says: listShop[0], answer: []string{
			"out.shop.svc.cluster.local. 5 IN CNAME www.example.org."}},
		{name: "alias with a nonexistent target", ask: "gone A", list: both, says: both[0], answer: []string{
			"gone.shop.svc.cluster.local. 5 IN CNAME none.example.org."}},
		{name: "CNAME", ask: "out.shop CNAME", list: listTeam, says: listTeam[1], answer: []string{
			"out.shop.team.svc.cluster.local. 5 IN CNAME out.shop.svc.cluster.local.", "out.shop.svc.cluster.local. 5 IN CNAME www.example.org."}},
		{name: "pod", ask: "10-1-0-7.team.pod A", list: listShop, says: listShop[2], answer: []string{
			"10-1-0-7.team.pod.shop.svc.cluster.local. 5 IN CNAME 10-1-0-7.team.pod.cluster.local.", "10-1-0-7.team.pod.cluster.local. 5 IN A 10.1.0.7"}},
		{name: "TTL of the data", ask: "dns-version TXT", list: listShop, says: listShop[2], answer: []string{
			"dns-version.shop.svc.cluster.local. 28800 IN CNAME dns-version.cluster.local.", `dns-version.cluster.local. 28800 IN TXT "1.1.0"`}},
		{name: "another zone", ask: "web A", list: []string{"none.svc.cluster.local.", "shop.svc.other.local."}, says: "shop.svc.other.local.", answer: []string{
			"web.none.svc.cluster.local. 5 IN CNAME web.shop.svc.other.local.", "web.shop.svc.other.local. 5 IN A 10.0.0.1"}},
		{name: "one suffix", ask: "web A", list: listShop[:1], says: listShop[0], answer: []string{"web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}},
		{name: "one suffix, none", ask: "none A", list: listShop[:1], says: saysNone, rcode: dns.RcodeNameError},
		{name: "a suffix twice", ask: "none A", list: []string{listShop[0], listShop[0]}, says: saysNone, rcode: dns.RcodeNameError},
		{name: "too long for the first", ask: long + ".web.team A", list: []string{listShop[1], strings.Repeat("b.", 20) + listShop[1]}, says: saysNone, rcode: dns.RcodeNameError},
		{name: "mixed case", ask: "Web.TEAM A", list: listShop, says: listShop[1], answer: []string{
			"Web.TEAM.shop.svc.cluster.local. 5 IN CNAME web.team.svc.cluster.local.", "web.team.svc.cluster.local. 5 IN A 10.0.0.2"}},
		{name: "mixed case, the first", ask: "Web A", list: listShop, says: listShop[0], answer: []string{"Web.shop.svc.cluster.local. 5 IN A 10.0.0.1"}},

		{name: "a suffix outside of the zones", ask: "web.team A", list: append(slices.Clone(listShop), "example.org."), rcode: dns.RcodeNameError},
		{name: "the zone's parent", ask: "web.team A", list: []string{listShop[0], "local.", listShop[1]}, rcode: dns.RcodeNameError},
		{name: "the zone's parent, with a name that is in the zone", ask: "web.team.svc.cluster A", list: []string{listShop[0], "local."}, rcode: dns.RcodeNameError},
		{name: "suffix without a label boundary", ask: "web.team A", list: []string{listShop[0], "xcluster.local."}, rcode: dns.RcodeNameError},
		{name: "a reverse zone", ask: "1.0.0 A", list: []string{listShop[0], "10.in-addr.arpa."}, rcode: dns.RcodeNameError},
		{name: "DS", ask: "web.team DS", list: listShop, rcode: dns.RcodeNameError},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, says := askSearch(t, k, c.ask, c.list...)
			if m.Rcode != c.rcode || says != c.says {
				t.Errorf("%s, the option has %q, want %s, %q", dns.RcodeToString[m.Rcode], says, dns.RcodeToString[c.rcode], c.says)
			}
			if got := texts(m.Answer); !slices.Equal(got, c.answer) {
				t.Errorf("the answer is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.answer, "\n\t"))
			}
			if len(m.Answer) == 0 && (len(m.Ns) != 1 || !strings.HasPrefix(text(m.Ns[0]), "cluster.local. 5 IN SOA ")) {
				t.Errorf("the authority section is %v", m.Ns)
			}
			if !m.Response || !m.Authoritative {
				t.Errorf("the header is %v", m.MsgHdr)
			}
		})
	}
}

// With an invalid list, the reply is that for the name.
func TestSearch_Malformed(t *testing.T) {
	k := answering(t, "kubernetes cluster.local", searchedObjects()...)
	list := func(suffixes ...string) []byte {
		data, ok := searchlist.AppendSuffixes(nil, suffixes)
		if !ok {
			t.Fatalf("%v is no search list", suffixes)
		}
		return data
	}
	right := list(listShop...)
	const owner = "web.team.shop.svc.cluster.local."
	for _, c := range []struct {
		name, owner string
		data        [][]byte
		tried       bool
	}{
		{"as it should be", owner, [][]byte{right}, true},
		{"twice", owner, [][]byte{right, right}, false},
		{"empty", owner, [][]byte{{}}, false},
		{"without data", owner, [][]byte{nil}, false},
		{"a byte missing", owner, [][]byte{right[:len(right)-1]}, false},
		{"a byte more", owner, [][]byte{append(slices.Clone(right), 3)}, false},
		{"the root", owner, [][]byte{append(slices.Clone(right), 0)}, false},
		{"a pointer", owner, [][]byte{{0xc0, 12}}, false},
		{"upper case", owner, [][]byte{[]byte(strings.ToUpper(string(right)))}, false},
		{"not the list of the name", owner, [][]byte{list(listTeam...)}, false},
		{"the name is the first suffix", owner, [][]byte{list(owner, "svc.cluster.local.")}, false},
		{"the name only ends like the suffix", "xshop.svc.cluster.local.", [][]byte{right}, false},
		{"the dot before it is part of a label", `web\.shop.svc.cluster.local.`, [][]byte{right}, false},
		{"the base ends in a backslash", `web\\.shop.svc.cluster.local.`, [][]byte{right}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := new(dns.Msg).SetQuestion(c.owner, dns.TypeA)
			want := direct(t, k, r.Copy(), "10.240.0.1")
			r.SetEdns0(1232, false)
			for _, data := range c.data {
				r.IsEdns0().Option = append(r.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: data})
			}
			m := direct(t, k, r, "10.240.0.1")
			if tried := resultOf(m) != notTried; tried != c.tried {
				t.Fatalf("tried is %v, want %v; the reply is\n%v", tried, c.tried, m)
			}
			if !c.tried && m.String() != want.String() {
				t.Errorf("the reply is\n%v\nwant\n%v", m, want)
			}
		})
	}
}

// If other plugins may answer one of the candidates, the reply is that for the name.
func TestSearch_OthersAnswer(t *testing.T) {
	web := func(r *dns.Msg) *dns.Msg { return r }
	for _, c := range []struct {
		name, block string
		prepare     func(k *Kubernetes)
		alter       func(r *dns.Msg) *dns.Msg
		tried       bool
	}{
		{name: "no others", tried: true},
		{name: "fallthrough of other zones", block: "fallthrough in-addr.arpa example.org", tried: true},
		{name: "fallthrough", block: "fallthrough"},
		{name: "fallthrough of the zone", block: "fallthrough cluster.local"},
		{name: "fallthrough of a candidate", block: "fallthrough team.svc.cluster.local"},
		{name: "another plugin of the block", prepare: func(k *Kubernetes) { k.shared = true }},
		{name: "all names are of the block", prepare: func(k *Kubernetes) { k.serves = func(context.Context, string) bool { return true } }, tried: true},
		{name: "a candidate is of another block", prepare: func(k *Kubernetes) {
			k.serves = func(_ context.Context, name string) bool { return name != "web.team.svc.cluster.local." }
		}},
		{name: "before the first sync", prepare: func(k *Kubernetes) { unsynced(k) }},
		{name: "another class", alter: func(r *dns.Msg) *dns.Msg { r.Question[0].Qclass = dns.ClassCHAOS; return r }},
		{name: "another opcode", alter: func(r *dns.Msg) *dns.Msg { r.Opcode = dns.OpcodeNotify; return r }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, "kubernetes cluster.local {\n"+c.block+"\n}", searchedObjects()...)
			k.Next = plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				return dns.RcodeRefused, w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused))
			})
			if c.prepare != nil {
				c.prepare(k)
			}
			if c.alter == nil {
				c.alter = web
			}
			r := withList(t, new(dns.Msg).SetQuestion("web.team.shop.svc.cluster.local.", dns.TypeA), listShop...)
			m := direct(t, k, c.alter(r), "10.240.0.1")
			if tried := resultOf(m) != notTried; tried != c.tried {
				t.Errorf("tried is %v, want %v; the reply is\n%v", tried, c.tried, m)
			}
		})
	}
}

// countingFor are the types whose records make a candidate the answer to another type.
var countingFor = map[uint16][]uint16{
	dns.TypeA: {dns.TypeAAAA}, dns.TypeAAAA: {dns.TypeA},
	dns.TypeHTTPS: {dns.TypeA, dns.TypeAAAA}, dns.TypeSVCB: {dns.TypeA, dns.TypeAAAA},
}

// walked is the result of querying one candidate after the other.
type walked struct {
	says   string
	rcode  int
	answer []string
	extra  []string
	ns     string
}

// walk queries a handler for one candidate after the other, as package searchlist documents, or only for the name if
// there are no suffixes. It uses only the handler's replies, and assumes that the suffixes are in its zones.
func walk(ask func(name string, qtype uint16) *dns.Msg, q dns.Question, suffixes []string) (out walked) {
	plain := walkedOf(ask(q.Name, q.Qtype))
	if suffixes == nil {
		return plain
	}
	base, exists := q.Name[:len(q.Name)-len(suffixes[0])], false
	out = walked{says: saysNone, rcode: dns.RcodeNameError, ns: plain.ns}
	for i, suffix := range suffixes {
		name := q.Name
		if i > 0 {
			name = strings.ToLower(base) + suffix
		}
		if _, ok := dns.IsDomainName(name); !ok {
			continue
		}
		m := ask(name, q.Qtype)
		exists = exists || m.Rcode == dns.RcodeSuccess
		if len(m.Answer) > 0 {
			out = walked{suffix, dns.RcodeSuccess, texts(m.Answer), texts(withoutOPT(m.Extra)), ""}
			if name != q.Name {
				link := dns.CNAME{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: m.Answer[0].Header().Ttl}, Target: name}
				out.answer = slices.Insert(out.answer, 0, text(&link))
			}
			return out
		}
		failed := m.Rcode == dns.RcodeServerFailure
		for _, other := range countingFor[q.Qtype] {
			if m.Rcode != dns.RcodeSuccess {
				break
			}
			o := ask(name, other)
			failed = failed || o.Rcode == dns.RcodeServerFailure
			if len(o.Answer) > 0 {
				out.says = suffix
			}
		}
		switch {
		case failed:
			return plain
		case out.says == suffix:
			out.rcode = dns.RcodeSuccess
			return out
		}
	}
	if exists {
		out.rcode = dns.RcodeSuccess
	}
	return out
}

func withoutOPT(records []dns.RR) []dns.RR {
	return slices.DeleteFunc(slices.Clone(records), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
}

// walkedOf converts a reply to this form.
func walkedOf(m *dns.Msg) walked {
	return walked{resultOf(m), m.Rcode, texts(m.Answer), texts(withoutOPT(m.Extra)), strings.Join(texts(m.Ns), " ")}
}

func (w walked) same(o walked) bool {
	return w.says == o.says && w.rcode == o.rcode && w.ns == o.ns && slices.Equal(w.answer, o.answer) && slices.Equal(w.extra, o.extra)
}

// TestSearch_Walk compares the reply to a query with a list with the result of querying the candidates one by one.
func TestSearch_Walk(t *testing.T) {
	k := answering(t, "kubernetes cluster.local other.local {\npods verified\nzonal\n}", searchedObjects()...)
	k.upstream = upstreamOf(t, "www.example.org. 60 IN A 192.0.2.1")
	lists := [][]string{
		listShop, listTeam, listShop[:1], listShop[1:], listShop[2:],
		{"shop.svc.cluster.local.", "team.svc.cluster.local."}, {"team.svc.cluster.local.", "shop.svc.cluster.local.", "cluster.local."},
		{"none.svc.cluster.local.", "team.svc.other.local.", "shop.svc.cluster.local."}, {"other.local.", "cluster.local."},
		{"none.cluster.local.", "x.cluster.local.", "shop.svc.cluster.local.", "shop.svc.cluster.local.", "pod.cluster.local.", "svc.other.local."},
	}
	bases := []string{
		"web", "db", "db-0.db", "six", "far", "mail", "team", "shop", "out", "in", "dead", "gone", "half", "none", "_http._tcp.web",
		"web.shop", "web.team", "far.team", "db-0.db.shop", "_sql._tcp.db.shop", "out.shop", "half.shop", "10-1-0-7.team", "web.team.svc", "web.shop.svc",
		"six.shop.svc", "10-1-0-7.team.pod", "svc", "pod", "dns-version", "ns.dns", "dns", "www.example.org", "a.b.c.d.e", `a\.b`, `web\\`,
		"x.pin._zone.db", strings.Repeat("a.", 90) + "a", strings.Repeat("a.", 110) + "a",
	}
	results := map[string]int{}
	for _, list := range lists {
		for _, base := range bases {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeCNAME, dns.TypeTXT, dns.TypePTR, dns.TypeNS, dns.TypeSOA, dns.TypeMX, dns.TypeANY} {
				for _, owner := range []string{base + "." + list[0], strings.ToUpper(base) + "." + list[0]} {
					if _, ok := dns.IsDomainName(owner); !ok {
						continue
					}
					q := dns.Question{Name: owner, Qtype: qtype, Qclass: dns.ClassINET}
					want := walk(func(name string, qtype uint16) *dns.Msg {
						return direct(t, k, new(dns.Msg).SetQuestion(name, qtype), "10.240.0.1")
					}, q, list)
					got := walkedOf(direct(t, k, withList(t, new(dns.Msg).SetQuestion(owner, qtype), list...), "10.240.0.1"))
					if !got.same(want) {
						t.Errorf("%s %s with %v:\n%+v\nwant\n%+v", owner, dns.TypeToString[qtype], list, got, want)
					}
					results[kindOfWalk(got, list)]++
				}
			}
		}
	}
	t.Log(results)
	for _, kind := range []string{"the first", "a later one", "none exists", "none has data", "data of the other family"} {
		if results[kind] < 20 {
			t.Errorf("%q came %d times", kind, results[kind])
		}
	}
}

func kindOfWalk(w walked, suffixes []string) string {
	switch {
	case w.says == notTried:
		return "not tried"
	case w.rcode == dns.RcodeNameError:
		return "none exists"
	case w.says == saysNone:
		return "none has data"
	case len(w.answer) == 0:
		return "data of the other family"
	case w.says == suffixes[0]:
		return "the first"
	}
	return "a later one"
}

// With topology, the caller decides which candidate is the answer. The counter of callers counts an answer once.
func TestSearch_Topology(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	strip := source.NewStripper(k.source)
	other := service("team", "local", headless, tcp("sql", 5432))
	for _, o := range []runtime.Object{namespace("team"), other, slice(other, "a", endpoint("10.1.9.1", onNode("n3")))} {
		put(k, strip, o)
	}
	const first, second = "shop.svc.cluster.local.", "team.svc.cluster.local."
	for _, c := range []struct {
		name, node, says, sees string
	}{
		{"local", "n1", first, "n1"},
		{"local", "n3", first, "n3"},
		{"local", "n2", second, "n9"}, // a caller that gets no endpoint of the first
		{"rack", "n2", first, "n3"},
		{"none", "n2", saysNone, "NXDOMAIN"},
		{"host", "n2", saysNone, ""},
		{"alias", "n1", first, "n1"},
	} {
		t.Run(c.name+" on "+c.node, func(t *testing.T) {
			before := counted(callersTotal[byOption])
			r := withList(t, asNodeNamed(t, c.node, c.name+"."+first), first, second)
			m := direct(t, k, r, "10.0.0.1")
			if says, sees := resultOf(m), seenBy(m); says != c.says || sees != c.sees {
				t.Errorf("the option has %q and has %q, want %q and %q", says, sees, c.says, c.sees)
			}
			want := 1.0
			if c.name == "none" {
				want = 0
			}
			if n := counted(callersTotal[byOption]) - before; n != want {
				t.Errorf("%v answers are counted, want %v", n, want)
			}
		})
	}
}

// asNodeNamed returns a query as the cache of a node sends it.
func asNodeNamed(t testing.TB, node, name string) *dns.Msg {
	r := new(dns.Msg).SetQuestion(name, dns.TypeA)
	r.SetEdns0(1232, false)
	r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: naming(t, node, "")}}
	return r
}

// While Nodes are not synced, it may be unknown whether a candidate has data for the caller. The reply is that for the
// name then, and counts as one answer.
func TestSearch_BeforeNodes(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	indexOf(k).ReplaceNodes(nil)
	k.status = func() []source.Status { return []source.Status{{Resource: source.Nodes}} }
	for _, c := range []struct {
		ask, says, sees string
		counted         float64
	}{
		{"local A", notTried, "SERVFAIL", 1},
		{"local.shop A", notTried, "NXDOMAIN", 0}, // the second one is unknown
		{"local HTTPS", notTried, "", 0},          // it is unknown whether it has addresses
		{"wide A", "shop.svc.cluster.local.", "n1 n3", 1},
		{"plain.shop A", "svc.cluster.local.", "n1 n3", 0},
		{"none A", saysNone, "NXDOMAIN", 0},
	} {
		t.Run(c.ask, func(t *testing.T) {
			before := counted(callersTotal[unknownAddress])
			m, says := askSearch(t, k, c.ask, listShop...)
			if sees := seenBy(m); says != c.says || sees != c.sees {
				t.Errorf("the option has %q and has %q, want %q and %q", says, sees, c.says, c.sees)
			}
			if n := counted(callersTotal[unknownAddress]) - before; n != c.counted {
				t.Errorf("%v answers are counted, want %v", n, c.counted)
			}
		})
	}
}

// searchless is an upstream that detects queries with a search list.
type searchless struct {
	t *testing.T
	n int
}

func (u *searchless) Lookup(_ context.Context, state request.Request, name string, _ uint16) (*dns.Msg, error) {
	u.n++
	if searchlist.HasOption(state.Req) {
		u.t.Errorf("query for %s has a search list", name)
	}
	if optionOf(state.Req) == nil {
		u.t.Errorf("query for %s has no caller option", name)
	}
	return new(dns.Msg), nil
}

// The search list is not applied to the target of an alias, which is a full name.
func TestSearch_NotForTargets(t *testing.T) {
	k := answering(t, "kubernetes cluster.local", searchedObjects()...)
	up := &searchless{t: t}
	k.upstream = up
	for _, list := range [][]string{listShop, listTeam} {
		direct(t, k, withList(t, asNodeNamed(t, "n1", "out."+listShop[0]), list...), "10.240.0.1")
	}
	if up.n != 2 {
		t.Errorf("the upstream was queried %d times, want 2", up.n)
	}
}

// Metadata is that of QNAME.
func TestSearch_Metadata(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	const owner = "web.team.shop.svc.cluster.local."
	plain := asNodeNamed(t, "n3", owner)
	want := fmt.Sprint(metadataOf(k, plain, "10.0.0.1")) // sorted by name
	if got := fmt.Sprint(metadataOf(k, withList(t, plain, listShop...), "10.0.0.1")); got != want || !strings.Contains(got, "caller-node:n3") {
		t.Errorf("got %s, want %s", got, want)
	}
}

// metadataOf returns the metadata of a query from an address.
func metadataOf(k *Kubernetes, r *dns.Msg, from string) map[string]string {
	ctx := k.Metadata(metadata.ContextWithMetadata(context.Background()), request.Request{W: &test.ResponseWriter{RemoteIP: from}, Req: r})
	all := map[string]string{}
	for name, value := range metadata.ValueFuncs(ctx) {
		all[name] = value()
	}
	return all
}

// counted returns the value of a counter.
func counted(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err) // not a counter
	}
	return m.GetCounter().GetValue()
}

// A candidate that is too long for a name does not exist, with any labels.
func TestSearch_TooLong(t *testing.T) {
	label := strings.Repeat("a", 63)
	far := strings.Repeat(label[:60]+".", 2) + "cluster.local."
	k := answering(t, "kubernetes cluster.local "+far+" {\npods insecure\n}", searchedObjects()...)
	for base, rcode := range map[string]int{"10-1-0-7.team.pod": dns.RcodeSuccess, label + "." + label + ".10-1-0-7.team.pod": dns.RcodeNameError} {
		if m, says := askSearch(t, k, base+" A", "none.cluster.local.", far); m.Rcode != rcode || says == notTried {
			t.Errorf("%s: the option has %q and is\n%v", base, says, m)
		}
	}
}
