package kubernetes

import (
	"slices"

	"github.com/miekg/dns"
)

// staleTTL is the maximum TTL of answers from a snapshot, in seconds.
const staleTTL = 5

// asStale returns a reply from a snapshot: a copy with TTLs of at most staleTTL and, for a client with EDNS, an extended
// error (RFC 8914, sections 4.4 and 4.20).
func asStale(r, m *dns.Msg) *dns.Msg {
	stale := m.Copy() // a record may be part of another answer
	for _, section := range [][]dns.RR{stale.Answer, stale.Ns, stale.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue // it has other data in place of the TTL
			}
			rr.Header().Ttl = min(rr.Header().Ttl, staleTTL)
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Minttl = min(soa.Minttl, staleTTL)
			}
		}
	}
	if r.IsEdns0() == nil {
		return stale
	}
	opt := stale.IsEdns0()
	if opt == nil {
		opt = &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}} // the server sets its size and flags
		stale.Extra = append(slices.Clip(stale.Extra), opt)
	}
	code := dns.ExtendedErrorCodeStaleAnswer
	if stale.Rcode == dns.RcodeNameError {
		code = dns.ExtendedErrorCodeStaleNXDOMAINAnswer
	}
	opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: code})
	return stale
}
