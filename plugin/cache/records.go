package cache

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// soaOf returns the first SOA record of the authority section.
func soaOf(m *wire.Reply) (soa wire.Record, ok bool) {
	for _, rr := range m.Records(wire.Authority) {
		if rr.Type == dns.TypeSOA {
			return rr, true
		}
	}
	return wire.Record{}, false
}

// negativeTTL returns the TTL of a denial by its SOA record in seconds (RFC 2308 section 5), noNegativeTTL without one.
func negativeTTL(m *wire.Reply) uint32 {
	soa, ok := soaOf(m)
	if !ok {
		return noNegativeTTL
	}
	ttl, data := m.TTL(soa), m.Data(soa)
	if len(data) < 4 {
		return 0
	}
	return min(ttl, binary.BigEndian.Uint32(data[len(data)-4:])) // RFC 1035 section 3.3.13
}

func hasType(m *wire.Reply, section wire.Section, rrtype uint16) bool {
	return slices.ContainsFunc(m.Records(section), func(rr wire.Record) bool { return rr.Type == rrtype })
}

// maxAliases is the maximum length of a chain of aliases. Resolvers follow fewer.
const maxAliases = 64

// answersQuestion reports whether a reply with code NOERROR has data of the question's type, at the end of the chain of aliases.
func answersQuestion(m *wire.Reply) bool {
	name, qtype := m.Name(), m.Type()
	switch qtype {
	case dns.TypeANY:
		return hasData(m, name, qtype)
	case dns.TypeCNAME:
		target, ok := aliasOf(m, name)
		return ok && len(target) > 0
	}
	for range maxAliases {
		target, ok := aliasOf(m, name)
		if !ok {
			return false
		}
		if len(target) == 0 {
			return hasData(m, name, qtype)
		}
		name = target
	}
	return false // a loop, RFC 1034 section 3.6.2
}

// aliasOf returns the target of a name's alias, empty without an alias. Several targets are an error.
func aliasOf(m *wire.Reply, name []byte) (target []byte, ok bool) {
	for _, rr := range m.Records(wire.Answer) {
		if rr.Type != dns.TypeCNAME || !inClass(m, rr) || !wire.EqualNames(m.Owner(rr), name) {
			continue
		}
		if len(target) > 0 && !wire.EqualNames(target, m.Data(rr)) {
			return nil, false // RFC 2181 section 10.1
		}
		target = m.Data(rr)
	}
	return target, true
}

func hasData(m *wire.Reply, name []byte, qtype uint16) bool {
	return slices.ContainsFunc(m.Records(wire.Answer), func(rr wire.Record) bool {
		return (qtype == dns.TypeANY || rr.Type == qtype) && inClass(m, rr) && wire.EqualNames(m.Owner(rr), name)
	})
}

// inClass reports whether a record is of the question's class.
func inClass(m *wire.Reply, rr wire.Record) bool {
	return m.Class() == dns.ClassANY || m.ClassOf(rr) == m.Class()
}
