package cache

import (
	"time"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// shortTTL is for how long a reply holds that does not say it, in seconds.
const shortTTL = 5

// bound returns what becomes of a TTL. Records with 0 are for one transaction only (RFC 1035 section
// 3.2.1), unless the configuration raises them.
func (k *kind) bound(ttl uint32) uint32 {
	if ttl == 0 && !k.minGiven {
		return 0
	}
	return min(max(ttl, k.min), k.max)
}

// setTTLs gives the records of a reply, which is changed, the TTLs that clients see, and returns for how
// long the reply holds: as long as each of them.
func (c *Cache) setTTLs(m *dns.Msg, class response.Type) time.Duration {
	k := c.kinds[kindOf(class)]
	least := k.bound(shortTTL)
	switch class {
	case response.ServerError:
		least = uint32(c.servfail / time.Second) // #nosec G115 -- at most 5 minutes
		k = kind{max: least}
	case response.Delegation:
		k.max = least
	default:
		if len(m.Answer)+len(m.Ns)+len(m.Extra) > 0 {
			least = k.max
		}
	}
	denied := k.max
	if soa := soaOf(m); soa != nil && kindOf(class) == answers.Denial && class != response.ServerError {
		denied = k.bound(min(soa.Hdr.Ttl, soa.Minttl)) // RFC 2308 section 5
	}
	for _, set := range []struct {
		records []dns.RR
		most    uint32
	}{{m.Answer, k.max}, {m.Ns, denied}, {m.Extra, k.max}} {
		least = min(least, k.setTTLs(set.records, set.most))
	}
	if class == response.ServerError {
		return c.servfail
	}
	return time.Duration(least) * time.Second
}

// setTTLs gives each RRset of a section one TTL, RFC 2181 section 5.2, and returns the least. The records
// of a set follow each other.
func (k *kind) setTTLs(records []dns.RR, most uint32) (least uint32) {
	least = most
	for len(records) > 0 {
		n, ttl := 1, records[0].Header().Ttl
		for n < len(records) && sameSet(records[0], records[n]) {
			ttl = min(ttl, records[n].Header().Ttl)
			n++
		}
		ttl = min(k.bound(ttl), most)
		for _, rr := range records[:n] {
			rr.Header().Ttl = ttl
		}
		least, records = min(least, ttl), records[n:]
	}
	return least
}

func sameSet(a, b dns.RR) bool {
	x, y := a.Header(), b.Header()
	if s, ok := a.(*dns.RRSIG); ok {
		if t, ok := b.(*dns.RRSIG); ok && s.TypeCovered != t.TypeCovered { // RFC 4034 section 3
			return false
		}
	}
	return x.Rrtype == y.Rrtype && x.Class == y.Class && equalNames(x.Name, y.Name)
}
