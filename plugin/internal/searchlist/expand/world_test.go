package expand

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// said is what a server says of a name and a type.
type said int

const (
	saysNXDOMAIN said = iota
	saysNODATA
	saysData
	saysTruncated
	saysSERVFAIL
	returnsSERVFAIL // and writes nothing
	saysREFUSED
	returnsREFUSED // and writes nothing
	saysNothing
	returnsError
)

func (s said) String() string {
	return [...]string{"NXDOMAIN", "NODATA", "data", "truncated", "SERVFAIL", "returned SERVFAIL", "REFUSED", "returned REFUSED", "nothing", "an error"}[s]
}

// sure reports whether a server that knows search lists goes on from there by itself.
func (s said) sure() bool { return s <= saysData }

// fact is what is so of a name and a type.
type fact struct {
	said
	ttl     uint32 // in seconds
	bounds  []*generation
	expires time.Duration // from when it is asked for until no cache behind keeps it; 0 if none does
	forOne  bool
	change  *generation // advances when it is asked for, after it was looked at
	ede     bool        // the reply has an extended error
}

func (f fact) String() string {
	s := fmt.Sprintf("%v TTL %d %v expires %v", f.said, f.ttl, f.bounds, f.expires)
	if f.forOne {
		s += ", for one"
	}
	if f.change != nil {
		s += fmt.Sprint(", changes ", f.change)
	}
	return s
}

type asked struct {
	name  string // in lower case
	qtype uint16
}

// generation is a store.Generation.
type generation struct {
	atomic.Uint64
	name string
}

func (g *generation) String() string { return g.name }

// ability is what a server makes of a search list.
type ability int

const (
	ignoresLists ability = iota
	knowsLists
	saysTwo      // is the answer's suffix
	saysGarbage  // in the option
	saysTwoTimes // has the option twice
	abilities
)

// world is a plugin that answers from facts. What no fact is about does not exist.
type world struct {
	facts    map[asked]fact
	fallback fact // of what no fact is about
	ability  ability

	asks []asked // in order; those of a list by their first name
	seen []seen
}

// seen is what a reply told of how long it is so.
type seen struct {
	conditions answers.Properties
	forOne     bool
	said       said
	list       bool // the reply was that to a list
}

func (w *world) Name() string { return "world" }

func (w *world) of(name string, qtype uint16) fact {
	if f, ok := w.facts[asked{strings.ToLower(name), qtype}]; ok {
		return f
	}
	return w.fallback
}

func (w *world) ServeDNS(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
	q := r.Question[0]
	w.asks = append(w.asks, asked{strings.ToLower(q.Name), q.Qtype})
	if data, ok := searchlist.OptionOf(r); ok {
		switch w.ability {
		case knowsLists:
			if m := w.try(ctx, r, data); m != nil {
				return dns.RcodeSuccess, rw.WriteMsg(m)
			}
		case saysTwo:
			two, _ := searchlist.AppendSuffixes(nil, []string{"one.test.", "two.test."})
			return w.answer(ctx, withOption{rw, [][]byte{two}}, r)
		case saysGarbage:
			return w.answer(ctx, withOption{rw, [][]byte{[]byte("\x07no")}}, r)
		case saysTwoTimes:
			return w.answer(ctx, withOption{rw, [][]byte{{}, {}}}, r)
		}
	}
	return w.answer(ctx, rw, r)
}

// withOption adds options of package search to what is written.
type withOption struct {
	dns.ResponseWriter
	data [][]byte
}

func (w withOption) WriteMsg(m *dns.Msg) error {
	for i, data := range w.data {
		m = searchlist.WithOption(m, data)
		if i > 0 {
			opt := m.IsEdns0()
			opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: searchlist.OptionCode, Data: data})
		}
	}
	return w.ResponseWriter.WriteMsg(m)
}

// answer answers a query for one name.
func (w *world) answer(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
	f := w.of(r.Question[0].Name, r.Question[0].Qtype)
	w.tell(ctx, r, f)
	m := replyOf(r, r.Question[0].Name, f)
	switch f.said {
	case returnsSERVFAIL:
		return dns.RcodeServerFailure, nil
	case returnsREFUSED:
		return dns.RcodeRefused, nil
	case returnsError:
		return dns.RcodeServerFailure, errors.New("out of order")
	case saysNothing:
		return dns.RcodeSuccess, nil
	}
	return dns.RcodeSuccess, rw.WriteMsg(m)
}

// tell tells what the answer hangs on that follows from facts.
func (w *world) tell(ctx context.Context, r *dns.Msg, facts ...fact) {
	s := seen{said: facts[0].said}
	n, kept := 0, true
	for i, f := range facts {
		for _, g := range f.bounds {
			b := answers.Bound{Generation: g, Number: g.Load()}
			switch {
			case slices.Contains(s.conditions.Bounds[:n], b):
			case n == answers.MaxBounds:
				kept = false
			default:
				s.conditions.Bounds[n] = b
				n++
			}
		}
		if f.expires > 0 {
			if until := answers.Now() + f.expires; s.conditions.Expires == 0 || until < s.conditions.Expires {
				s.conditions.Expires = until
			}
		}
		kept = kept && (f.expires > 0 || len(f.bounds) > 0)
		if f.forOne {
			s.forOne = true
			if i%2 == 0 {
				answers.MarkPrivate(ctx)
			} else {
				s.conditions.View.Private = true
			}
		}
		if f.change != nil {
			f.change.Add(1)
		}
	}
	if !kept {
		s.conditions = answers.Properties{View: s.conditions.View}
	}
	w.seen = append(w.seen, s)
	if c := answers.PropertiesOf(ctx, r); c != nil {
		*c = s.conditions
	}
}

