package searchpath

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// asked is an expander that notes what it is asked, and says that a name has the address 192.0.2.1.
type asked struct {
	question *expand.Question
	query    *dns.Msg
}

func (a *asked) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg, q *expand.Question) (int, error) {
	a.question, a.query = q, r
	m := new(dns.Msg).SetReply(r)
	m.Answer = []dns.RR{test.A(r.Question[0].Name + " 5 IN A 192.0.2.1")}
	return dns.RcodeSuccess, w.WriteMsg(m)
}

// nobody is what comes next; it refuses and counts.
type nobody struct{ queries int }

func (n *nobody) ServeDNS(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
	n.queries++
	return dns.RcodeRefused, nil
}

func (*nobody) Name() string { return "nobody" }

func newTest() (*SearchPath, *asked, *nobody) {
	a, n := new(asked), new(nobody)
	g := grammar{suffix: "ap.k8s.io.", zones: plugin.Zones{"cluster.local."}, schemas: schemas}
	return &SearchPath{Next: n, grammar: g, host: []string{"eu.example.com.", "example.com."}, expander: a}, a, n
}

func query(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// withServer is the context of a query that has come by a server.
func withServer() context.Context {
	return context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: "dns://:53"})
}

// serve returns the reply to a query, nil if none was written, and what the handler returned.
func serve(t *testing.T, s *SearchPath, ctx context.Context, r *dns.Msg) (*dns.Msg, int) {
	t.Helper()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	code, err := s.ServeDNS(ctx, w, r)
	if err != nil {
		t.Fatal(err)
	}
	return w.Msg, code
}

func TestQuestions(t *testing.T) {
	list := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "eu.example.com.", "example.com."}
	for name, want := range map[string]*expand.Question{
		"web.v1.search.shop.cluster.local.ap.k8s.io.":             {Base: "web.", Suffixes: list},
		"web.search.shop.cluster.local.ap.k8s.io.":                {Base: "web.", Suffixes: list},
		"WWW.Example.org.V1.search.SHOP.cluster.local.AP.K8S.io.": {Base: "www.example.org.", Suffixes: list},
		"search.search.shop.cluster.local.ap.k8s.io.":             {Base: "search.", Suffixes: list},
		`a\.b.v1.search.shop.cluster.local.ap.k8s.io.`:            {Base: `a\.b.`, Suffixes: list},
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeCNAME, dns.TypeANY, dns.TypeSOA, dns.TypeNS} {
			s, a, _ := newTest()
			m, _ := serve(t, s, context.Background(), query(name, qtype))
			if !reflect.DeepEqual(a.question, want) {
				t.Errorf("%s %d: question %+v, want %+v", name, qtype, a.question, want)
			}
			if m == nil || len(m.Answer) != 1 || m.Question[0].Name != name {
				t.Errorf("%s %d: reply %v", name, qtype, m)
			}
		}
	}
}

// TestQuestionsAreApart holds that one question's list is not written over by the next.
func TestQuestionsAreApart(t *testing.T) {
	s, _, _ := newTest()
	one := s.question(searchName{base: "web.", namespace: "shop", zone: "cluster.local."})
	two := s.question(searchName{base: "web.", namespace: "office", zone: "cluster.local."})
	if one.Suffixes[0] != "shop.svc.cluster.local." || two.Suffixes[0] != "office.svc.cluster.local." || !slices.Equal(one.Suffixes[3:], two.Suffixes[3:]) {
		t.Errorf("lists %q and %q", one.Suffixes, two.Suffixes)
	}
	one.Suffixes = append(one.Suffixes, "x.")
	one.Suffixes[3] = "y."
	if s.host[0] != "eu.example.com." || two.Suffixes[3] != "eu.example.com." {
		t.Errorf("the host's list is %q", s.host)
	}
}

// TestReplies is about the names under the suffix that stand for no others.
func TestReplies(t *testing.T) {
	const soa = "ap.k8s.io.\t30\tIN\tSOA\tap.k8s.io. nobody.invalid. 1 3600 1200 604800 30"
	for _, c := range []struct {
		name   string
		qtype  uint16
		rcode  int
		answer string // the only record, if any; without one there is the SOA record in the authority section
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
			s, a, n := newTest()
			m, code := serve(t, s, context.Background(), query(c.name, c.qtype))
			if m == nil || m.Rcode != c.rcode || code != dns.RcodeSuccess || !m.Authoritative || a.question != nil || n.queries > 0 {
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

// TestCase holds that records of the zone have their names as they were asked.
func TestCase(t *testing.T) {
	s, _, _ := newTest()
	m, _ := serve(t, s, context.Background(), query("No.Ap.K8S.io.", dns.TypeA))
	if got := m.Ns[0].Header().Name; got != "Ap.K8S.io." {
		t.Errorf("the SOA record is of %s", got)
	}
	m, _ = serve(t, s, context.Background(), query("AP.k8s.io.", dns.TypeNS))
	if got := m.Answer[0].Header().Name; got != "AP.k8s.io." {
		t.Errorf("the NS record is of %s", got)
	}
}

func TestExtendedError(t *testing.T) {
	s, _, _ := newTest()
	unversioned, _, _ := newTest()
	unversioned.grammar.schemas = []schema{{label: "v7"}, {label: "v8"}}
	for _, c := range []struct {
		s    *SearchPath
		name string
		edns bool
		want string // the text of the error, "" for none
	}{
		{s, "web.v2.search.shop.cluster.local.ap.k8s.io.", true, "search path v2 is not known, but v1"},
		{s, "v2.search.shop.cluster.local.ap.k8s.io.", true, "search path v2 is not known, but v1"},
		{s, "web.v2.search.shop.cluster.local.ap.k8s.io.", false, ""},
		{s, "web.search.cluster.local.ap.k8s.io.", true, ""},
		{s, "v1.search.shop.cluster.local.ap.k8s.io.", true, ""},
		{unversioned, "web.search.shop.cluster.local.ap.k8s.io.", true, "search path without version is not known, but v7, v8"},
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

// TestNotAnswered is about queries that are not for this plugin.
func TestNotAnswered(t *testing.T) {
	const name = "web.v1.search.shop.cluster.local.ap.k8s.io."
	notify, chaos, two := query(name, dns.TypeSOA), query(name, dns.TypeA), query(name, dns.TypeA)
	notify.Opcode, chaos.Question[0].Qclass = dns.OpcodeNotify, dns.ClassCHAOS
	two.Question = append(two.Question, two.Question[0])
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
		"two questions": {two, dns.RcodeFormatError, false},
		"no question":   {new(dns.Msg), dns.RcodeFormatError, false},
	} {
		s, a, n := newTest()
		m, code := serve(t, s, context.Background(), c.r)
		if m != nil || code != c.code || a.question != nil || (n.queries == 1) != c.next {
			t.Errorf("%s: code %d, reply %v, %d queries to the next", text, code, m, n.queries)
		}
	}
}

// TestSearchOption holds that a search list that a client sends goes no further.
func TestSearchOption(t *testing.T) {
	s, a, _ := newTest()
	data, ok := searchlist.AppendSuffixes(nil, []string{"shop.cluster.local.ap.k8s.io.", "example.org."})
	if !ok {
		t.Fatal("no option")
	}
	r := searchlist.WithOption(query("web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA), data)
	serve(t, s, context.Background(), r)
	if a.query == nil || searchlist.HasOption(a.query) || !searchlist.HasOption(r) || a.query.IsEdns0() == nil {
		t.Errorf("the query was %v", a.query)
	}
}

// nesting is a plugin that is asked for a candidate, and asks a search path for it.
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

// TestNested has an alias of a search name found while a search name is looked up: it could be that very name.
func TestNested(t *testing.T) {
	h, _ := setUp(t, "searchpath {\nzone cluster.local\nhost-searches off\n}")
	n := &nesting{s: h}
	h.Next, h.expander.(*expand.Expander).Next = n, n
	counted := func() float64 {
		return testutil.ToFloat64(rejected.WithLabelValues("", "nested")) + testutil.ToFloat64(rejected.WithLabelValues("dns://:53", "nested"))
	}
	before := counted()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	if _, err := h.ServeDNS(context.WithValue(context.Background(), dnsserver.Key{}, nil), w, query("web.v1.search.shop.cluster.local.ap.k8s.io.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if w.Msg == nil || w.Msg.Rcode != dns.RcodeNameError || len(n.codes) == 0 || slices.ContainsFunc(n.codes, func(code int) bool { return code != dns.RcodeNameError }) {
		t.Errorf("reply %v, inside %v", w.Msg, n.codes)
	}
	if got := counted() - before; got != float64(len(n.codes)) {
		t.Errorf("%v were counted, want %d", got, len(n.codes))
	}
}

func TestRejected(t *testing.T) {
	s, _, _ := newTest()
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

// TestSchemas compares the search lists with those that the kubelet writes for the dnsPolicy ClusterFirst.
func TestSchemas(t *testing.T) {
	for _, s := range schemas {
		if !isSchema(s.label) || strings.ToLower(s.label) != s.label {
			t.Errorf("%q is no version that a name can have", s.label)
		}
	}
	if n := len(schemas); n != 1 || !schemas[0].unversioned {
		t.Errorf("%d schemas; names without a version are v1", n)
	}
	want := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."}
	if got := schemas[0].suffixes("shop", "cluster.local."); schemas[0].label != "v1" || !slices.Equal(got, want) {
		t.Errorf("%s is %q, want v1 to be %q for good", schemas[0].label, got, want)
	}
}

// failing is a client that is gone.
type failing struct{ test.ResponseWriter }

var errGone = errors.New("gone")

func (*failing) WriteMsg(*dns.Msg) error { return errGone }

func TestWriteError(t *testing.T) {
	s, _, _ := newTest()
	if code, err := s.ServeDNS(context.Background(), new(failing), query("ap.k8s.io.", dns.TypeA)); code != dns.RcodeServerFailure || !errors.Is(err, errGone) {
		t.Errorf("code %d, error %v", code, err)
	}
}
