package cache

import (
	"encoding/binary"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// classify returns the class of a reply to one question, as CoreDNS's package response defines the classes, and whether it has data
// of the question's type. A SOA record beside data that do not answer the question means that a chain of aliases ends in a name
// without the type: NODATA, RFC 2308 section 2.2.
func (c *Cache) classify(m *wire.Reply) (class response.Type, answered bool) {
	switch opcode := int(m.Message[wire.FlagsAt]&wire.OpcodeMask) >> 3; {
	case opcode == dns.OpcodeUpdate:
		return response.Update, false
	case opcode == dns.OpcodeNotify, m.Type() == dns.TypeAXFR, m.Type() == dns.TypeIXFR:
		return response.Meta, false
	case m.DO() && c.hasExpiredSignature(m):
		return response.OtherError, false
	}
	found := len(m.Records(wire.Answer)) > 0
	switch m.Rcode {
	case dns.RcodeSuccess:
		_, soa := soaOf(m)
		answered = found && answersQuestion(m)
		switch {
		case answered:
		case soa:
			return response.NoData, false
		case !found && hasType(m, wire.Authority, dns.TypeNS):
			return response.Delegation, false
		}
		return response.NoError, answered
	case dns.RcodeNameError:
		if found { // the alias of a nonexistent name, RFC 2308 section 2.1
			if target, one := aliasOf(m, m.Name()); !one || len(target) == 0 {
				return response.OtherError, false
			}
		}
		return response.NameError, false
	case dns.RcodeServerFailure, dns.RcodeNotImplemented:
		return response.ServerError, false
	}
	return response.OtherError, false
}

// hasExpiredSignature reports whether a signature is not valid now, RFC 4034 section 3.1.5.
func (c *Cache) hasExpiredSignature(m *wire.Reply) bool {
	for _, r := range m.Plain().Records {
		if r.Type != dns.TypeRRSIG {
			continue
		}
		var s dns.RRSIG
		if data := m.Data(r); len(data) >= 16 {
			s.Expiration, s.Inception = binary.BigEndian.Uint32(data[8:]), binary.BigEndian.Uint32(data[12:])
		}
		if !s.ValidityPeriod(c.wall().UTC()) {
			return true
		}
	}
	return false
}

// cacheable reports whether a reply of a class may be cached. answered is a result of classify.
func cacheable(m *wire.Reply, class response.Type, answered bool) bool {
	if m.Truncated() {
		return false
	}
	switch class {
	case response.NameError:
		_, soa := soaOf(m) // RFC 2308 section 5
		return soa
	case response.NoError:
		return answered || len(m.Records(wire.Answer)) == 0
	case response.NoData, response.Delegation, response.ServerError:
		return true
	}
	return false
}

// kindOf returns the kind of a class, for options and metrics.
func kindOf(class response.Type) store.Kind {
	switch class {
	case response.NameError, response.NoData, response.ServerError:
		return store.Denial
	}
	return store.Success
}