// try answers a query with a search list, or returns nil if it can't say what the answer is.
func (w *world) try(ctx context.Context, r *dns.Msg, data []byte) *dns.Msg {
	suffixes, ok := searchlist.ParseSuffixes(data)
	q := r.Question[0]
	if !ok || len(suffixes) == 0 || !strings.HasSuffix(strings.ToLower(q.Name), "."+suffixes[0]) {
		panic(fmt.Sprintf("a wrong list was sent: %q for %s", data, q.Name))
	}
	base := q.Name[:len(q.Name)-len(suffixes[0])]
	var facts []fact
	var empty *fact
	for i, suffix := range suffixes {
		name := base + suffix
		if i == 0 {
			name = q.Name
		}
		f := w.of(name, q.Qtype)
		facts = append(facts, f)
		if !f.sure() || f.ede {
			return nil
		}
		wins := f.said == saysData
		if other := otherFamily(q.Qtype); f.said == saysNODATA && other != 0 {
			sibling := w.of(name, other)
			facts = append(facts, sibling)
			if !sibling.sure() {
				return nil
			}
			wins = sibling.said == saysData
		}
		if wins {
			w.tell(ctx, r, facts...)
			won, _ := searchlist.AppendSuffixes(nil, []string{suffix})
			w.seen[len(w.seen)-1].list = true
			m := replyOf(r, name, f)
			if len(m.Answer) > 0 && name != q.Name {
				m.Answer = append([]dns.RR{alias(q.Name, name, m.Answer[0].Header().Ttl)}, m.Answer...)
			}
			return searchlist.WithOption(m, won)
		}
		if f.said == saysNODATA && empty == nil {
			empty = &f
			empty.change = nil
		}
	}
	w.tell(ctx, r, facts...)
	none := facts[0]
	if empty != nil {
		none = *empty
	}
	return searchlist.WithOption(replyOf(r, q.Name, none), []byte{})
}

func alias(name, target string, ttl uint32) dns.RR {
	return &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: ttl}, Target: target}
}

func otherFamily(qtype uint16) uint16 {
	switch qtype {
	case dns.TypeA:
		return dns.TypeAAAA
	case dns.TypeAAAA:
		return dns.TypeA
	}
	return 0
}

// replyOf returns the reply for a name that follows from a fact. The SOA record of a denial tells the TTL of the
// fact, by which facts are told apart.
func replyOf(r *dns.Msg, name string, f fact) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	switch f.said {
	case saysData:
		m.Answer = recordsOf(name, r.Question[0].Qtype, f.ttl)
	case saysTruncated:
		m.Answer, m.Truncated = recordsOf(name, r.Question[0].Qtype, f.ttl)[:f.ttl%2], true // with a record, or none
	case saysNXDOMAIN, saysNODATA:
		m.Ns = []dns.RR{soaOf(f.ttl)}
		if f.said == saysNXDOMAIN {
			m.Rcode = dns.RcodeNameError
		}
	case saysSERVFAIL, returnsSERVFAIL:
		m.Rcode = dns.RcodeServerFailure
	case saysREFUSED:
		m.Rcode = dns.RcodeRefused
	}
	if f.ede {
		m.Extra = append(m.Extra, &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: []dns.EDNS0{
			&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeOther, ExtraText: "why"},
			&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"},
		}})
	}
	return m
}

func soaOf(ttl uint32) dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: "zone.test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.zone.test.", Mbox: "hostmaster.zone.test.", Serial: 1, Refresh: 1, Retry: 1, Expire: 1, Minttl: ttl,
	}
}

// recordsOf returns two records, of data that no other name has.
func recordsOf(name string, qtype uint16, ttl uint32) (all []dns.RR) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.ToLower(name)))
	sum := h.Sum(nil)
	for i := range byte(2) {
		header := dns.RR_Header{Name: name, Rrtype: qtype, Class: dns.ClassINET, Ttl: ttl + uint32(i)}
		ip := append(net.IP{10, i}, sum[2:4]...)
		switch qtype {
		case dns.TypeA:
			all = append(all, &dns.A{Hdr: header, A: ip})
		case dns.TypeAAAA:
			all = append(all, &dns.AAAA{Hdr: header, AAAA: append(net.IP{0xfd, i, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, sum...)})
		default:
			header.Rrtype = dns.TypeTXT
			all = append(all, &dns.TXT{Hdr: header, Txt: []string{fmt.Sprintf("%d %x", i, sum)}})
		}
	}
	return all
}

// results are those of all tests; what they count is compared with what it was before.
var results = NewResults("expand_test")

// newExpander returns an Expander with nothing behind it but a world.
func newExpander(w *world, zones ...string) *Expander {
	return &Expander{Plugin: "test", Next: w, Block: &block.Block{Keyspace: answers.Shared.NewKeyspace()}, Zones: zones, Results: results}
}

// answered is what came of a query.
type answered struct {
	*dns.Msg // nil if nothing was written
	code     int
	err      error
}

// rcode returns the response code that the client gets.
func (a answered) rcode() int {
	if a.Msg == nil {
		return a.code
	}
	return a.Rcode
}

// ask has a query expanded.
func ask(t *testing.T, x *Expander, r *dns.Msg, q *Question) answered {
	t.Helper()
	return askIn(t, context.Background(), x, r, q)
}

func askIn(t *testing.T, ctx context.Context, x *Expander, r *dns.Msg, q *Question) answered {
	t.Helper()
	before := r.String()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	code, err := x.ServeDNS(ctx, w, r, q)
	if after := r.String(); after != before {
		t.Fatalf("the query was changed: it was\n%s\nand is\n%s", before, after)
	}
	return answered{w.Msg, code, err}
}

func query(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }
