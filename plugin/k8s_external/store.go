package external

import (
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// isStorable reports whether the reply to a query may be stored, given its name in lower case: by a cache in front of this
// plugin, which passes inFront, or for the fast path. Not for DS: the server may pass such a query to the block of a parent zone.
func (e *External) isStorable(r *dns.Msg, lower string, inFront *store.Properties) bool {
	if q := &r.Question[0]; r.Opcode != dns.OpcodeQuery || q.Qclass != dns.ClassINET || q.Qtype == dns.TypeDS {
		return false
	}
	// The fast path would return the upper case of this query's name to every client.
	return inFront != nil || !e.late && e.space != nil && e.space.ByGeneration.Load() && r.Question[0].Name == lower
}

// store stores a reply until its dependencies change: in the cache in front, or else for the fast path. A reply with records of
// another server is stored only by a cache, and no longer than its TTL.
func (e *External) store(q *query, m *dns.Msg, inFront *store.Properties) {
	if q.validity == nil || q.untracked {
		return
	}
	p := store.Properties{Validity: *q.validity, Foreign: q.foreign}
	if q.foreign {
		p.Until(validity.Now() + lifetime(m))
	}
	// The plugin writes names in lower case. In a stored answer, a name that equals the question's has the case of the query: the
	// glue of a Service's SRV records, and the owner of the zone's SOA record.
	p.AnyCase = q.qtype != dns.TypeSRV && q.base != ""
	if len(m.Answer) == 0 && !e.signed {
		p.Serial = e.services
	}
	switch {
	case inFront != nil && p.Ended():
		inFront.Validity = p.Validity // otherwise the cache would store the reply for its TTL
	case p.Ended() || m.Truncated:
	case inFront != nil:
		*inFront = p
	default:
		e.space.PutReply(q.state.Req, m, &p)
	}
}

// lifetime returns the lowest TTL of the records of a reply.
func lifetime(m *dns.Msg) time.Duration {
	lowest := ^uint32(0)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				lowest = min(lowest, rr.Header().Ttl)
			}
		}
	}
	return time.Duration(lowest) * time.Second
}

// next passes a query for a name that does not exist to the next plugin, and bounds the validity of its reply by that of the
// denial. The next plugin does not store the reply by itself.
func (e *External) next(q *query, inFront *store.Properties) (int, error) {
	ctx, recorded := store.Record(q.ctx, q.state.Req)
	code, err := plugin.NextOrFailure(pluginName, e.Next, ctx, q.state.W, q.state.Req)
	if inFront == nil {
		return code, err
	}
	p := recorded.Properties
	p.Foreign = q.validity == nil || !p.ByGeneration()
	if q.validity != nil {
		p.Join(q.validity)
	} else {
		p.End() // the Services are not read yet: the name may exist
	}
	if p.Foreign && p.Expires == 0 && p.Voucher == nil {
		p.Until(validity.Now()) // only a cache knows when the TTL of the reply ends
	}
	*inFront = p
	return code, err
}
