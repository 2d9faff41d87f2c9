package searchpath

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// next is the plugin after searchpath. It answers REFUSED and records the queries.
type next struct{ queries []*dns.Msg }

func (n *next) ServeDNS(_ context.Context, _ dns.ResponseWriter, r *dns.Msg) (int, error) {
	n.queries = append(n.queries, r)
	return dns.RcodeRefused, nil
}

func (*next) Name() string { return "next" }

// names returns the names that were queried.
func (n *next) names() (all []string) {
	for _, r := range n.queries {
		all = append(all, r.Question[0].Name)
	}
	return all
}

func newTest() (*SearchPath, *next) {
	n := new(next)
	return &SearchPath{
		Expander: expand.Expander{Plugin: pluginName, Next: n, Block: &block.Block{Keyspace: store.Shared.NewKeyspace()}, Metrics: expandMetrics},
		grammar:  grammar{suffix: "ap.k8s.io.", zones: plugin.Zones{"cluster.local."}, schemas: schemas},
		host:     []string{"eu.example.com.", "example.com."},
	}, n
}

func query(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// withServer returns the context of a query that a server has received.
func withServer() context.Context {
	return context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: "dns://:53"})
}

// serve returns the reply to a query, nil if none was written, and the code that the handler returned.
func serve(t *testing.T, s *SearchPath, ctx context.Context, r *dns.Msg) (*dns.Msg, int) {
	t.Helper()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	code, err := s.ServeDNS(ctx, w, r)
	kit.Must(t, err)
	return w.Msg, code
}

// TestSearchNames compares the names that are tried for a search name with its search path.
func TestSearchNames(t *testing.T) {
	list := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "eu.example.com.", "example.com.", ""}
	for name, base := range map[string]string{
		"web.v1.search.shop.cluster.local.ap.k8s.io.":             "web.",
		"web.search.shop.cluster.local.ap.k8s.io.":                "web.",
		"WWW.Example.org.V1.search.SHOP.cluster.local.AP.K8S.io.": "www.example.org.",
		"search.search.shop.cluster.local.ap.k8s.io.":             "search.",
		`a\.b.v1.search.shop.cluster.local.ap.k8s.io.`:            `a\.b.`,
	} {
		var want []string
		for _, suffix := range list {
			want = append(want, base+suffix)
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeCNAME, dns.TypeANY, dns.TypeSOA, dns.TypeNS} {
			s, n := newTest()
			m, _ := serve(t, s, context.Background(), query(name, qtype))
			if got := n.names(); !slices.Equal(got, want) || n.queries[0].Question[0].Qtype != qtype {
				t.Errorf("%s %d: queries %v, want the names %q", name, qtype, n.queries, want)
			}
			if m == nil || m.Question[0].Name != name {
				t.Errorf("%s %d: reply %v", name, qtype, m)
			}
		}
	}
}

// TestQuestionsApart asserts that the lists of two questions share no memory, and that the answers do not depend on the
// client's list.
func TestQuestionsApart(t *testing.T) {
	s, _ := newTest()
	one := s.question(searchName{base: "web.", namespace: "shop", zone: "cluster.local."})
	two := s.question(searchName{base: "web.", namespace: "office", zone: "cluster.local."})
	if one.Suffixes[0] != "shop.svc.cluster.local." || two.Suffixes[0] != "office.svc.cluster.local." || !slices.Equal(one.Suffixes[3:], two.Suffixes[3:]) || one.ListID != 0 {
		t.Errorf("questions %+v and %+v", one, two)
	}
	one.Suffixes = append(one.Suffixes, "x.")
	one.Suffixes[3] = "y."
	if s.host[0] != "eu.example.com." || two.Suffixes[3] != "eu.example.com." {
		t.Errorf("the host's list is %q", s.host)
	}
}

// TestReplies has the names under the suffix that are not search names.
func TestReplies(t *testing.T) {
	const soa = "ap.k8s.io.\t30\tIN\tSOA\tap.k8s.io. nobody.invalid. 1 3600 1200 604800 30"
	for _, c := range []struct {
		name   string
		qtype  uint16
		rcode  int
		answer string // the only record; without one, the authority section has the SOA record
	}{
		{"ap.k8s.io.", dns.TypeSOA, dns.RcodeSuccess, soa},
		{"ap.k8s.io.", dns.TypeNS, dns.RcodeSuccess, "ap.k8s.io.\t30\tIN\tNS\tap.k8s.io."},
		{"ap.k8s.io.", dns.TypeA, dns.RcodeSuccess, ""},
		{"ap.k8s.io.", dns.TypeDS, dns.RcodeSuccess, ""},
		{"ap.k8s.io.", dns.TypeANY, dns.RcodeSuccess, ""},
		{"local.ap.k8s.io.", dns.TypeA, dns.RcodeSuccess, ""},
		{"local.ap.k8s.io.", dns.TypeSOA, dns.RcodeSuccess, ""},
		{"cluster.local.ap.k8s.io.", dns.TypeNS, dns.RcodeSuccess, ""},
		{"search.shop.cluster.local.ap.k8s.io.", dns.TypeA, dns.RcodeSuccess, ""},
		{"v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, dns.RcodeSuccess, ""},
		{"web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeDS, dns.RcodeSuccess, ""},
		{"example.ap.k8s.io.", dns.TypeA, dns.RcodeNameError, ""},
		{"example.ap.k8s.io.", dns.TypeSOA, dns.RcodeNameError, ""},
		{"example.ap.k8s.io.", dns.TypeNS, dns.RcodeNameError, ""},
		{"example.ap.k8s.io.", dns.TypeDS, dns.RcodeNameError, ""},
		{"web.v1.search.not_one.cluster.local.ap.k8s.io.", dns.TypeA, dns.RcodeNameError, ""},
		{"web.v1.search.shop.cluster.example.ap.k8s.io.", dns.TypeAAAA, dns.RcodeNameError, ""},
		{"web.v2.search.shop.cluster.local.ap.k8s.io.", dns.TypeA, dns.RcodeNameError, ""},
	} {
		t.Run(c.name+" "+dns.TypeToString[c.qtype], func(t *testing.T) {
			s, n := newTest()
			m, code := serve(t, s, context.Background(), query(c.name, c.qtype))
			if m == nil || m.Rcode != c.rcode || code != dns.RcodeSuccess || !m.Authoritative || len(n.queries) > 0 {
				t.Fatalf("code %d, reply %v", code, m)
			}
			if c.answer != "" {
				if len(m.Answer) != 1 || m.Answer[0].String() != c.answer || len(m.Ns) > 0 {
					t.Errorf("reply %v, want %s", m, c.answer)
				}
				return
			}
			if len(m.Answer) > 0 || len(m.Ns) != 1 || m.Ns[0].String() != soa {
				t.Errorf("reply %v, want %s", m, soa)
			}
		})
	}
}

// TestCase asserts that the names of the zone's records are in the case of the query.
func TestCase(t *testing.T) {
	s, _ := newTest()
	m, _ := serve(t, s, context.Background(), query("No.Ap.K8S.io.", dns.TypeA))
	if got := m.Ns[0].Header().Name; got != "Ap.K8S.io." {
		t.Errorf("SOA record of %s", got)
	}
	m, _ = serve(t, s, context.Background(), query("AP.k8s.io.", dns.TypeNS))
	if got := m.Answer[0].Header().Name; got != "AP.k8s.io." {
		t.Errorf("NS record of %s", got)
	}
}

func TestExtendedError(t *testing.T) {
	s, _ := newTest()
	unversioned, _ := newTest()
	unversioned.grammar.schemas = []schema{{label: "v7"}, {label: "v8"}}
	for _, c := range []struct {
		s    *SearchPath
		name string
		edns bool
		want string // text of the extended error, "" for none
	}{
		{s, "web.v2.search.shop.cluster.local.ap.k8s.io.", true, `unknown search path version "v2": want v1`},
		{s, "v2.search.shop.cluster.local.ap.k8s.io.", true, `unknown search path version "v2": want v1`},
		{s, "web.v2.search.shop.cluster.local.ap.k8s.io.", false, ""},
		{s, "web.search.cluster.local.ap.k8s.io.", true, ""},
		{s, "v1.search.shop.cluster.local.ap.k8s.io.", true, ""},
		{unversioned, "web.search.shop.cluster.local.ap.k8s.io.", true, `unknown search path version "": want v7, v8`},
	} {
		r := query(c.name, dns.TypeA)
		if c.edns {
			r.SetEdns0(1232, false)
		}
		m, _ := serve(t, c.s, context.Background(), r)
		opt := m.IsEdns0()
		if c.want == "" {
			if opt != nil {
				t.Errorf("%s: %v", c.name, opt)
			}
			continue
		}
		want := []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 21, ExtraText: c.want}} // RFC 8914 section 4.22
		if opt == nil || !reflect.DeepEqual(opt.Option, want) {
			t.Errorf("%s: %v, want %v", c.name, opt, want)
		}
	}
}

// TestNotAnswered has queries that are refused, or that are for the next plugin.
func TestNotAnswered(t *testing.T) {
	const name = "web.v1.search.shop.cluster.local.ap.k8s.io."
	notify, chaos, two, signed := query(name, dns.TypeSOA), query(name, dns.TypeA), query(name, dns.TypeA), query(name, dns.TypeA)
	notify.Opcode, chaos.Question[0].Qclass = dns.OpcodeNotify, dns.ClassCHAOS
	two.Question = append(two.Question, two.Question[0])
	signed.SetTsig("key.", dns.HmacSHA256, 300, 0)
	for text, c := range map[string]struct {
		r    *dns.Msg
		code int
		next bool
	}{
		"another zone":  {query("web.shop.svc.cluster.local.", dns.TypeA), dns.RcodeRefused, true},
		"one dot less":  {query("web.v1.search.shop.cluster.localap.k8s.io.", dns.TypeA), dns.RcodeRefused, true},
		"root":          {query(".", dns.TypeNS), dns.RcodeRefused, true},
		"NOTIFY":        {notify, dns.RcodeRefused, true},
		"CHAOS":         {chaos, dns.RcodeRefused, true},
		"transfer":      {query("ap.k8s.io.", dns.TypeAXFR), dns.RcodeRefused, false},
		"IXFR":          {query(name, dns.TypeIXFR), dns.RcodeRefused, false},
		"TSIG":          {signed, dns.RcodeRefused, false},
		"two questions": {two, dns.RcodeFormatError, false},
		"no question":   {new(dns.Msg), dns.RcodeFormatError, false},
	} {
		s, n := newTest()
		m, code := serve(t, s, context.Background(), c.r)
		if m != nil || code != c.code || len(n.queries) > 1 || (len(n.queries) == 1) != c.next {
			t.Errorf("%s: code %d, reply %v, queries %v", text, code, m, n.queries)
		}
	}
}

