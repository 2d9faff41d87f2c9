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

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// The search list of a pod in namespace shop, and what it asks for first when it looks up www.
var (
	podSuffixes = []string{"shop.svc.cluster.test.", "svc.cluster.test.", "cluster.test.", "corp.test."}
	podQuestion = Question{Base: "www.", Suffixes: podSuffixes, Path: 1}
)

const (
	first    = "www.shop.svc.cluster.test."
	second   = "www.svc.cluster.test."
	third    = "www.cluster.test."
	fourth   = "www.corp.test."
	bareName = "www."
)

// lasting is a fact that is kept for an hour.
func lasting(s said, ttl uint32) fact { return fact{said: s, ttl: ttl, expires: time.Hour} }

// newWorld returns a world in which no name exists but those that facts say something of, for A.
func newWorld(facts map[string]said) *world {
	w := &world{facts: map[asked]fact{}, fallback: lasting(saysNXDOMAIN, 5)}
	for name, s := range facts {
		w.facts[asked{name, dns.TypeA}] = lasting(s, 30)
	}
	return w
}

func (w *world) with(name string, qtype uint16, f fact) *world {
	w.facts[asked{name, qtype}] = f
	return w
}

// TestWinner says by examples which candidate is answered with, and how.
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
		facts map[string]said
		aaaa  map[string]said
		want  string
		kept  bool
	}{
		"the question itself": {map[string]said{first: saysData, second: saysData}, nil, itself, true},
		"another candidate":   {map[string]said{third: saysData, bareName: saysData}, nil, fmt.Sprintf(aliasTo, third), true},
		"in another zone":     {map[string]said{fourth: saysData}, nil, fmt.Sprintf(aliasTo, fourth), true},
		"the bare name":       {map[string]said{bareName: saysData}, nil, fmt.Sprintf(aliasTo, bareName), true},
		"none":                {nil, nil, nxdomain, true},
		"NODATA alone":        {map[string]said{second: saysNODATA}, nil, fmt.Sprintf(nodata, 30), true},
		"NODATA before data":  {map[string]said{first: saysNODATA, third: saysData}, nil, fmt.Sprintf(aliasTo, third), true},
		"the other family before data": {
			map[string]said{first: saysNODATA, third: saysData}, map[string]said{first: saysData}, fmt.Sprintf(nodata, 30), true,
		},
		"the other family of the bare name": {map[string]said{bareName: saysNODATA}, map[string]said{bareName: saysData}, fmt.Sprintf(nodata, 30), true},
		"a failure before data":             {map[string]said{first: saysSERVFAIL, third: saysData}, nil, fmt.Sprintf(aliasTo, third), false},
		"a failure behind data":             {map[string]said{first: saysData, third: saysSERVFAIL}, nil, itself, true},
		"a failure and NODATA":              {map[string]said{first: saysNODATA, third: saysSERVFAIL}, nil, servfail, false},
		"a failure and nothing":             {map[string]said{bareName: saysSERVFAIL}, nil, servfail, false},
		"the other family fails": {
			map[string]said{first: saysNODATA}, map[string]said{first: saysSERVFAIL}, servfail, false,
		},
		"the other family fails before data": {
			map[string]said{first: saysNODATA, third: saysData}, map[string]said{first: saysNothing}, fmt.Sprintf(aliasTo, third), false,
		},
		"refused is a failure": {map[string]said{bareName: saysREFUSED}, nil, servfail, false},
		"the other family is refused": {
			map[string]said{first: saysNODATA}, map[string]said{first: saysREFUSED}, servfail, false,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, zones := range [][]string{nil, {"cluster.test."}} {
				for ability := range abilities {
					w := newWorld(tt.facts)
					for name, s := range tt.aaaa {
						w.with(name, dns.TypeAAAA, lasting(s, 60))
					}
					w.ability = ability
					x := newExpander(w, zones...)
					for range 2 {
						w.asks = nil
						got := ask(t, x, query(first, dns.TypeA), &podQuestion)
						if got.Msg == nil || records(got.Msg) != tt.want {
							t.Fatalf("server that %d, zones %q: got %v, want %s", ability, zones, got, tt.want)
						}
					}
					// What the cache keeps for the question is not kept twice. It keeps nothing for the question if
					// there was a search list in the query, and the reply says so.
					want := tt.kept && (tt.want != itself || ability == knowsLists && zones != nil)
					if kept := len(w.asks) == 0; kept != want {
						t.Errorf("server that %d, zones %q: kept is %t, want %t", ability, zones, kept, want)
					}
				}
			}
		})
	}
}

// TestOneQuery asserts that a server that knows search lists is asked once for what it knows, and no more than once
// about the rest.
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
		"none":               {podSuffixes, "", knowsLists, first + " " + fourth + " " + bareName},
		"external":           {podSuffixes, bareName, knowsLists, first + " " + fourth + " " + bareName},
		"in the cluster":     {podSuffixes, third, knowsLists, first},
		"it does not know":   {podSuffixes, bareName, ignoresLists, strings.Join([]string{first, second, third, fourth, bareName}, " ")},
		"another zone first": {slices.Concat(podSuffixes[3:], podSuffixes[:3]), "", knowsLists, fourth + " " + first + " " + bareName},
		"one of the cluster": {[]string{podSuffixes[0], podSuffixes[3], podSuffixes[2]}, "", knowsLists, strings.Join([]string{first, fourth, third, bareName}, " ")},
		"as many as fit":     {many, "", knowsLists, "www.s0.cluster.test. www.s8.cluster.test. " + bareName},
		"one is there twice": {[]string{podSuffixes[0], podSuffixes[3], podSuffixes[0]}, "", knowsLists, first + " " + fourth + " " + bareName},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(map[string]said{tt.found: saysData})
			w.ability = tt.ability
			q := Question{Base: "www.", Suffixes: tt.suffixes}
			got := ask(t, newExpander(w, "cluster.test."), query("www."+tt.suffixes[0], dns.TypeA), &q)
			if found := got.Rcode == dns.RcodeSuccess; found != (tt.found != "") {
				t.Errorf("got %v", got)
			}
			var names []string
			for _, a := range w.asks {
				names = append(names, a.name)
			}
			if asks := strings.Join(names, " "); asks != tt.want {
				t.Errorf("it asked for %s, want %s", asks, tt.want)
			}
		})
	}
}

// saysOf answers queries with a search list as a server does that does not keep to what the option means.
type saysOf struct {
	*world
	reply func(r *dns.Msg) *dns.Msg
}

func (s saysOf) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if !searchlist.HasOption(r) {
		return s.world.ServeDNS(ctx, w, r)
	}
	s.tell(ctx, r, s.fallback)
	return dns.RcodeSuccess, w.WriteMsg(s.reply(r))
}

// TestNonsense has a server that says what can't be. The client gets no answer from it, and none that is kept; what
// other servers know it does get.
func TestNonsense(t *testing.T) {
	list := func(suffixes ...string) []byte {
		data, ok := searchlist.AppendSuffixes(nil, suffixes)
		if !ok {
			t.Fatal(suffixes)
		}
		return data
	}
	tests := map[string]struct {
		said said
		data []byte
	}{
		"a suffix that was not asked for":     {saysData, list("svc.other.test.")},
		"one of another part of the list":     {saysData, list("corp.test.")},
		"data of no candidate":                {saysData, nil},
		"a candidate that does not exist":     {saysNXDOMAIN, list(podSuffixes[1])},
		"a candidate that is refused":         {saysREFUSED, list(podSuffixes[1])},
		"a candidate that can't be asked for": {saysSERVFAIL, list(podSuffixes[1])},
		"shortened, and of none":              {saysTruncated, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, external := range []bool{true, false} {
				w := newWorld(nil)
				if external {
					w = newWorld(map[string]said{fourth: saysData})
				}
				x := newExpander(w, "cluster.test.")
				x.Next = saysOf{w, func(r *dns.Msg) *dns.Msg {
					return searchlist.WithOption(replyOf(r, r.Question[0].Name, lasting(tt.said, 30)), tt.data)
				}}
				for range 2 {
					got := ask(t, x, query(first, dns.TypeA), &podQuestion)
					switch {
					case external && (got.rcode() != dns.RcodeSuccess || len(got.Answer) != 3 || got.Answer[0].(*dns.CNAME).Target != fourth):
						t.Errorf("got %v, want what %s has", got, fourth)
					case !external && got.rcode() != dns.RcodeServerFailure:
						t.Errorf("got %v, want SERVFAIL", got)
					}
				}
				if len(w.seen) < 4 {
					t.Errorf("it was kept")
				}
			}
		})
	}
}

// TestReplyStays asserts that what a plugin has written is not changed: it may be what the plugin keeps.
func TestReplyStays(t *testing.T) {
	for _, found := range []string{first, third, bareName, ""} {
		w := newWorld(map[string]said{found: saysData})
		w.with(first, dns.TypeA, fact{said: w.of(first, dns.TypeA).said, ttl: 9, ede: true, expires: time.Hour})
		var written []*dns.Msg
		var before []string
		x := newExpander(w)
		x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
			return w.ServeDNS(ctx, watched{rw, func(m *dns.Msg) {
				m.Answer, m.Extra = slices.Grow(m.Answer, 4), slices.Grow(m.Extra, 4)
				written, before = append(written, m), append(before, m.String())
			}}, r)
		})
		ask(t, x, query(first, dns.TypeA).SetEdns0(1232, true), &podQuestion)
		for i, m := range written {
			if after := m.String(); after != before[i] {
				t.Errorf("the reply was\n%s\nand is\n%s", before[i], after)
			}
			for _, section := range [][]dns.RR{m.Answer, m.Extra} {
				if rest := section[len(section):cap(section)]; slices.ContainsFunc(rest, func(rr dns.RR) bool { return rr != nil }) {
					t.Errorf("records were put behind those of the reply: %v", rest)
				}
			}
		}
	}
}

// watched calls back with what is written.
type watched struct {
	dns.ResponseWriter
	see func(*dns.Msg)
}

func (w watched) WriteMsg(m *dns.Msg) error { w.see(m); return w.ResponseWriter.WriteMsg(m) }

// TestQueries asserts what candidates are asked for with: all that the client has asked with, but for the name.
func TestQueries(t *testing.T) {
	w := newWorld(nil)
	var seen []*dns.Msg
	x := newExpander(w)
	x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
		if !Nested(ctx) {
			t.Error("the query is not known for one of a candidate")
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
		t.Error("nested in nothing")
	}
	got := ask(t, x, r, &q)
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
			t.Errorf("asked\n%v\nwant\n%v", m, want)
		}
		for j := range i {
			if m.IsEdns0() == seen[j].IsEdns0() {
				t.Error("two queries share an OPT record")
			}
		}
	}
}

// TestFlags asserts that queries on which answers differ do not get each other's, and what becomes of flags.
func TestFlags(t *testing.T) {
	w := newWorld(map[string]said{bareName: saysData})
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
			w.asks = nil
			got := ask(t, x, r, &podQuestion)
			if len(got.Answer) != 3 || got.CheckingDisabled != r.CheckingDisabled {
				t.Errorf("%s: got %v", name, got)
			}
			if kept := len(w.asks) == 0; kept != again {
				t.Errorf("%s: kept is %t, want %t", name, kept, again)
			}
		}
	}
	w.asks = nil
	r := query(first, dns.TypeA).SetEdns0(512, false) // no difference
	if got := ask(t, x, r, &podQuestion); len(w.asks) != 0 || got.IsEdns0() != nil {
		t.Errorf("with EDNS it asked for %v, and answered %v", w.asks, got)
	}
	r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 8, Address: []byte{10, 0, 0, 0}}}
	for range 2 {
		w.asks = nil
		if ask(t, x, r, &podQuestion); len(w.asks) == 0 {
			t.Error("a query with a client subnet was answered with what is kept for others")
		}
	}
}

// TestAuthenticated asserts that nobody is told that data are authentic which nobody has signed under that name.
func TestAuthenticated(t *testing.T) {
	for _, tt := range []struct {
		name  string
		facts map[string]said
		want  bool
	}{
		{"the question itself", map[string]said{first: saysData}, true},
		{"an alias", map[string]said{bareName: saysData}, false},
		{"NODATA of the question", map[string]said{first: saysNODATA}, true},
		{"NODATA of another name", map[string]said{second: saysNODATA}, false},
		{"NXDOMAIN of the question", nil, true},
		{"SERVFAIL", map[string]said{first: saysNODATA, second: saysSERVFAIL}, false},
		{"the other family fails", map[string]said{first: saysNODATA}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(tt.facts)
			if tt.name == "the other family fails" {
				w.with(first, dns.TypeAAAA, lasting(saysSERVFAIL, 0))
			}
			x := newExpander(w)
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				return w.ServeDNS(ctx, watched{rw, func(m *dns.Msg) {
					m.AuthenticatedData, m.Id, m.RecursionDesired, m.CheckingDisabled = true, m.Id+1, false, true // as others have asked
				}}, r)
			})
			r := query(first, dns.TypeA)
			r.AuthenticatedData = true
			for _, when := range []string{"at first", "again"} {
				if got := ask(t, x, r, &podQuestion); got.AuthenticatedData != tt.want {
					t.Errorf("%s: AD is %t, want %t in %v", when, got.AuthenticatedData, tt.want, got)
				} else if got.Id != r.Id || !got.RecursionDesired || got.CheckingDisabled {
					t.Errorf("%s: got %v to %v", when, got.MsgHdr, r.MsgHdr)
				}
			}
		})
	}
}

// TestExtendedErrors asserts that a client that understands them gets those of the reply that it gets, and nobody
// else: they are not kept.
func TestExtendedErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		facts map[string]said
		at    string
		given bool
	}{
		{"of the candidate that was found", map[string]said{third: saysData}, third, true},
		{"of one before it", map[string]said{third: saysData}, second, false},
		{"of the question", map[string]said{first: saysData}, first, true},
		{"of what does not exist", nil, first, true},
		{"of another that does not", nil, second, false},
		{"of NODATA", map[string]said{second: saysNODATA}, second, true},
		{"of a failure", map[string]said{second: saysSERVFAIL}, second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(tt.facts)
			f := w.of(tt.at, dns.TypeA)
			f.ede = true
			w.with(tt.at, dns.TypeA, f)
			x := newExpander(w)
			for range 2 {
				r := query(first, dns.TypeA).SetEdns0(1232, false)
				got := ask(t, x, r, &podQuestion)
				opt := got.IsEdns0()
				if given := opt != nil && len(opt.Option) == 1 && opt.Option[0].Option() == dns.EDNS0EDE; given != tt.given {
					t.Errorf("got %v, want the error: %t", got.Extra, tt.given)
				}
			}
			if got := ask(t, x, query(first, dns.TypeA), &podQuestion); got.IsEdns0() != nil || len(got.Extra) != 0 {
				t.Errorf("an OPT record without EDNS: %v", got)
			}
		})
	}
}

// TestWalkTime has servers that are slow. The client is not kept waiting for all of them, and what they have said is
// not taken for all there is.
func TestWalkTime(t *testing.T) {
	for _, tt := range []struct {
		name  string
		each  time.Duration
		found string
		asks  int
		want  int
	}{
		{"slow", walkTime / 5, bareName, 5, dns.RcodeSuccess},
		{"just in time", walkTime / 4, bareName, 5, dns.RcodeSuccess},
		{"too slow", walkTime/4 + 1, bareName, 4, dns.RcodeServerFailure},
		{"much too slow", 10 * time.Second, bareName, 1, dns.RcodeServerFailure},
		{"the first is found", 10 * time.Second, first, 1, dns.RcodeSuccess},
	} {
		inTime(t, func(t *testing.T) {
			w := newWorld(map[string]said{tt.found: saysData})
			x := newExpander(w)
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				time.Sleep(tt.each)
				return w.ServeDNS(ctx, rw, r)
			})
			for _, again := range []bool{false, true} {
				w.asks = nil
				got := ask(t, x, query(first, dns.TypeA), &podQuestion)
				want := tt.asks
				if again && tt.want == dns.RcodeSuccess && tt.found != first { // else the cache keeps it
					want = 0
				}
				if got.rcode() != tt.want || len(w.asks) != want {
					t.Errorf("%s: %s after %d queries, want %s after %d", tt.name, dns.RcodeToString[got.rcode()], len(w.asks), dns.RcodeToString[tt.want], want)
				}
			}
		})
	}
}

