// Package searchpath answers names that carry their search path: a resolver with one search entry gets by one query
// what it would otherwise have to look for under several names. In go queries for names under a suffix; out come
// the questions that they stand for, to package expand, which finds the answer. What is under the suffix and is no
// such name is answered here. It knows nothing of who asks.
package searchpath

import (
	"cmp"
	"context"
	"fmt"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// expander finds the answer to a name that stands for several. It is an expand.Expander.
type expander interface {
	ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, q *expand.Question) (int, error)
}

// SearchPath is the plugin's handler for one server block.
type SearchPath struct {
	Next plugin.Handler

	grammar  grammar
	host     []string // search list of the host, behind that of the schema: fully qualified, in lower case
	expander expander
}

// Name implements plugin.Handler.
func (s *SearchPath) Name() string { return pluginName }

// ServeDNS implements plugin.Handler.
func (s *SearchPath) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) != 1 {
		return dns.RcodeFormatError, nil
	}
	question := r.Question[0]
	if r.Opcode != dns.OpcodeQuery || question.Qclass != dns.ClassINET || !s.grammar.contains(question.Name) {
		return plugin.NextOrFailure(pluginName, s.Next, ctx, w, r)
	}
	if question.Qtype == dns.TypeAXFR || question.Qtype == dns.TypeIXFR {
		return dns.RcodeRefused, nil
	}
	name, what := s.grammar.parse(question.Name)
	switch {
	case what == lookup && r.IsTsig() != nil:
		return dns.RcodeRefused, nil // it is signed for the one name
	case what == lookup && question.Qtype == dns.TypeDS:
		what = above // a name of this zone is no delegation, RFC 4035 section 3.1.4.1
	case what == lookup && expand.Nested(ctx):
		rejected.WithLabelValues(metrics.WithServer(ctx), "nested").Inc()
		what = foreign
	case what == lookup:
		return s.expander.ServeDNS(ctx, w, searchlist.WithoutOption(r), s.question(name))
	case what == foreign:
		rejected.WithLabelValues(metrics.WithServer(ctx), "name").Inc()
	case what == unknownSchema:
		rejected.WithLabelValues(metrics.WithServer(ctx), "schema").Inc()
	}
	if err := w.WriteMsg(s.reply(r, name, what)); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// question returns what a search name stands for.
func (s *SearchPath) question(n searchName) *expand.Question {
	suffixes := s.grammar.schema(n.schema).suffixes(n.namespace, n.zone)
	return &expand.Question{Base: n.base, Suffixes: append(suffixes, s.host...)}
}

// What the suffix is as a zone. No other server has it, so that it is one of those of RFC 6303, and has the records
// that section 3 there gives them; but what is denied may be known soon, after an upgrade or with another Corefile.
const (
	ttl          = 30 // of records and of denials, in seconds
	mailbox      = "nobody.invalid."
	serial       = 1
	refreshEvery = 3600   // seconds, as those that follow
	retryEvery   = 1200   //
	expireAfter  = 604800 //
)

// reply returns the reply to a name that is no search name.
func (s *SearchPath) reply(r *dns.Msg, n searchName, what meaning) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	asked := r.Question[0].Name
	header := dns.RR_Header{Name: asked[len(asked)-len(s.grammar.suffix):], Class: dns.ClassINET, Ttl: ttl}
	soa := &dns.SOA{
		Hdr: header, Ns: s.grammar.suffix, Mbox: mailbox,
		Serial: serial, Refresh: refreshEvery, Retry: retryEvery, Expire: expireAfter, Minttl: ttl,
	}
	soa.Hdr.Rrtype = dns.TypeSOA
	switch qtype := r.Question[0].Qtype; {
	case what == foreign:
		m.Rcode = dns.RcodeNameError
	case what == unknownSchema:
		m.Rcode = dns.RcodeNameError
		s.explain(r, m, n)
	case what == apex && qtype == dns.TypeSOA:
		m.Answer = []dns.RR{soa}
		return m
	case what == apex && qtype == dns.TypeNS:
		header.Rrtype = dns.TypeNS
		m.Answer = []dns.RR{&dns.NS{Hdr: header, Ns: s.grammar.suffix}}
		return m
	}
	m.Ns = []dns.RR{soa}
	return m
}

// explain tells a client that understands EDNS why a name does not exist: by the extended error (RFC 8914) Not
// Supported. The server fills in the rest of the OPT record.
func (s *SearchPath) explain(r, m *dns.Msg, n searchName) {
	if r.IsEdns0() == nil {
		return
	}
	text := fmt.Sprintf("search path %s is not known, but %s", cmp.Or(n.schema, "without version"), known(s.grammar.schemas))
	m.Extra = []dns.RR{&dns.OPT{
		Hdr:    dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT},
		Option: []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNotSupported, ExtraText: text}},
	}}
}
