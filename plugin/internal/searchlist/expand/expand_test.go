package expand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// The search list of a pod in namespace shop, and the expansion of its query for www.
var (
	podSuffixes = []string{"shop.svc.cluster.test.", "svc.cluster.test.", "cluster.test.", "corp.test."}
	podQuestion = Question{Base: "www.", Suffixes: podSuffixes, ListID: 1}
)

const (
	first    = "www.shop.svc.cluster.test."
	second   = "www.svc.cluster.test."
	third    = "www.cluster.test."
	fourth   = "www.corp.test."
	bareName = "www."
)

// lasting is a fact that a cache stores for an hour.
func lasting(s replyKind, ttl uint32) fact { return fact{replyKind: s, ttl: ttl, expires: time.Hour} }

// newBackend returns a backend with A records, or other replies, for some names. Other names do not exist.
func newBackend(facts map[string]replyKind) *backend {
	w := &backend{facts: map[lookup]fact{}, fallback: lasting(replyNXDOMAIN, 5)}
	for name, s := range facts {
		w.facts[lookup{name, dns.TypeA}] = lasting(s, 30)
	}
	return w
}

func (w *backend) withFact(name string, qtype uint16, f fact) *backend {
	w.facts[lookup{name, qtype}] = f
	return w
}

// TestWinner has examples of replies for candidates, and of the reply to the client.
func TestWinner(t *testing.T) {
	records := func(m *dns.Msg) string {
		var all []string
		for _, rr := range slices.Concat(m.Answer, m.Ns) {
			h := rr.Header()
			s := fmt.Sprintf("%s %d %s", h.Name, h.Ttl, dns.TypeToString[h.Rrtype])
			if c, ok := rr.(*dns.CNAME); ok {
				s += " " + c.Target
			}
			all = append(all, s)
		}
		return dns.RcodeToString[m.Rcode] + ": " + strings.Join(all, ", ")
	}
	const (
		aliasTo  = "NOERROR: " + first + " 30 CNAME %s, %[1]s 30 A, %[1]s 31 A"
		itself   = "NOERROR: " + first + " 30 A, " + first + " 31 A"
		nxdomain = "NXDOMAIN: zone.test. 5 SOA"
		nodata   = "NOERROR: zone.test. %d SOA"
		servfail = "SERVFAIL: "
	)
	tests := map[string]struct {
		facts  map[string]replyKind
		aaaa   map[string]replyKind
		want   string
		stored bool
	}{
		"the question itself": {map[string]replyKind{first: replyData, second: replyData}, nil, itself, true},
		"another candidate":   {map[string]replyKind{third: replyData, bareName: replyData}, nil, fmt.Sprintf(aliasTo, third), true},
		"in another zone":     {map[string]replyKind{fourth: replyData}, nil, fmt.Sprintf(aliasTo, fourth), true},
		"the bare name":       {map[string]replyKind{bareName: replyData}, nil, fmt.Sprintf(aliasTo, bareName), true},
		"none":                {nil, nil, nxdomain, true},
		"NODATA alone":        {map[string]replyKind{second: replyNODATA}, nil, fmt.Sprintf(nodata, 30), true},
		"NODATA before data":  {map[string]replyKind{first: replyNODATA, third: replyData}, nil, fmt.Sprintf(aliasTo, third), true},
		"the other family before data": {
			map[string]replyKind{first: replyNODATA, third: replyData}, map[string]replyKind{first: replyData}, fmt.Sprintf(nodata, 30), true,
		},
		"the other family of the bare name": {map[string]replyKind{bareName: replyNODATA}, map[string]replyKind{bareName: replyData}, fmt.Sprintf(nodata, 30), true},
		"a failure before data":             {map[string]replyKind{first: replySERVFAIL, third: replyData}, nil, fmt.Sprintf(aliasTo, third), false},
		"a failure after data":              {map[string]replyKind{first: replyData, third: replySERVFAIL}, nil, itself, true},
		"a failure and NODATA":              {map[string]replyKind{first: replyNODATA, third: replySERVFAIL}, nil, servfail, false},
		"a failure and nothing":             {map[string]replyKind{bareName: replySERVFAIL}, nil, servfail, false},
		"the other family fails": {
			map[string]replyKind{first: replyNODATA}, map[string]replyKind{first: replySERVFAIL}, servfail, false,
		},
		"the other family fails before data": {
			map[string]replyKind{first: replyNODATA, third: replyData}, map[string]replyKind{first: noReply}, fmt.Sprintf(aliasTo, third), false,
		},
		"refused is a failure": {map[string]replyKind{bareName: replyREFUSED}, nil, servfail, false},
		"the other family is refused": {
			map[string]replyKind{first: replyNODATA}, map[string]replyKind{first: replyREFUSED}, servfail, false,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, zones := range [][]string{nil, {"cluster.test."}} {
				for ability := range abilities {
					w := newBackend(tt.facts)
					for name, s := range tt.aaaa {
						w.withFact(name, dns.TypeAAAA, lasting(s, 60))
					}
					w.ability = ability
					x := newExpander(w, zones...)
					for range 2 {
						w.queries = nil
						got := send(t, x, query(first, dns.TypeA), &podQuestion)
						if got.Msg == nil || records(got.Msg) != tt.want {
							t.Fatalf("ability %d, zones %q: got %v, want %s", ability, zones, got, tt.want)
						}
					}
					// A cache stores the reply to the question, except a reply to a search list: it is not stored under
					// the list, too.
					want := tt.stored && (tt.want != itself || ability == supportsLists && zones != nil)
					if stored := len(w.queries) == 0; stored != want {
						t.Errorf("ability %d, zones %q: stored %t, want %t", ability, zones, stored, want)
					}
				}
			}
		})
	}
}

// TestOneQuery asserts that a server that supports search lists gets one query for all candidates in its zones, and
// that each other candidate is queried once.
func TestOneQuery(t *testing.T) {
	many := make([]string, 12)
	for i := range many {
		many[i] = fmt.Sprintf("s%d.cluster.test.", i)
	}
	tests := map[string]struct {
		suffixes []string
		found    string
		ability  ability
		want     string
	}{
		"none":               {podSuffixes, "", supportsLists, first + " " + fourth + " " + bareName},
		"external":           {podSuffixes, bareName, supportsLists, first + " " + fourth + " " + bareName},
		"in the cluster":     {podSuffixes, third, supportsLists, first},
		"ignores lists":      {podSuffixes, bareName, ignoresLists, strings.Join([]string{first, second, third, fourth, bareName}, " ")},
		"another zone first": {slices.Concat(podSuffixes[3:], podSuffixes[:3]), "", supportsLists, fourth + " " + first + " " + bareName},
		"one of the cluster": {[]string{podSuffixes[0], podSuffixes[3], podSuffixes[2]}, "", supportsLists, strings.Join([]string{first, fourth, third, bareName}, " ")},
		"the maximum number": {many, "", supportsLists, "www.s0.cluster.test. www.s8.cluster.test. " + bareName},
		"a duplicate":        {[]string{podSuffixes[0], podSuffixes[3], podSuffixes[0]}, "", supportsLists, first + " " + fourth + " " + bareName},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newBackend(map[string]replyKind{tt.found: replyData})
			w.ability = tt.ability
			q := Question{Base: "www.", Suffixes: tt.suffixes}
			got := send(t, newExpander(w, "cluster.test."), query("www."+tt.suffixes[0], dns.TypeA), &q)
			if found := got.Rcode == dns.RcodeSuccess; found != (tt.found != "") {
				t.Errorf("got %v", got)
			}
			var names []string
			for _, a := range w.queries {
				names = append(names, a.name)
			}
			if queries := strings.Join(names, " "); queries != tt.want {
				t.Errorf("queries %s, want %s", queries, tt.want)
			}
		})
	}
}

// nonconforming is a backend that replies to search lists with options that contradict the query or the reply.
type nonconforming struct {
	*backend
	reply func(r *dns.Msg) *dns.Msg
}

func (s nonconforming) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if !searchlist.HasOption(r) {
		return s.backend.ServeDNS(ctx, w, r)
	}
	s.recordProperties(ctx, r, s.fallback)
	return dns.RcodeSuccess, w.WriteMsg(s.reply(r))
}

// TestNonsense asserts that replies of a nonconforming server are not used and not stored, and that other servers'
// replies are.
func TestNonsense(t *testing.T) {
	list := func(suffixes ...string) []byte {
		data, ok := searchlist.AppendSuffixes(nil, suffixes)
		if !ok {
			t.Fatal(suffixes)
		}
		return data
	}
	tests := map[string]struct {
		replyKind replyKind
		data      []byte
	}{
		"a suffix that is not in the query": {replyData, list("svc.other.test.")},
		"a suffix of another zone":          {replyData, list("corp.test.")},
		"data without a suffix":             {replyData, nil},
		"a candidate that does not exist":   {replyNXDOMAIN, list(podSuffixes[1])},
		"a candidate that is refused":       {replyREFUSED, list(podSuffixes[1])},
		"a failed candidate":                {replySERVFAIL, list(podSuffixes[1])},
		"truncated, without a suffix":       {replyTruncated, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, external := range []bool{true, false} {
				w := newBackend(nil)
				if external {
					w = newBackend(map[string]replyKind{fourth: replyData})
				}
				x := newExpander(w, "cluster.test.")
				x.Next = nonconforming{w, func(r *dns.Msg) *dns.Msg {
					return searchlist.WithOption(replyOf(r, r.Question[0].Name, lasting(tt.replyKind, 30)), tt.data)
				}}
				for range 2 {
					got := send(t, x, query(first, dns.TypeA), &podQuestion)
					switch {
					case external && (got.rcode() != dns.RcodeSuccess || len(got.Answer) != 3 || got.Answer[0].(*dns.CNAME).Target != fourth):
						t.Errorf("got %v, want an alias to %s", got, fourth)
					case !external && got.rcode() != dns.RcodeServerFailure:
						t.Errorf("got %v, want SERVFAIL", got)
					}
				}
				if len(w.replies) < 4 {
					t.Errorf("the reply was stored")
				}
			}
		})
	}
}

// TestReplyStays asserts that the reply of a plugin does not change: the plugin may store it.
func TestReplyStays(t *testing.T) {
	for _, found := range []string{first, third, bareName, ""} {
		w := newBackend(map[string]replyKind{found: replyData})
		w.withFact(first, dns.TypeA, fact{replyKind: w.factOf(first, dns.TypeA).replyKind, ttl: 9, ede: true, expires: time.Hour})
		var written []*dns.Msg
		var before []string
		x := newExpander(w)
		x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
			return w.ServeDNS(ctx, interceptor{rw, func(m *dns.Msg) {
				m.Answer, m.Extra = slices.Grow(m.Answer, 4), slices.Grow(m.Extra, 4)
				written, before = append(written, m), append(before, m.String())
			}}, r)
		})
		send(t, x, query(first, dns.TypeA).SetEdns0(1232, true), &podQuestion)
		for i, m := range written {
			if after := m.String(); after != before[i] {
				t.Errorf("the reply was changed from\n%s\nto\n%s", before[i], after)
			}
			for _, section := range [][]dns.RR{m.Answer, m.Extra} {
				if rest := section[len(section):cap(section)]; slices.ContainsFunc(rest, func(rr dns.RR) bool { return rr != nil }) {
					t.Errorf("records were appended to the memory of the reply: %v", rest)
				}
			}
		}
	}
}

// interceptor calls a function with each reply.
type interceptor struct {
	dns.ResponseWriter
	see func(*dns.Msg)
}

func (w interceptor) WriteMsg(m *dns.Msg) error { w.see(m); return w.ResponseWriter.WriteMsg(m) }

// TestQueries asserts that queries for candidates differ from the client's query in the name only.
func TestQueries(t *testing.T) {
	w := newBackend(nil)
	var seen []*dns.Msg
	x := newExpander(w)
	x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
		if !Nested(ctx) {
			t.Error("the query for a candidate is not nested")
		}
		seen = append(seen, r)
		return w.ServeDNS(ctx, rw, r)
	})
	r := query("wWw.Shop.svc.cluster.test.", dns.TypeMX).SetEdns0(4000, true)
	r.RecursionDesired, r.CheckingDisabled, r.AuthenticatedData = false, true, true
	caller := &dns.EDNS0_LOCAL{Code: 65313, Data: []byte("node")}
	r.IsEdns0().Option = []dns.EDNS0{caller}
	q := podQuestion
	q.Base = "wWw."
	if Nested(context.Background()) {
		t.Error("a context without a query is nested")
	}
	got := send(t, x, r, &q)
	if got.Rcode != dns.RcodeNameError || got.Question[0] != r.Question[0] || !got.CheckingDisabled || got.RecursionDesired {
		t.Errorf("got %v", got)
	}
	names := []string{r.Question[0].Name, "wWw.svc.cluster.test.", "wWw.cluster.test.", "wWw.corp.test.", "wWw."}
	if len(seen) != len(names) {
		t.Fatalf("%d queries, want %d", len(seen), len(names))
	}
	for i, m := range seen {
		want := r.Copy()
		want.Question[0].Name = names[i]
		if m.String() != want.String() {
			t.Errorf("query\n%v\nwant\n%v", m, want)
		}
		for j := range i {
			if m.IsEdns0() == seen[j].IsEdns0() {
				t.Error("two queries share an OPT record")
			}
		}
	}
}

// TestFlags asserts that stored answers are served to queries with the same flags only, and that replies have the
// query's flags.
func TestFlags(t *testing.T) {
	w := newBackend(map[string]replyKind{bareName: replyData})
	x := newExpander(w)
	queries := map[string]func(*dns.Msg){
		"plain": func(*dns.Msg) {},
		"DO":    func(r *dns.Msg) { r.SetEdns0(1232, true) },
		"CD":    func(r *dns.Msg) { r.CheckingDisabled = true },
	}
	for _, again := range []bool{false, true} {
		for name, change := range queries {
			r := query(first, dns.TypeA)
			change(r)
			w.queries = nil
			got := send(t, x, r, &podQuestion)
			if len(got.Answer) != 3 || got.CheckingDisabled != r.CheckingDisabled {
				t.Errorf("%s: got %v", name, got)
			}
			if stored := len(w.queries) == 0; stored != again {
				t.Errorf("%s: stored %t, want %t", name, stored, again)
			}
		}
	}
	w.queries = nil
	r := query(first, dns.TypeA).SetEdns0(512, false) // not in the key
	if got := send(t, x, r, &podQuestion); len(w.queries) != 0 || got.IsEdns0() != nil {
		t.Errorf("with EDNS: queries %v, reply %v", w.queries, got)
	}
	r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 8, Address: []byte{10, 0, 0, 0}}}
	for range 2 {
		w.queries = nil
		if send(t, x, r, &podQuestion); len(w.queries) == 0 {
			t.Error("a query with a client subnet was answered from the store")
		}
	}
}

// TestAuthenticated asserts that AD is set only if the reply for the question's own name has it.
func TestAuthenticated(t *testing.T) {
	for _, tt := range []struct {
		name  string
		facts map[string]replyKind
		want  bool
	}{
		{"the question itself", map[string]replyKind{first: replyData}, true},
		{"an alias", map[string]replyKind{bareName: replyData}, false},
		{"NODATA of the question", map[string]replyKind{first: replyNODATA}, true},
		{"NODATA of another name", map[string]replyKind{second: replyNODATA}, false},
		{"NXDOMAIN of the question", nil, true},
		{"SERVFAIL", map[string]replyKind{first: replyNODATA, second: replySERVFAIL}, false},
		{"the other family fails", map[string]replyKind{first: replyNODATA}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newBackend(tt.facts)
			if tt.name == "the other family fails" {
				w.withFact(first, dns.TypeAAAA, lasting(replySERVFAIL, 0))
			}
			x := newExpander(w)
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				return w.ServeDNS(ctx, interceptor{rw, func(m *dns.Msg) {
					m.AuthenticatedData, m.Id, m.RecursionDesired, m.CheckingDisabled = true, m.Id+1, false, true // of another client's query
				}}, r)
			})
			r := query(first, dns.TypeA)
			r.AuthenticatedData = true
			for _, when := range []string{"at first", "again"} {
				if got := send(t, x, r, &podQuestion); got.AuthenticatedData != tt.want {
					t.Errorf("%s: AD is %t, want %t in %v", when, got.AuthenticatedData, tt.want, got)
				} else if got.Id != r.Id || !got.RecursionDesired || got.CheckingDisabled {
					t.Errorf("%s: got %v to %v", when, got.MsgHdr, r.MsgHdr)
				}
			}
		})
	}
}

// TestExtendedErrors asserts that clients with EDNS get the extended errors of the reply that was found, and that such
// replies are not stored.
func TestExtendedErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		facts  map[string]replyKind
		at     string
		copied bool
	}{
		{"of the candidate with data", map[string]replyKind{third: replyData}, third, true},
		{"of a candidate before it", map[string]replyKind{third: replyData}, second, false},
		{"of the question", map[string]replyKind{first: replyData}, first, true},
		{"of NXDOMAIN of the question", nil, first, true},
		{"of NXDOMAIN of another candidate", nil, second, false},
		{"of NODATA", map[string]replyKind{second: replyNODATA}, second, true},
		{"of a failure", map[string]replyKind{second: replySERVFAIL}, second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newBackend(tt.facts)
			f := w.factOf(tt.at, dns.TypeA)
			f.ede = true
			w.withFact(tt.at, dns.TypeA, f)
			x := newExpander(w)
			for range 2 {
				r := query(first, dns.TypeA).SetEdns0(1232, false)
				got := send(t, x, r, &podQuestion)
				opt := got.IsEdns0()
				if copied := opt != nil && len(opt.Option) == 1 && opt.Option[0].Option() == dns.EDNS0EDE; copied != tt.copied {
					t.Errorf("got %v, want an extended error: %t", got.Extra, tt.copied)
				}
			}
			if got := send(t, x, query(first, dns.TypeA), &podQuestion); got.IsEdns0() != nil || len(got.Extra) != 0 {
				t.Errorf("an OPT record without EDNS: %v", got)
			}
		})
	}
}

// TestWalkTime has slow servers: a walk ends after walkTime, and its outcome is not stored.
func TestWalkTime(t *testing.T) {
	for _, tt := range []struct {
		name    string
		each    time.Duration
		found   string
		queries int
		want    int
	}{
		{"slow", walkTime / 5, bareName, 5, dns.RcodeSuccess},
		{"just in time", walkTime / 4, bareName, 5, dns.RcodeSuccess},
		{"too slow", walkTime/4 + 1, bareName, 4, dns.RcodeServerFailure},
		{"much too slow", 10 * time.Second, bareName, 1, dns.RcodeServerFailure},
		{"the first is found", 10 * time.Second, first, 1, dns.RcodeSuccess},
	} {
		inBubble(t, func(t *testing.T) {
			w := newBackend(map[string]replyKind{tt.found: replyData})
			x := newExpander(w)
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(tt.each)
				return w.ServeDNS(ctx, rw, r)
			})
			for _, again := range []bool{false, true} {
				w.queries = nil
				got := send(t, x, query(first, dns.TypeA), &podQuestion)
				want := tt.queries
				if again && tt.want == dns.RcodeSuccess && tt.found != first { // a cache stores the first candidate
					want = 0
				}
				if got.rcode() != tt.want || len(w.queries) != want {
					t.Errorf("%s: %s after %d queries, want %s after %d", tt.name, dns.RcodeToString[got.rcode()], len(w.queries), dns.RcodeToString[tt.want], want)
				}
			}
		})
	}
}

// TestFailing has servers that fail at once or late: after a late failure, the other candidates of the server are not
// queried.
func TestFailing(t *testing.T) {
	for _, tt := range []struct {
		name    string
		each    time.Duration
		queries int
	}{
		{"at once", 0, len(podSuffixes) + 1},
		{"not late", longWait, len(podSuffixes) + 1},
		{"late", longWait + 1, 2},
	} {
		inBubble(t, func(t *testing.T) {
			w := newBackend(map[string]replyKind{bareName: replyData})
			w.fallback.replyKind = replySERVFAIL
			x := newExpander(w, "test.")
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				if r.Question[0].Name != bareName {
					time.Sleep(tt.each)
				}
				return w.ServeDNS(ctx, rw, r)
			})
			got := send(t, x, query(first, dns.TypeA), &podQuestion)
			if got.rcode() != dns.RcodeSuccess || len(w.queries) != tt.queries {
				t.Errorf("%s: %s after %d queries, want %d", tt.name, dns.RcodeToString[got.rcode()], len(w.queries), tt.queries)
			}
		})
	}
}

// TestAliasTTL has data of one candidate that expires after the denial of another.
func TestAliasTTL(t *testing.T) {
	for name, c := range map[string]struct {
		denial time.Duration
		want   uint32
	}{
		"a cache stores the denials for 5 seconds": {5 * time.Second, 5},
		"no cache stores the denials":              {0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newBackend(nil)
				w.fallback.expires = c.denial
				w.withFact(bareName, dns.TypeA, lasting(replyData, 3600))
				m := send(t, newExpander(w), query(first, dns.TypeA), &podQuestion).Msg
				if m == nil || len(m.Answer) < 2 || m.Answer[0].Header().Ttl != c.want || m.Answer[1].Header().Ttl != 3600 {
					t.Errorf("got %v, want an alias for %d seconds to a record for 3600", m, c.want)
				}
			})
		})
	}
}

// brokenPipe is a connection to a client that has closed it.
type brokenPipe struct{ test.ResponseWriter }

var errGone = errors.New("the client is gone")

func (*brokenPipe) WriteMsg(*dns.Msg) error { return errGone }

// TestUnusualReplies has replies of other plugins without an ordinary wire form.
func TestUnusualReplies(t *testing.T) {
	const many = 2500 // records: above 64 KiB without compression of names, below with it
	for _, tt := range []struct {
		name    string
		change  func(m *dns.Msg)
		rcode   int
		answers int // with the alias
	}{
		{"no question", func(m *dns.Msg) { m.Question, m.AuthenticatedData = nil, true }, dns.RcodeSuccess, 3},
		{"two questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, dns.RcodeSuccess, 3},
		{"a code of EDNS", func(m *dns.Msg) { m.Rcode = dns.RcodeBadCookie }, dns.RcodeServerFailure, 0},
		{"above 64 KiB", func(m *dns.Msg) { m.Answer, m.Compress = slices.Repeat(m.Answer[:1], many), true }, dns.RcodeSuccess, many + 1},
		{"a class other than IN", func(m *dns.Msg) { m.Answer[0].Header().Class = dns.ClassCHAOS }, dns.RcodeSuccess, 3},
		{"bytes of a type", func(m *dns.Msg) {
			m.Answer[1] = &dns.RFC3597{Hdr: dns.RR_Header{Name: second, Rrtype: dns.TypeHTTPS, Class: dns.ClassINET}, Rdata: "0001000004000103"}
		}, dns.RcodeSuccess, 3},
		{"a name of 257 bytes", func(m *dns.Msg) { m.Answer[0].Header().Name = strings.Repeat(strings.Repeat("a", 63)+".", 4) }, dns.RcodeServerFailure, 0},
		{"a question without a name", func(m *dns.Msg) { m.Question[0].Name = "" }, dns.RcodeServerFailure, 0},
		{"a name that can't be packed", func(m *dns.Msg) { m.Answer[1].Header().Name = strings.Repeat("a", 64) + "." }, dns.RcodeServerFailure, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newBackend(map[string]replyKind{second: replyData})
			x := newExpander(w)
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				change := func(*dns.Msg) {}
				if r.Question[0].Name == second {
					change = tt.change
				}
				return w.ServeDNS(ctx, interceptor{rw, change}, r)
			})
			r := query(first, dns.TypeA)
			r.AuthenticatedData = true
			for _, when := range []string{"at first", "again"} {
				got := send(t, x, r, &podQuestion)
				if got.rcode() != tt.rcode || got.Msg == nil && tt.answers > 0 {
					t.Fatalf("%s: got %v, code %d, %v", when, got.Msg, got.code, got.err)
				}
				if got.Msg != nil && (len(got.Answer) != tt.answers || len(got.Question) != 1 || got.Question[0] != r.Question[0] || got.AuthenticatedData) {
					t.Errorf("%s: %d records, %v, AD %t", when, len(got.Answer), got.Question, got.AuthenticatedData)
				}
			}
		})
	}
}

// TestErrors asserts which errors ServeDNS returns.
func TestErrors(t *testing.T) {
	w := newBackend(map[string]replyKind{second: returnError})
	got := send(t, newExpander(w), query(first, dns.TypeA), &podQuestion)
	if got.Msg != nil || got.code != dns.RcodeServerFailure || got.err == nil || !strings.Contains(got.err.Error(), "out of order") {
		t.Errorf("got %v, %d, %v", got.Msg, got.code, got.err)
	}
	w = newBackend(map[string]replyKind{first: replyData})
	x := newExpander(w)
	for _, when := range []string{"at first", "again"} {
		if code, err := x.ServeDNS(context.Background(), &brokenPipe{}, query(first, dns.TypeA), &podQuestion); code != dns.RcodeServerFailure || !errors.Is(err, errGone) {
			t.Errorf("%s: %d, %v", when, code, err)
		}
	}
	w = newBackend(map[string]replyKind{first: replyREFUSED})
	w.fallback.replyKind = replyREFUSED
	if got := send(t, newExpander(w), query(first, dns.TypeA), &podQuestion); got.rcode() != dns.RcodeServerFailure {
		t.Errorf("every query refused: %v, %d", got.Msg, got.code)
	}
}

func TestExpandable(t *testing.T) {
	one, _ := searchlist.AppendSuffixes(nil, podSuffixes[:1])
	tests := map[string]struct {
		change func(*dns.Msg)
		want   bool
	}{
		"A":             {func(*dns.Msg) {}, true},
		"SRV":           {func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeSRV }, true},
		"EDNS":          {func(r *dns.Msg) { r.SetEdns0(1232, true) }, true},
		"AXFR":          {func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeAXFR }, false},
		"IXFR":          {func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeIXFR }, false},
		"DS":            {func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeDS }, false},
		"CH":            {func(r *dns.Msg) { r.Question[0].Qclass = dns.ClassCHAOS }, false},
		"ANY class":     {func(r *dns.Msg) { r.Question[0].Qclass = dns.ClassANY }, false},
		"NOTIFY":        {func(r *dns.Msg) { r.Opcode = dns.OpcodeNotify }, false},
		"no question":   {func(r *dns.Msg) { r.Question = nil }, false},
		"two questions": {func(r *dns.Msg) { r.Question = append(r.Question, r.Question[0]) }, false},
		"a list":        {func(r *dns.Msg) { *r = *searchlist.WithOption(r, one) }, false},
		"an empty list": {func(r *dns.Msg) { *r = *searchlist.WithOption(r, nil) }, false},
		"two lists": {func(r *dns.Msg) {
			*r = *searchlist.WithOption(r, one)
			r.IsEdns0().Option = append(r.IsEdns0().Option, r.IsEdns0().Option[0])
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := query(first, dns.TypeA)
			tt.change(r)
			if got := Expandable(r); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestPathsApart sends queries for the same names with several search lists with equal first suffixes, in random order.
// Each list has its own stored answers.
func TestPathsApart(t *testing.T) {
	random := newRandomBackend(1)
	lists := [][]string{podSuffixes[:3], podSuffixes, {podSuffixes[0], podSuffixes[3]}, podSuffixes[:1], {podSuffixes[0], podSuffixes[2], podSuffixes[1]}}
	bases := []string{"www.", "db.", "a.b."}
	w := &backend{facts: map[lookup]fact{}, fallback: lasting(replyNXDOMAIN, 5), ability: supportsLists}
	for i, base := range bases {
		for j, suffix := range append(podSuffixes[1:], "") {
			if (i+j)%2 == 0 {
				w.withFact(base+suffix, dns.TypeA, lasting(replyData, uint32(10*i+j+1)))
			}
		}
	}
	x := newExpander(w, "cluster.test.")
	for i := range 500 {
		list, base := random.IntN(len(lists)), bases[random.IntN(len(bases))]
		q := &Question{Base: base, Suffixes: lists[list], ListID: uint32(list + 1)}
		r := query(base+podSuffixes[0], dns.TypeA)
		want := resolve(w, dns.TypeA, namesOf(r.Question[0].Name, q))
		if err := want.check(r, send(t, x, r, q), 0); err != nil {
			t.Fatalf("question %d, list %d: %v", i, list, err)
		}
		if i == 400 {
			w.queries = nil
		}
	}
	if len(w.queries) > 0 {
		t.Errorf("queries for stored answers: %v", w.queries)
	}
}

// TestChangeOnTheWay advances a generation between the queries for two candidates.
func TestChangeOnTheWay(t *testing.T) {
	g, other := &generation{}, &generation{}
	for _, tt := range []struct {
		name   string
		second []*generation
		change *generation
		stored bool
	}{
		{"of both candidates", []*generation{g}, g, false},
		{"of the first candidate", []*generation{other}, g, false},
		{"of neither candidate", []*generation{other}, &generation{}, true},
		{"no change", []*generation{g}, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newBackend(nil)
			w.withFact(first, dns.TypeA, fact{replyKind: replyNXDOMAIN, ttl: 5, bounds: []*generation{g}, change: tt.change})
			w.withFact(second, dns.TypeA, fact{replyKind: replyData, ttl: 5, bounds: tt.second})
			x := newExpander(w)
			send(t, x, query(first, dns.TypeA), &podQuestion)
			if ended := x.endedEntry(&podQuestion); ended == tt.stored {
				t.Errorf("an entry that has ended is there for sessions: %t", ended)
			}
			w.queries = nil
			send(t, x, query(first, dns.TypeA), &podQuestion)
			if stored := len(w.queries) == 0; stored != tt.stored {
				t.Errorf("stored %t", stored)
			}
		})
	}
}

// endedEntry reports whether the answer to a question has an entry that is not current, and that a session can watch.
func (x *Expander) endedEntry(q *Question) bool {
	e := store.Shared.Get(x.key(query(first, dns.TypeA), q).bytes)
	return e != nil && !e.Current() && e.ByGeneration() && !e.Ended()
}

// serial is an store.Serial.
type serial int64

func (s *serial) Modified() int64 { return int64(*s) }

// TestSerial asserts that a stored denial is served with the present serial number of the zone of its reply.
func TestSerial(t *testing.T) {
	g, zone, other := &generation{}, serial(7), serial(90)
	x := newExpander(nil)
	x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
		c := store.PropertiesOf(ctx, r)
		c.Bounds[0], c.Serial = validity.Bound{Generation: g}, &other
		if r.Question[0].Name == first {
			c.Serial = &zone
		}
		return dns.RcodeSuccess, rw.WriteMsg(replyOf(r, r.Question[0].Name, fact{replyKind: replyNXDOMAIN, ttl: 5}))
	})
	send(t, x, query(first, dns.TypeA), &podQuestion)
	zone = 8
	got := send(t, x, query(first, dns.TypeA), &podQuestion)
	if soa := got.Ns[0].(*dns.SOA); soa.Serial != 8 {
		t.Errorf("the serial number is %d, want 8", soa.Serial)
	}
}

// TestStoresCandidates asserts that StoresCandidates stores replies under the names of the candidates, and only then.
func TestStoresCandidates(t *testing.T) {
	g := &generation{}
	for _, storesCandidates := range []bool{true, false} {
		w := &backend{facts: map[lookup]fact{}, fallback: fact{replyKind: replyNXDOMAIN, ttl: 5, bounds: []*generation{g}}}
		w.withFact(second, dns.TypeA, fact{replyKind: replyNXDOMAIN, ttl: 5, bounds: []*generation{g}, private: true})
		w.withFact(third, dns.TypeA, fact{replyKind: replyNXDOMAIN, ttl: 5, expires: time.Hour})
		x := newExpander(w)
		x.StoresCandidates = storesCandidates
		x.Block.Keyspace.ByGeneration.Store(true)
		send(t, x, query(first, dns.TypeA), &podQuestion)
		for name, want := range map[string]bool{first: true, second: false, third: false, fourth: true, bareName: true} {
			k := x.key(query(name, dns.TypeA), &Question{})
			if stored := k.fresh() != nil; stored != (want && storesCandidates) {
				t.Errorf("%s is stored: %t, want %t", name, stored, want && storesCandidates)
			}
		}
	}
}

// TestPlain asserts that a reply stored as the answer to the question is not stored under the search list, too: the
// fast path serves it from there, and the cache counts the hit.
func TestPlain(t *testing.T) {
	g, cluster := &generation{}, []string{"cluster.test."}
	for _, tt := range []struct {
		name             string
		fact             fact
		ability          ability
		storesCandidates bool
		want             bool
		zones            []string
	}{
		{"a cache stores it", fact{ttl: 5, expires: time.Hour}, ignoresLists, false, false, nil},
		{"a cache stores it, also by generation", fact{ttl: 5, expires: time.Hour, bounds: []*generation{g}}, ignoresLists, false, false, nil},
		{"a cache stores it as the reply to a search list", fact{ttl: 5, expires: time.Hour}, supportsLists, false, true, cluster},
		{"no other plugin stores it", fact{ttl: 5, bounds: []*generation{g}}, ignoresLists, false, true, nil},
		{"the Expander stores it under the name", fact{ttl: 5, bounds: []*generation{g}}, ignoresLists, true, false, nil},
		{"the reply to a search list", fact{ttl: 5, bounds: []*generation{g}}, supportsLists, true, true, cluster},
		{"a search list that the server ignores", fact{ttl: 5, bounds: []*generation{g}}, ignoresLists, true, true, cluster},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.fact.replyKind = replyData
			w := newBackend(nil).withFact(first, dns.TypeA, tt.fact)
			w.ability = tt.ability
			x := newExpander(w, tt.zones...)
			x.StoresCandidates = tt.storesCandidates
			x.Block.Keyspace.ByGeneration.Store(true)
			r := query(first, dns.TypeA)
			send(t, x, r, &podQuestion)
			if stored := x.key(r, &podQuestion).fresh() != nil; stored != tt.want {
				t.Errorf("stored under the list: %t", stored)
			}
			if stored := x.key(r, &Question{}).fresh() != nil; stored != (tt.storesCandidates && tt.zones == nil) {
				t.Errorf("stored under the name: %t", stored)
			}
		})
	}
}

// TestServers asserts that a server counts the answers that it serves: a server block may have several servers.
func TestServers(t *testing.T) {
	w := newBackend(map[string]replyKind{bareName: replyData})
	x := newExpander(w)
	expansions := func(server string) float64 {
		return testutil.ToFloat64(testMetrics.expansions.WithLabelValues(server, "success", "bare"))
	}
	saved := func(server string) float64 { return testutil.ToFloat64(testMetrics.saved.WithLabelValues(server)) }
	const one, two = "dns://one", "dns://two"
	before := map[string][2]float64{one: {expansions(one), saved(one)}, two: {expansions(two), saved(two)}}
	for _, address := range []string{one, two, one} {
		ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: address})
		sendIn(t, ctx, x, query(first, dns.TypeA), &podQuestion)
	}
	for server, want := range map[string]float64{one: 2, two: 1} {
		if n := expansions(server) - before[server][0]; n != want {
			t.Errorf("%v expansions on %s, want %v", n, server, want)
		}
		if n := saved(server) - before[server][1]; n != 4*want {
			t.Errorf("%v saved queries on %s, want %v", n, server, 4*want)
		}
	}
}

// TestFirst asserts that First counts like an expansion that finds the first candidate.
func TestFirst(t *testing.T) {
	x := newExpander(newBackend(map[string]replyKind{first: replyData}))
	before := testMetrics.snapshot()
	send(t, x, query(first, dns.TypeA), &podQuestion)
	expanded := testMetrics.since(before)
	before = testMetrics.snapshot()
	testMetrics.First("").Inc()
	if counted := testMetrics.since(before); fmt.Sprint(counted) != fmt.Sprint(expanded) || len(counted) != 1 {
		t.Errorf("First counts %v, an expansion %v", counted, expanded)
	}
}

// TestConcurrent sends concurrent queries for equal and different names while the generation of the answers advances.
func TestConcurrent(t *testing.T) {
	const askers, questions = 8, 200
	g := &generation{}
	x := newExpander(nil)
	x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
		c := store.PropertiesOf(ctx, r)
		c.Bounds[0] = validity.Bound{Generation: g, Number: g.Load()}
		f := fact{replyKind: replyNXDOMAIN, ttl: uint32(c.Bounds[0].Number) + 1}
		if dns.CountLabel(r.Question[0].Name) == 1 {
			f.replyKind = replyData
		}
		return dns.RcodeSuccess, rw.WriteMsg(replyOf(r, r.Question[0].Name, f))
	})
	ended := make(chan error, askers)
	for i := range askers {
		go func() {
			var err error
			for n := range questions {
				if i == 0 {
					g.Add(1)
				}
				base := fmt.Sprintf("w%d.", n%3)
				since := g.Load()
				w := dnstest.NewRecorder(&test.ResponseWriter{})
				if _, e := x.ServeDNS(context.Background(), w, query(base+podSuffixes[0], dns.TypeA), &Question{Base: base, Suffixes: podSuffixes, ListID: 1}); e != nil {
					err = e
					break
				}
				if a := w.Msg.Answer; len(a) != 3 || a[1].Header().Name != base || uint64(a[1].Header().Ttl) <= since {
					err = fmt.Errorf("after change %d: %v", since, w.Msg)
				}
			}
			ended <- err
		}()
	}
	for range askers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
