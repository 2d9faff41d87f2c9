package differential

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// answer is the content of a reply in a comparable form: sections are sets, the serial of a SOA and the client's buffer
// size are left out.
type answer struct {
	reply *dns.Msg // nil without a reply
	head  string
	// sections are answer, authority and additional, a record a line, sorted, each once.
	sections [3]string
}

func newAnswer(reply *dns.Msg) answer {
	if reply == nil {
		return answer{head: "no reply"}
	}
	a := answer{reply: reply}
	asked := ""
	if len(reply.Question) > 0 {
		asked = reply.Question[0].String()
	}
	a.head = fmt.Sprintf("%s aa=%t ra=%t rd=%t tc=%t edns=%t %s", dns.RcodeToString[reply.Rcode], reply.Authoritative,
		reply.RecursionAvailable, reply.RecursionDesired, reply.Truncated, reply.IsEdns0() != nil, asked)
	for i, section := range [][]dns.RR{reply.Answer, reply.Ns, reply.Extra} {
		a.sections[i] = asText(section)
	}
	return a
}

// asText returns a set of records as text.
func asText(records []dns.RR) string { return strings.Join(recordSet(records), "\n") }

// recordSet returns records as text, sorted, each once.
func recordSet(records []dns.RR) (set []string) {
	for _, rr := range records {
		switch rr := rr.(type) {
		case *dns.OPT:
			continue
		case *dns.SOA:
			without := *rr
			without.Serial = 0
			set = append(set, without.String())
		default:
			set = append(set, rr.String())
		}
	}
	slices.Sort(set)
	return slices.Compact(set)
}

func (a answer) equal(b answer) bool { return a.head == b.head && a.sections == b.sections }

// replaced returns an answer with one text replaced.
func (a answer) replaced(was, is string) answer {
	for i := range a.sections {
		a.sections[i] = strings.ReplaceAll(a.sections[i], was, is)
	}
	return a
}

// rcode returns the code of a reply, or -1 without one.
func (a answer) rcode() int {
	if a.reply == nil {
		return -1
	}
	return a.reply.Rcode
}

// negative reports whether an answer of the zone has no records, with this code.
func (a answer) negative(rcode int) bool {
	return a.rcode() == rcode && a.reply.Authoritative && len(a.reply.Answer) == 0 && len(a.reply.Ns) == 1 && len(a.reply.Extra) <= 1
}

// nodata reports whether an answer is NODATA: the name exists without records of the type.
func (a answer) nodata() bool { return a.negative(dns.RcodeSuccess) }

// records reports whether an answer of the zone has records.
func (a answer) records() bool {
	return a.rcode() == dns.RcodeSuccess && a.reply.Authoritative && len(a.reply.Answer) > 0
}

// has reports whether an answer has records of a type, behind CNAMEs or not.
func (a answer) has(qtype uint16) bool {
	return a.rcode() == dns.RcodeSuccess && slices.ContainsFunc(a.reply.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == qtype })
}

// dig returns a reply as dig prints it.
func (a answer) dig() string {
	if a.reply == nil {
		return ";; no reply\n"
	}
	return a.reply.String()
}

// onlyCase reports whether two answers differ in the case of names only.
func onlyCase(a, b answer) bool {
	for i := range a.sections {
		if !strings.EqualFold(a.sections[i], b.sections[i]) {
			return false
		}
	}
	return a.rcode() == b.rcode()
}
