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

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// replyKind is the kind of reply of a backend to a query for a name and a type.
type replyKind int

const (
	replyNXDOMAIN replyKind = iota
	replyNODATA
	replyData
	replyTruncated
	replySERVFAIL
	returnSERVFAIL // return code without a reply
	replyREFUSED
	returnREFUSED // return code without a reply
	noReply
	returnError
)

func (s replyKind) String() string {
	return [...]string{"NXDOMAIN", "NODATA", "data", "truncated", "SERVFAIL", "returned SERVFAIL", "REFUSED", "returned REFUSED", "nothing", "an error"}[s]
}

// continues reports whether a server that supports search lists handles this reply: it is data, or the server tries the next
// candidate.
func (s replyKind) continues() bool { return s <= replyData }

// fact is the reply of a backend to a query for a name and a type.
type fact struct {
	replyKind
	ttl     uint32 // in seconds
	bounds  []*generation
	expires time.Duration // how long the cache after the Expander stores the reply; 0 if none does
	private bool
	change  *generation // advances after the reply was made
	ede     bool        // the reply has an extended error
}

func (f fact) String() string {
	s := fmt.Sprintf("%v TTL %d %v expires %v", f.replyKind, f.ttl, f.bounds, f.expires)
	if f.private {
		s += ", private"
	}
	if f.change != nil {
		s += fmt.Sprint(", changes ", f.change)
	}
	return s
}

// lookup is a queried name and type.
type lookup struct {
	name  string // lower case
	qtype uint16
}

// generation is an validity.Generation with a name.
type generation struct {
	atomic.Uint64
	name string
}

func (g *generation) String() string { return g.name }

// ability is the reaction of a server to a search list.
type ability int

const (
	ignoresLists ability = iota
	supportsLists
	repliesTwoSuffixes // an option with two suffixes
	repliesGarbage     // an option with invalid data
	repliesTwoOptions  // the option twice
	abilities
)

// backend is a plugin that answers from facts.
type backend struct {
	facts    map[lookup]fact
	fallback fact // for names and types without a fact
	ability  ability
	// followsEDNS is set if the backend sends extended errors only in reply to queries with EDNS, as plugin cache does.
	followsEDNS bool
	// authenticated is set if the backend authenticates its replies, for clients with AD or DO as plugin cache does.
	authenticated bool

	queries []lookup // in order; for a search list, the first name
	replies []observed
}

// observed has the properties of a reply of the backend.
type observed struct {
	properties store.Properties
	private    bool
	replyKind  replyKind
	list       bool // the reply is for a search list
}

func (w *backend) Name() string { return "backend" }

func (w *backend) factOf(name string, qtype uint16) fact {
	if f, ok := w.facts[lookup{strings.ToLower(name), qtype}]; ok {
		return f
	}
	return w.fallback
}

func (w *backend) ServeDNS(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
	q := r.Question[0]
	w.queries = append(w.queries, lookup{strings.ToLower(q.Name), q.Qtype})
	if data, ok := searchlist.OptionOf(r); ok {
		switch w.ability {
		case supportsLists:
			if m := w.search(ctx, r, data); m != nil {
				return dns.RcodeSuccess, rw.WriteMsg(m)
			}
		case repliesTwoSuffixes:
			two, _ := searchlist.AppendSuffixes(nil, []string{"one.test.", "two.test."})
			return w.answer(ctx, withOption{rw, [][]byte{two}}, r)
		case repliesGarbage:
			return w.answer(ctx, withOption{rw, [][]byte{[]byte("\x07no")}}, r)
		case repliesTwoOptions:
			return w.answer(ctx, withOption{rw, [][]byte{{}, {}}}, r)
		}
	}
	return w.answer(ctx, rw, r)
}

// withOption adds search lists to the reply.
type withOption struct {
	dns.ResponseWriter
	data [][]byte
}

func (w withOption) WriteMsg(m *dns.Msg) error {
	for i, data := range w.data {
		m = searchlist.WithOption(m, data)
		if i > 0 {
			opt := m.IsEdns0()
			opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: data})
		}
	}
	return w.ResponseWriter.WriteMsg(m)
}

// answer answers a query for one name.
func (w *backend) answer(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
	f := w.factOf(r.Question[0].Name, r.Question[0].Qtype)
	f.ede = f.ede && !(w.followsEDNS && r.IsEdns0() == nil)
	w.recordProperties(ctx, r, f)
	m := w.replyOf(r, r.Question[0].Name, f)
	switch f.replyKind {
	case returnSERVFAIL:
		return dns.RcodeServerFailure, nil
	case returnREFUSED:
		return dns.RcodeRefused, nil
	case returnError:
		return dns.RcodeServerFailure, errors.New("out of order")
	case noReply:
		return dns.RcodeSuccess, nil
	}
	return dns.RcodeSuccess, rw.WriteMsg(m)
}

// recordProperties sets the properties of a reply that follows from facts.
func (w *backend) recordProperties(ctx context.Context, r *dns.Msg, facts ...fact) {
	s := observed{replyKind: facts[0].replyKind}
	n, stored := 0, true
	for i, f := range facts {
		for _, g := range f.bounds {
			b := validity.Bound{Generation: g, Number: g.Load()}
			switch {
			case slices.Contains(s.properties.Bounds[:n], b):
			case n == validity.MaxBounds:
				stored = false
			default:
				s.properties.Bounds[n] = b
				n++
			}
		}
		if f.expires > 0 {
			if until := validity.Now() + f.expires; s.properties.Expires == 0 || until < s.properties.Expires {
				s.properties.Expires = until
			}
		}
		stored = stored && (f.expires > 0 || len(f.bounds) > 0)
		if f.private {
			s.private = true
			if i%2 == 0 {
				store.MarkPrivate(ctx)
			} else {
				s.properties.View.Private = true
			}
		}
		if f.change != nil {
			f.change.Add(1)
		}
	}
	if !stored {
		s.properties = store.Properties{View: s.properties.View}
	}
	w.replies = append(w.replies, s)
	if c := store.PropertiesOf(ctx, r); c != nil {
		*c = s.properties
	}
}

// search answers a query with a search list. It returns nil if a candidate before the first one with data has failed.
func (w *backend) search(ctx context.Context, r *dns.Msg, data []byte) *dns.Msg {
	suffixes, ok := searchlist.ParseSuffixes(data)
	q := r.Question[0]
	if !ok || len(suffixes) == 0 || !strings.HasSuffix(strings.ToLower(q.Name), "."+suffixes[0]) {
		panic(fmt.Sprintf("wrong search list in a query: %q for %s", data, q.Name))
	}
	base := q.Name[:len(q.Name)-len(suffixes[0])]
	var facts []fact
	var empty *fact
	for i, suffix := range suffixes {
		name := base + suffix
		if i == 0 {
			name = q.Name
		}
		f := w.factOf(name, q.Qtype)
		facts = append(facts, f)
		if !f.continues() || f.ede {
			return nil
		}
		wins := f.replyKind == replyData
		if other := otherFamily(q.Qtype); f.replyKind == replyNODATA && other != 0 {
			sibling := w.factOf(name, other)
			facts = append(facts, sibling)
			if !sibling.continues() {
				return nil
			}
			wins = sibling.replyKind == replyData
		}
		if wins {
			w.recordProperties(ctx, r, facts...)
			won, _ := searchlist.AppendSuffixes(nil, []string{suffix})
			w.replies[len(w.replies)-1].list = true
			m := w.replyOf(r, name, f)
			if len(m.Answer) > 0 && name != q.Name {
				m.Answer = append([]dns.RR{alias(q.Name, name, m.Answer[0].Header().Ttl)}, m.Answer...)
			}
			return searchlist.WithOption(m, won)
		}
		if f.replyKind == replyNODATA && empty == nil {
			empty = &f
			empty.change = nil
		}
	}
	w.recordProperties(ctx, r, facts...)
	none := facts[0]
	if empty != nil {
		none = *empty
	}
	return searchlist.WithOption(w.replyOf(r, q.Name, none), []byte{})
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

// replyOf is the function replyOf, with AD.
func (w *backend) replyOf(r *dns.Msg, name string, f fact) *dns.Msg {
	m := replyOf(r, name, f)
	m.AuthenticatedData = w.authenticated && (r.AuthenticatedData || r.IsEdns0() != nil && r.IsEdns0().Do())
	return m
}

// replyOf returns the reply for a name by its fact. The SOA record of a denial has the fact's TTL, which identifies the
// fact.
func replyOf(r *dns.Msg, name string, f fact) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	switch f.replyKind {
	case replyData:
		m.Answer = recordsOf(name, r.Question[0].Qtype, f.ttl)
	case replyTruncated:
		m.Answer, m.Truncated = recordsOf(name, r.Question[0].Qtype, f.ttl)[:f.ttl%2], true // one record, or none
	case replyNXDOMAIN, replyNODATA:
		m.Ns = []dns.RR{soaOf(f.ttl)}
		if f.replyKind == replyNXDOMAIN {
			m.Rcode = dns.RcodeNameError
		}
	case replySERVFAIL, returnSERVFAIL:
		m.Rcode = dns.RcodeServerFailure
	case replyREFUSED:
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

// recordsOf returns two records. Each name has different data.
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

// testMetrics are the counters of all tests, which compare counts before and after.
var testMetrics = NewMetrics("expand_test")

// newExpander returns an Expander with a backend as the next plugin.
func newExpander(w *backend, zones ...string) *Expander {
	return &Expander{Plugin: "test", Next: w, Block: &block.Block{Keyspace: store.Shared.NewKeyspace()}, Zones: zones, Metrics: testMetrics}
}

// response is the result of Expander.ServeDNS.
type response struct {
	*dns.Msg // nil without a reply
	code     int
	err      error
}

// rcode returns the response code that the client gets.
func (a response) rcode() int {
	if a.Msg == nil {
		return a.code
	}
	return a.Rcode
}

// send expands a query.
func send(t *testing.T, x *Expander, r *dns.Msg, q *Question) response {
	t.Helper()
	return sendIn(t, context.Background(), x, r, q)
}

func sendIn(t *testing.T, ctx context.Context, x *Expander, r *dns.Msg, q *Question) response {
	t.Helper()
	before := r.String()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	code, err := x.ServeDNS(ctx, w, r, q)
	if after := r.String(); after != before {
		t.Fatalf("the query was changed from\n%s\nto\n%s", before, after)
	}
	return response{w.Msg, code, err}
}

func query(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }
