package cache

import (
	"math"
	"time"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// shortTTL is the TTL of a reply without records, in seconds.
const shortTTL = 5

// clamp limits a TTL to the configured range. Records with TTL 0 are for one transaction only (RFC 1035 section 3.2.1);
// only a configured minimum raises that.
func (k *kindOptions) clamp(ttl uint32) uint32 {
	if ttl == 0 && !k.minGiven {
		return 0
	}
	return min(max(ttl, k.minTTL), k.maxTTL)
}

// lifetimeOf sets the TTLs that clients see in a reply, and returns the lifetime of the reply. A negative answer for a name that
// queries wait for is for one query, whatever the configured minimum.
func (c *Cache) lifetimeOf(m *dns.Msg, class response.Type, recorded *answers.Recorded) time.Duration {
	if recorded.Waits {
		return 0
	}
	return c.setTTLs(m, class)
}

// setTTLs sets the TTLs that clients see in a reply, and returns the lifetime of the reply, the minimum of the TTLs.
func (c *Cache) setTTLs(m *dns.Msg, class response.Type) time.Duration {
	negative := noNegativeTTL
	if soa := soaOf(m); soa != nil {
		negative = min(soa.Hdr.Ttl, soa.Minttl)
	}
	k, limits, lifetime := c.ttlLimits(class, len(m.Answer)+len(m.Ns)+len(m.Extra), negative)
	lifetime = min(lifetime, k.setTTLs(m.Answer, limits[0]), k.setTTLs(m.Ns, limits[1]), k.setTTLs(m.Extra, limits[2]))
	return c.lifetime(class, lifetime)
}

// noNegativeTTL is the negative TTL of a reply without a SOA record.
const noNegativeTTL uint32 = math.MaxUint32

// ttlLimits returns the limits for TTLs in a reply of a class, the maximum in each of its three sections, and the maximum
// of its lifetime, in seconds. negative is the TTL of a denial by its SOA record.
func (c *Cache) ttlLimits(class response.Type, records int, negative uint32) (k kindOptions, limits [3]uint32, lifetime uint32) {
	k = c.kinds[kindOf(class)]
	lifetime = k.clamp(shortTTL)
	switch class {
	case response.ServerError:
		lifetime = uint32(c.servfail / time.Second) // #nosec G115 -- limited by maxServfail
		k = kindOptions{maxTTL: lifetime}
	case response.Delegation:
		k.maxTTL = lifetime
	default:
		if records > 0 {
			lifetime = k.maxTTL
		}
	}
	limits = [3]uint32{k.maxTTL, k.maxTTL, k.maxTTL}
	if kindOf(class) == answers.Denial && class != response.ServerError {
		limits[1] = k.clamp(negative) // RFC 2308 section 5
	}
	return k, limits, lifetime
}

// lifetime returns the lifetime of a reply of a class, given the minimum of its TTLs in seconds.
func (c *Cache) lifetime(class response.Type, lowest uint32) time.Duration {
	if class == response.ServerError {
		return c.servfail
	}
	return time.Duration(lowest) * time.Second
}

// setTTLs gives the records of each RRset in a section one TTL (RFC 2181 section 5.2), and returns the minimum, not more
// than limit. Records of a set are adjacent.
func (k *kindOptions) setTTLs(records []dns.RR, limit uint32) (lowest uint32) {
	lowest = limit
	for len(records) > 0 {
		n, ttl := 1, records[0].Header().Ttl
		for n < len(records) && sameSet(records[0], records[n]) {
			ttl = min(ttl, records[n].Header().Ttl)
			n++
		}
		ttl = min(k.clamp(ttl), limit)
		for _, rr := range records[:n] {
			rr.Header().Ttl = ttl
		}
		lowest, records = min(lowest, ttl), records[n:]
	}
	return lowest
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
