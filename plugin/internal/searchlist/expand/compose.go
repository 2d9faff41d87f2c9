package expand

import (
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// compose returns the reply to a client's query, of which only the header and the question are used. It does not change
// the plugin's reply, whose records may be shared.
func compose(r *dns.Msg, out *outcome) *dns.Msg {
	question := r.Question[0]
	m := *out.reply.message()
	m.Id, m.RecursionDesired, m.CheckingDisabled = r.Id, r.RecursionDesired, r.CheckingDisabled
	if out.result == failure || len(m.Question) != 1 || m.Question[0] != question {
		m.AuthenticatedData = false // no signature covers the question's name
	}
	m.Question = []dns.Question{question}
	m.Extra = slices.DeleteFunc(slices.Clone(m.Extra), isOPT)
	if out.result == failure {
		m.SetRcode(r, dns.RcodeServerFailure)
		m.Answer, m.Ns, m.Extra = nil, nil, nil
		return &m
	}
	if out.waits {
		m.Ns = expired(m.Ns)
	}
	switch {
	case len(m.Answer) == 0 || out.owner == question.Name:
	case out.owner == "": // a dangling alias; an alias of another candidate is dropped
		if !strings.EqualFold(m.Answer[0].Header().Name, question.Name) {
			m.Answer = nil
		}
	default:
		alias := &dns.CNAME{
			Hdr:    dns.RR_Header{Name: question.Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: out.aliasTTL(m.Answer[0].Header().Ttl)},
			Target: out.owner,
		}
		m.Answer = append([]dns.RR{alias}, m.Answer...)
	}
	return &m
}

// expired returns the authority section of a negative answer that no cache stores, RFC 2308 section 5.
func expired(authority []dns.RR) []dns.RR {
	all := slices.Clone(authority)
	for i, rr := range all {
		if soa, ok := rr.(*dns.SOA); ok {
			own := *soa
			own.Hdr.Ttl, own.Minttl = 0, 0
			all[i] = &own
		}
	}
	return all
}

// aliasTTL returns the TTL of an alias to a record with a TTL, in seconds: a name that does not exist now may exist before
// the record expires.
func (out *outcome) aliasTTL(record uint32) uint32 {
	if out.validity.Ended() {
		return record
	}
	if out.vouched > 0 {
		record = min(record, seconds(out.vouched))
	}
	if out.limit == 0 {
		return record
	}
	return min(record, seconds(max(0, out.limit-answers.Now())))
}

// seconds returns a time in seconds, rounded up.
func seconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second) // #nosec G115 -- a TTL, or less
}

func isOPT(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }

// addErrors copies the extended errors of a candidate's reply to the reply to a client with EDNS.
func addErrors(r, m, candidate *dns.Msg) {
	if errors := errorsOf(candidate); len(errors) > 0 && r.IsEdns0() != nil {
		m.Extra = append(m.Extra, &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: errors})
	}
}

// errorsOf returns the extended errors (RFC 8914) of a reply.
func errorsOf(m *dns.Msg) (errors []dns.EDNS0) {
	opt := m.IsEdns0()
	if opt == nil {
		return nil
	}
	for _, o := range opt.Option {
		if o.Option() == dns.EDNS0EDE {
			errors = append(errors, o)
		}
	}
	return errors
}
