package cache

import (
	"strings"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// maxAliases is the maximum length of a chain of aliases. Resolvers follow fewer.
const maxAliases = 64

// classify returns the class of a reply to one question. A SOA record beside data that does not answer the question means
// that a chain of aliases ends in a name without the type: NODATA, RFC 2308 section 2.2.
func (c *Cache) classify(m *dns.Msg) response.Type {
	class, _ := response.Typify(m, c.wall().UTC())
	if class == response.OtherError && m.Rcode == dns.RcodeNameError && len(m.Question) == 1 {
		// the alias of a nonexistent name, RFC 2308 section 2.1
		if target, ok := aliasOf(m.Answer, m.Question[0].Name, m.Question[0].Qclass); ok && target != "" {
			return response.NameError
		}
	}
	if class == response.NoError && len(m.Answer) > 0 && soaOf(m) != nil && !answersQuestion(m) {
		return response.NoData
	}
	return class
}

// cacheable reports whether a reply of a class may be cached.
func cacheable(m *dns.Msg, class response.Type) bool {
	if m.Truncated {
		return false
	}
	switch class {
	case response.NameError:
		return soaOf(m) != nil // RFC 2308 section 5
	case response.NoError:
		return len(m.Answer) == 0 || answersQuestion(m)
	case response.NoData, response.Delegation, response.ServerError:
		return true
	}
	return false
}

// kindOf returns the kind of a class, for options and metrics.
func kindOf(class response.Type) answers.Kind {
	switch class {
	case response.NameError, response.NoData, response.ServerError:
		return answers.Denial
	}
	return answers.Success
}

func soaOf(m *dns.Msg) *dns.SOA {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa
		}
	}
	return nil
}

// answersQuestion reports whether a reply has data of the question's type, at the end of the chain of aliases.
func answersQuestion(m *dns.Msg) bool {
	if m.Rcode != dns.RcodeSuccess || len(m.Question) != 1 {
		return false
	}
	q := m.Question[0]
	switch q.Qtype {
	case dns.TypeANY:
		return hasData(m.Answer, q.Name, q.Qtype, q.Qclass)
	case dns.TypeCNAME:
		target, ok := aliasOf(m.Answer, q.Name, q.Qclass)
		return ok && target != ""
	}
	name := q.Name
	for range maxAliases {
		target, ok := aliasOf(m.Answer, name, q.Qclass)
		if !ok {
			return false
		}
		if target == "" {
			return hasData(m.Answer, name, q.Qtype, q.Qclass)
		}
		name = target
	}
	return false // a loop, RFC 1034 section 3.6.2
}

// aliasOf returns the target of a name's alias, "" without an alias. Several targets are an error.
func aliasOf(answer []dns.RR, name string, class uint16) (target string, ok bool) {
	for _, rr := range answer {
		cname, is := rr.(*dns.CNAME)
		if !is || !inClass(rr, class) || !equalNames(cname.Hdr.Name, name) {
			continue
		}
		if target != "" && !equalNames(target, cname.Target) {
			return "", false // RFC 2181 section 10.1
		}
		target = cname.Target
	}
	return target, true
}

func hasData(answer []dns.RR, name string, qtype, class uint16) bool {
	for _, rr := range answer {
		h := rr.Header()
		if (qtype == dns.TypeANY || h.Rrtype == qtype) && inClass(rr, class) && equalNames(h.Name, name) {
			return true
		}
	}
	return false
}

func inClass(rr dns.RR, class uint16) bool {
	return class == dns.ClassANY || rr.Header().Class == class
}

// equalNames compares names in presentation form, in which all other than ASCII is escaped.
func equalNames(a, b string) bool {
	return len(a) == len(b) && strings.EqualFold(a, b)
}