// TestFailing has servers that fail at once, or late: the latter are waited for once.
func TestFailing(t *testing.T) {
	for _, tt := range []struct {
		name string
		each time.Duration
		asks int
	}{
		{"at once", 0, len(podSuffixes) + 1},
		{"not late", longWait, len(podSuffixes) + 1},
		{"late", longWait + 1, 2},
	} {
		inTime(t, func(t *testing.T) {
			w := newWorld(map[string]said{bareName: saysData})
			w.fallback.said = saysSERVFAIL
			x := newExpander(w, "test.")
			x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
				if r.Question[0].Name != bareName {
					time.Sleep(tt.each)
				}
				return w.ServeDNS(ctx, rw, r)
			})
			got := ask(t, x, query(first, dns.TypeA), &podQuestion)
			if got.rcode() != dns.RcodeSuccess || len(w.asks) != tt.asks {
				t.Errorf("%s: %s after %d queries, want %d", tt.name, dns.RcodeToString[got.rcode()], len(w.asks), tt.asks)
			}
		})
	}
}

// TestAlias_TTL has an answer that is found behind denials which are known for less time than its records.
func TestAlias_TTL(t *testing.T) {
	inTime(t, func(t *testing.T) {
		w := newWorld(nil)
		w.fallback.expires = 5 * time.Second
		w.with(bareName, dns.TypeA, lasting(saysData, 3600))
		m := ask(t, newExpander(w), query(first, dns.TypeA), &podQuestion).Msg
		if m == nil || len(m.Answer) < 2 || m.Answer[0].Header().Ttl != 5 || m.Answer[1].Header().Ttl != 3600 {
			t.Errorf("got %v, want an alias for 5 seconds to a record for 3600", m)
		}
	})
}

// brokenPipe is the way to a client that is gone.
type brokenPipe struct{ test.ResponseWriter }

var errGone = errors.New("the client is gone")

func (*brokenPipe) WriteMsg(*dns.Msg) error { return errGone }

