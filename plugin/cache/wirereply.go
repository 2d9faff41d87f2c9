package cache

import (
	"encoding/binary"
	"time"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/coherence"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// wireReply is an upstream's reply, which was not unpacked, and its entry.
type wireReply struct {
	entry    *answers.Entry // not stored yet
	class    response.Type
	lifetime time.Duration
	// renews reports that the reply replaces a stale answer for the client (see Cache.renews).
	renews bool
	// nameAlone is set if the upstream has not tried the search list of the query: the reply is for the query without it.
	nameAlone bool
	// deniesList is set for NXDOMAIN for each candidate of the query's search list.
	deniesList bool
}

// noProperties are those of a reply of an upstream. They are never changed.
var noProperties answers.Properties

// readReply returns the entry for an upstream's reply to a query, as the plugin chain would store it. It returns false
// unless the reply is ordinary, and is to be stored for all callers: the caller unpacks the reply then. packed is the query
// in wire form, v the voucher of the reply or nil.
func (c *Cache) readReply(q *answers.Query, packed []byte, m *wire.Reply, v *coherence.Voucher) (r wireReply, ok bool) {
	// Without RD, the reply may be a referral or a refusal, which is no reply to a query with RD.
	if !q.RD || c.disables() || !m.Ordinary || m.Escapes || m.Truncated() || m.Rcode > wire.MaxRcode || !answersTo(m, q, packed) {
		return wireReply{}, false
	}
	return c.readParsed(q, m, v)
}

// answersTo reports whether the question of a reply is that of a query.
func answersTo(m *wire.Reply, q *answers.Query, packed []byte) bool {
	return m.Type() == q.Type && q.Class == dns.ClassINET && wire.EqualNames(m.Name(), packed[wire.HeaderLen:wire.HeaderLen+q.NameLen])
}

// disables reports whether replies of some zone are not stored, as the option disable specifies.
func (c *Cache) disables() bool {
	return len(c.kinds[answers.Success].disabled)+len(c.kinds[answers.Denial].disabled) > 0
}

// readParsed is readReply for an ordinary reply to the query's question.
func (c *Cache) readParsed(q *answers.Query, m *wire.Reply, v *coherence.Voucher) (r wireReply, ok bool) {
	class, answered, ok := classifyWire(m)
	if !ok || m.DO() && c.hasExpiredSignature(m) {
		return wireReply{}, false
	}
	var buf [maxErrors*(maxErrorText+6) + maxSearchOption]byte
	o, ok := readOptions(buf[:0], m.Options(), q.Search)
	if !ok {
		return wireReply{}, false
	}
	f := facts{
		class: class, positive: class == response.NoError && answered, lifetime: c.setWireTTLs(m, class), properties: &noProperties, voucher: v,
	}
	if f.lifetime <= 0 {
		return wireReply{}, false
	}
	deniesList := o.tried && o.allDenied && deniesAlone(m, class)
	if deniesList && !ordinaryDenial(m, q.Search) {
		return wireReply{}, false
	}
	r = wireReply{
		entry: c.newEntry(&f, o.clone()), class: class, lifetime: f.lifetime, renews: c.renewsStale(m.Rcode, class, f.positive),
		nameAlone: q.Search != nil && !o.tried, deniesList: deniesList,
	}
	return r, r.entry.FillReply(m)
}

// storeWireReply stores the entry of a reply under the key of the query that the reply answers, and reports whether it was
// stored: the present entry may be preferred. A reply that denies all candidates of a search list is also stored for each
// of them. key is that of the query. refresh is set if the reply was fetched to replace an entry that is still served.
func (c *Cache) storeWireReply(q *answers.Query, packed, key []byte, r *wireReply, refresh bool) bool {
	var buf [answers.MaxKey]byte
	if r.nameAlone {
		alone := *q
		alone.Search = nil
		key = c.space.Key(buf[:0], packed, &alone)
	}
	if !c.put(key, r.entry, refresh) {
		return false
	}
	if r.deniesList {
		c.storeWireDenials(q, packed, r, refresh)
	}
	return true
}

// setWireTTLs is setTTLs for a reply in wire form.
func (c *Cache) setWireTTLs(m *wire.Reply, class response.Type) time.Duration {
	sections := [3][]wire.Record{m.Records(wire.Answer), m.Records(wire.Authority), m.Records(wire.Additional)}
	k, limits, lifetime := c.ttlLimits(class, len(sections[0])+len(sections[1])+len(sections[2]), negativeTTL(m))
	for i, records := range sections {
		lifetime = min(lifetime, k.setWireTTLs(m, records, limits[i]))
	}
	return c.lifetime(class, lifetime)
}

// setWireTTLs is setTTLs for the records of a section in wire form.
func (k *kindOptions) setWireTTLs(m *wire.Reply, records []wire.Record, limit uint32) (lowest uint32) {
	lowest = limit
	for len(records) > 0 {
		n, ttl := 1, m.TTL(records[0])
		for n < len(records) && sameWireSet(m, records[0], records[n]) {
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

func sameWireSet(m *wire.Reply, a, b wire.Record) bool {
	if a.Type == dns.TypeRRSIG && b.Type == dns.TypeRRSIG && string(m.Data(a)[:2]) != string(m.Data(b)[:2]) {
		return false // of other covered types, RFC 4034 section 3
	}
	return a.Type == b.Type && wire.EqualNames(m.Owner(a), m.Owner(b))
}

// hasExpiredSignature reports whether a signature is not valid now, RFC 4034 section 3.1.5.
func (c *Cache) hasExpiredSignature(m *wire.Reply) bool {
	for _, r := range m.Plain().Records {
		if r.Type != dns.TypeRRSIG {
			continue
		}
		times := m.Data(r)[8:16]
		s := dns.RRSIG{Expiration: binary.BigEndian.Uint32(times), Inception: binary.BigEndian.Uint32(times[4:])}
		if !s.ValidityPeriod(c.wall().UTC()) {
			return true
		}
	}
	return false
}

// classifyWire is classify for a reply in wire form, and reports whether the reply has data of the question's type. It
// returns false for classes that are not stored.
func classifyWire(m *wire.Reply) (class response.Type, answered, ok bool) {
	if t := m.Type(); t == dns.TypeAXFR || t == dns.TypeIXFR {
		return 0, false, false
	}
	_, soa := soaOfWire(m)
	found := len(m.Records(wire.Answer)) > 0
	switch m.Rcode {
	case dns.RcodeSuccess:
		answered = found && answersWire(m)
		switch {
		case answered:
			return response.NoError, true, true
		case soa:
			return response.NoData, false, true
		case found:
			return 0, false, false // data that do not answer the question
		case hasType(m, wire.Authority, dns.TypeNS):
			return response.Delegation, false, true
		}
		return response.NoError, false, true
	case dns.RcodeNameError:
		if found { // the alias of a nonexistent name, RFC 2308 section 2.1
			target, one := aliasOfWire(m, m.Name())
			soa = soa && one && target != nil
		}
		return response.NameError, false, soa // RFC 2308 section 5
	case dns.RcodeServerFailure, dns.RcodeNotImplemented:
		return response.ServerError, false, true
	}
	return 0, false, false
}
