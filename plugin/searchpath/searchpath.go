// Package searchpath answers search names: names that carry a search path, so that a resolver with one search entry needs
// one query where it would otherwise query several names. Input is queries for names under a suffix; output is the names
// to try, for package expand, which returns the answer. Other names under the suffix are answered here. The answer does
// not depend on the client. It imports no other plugin.
package searchpath

import (
	"context"
	"fmt"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// SearchPath is the plugin's handler for one server block.
type SearchPath struct {
	expand.Expander

	grammar grammar
	host    []string // search list of the host, after that of the schema: fully qualified, in lower case
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
	name, kind := s.grammar.parse(question.Name)
	switch {
	case kind == search && r.IsTsig() != nil:
		return dns.RcodeRefused, nil // the signature is for this name only
	case kind == search && question.Qtype == dns.TypeDS:
		kind = empty // a name of this zone is not a delegation, RFC 4035 section 3.1.4.1
	case kind == search && expand.Nested(ctx):
		rejected.WithLabelValues(metrics.WithServer(ctx), "nested").Inc()
		kind = invalid
	case kind == search:
		if ok, code, err := s.Resume(ctx, w, r); ok {
			return code, err
		}
		return s.Expander.ServeDNS(ctx, w, searchlist.WithoutOption(r), s.question(name))
	case kind == invalid:
		rejected.WithLabelValues(metrics.WithServer(ctx), "name").Inc()
	case kind == unknownSchema:
		rejected.WithLabelValues(metrics.WithServer(ctx), "schema").Inc()
	}
	if err := w.WriteMsg(s.reply(r, name, kind)); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// question returns the base and the search list of a search name.
func (s *SearchPath) question(n searchName) *expand.Question {
	suffixes := s.grammar.schema(n.schema).suffixes(n.namespace, n.zone)
	return &expand.Question{Base: n.base, Suffixes: append(suffixes, s.host...)}
}

// The suffix is a zone that no other server has, with the records of RFC 6303 section 3, but a lower TTL: a name that
// does not exist may exist soon, after an upgrade or with another Corefile.
const (
	ttl          = 30 // of records and of denials, in seconds
	mailbox      = "nobody.invalid."
	serial       = 1
	refreshEvery = 3600   // seconds
	retryEvery   = 1200   // seconds
	expireAfter  = 604800 // seconds
)

// reply returns the reply to a query for a name of any other kind than search.
func (s *SearchPath) reply(r *dns.Msg, n searchName, kind nameKind) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	question := r.Question[0]
	header := dns.RR_Header{Name: question.Name[len(question.Name)-len(s.grammar.suffix):], Class: dns.ClassINET, Ttl: ttl}
	soa := &dns.SOA{
		Hdr: header, Ns: s.grammar.suffix, Mbox: mailbox,
		Serial: serial, Refresh: refreshEvery, Retry: retryEvery, Expire: expireAfter, Minttl: ttl,
	}
	soa.Hdr.Rrtype = dns.TypeSOA
	switch {
	case kind == invalid:
		m.Rcode = dns.RcodeNameError
	case kind == unknownSchema:
		m.Rcode = dns.RcodeNameError
		s.addError(r, m, n)
	case kind == apex && question.Qtype == dns.TypeSOA:
		m.Answer = []dns.RR{soa}
		return m
	case kind == apex && question.Qtype == dns.TypeNS:
		header.Rrtype = dns.TypeNS
		m.Answer = []dns.RR{&dns.NS{Hdr: header, Ns: s.grammar.suffix}}
		return m
	}
	m.Ns = []dns.RR{soa}
	return m
}

// addError adds the extended error (RFC 8914) Not Supported for an unknown version, if the query has EDNS. The server
// completes the OPT record.
func (s *SearchPath) addError(r, m *dns.Msg, n searchName) {
	if r.IsEdns0() == nil {
		return
	}
	text := fmt.Sprintf("unknown search path version %q: want %s", n.schema, versions(s.grammar.schemas))
	m.Extra = []dns.RR{&dns.OPT{
		Hdr:    dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT},
		Option: []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNotSupported, ExtraText: text}},
	}}
}