// TestErrors asserts what is returned for the log.
func TestErrors(t *testing.T) {
	w := newWorld(map[string]said{second: returnsError})
	got := ask(t, newExpander(w), query(first, dns.TypeA), &podQuestion)
	if got.Msg != nil || got.code != dns.RcodeServerFailure || got.err == nil || !strings.Contains(got.err.Error(), "out of order") {
		t.Errorf("got %v, %d, %v", got.Msg, got.code, got.err)
	}
	w = newWorld(map[string]said{first: saysData})
	x := newExpander(w)
	for _, when := range []string{"at first", "again"} {
		if code, err := x.ServeDNS(context.Background(), &brokenPipe{}, query(first, dns.TypeA), &podQuestion); code != dns.RcodeServerFailure || !errors.Is(err, errGone) {
			t.Errorf("%s: %d, %v", when, code, err)
		}
	}
	w = newWorld(map[string]said{first: saysREFUSED})
	w.fallback.said = saysREFUSED
	if got := ask(t, newExpander(w), query(first, dns.TypeA), &podQuestion); got.rcode() != dns.RcodeServerFailure {
		t.Errorf("all refuse: %v, %d", got.Msg, got.code)
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

// TestPathsApart asks for the same names by several search lists that begin with the same suffix, in random order,
// while answers are kept: each list has its own.
func TestPathsApart(t *testing.T) {
	random := newRandomWorld(1)
	lists := [][]string{podSuffixes[:3], podSuffixes, {podSuffixes[0], podSuffixes[3]}, podSuffixes[:1], {podSuffixes[0], podSuffixes[2], podSuffixes[1]}}
	bases := []string{"www.", "db.", "a.b."}
	w := &world{facts: map[asked]fact{}, fallback: lasting(saysNXDOMAIN, 5), ability: knowsLists}
	for i, base := range bases {
		for j, suffix := range append(podSuffixes[1:], "") {
			if (i+j)%2 == 0 {
				w.with(base+suffix, dns.TypeA, lasting(saysData, uint32(10*i+j+1)))
			}
		}
	}
	x := newExpander(w, "cluster.test.")
	for i := range 500 {
		list, base := random.IntN(len(lists)), bases[random.IntN(len(bases))]
		q := &Question{Base: base, Suffixes: lists[list], Path: uint32(list + 1)}
		r := query(base+podSuffixes[0], dns.TypeA)
		want := resolve(w, dns.TypeA, namesOf(r.Question[0].Name, q))
		if err := want.check(r, ask(t, x, r, q), 0); err != nil {
			t.Fatalf("question %d, list %d: %v", i, list, err)
		}
		if i == 400 {
			w.asks = nil
		}
	}
	if len(w.asks) > 0 {
		t.Errorf("it asked for what was kept: %v", w.asks)
	}
}

// TestChangeOnTheWay has something change between the looks at two candidates: what came of it is nobody else's.
func TestChangeOnTheWay(t *testing.T) {
	g, other := &generation{}, &generation{}
	for _, tt := range []struct {
		name   string
		second []*generation
		change *generation
		kept   bool
	}{
		{"what both hang on", []*generation{g}, g, false},
		{"what the first hangs on", []*generation{other}, g, false},
		{"what neither hangs on", []*generation{other}, &generation{}, true},
		{"nothing", []*generation{g}, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(nil)
			w.with(first, dns.TypeA, fact{said: saysNXDOMAIN, ttl: 5, bounds: []*generation{g}, change: tt.change})
			w.with(second, dns.TypeA, fact{said: saysData, ttl: 5, bounds: tt.second})
			x := newExpander(w)
			ask(t, x, query(first, dns.TypeA), &podQuestion)
			w.asks = nil
			ask(t, x, query(first, dns.TypeA), &podQuestion)
			if kept := len(w.asks) == 0; kept != tt.kept {
				t.Errorf("kept is %t", kept)
			}
		})
	}
}

// serial is a store.Serial.
type serial int64

func (s *serial) Modified() int64 { return int64(*s) }

// TestSerial asserts that a denial that is kept has the serial number that its zone has when it is given.
func TestSerial(t *testing.T) {
	g, zone, other := &generation{}, serial(7), serial(90)
	x := newExpander(nil)
	x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
		c := answers.PropertiesOf(ctx, r)
		c.Bounds[0], c.Serial = answers.Bound{Generation: g}, &other
		if r.Question[0].Name == first {
			c.Serial = &zone
		}
		return dns.RcodeSuccess, rw.WriteMsg(replyOf(r, r.Question[0].Name, fact{said: saysNXDOMAIN, ttl: 5}))
	})
	ask(t, x, query(first, dns.TypeA), &podQuestion)
	zone = 8
	got := ask(t, x, query(first, dns.TypeA), &podQuestion)
	if soa := got.Ns[0].(*dns.SOA); soa.Serial != 8 {
		t.Errorf("the serial number is %d, want 8", soa.Serial)
	}
}

// TestKeepsPlain asserts that what was found of candidates is kept under their own names where nobody else does.
func TestKeepsPlain(t *testing.T) {
	g := &generation{}
	for _, keeps := range []bool{true, false} {
		w := &world{facts: map[asked]fact{}, fallback: fact{said: saysNXDOMAIN, ttl: 5, bounds: []*generation{g}}}
		w.with(second, dns.TypeA, fact{said: saysNXDOMAIN, ttl: 5, bounds: []*generation{g}, forOne: true})
		w.with(third, dns.TypeA, fact{said: saysNXDOMAIN, ttl: 5, expires: time.Hour})
		x := newExpander(w)
		x.KeepsPlain = keeps
		x.Block.Keyspace.ByGeneration.Store(true)
		ask(t, x, query(first, dns.TypeA), &podQuestion)
		for name, want := range map[string]bool{first: true, second: false, third: false, fourth: true, bareName: true} {
			k := x.key(query(name, dns.TypeA), &Question{})
			if kept := k.fresh() != nil; kept != (want && keeps) {
				t.Errorf("%s is kept: %t, want %t", name, kept, want && keeps)
			}
		}
	}
}

