package cache

import (
	"bytes"
	"math"
	"time"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
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

// setTTLs sets the TTLs that clients see in a reply of a class, and returns the lifetime of the reply, the minimum of the TTLs.
func (c *Cache) setTTLs(m *wire.Reply, class response.Type) time.Duration {
	k, limits, lifetime := c.ttlLimits(class, len(m.Plain().Records), negativeTTL(m))
	for s := range wire.Sections {
		lifetime = min(lifetime, k.setTTLs(m, m.Records(s), limits[s]))
	}
	return c.lifetime(class, lifetime)
}

// noNegativeTTL is the negative TTL of a reply without a SOA record.
const noNegativeTTL uint32 = math.MaxUint32

// ttlLimits returns the limits for TTLs in a reply of a class, the maximum in each of its three sections, and the maximum
// of its lifetime, in seconds. negative is the TTL of a denial by its SOA record.
func (c *Cache) ttlLimits(class response.Type, records int, negative uint32) (k kindOptions, limits [wire.Sections]uint32, lifetime uint32) {
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
	limits = [wire.Sections]uint32{k.maxTTL, k.maxTTL, k.maxTTL}
	if kindOf(class) == store.Denial && class != response.ServerError {
		limits[wire.Authority] = k.clamp(negative) // RFC 2308 section 5
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
func (k *kindOptions) setTTLs(m *wire.Reply, records []wire.Record, limit uint32) (lowest uint32) {
	lowest = limit
	for len(records) > 0 {
		n, ttl := 1, m.TTL(records[0])
		for n < len(records) && sameSet(m, records[0], records[n]) {
			ttl = min(ttl, m.TTL(records[n]))
			n++
		}
		ttl = min(k.clamp(ttl), limit)
		for _, rr := range records[:n] {
			m.SetTTL(rr, ttl)
		}
		lowest, records = min(lowest, ttl), records[n:]
	}
	return lowest
}

func sameSet(m *wire.Reply, a, b wire.Record) bool {
	if a.Type == dns.TypeRRSIG && b.Type == dns.TypeRRSIG && !bytes.Equal(coveredType(m, a), coveredType(m, b)) { // RFC 4034 section 3
		return false
	}
	return a.Type == b.Type && m.ClassOf(a) == m.ClassOf(b) && wire.EqualNames(m.Owner(a), m.Owner(b))
}

// coveredType returns the type that a signature covers, RFC 4034 section 3.1.1.
func coveredType(m *wire.Reply, signature wire.Record) []byte {
	data := m.Data(signature)
	return data[:min(2, len(data))]
}
