package cache

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// soaOfWire returns the first SOA record of the authority section.
func soaOfWire(m *wire.Reply) (soa wire.Record, ok bool) {
	for _, rr := range m.Records(wire.Authority) {
		if rr.Type == dns.TypeSOA {
			return rr, true
		}
	}
	return wire.Record{}, false
}

// negativeTTL returns the TTL of a denial by its SOA record in seconds (RFC 2308 section 5), noNegativeTTL without one.
func negativeTTL(m *wire.Reply) uint32 {
	soa, ok := soaOfWire(m)
	if !ok {
		return noNegativeTTL
	}
	data := m.Data(soa)
	return min(m.TTL(soa), binary.BigEndian.Uint32(data[len(data)-4:])) // RFC 1035 section 3.3.13
}

func hasType(m *wire.Reply, section wire.Section, rrtype uint16) bool {
	return slices.ContainsFunc(m.Records(section), func(rr wire.Record) bool { return rr.Type == rrtype })
}

// answersWire is answersQuestion for a reply in wire form with code NOERROR.
func answersWire(m *wire.Reply) bool {
	name, qtype := m.Name(), m.Type()
	switch qtype {
	case dns.TypeANY:
		return hasWireData(m, name, qtype)
	case dns.TypeCNAME:
		target, ok := aliasOfWire(m, name)
		return ok && target != nil
	}
	for range maxAliases {
		target, ok := aliasOfWire(m, name)
		if !ok {
			return false
		}
		if target == nil {
			return hasWireData(m, name, qtype)
		}
		name = target
	}
	return false // a loop, RFC 1034 section 3.6.2
}

// aliasOfWire returns the target of a name's alias, nil without an alias. Several targets are an error.
func aliasOfWire(m *wire.Reply, name []byte) (target []byte, ok bool) {
	for _, rr := range m.Records(wire.Answer) {
		if rr.Type != dns.TypeCNAME || !wire.EqualNames(m.Owner(rr), name) {
			continue
		}
		if target != nil && !wire.EqualNames(target, m.Data(rr)) {
			return nil, false // RFC 2181 section 10.1
		}
		target = m.Data(rr)
	}
	return target, true
}

func hasWireData(m *wire.Reply, name []byte, qtype uint16) bool {
	return slices.ContainsFunc(m.Records(wire.Answer), func(rr wire.Record) bool {
		return (qtype == dns.TypeANY || rr.Type == qtype) && wire.EqualNames(m.Owner(rr), name)
	})
}

// maxSearchOption is the maximum length of a search list's option in bytes.
const maxSearchOption = 4 + searchlist.MaxOption

// wireOptions are the options of a reply that belong to the answer (see takeOptions).
type wireOptions struct {
	packed    []byte // in wire form
	tried     bool   // the upstream has tried the search list of the query
	allDenied bool   // no candidate of the list has data
}

// clone returns the options in wire form, nil for none.
func (o *wireOptions) clone() []byte {
	if len(o.packed) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(o.packed)), o.packed...)
}

// readOptions appends those of the options of a reply that belong to the answer to dst, which has room for them. search are
// the data of the query's search list, nil without one. It returns false for an invalid reply to the search list.
func readOptions(dst, options, search []byte) (o wireOptions, ok bool) {
	for errors := 0; len(options) > 0; {
		var code uint16
		var data []byte
		if code, data, options, ok = wire.CutOption(options); !ok {
			return o, false
		}
		switch {
		case code == dns.EDNS0EDE:
			if errors++; errors <= maxErrors {
				dst = appendError(dst, data)
			}
		case code == searchlist.OptionCode && search != nil:
			if o.tried || !searchlist.ValidReply(data, search) {
				return o, false
			}
			o.tried, o.allDenied = true, len(data) == 0
			dst = searchlist.AppendOption(dst, data)
		}
	}
	o.packed = dst
	return o, true
}

// appendError appends an extended error with its text, if that is not too long.
func appendError(dst, data []byte) []byte {
	if len(data) > 2+maxErrorText {
		data = data[:2]
	}
	dst = binary.BigEndian.AppendUint16(dst, dns.EDNS0EDE)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(data))) // #nosec G115 -- limited by maxErrorText
	return append(dst, data...)
}