// TestSearchOption asserts that a search list that a client sends is not forwarded.
func TestSearchOption(t *testing.T) {
	s, n := newTest()
	data, ok := searchlist.AppendSuffixes(nil, []string{"shop.cluster.local.ap.k8s.io.", "example.org."})
	if !ok {
		t.Fatal("no option")
	}
	r := searchlist.WithOption(query("web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA), data)
	serve(t, s, context.Background(), r)
	if len(n.queries) == 0 || slices.ContainsFunc(n.queries, searchlist.HasOption) || !searchlist.HasOption(r) || n.queries[0].IsEdns0() == nil {
		t.Errorf("queries %v", n.queries)
	}
}

// nesting is a plugin that answers each query by a query for a search name.
type nesting struct {
	s     *SearchPath
	codes []int
}

func (n *nesting) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	inner := dnstest.NewRecorder(w)
	inner.ResponseWriter = &test.ResponseWriter{}
	code, err := n.s.ServeDNS(ctx, inner, query("web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA))
	if err != nil || inner.Msg == nil {
		return code, errors.Join(err, errors.New("no reply"))
	}
	n.codes = append(n.codes, inner.Msg.Rcode)
	return dns.RcodeSuccess, w.WriteMsg(new(dns.Msg).SetRcode(r, inner.Msg.Rcode))
}

func (*nesting) Name() string { return "nesting" }

// TestNested has a candidate that is an alias of a search name, which could be the one that is being looked up.
func TestNested(t *testing.T) {
	h := setUp(t, "searchpath {\nzone cluster.local\nhost-searches off\n}")
	n := &nesting{s: h}
	h.Next = n
	count := func() float64 {
		return testutil.ToFloat64(rejected.WithLabelValues("", "nested")) + testutil.ToFloat64(rejected.WithLabelValues("dns://:53", "nested"))
	}
	before := count()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	if _, err := h.ServeDNS(context.WithValue(context.Background(), dnsserver.Key{}, nil), w, query("web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if w.Msg == nil || w.Msg.Rcode != dns.RcodeNameError || len(n.codes) == 0 || slices.ContainsFunc(n.codes, func(code int) bool { return code != dns.RcodeNameError }) {
		t.Errorf("reply %v, codes of nested queries %v", w.Msg, n.codes)
	}
	if got := count() - before; got != float64(len(n.codes)) {
		t.Errorf("counted %v, want %d", got, len(n.codes))
	}
}

func TestRejected(t *testing.T) {
	s, _ := newTest()
	count := func() (counts [2]float64) {
		for i, reason := range []string{"name", "schema"} {
			counts[i] = testutil.ToFloat64(rejected.WithLabelValues("dns://:53", reason))
		}
		return counts
	}
	for _, c := range []struct {
		name string
		add  [2]float64
	}{
		{"web.v1.search.shop.cluster.local.ap.k8s.io.", [2]float64{}},
		{"v1.search.shop.cluster.local.ap.k8s.io.", [2]float64{}},
		{"ap.k8s.io.", [2]float64{}},
		{"web.v2.search.shop.cluster.local.ap.k8s.io.", [2]float64{0, 1}},
		{"web.shop.cluster.local.ap.k8s.io.", [2]float64{1, 0}},
	} {
		before := count()
		serve(t, s, withServer(), query(c.name, dns.TypeA))
		after := count()
		for i := range after {
			after[i] -= before[i]
		}
		if after != c.add {
			t.Errorf("%s: counted %v, want %v", c.name, after, c.add)
		}
	}
}

// TestSchemas compares the search list of v1, which never changes, with the kubelet's for the dnsPolicy ClusterFirst.
func TestSchemas(t *testing.T) {
	for _, s := range schemas {
		if !isSchema(s.label) || strings.ToLower(s.label) != s.label {
			t.Errorf("%q is not a version that a name can have", s.label)
		}
	}
	if n := len(schemas); n != 1 || !schemas[0].unversioned {
		t.Errorf("%d schemas, unversioned %t; want v1 for names without a version", n, schemas[0].unversioned)
	}
	want := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."}
	if got := schemas[0].suffixes("shop", "cluster.local."); schemas[0].label != "v1" || !slices.Equal(got, want) {
		t.Errorf("%s is %q, want v1, %q", schemas[0].label, got, want)
	}
}

// failing is a ResponseWriter whose client has closed the connection.
type failing struct{ test.ResponseWriter }

var errGone = errors.New("gone")

func (*failing) WriteMsg(*dns.Msg) error { return errGone }

func TestWriteError(t *testing.T) {
	s, _ := newTest()
	if code, err := s.ServeDNS(context.Background(), new(failing), query("ap.k8s.io.", dns.TypeA)); code != dns.RcodeServerFailure || !errors.Is(err, errGone) {
		t.Errorf("code %d, error %v", code, err)
	}
}