// TestPlain asserts that what is kept as the answer to the question is not kept once more for each search list: the
// fast path gives it from there, and counts for the cache that it was asked.
func TestPlain(t *testing.T) {
	g, cluster := &generation{}, []string{"cluster.test."}
	for _, tt := range []struct {
		name  string
		fact  fact
		knows ability
		keeps bool // KeepsPlain
		want  bool
		zones []string
	}{
		{"a cache keeps it", fact{ttl: 5, expires: time.Hour}, ignoresLists, false, false, nil},
		{"a cache keeps it as long as it does not change", fact{ttl: 5, expires: time.Hour, bounds: []*generation{g}}, ignoresLists, false, false, nil},
		{"a cache keeps it as the answer to a list", fact{ttl: 5, expires: time.Hour}, knowsLists, false, true, cluster},
		{"nobody else keeps it", fact{ttl: 5, bounds: []*generation{g}}, ignoresLists, false, true, nil},
		{"it was kept just now", fact{ttl: 5, bounds: []*generation{g}}, ignoresLists, true, false, nil},
		{"the answer to a list is kept by nobody else", fact{ttl: 5, bounds: []*generation{g}}, knowsLists, true, true, cluster},
		{"a list that was ignored", fact{ttl: 5, bounds: []*generation{g}}, ignoresLists, true, true, cluster},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.fact.said = saysData
			w := newWorld(nil).with(first, dns.TypeA, tt.fact)
			w.ability = tt.knows
			x := newExpander(w, tt.zones...)
			x.KeepsPlain = tt.keeps
			x.Block.Keyspace.ByGeneration.Store(true)
			r := query(first, dns.TypeA)
			ask(t, x, r, &podQuestion)
			if kept := x.key(r, &podQuestion).fresh() != nil; kept != tt.want {
				t.Errorf("it is kept for the list: %t", kept)
			}
			if kept := x.key(r, &Question{}).fresh() != nil; kept != (tt.keeps && tt.zones == nil) {
				t.Errorf("it is kept for all by the expander: %t", kept)
			}
		})
	}
}

// TestServers asserts that an answer is counted for the server that gives it: a server block may have several.
func TestServers(t *testing.T) {
	w := newWorld(map[string]said{bareName: saysData})
	x := newExpander(w)
	expansions := func(server string) float64 {
		return testutil.ToFloat64(results.expansions.WithLabelValues(server, "success", "bare"))
	}
	saved := func(server string) float64 { return testutil.ToFloat64(results.saved.WithLabelValues(server)) }
	const one, two = "dns://one", "dns://two"
	before := map[string][2]float64{one: {expansions(one), saved(one)}, two: {expansions(two), saved(two)}}
	for _, address := range []string{one, two, one} {
		ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: address})
		askIn(t, ctx, x, query(first, dns.TypeA), &podQuestion)
	}
	for server, want := range map[string]float64{one: 2, two: 1} {
		if n := expansions(server) - before[server][0]; n != want {
			t.Errorf("%v answers of %s, want %v", n, server, want)
		}
		if n := saved(server) - before[server][1]; n != 4*want {
			t.Errorf("%v queries are saved by %s, want %v", n, server, 4*want)
		}
	}
}

// TestFirst asserts that what counts an answer for the first name counts what an expansion to it would.
func TestFirst(t *testing.T) {
	x := newExpander(newWorld(map[string]said{first: saysData}))
	before := results.snapshot()
	ask(t, x, query(first, dns.TypeA), &podQuestion)
	expanded := results.since(before)
	before = results.snapshot()
	results.First("").Inc()
	if given := results.since(before); fmt.Sprint(given) != fmt.Sprint(expanded) || len(given) != 1 {
		t.Errorf("given %v, expanded %v", given, expanded)
	}
}

// TestConcurrent has many ask for the same and other names while what the answers hang on changes.
func TestConcurrent(t *testing.T) {
	const askers, questions = 8, 200
	g := &generation{}
	x := newExpander(nil)
	x.Next = plugin.HandlerFunc(func(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
		c := answers.PropertiesOf(ctx, r)
		c.Bounds[0] = answers.Bound{Generation: g, Number: g.Load()}
		f := fact{said: saysNXDOMAIN, ttl: uint32(c.Bounds[0].Number) + 1}
		if dns.CountLabel(r.Question[0].Name) == 1 {
			f.said = saysData
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
				if _, e := x.ServeDNS(context.Background(), w, query(base+podSuffixes[0], dns.TypeA), &Question{Base: base, Suffixes: podSuffixes, Path: 1}); e != nil {
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
