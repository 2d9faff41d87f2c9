package store

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Unpack unpacks a reply. Package dns refuses a whole message because of one record whose data it cannot read, such as an
// HTTPS record with a hint of 3 bytes: such records are of type dns.RFC3597 here, with their own type and bytes (RFC 3597
// section 3). Unreadable options of an OPT record are dropped. Other malformed messages are errors.
func Unpack(b []byte) (*dns.Msg, error) {
	m := new(dns.Msg)
	err := m.Unpack(b)
	if err == nil || len(b) < wire.HeaderLen {
		return m, err
	}
	masked, types, ok := maskUnreadable(b)
	if !ok || m.Unpack(masked) != nil {
		return nil, err
	}
	for i, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		if opt, ok := rr.(*dns.OPT); ok && types[i] == dns.TypeOPT {
			opt.Option = nil
		} else if types[i] != 0 {
			rr.Header().Rrtype = types[i]
		}
	}
	return m, nil
}

// maskUnreadable returns a copy of a message in which package dns can read all records, and the original types of the changed
// ones by index. It returns false if that is impossible.
func maskUnreadable(b []byte) (masked []byte, types map[int]uint16, ok bool) {
	masked, types = bytes.Clone(b), map[int]uint16{}
	records := wire.Records(b)
	for i := 0; records.Next(); i++ {
		r := records.Record
		if _, _, err := dns.UnpackRR(b, int(r.Owner)); err == nil {
			continue
		}
		switch length := r.End - r.Data; {
		case r.Type == dns.TypeOPT && length >= wire.OptionLen: // one option of any data
			binary.BigEndian.PutUint16(masked[r.Data:], dns.EDNS0LOCALSTART)
			binary.BigEndian.PutUint16(masked[r.Data+2:], uint16(length-wire.OptionLen)) // #nosec G115 -- at most 16 bits
		case mayBeOpaque(r.Type):
			binary.BigEndian.PutUint16(masked[r.TTLAt()-4:], dns.TypeReserved)
		default:
			return nil, nil, false
		}
		types[i] = r.Type
	}
	return masked, types, records.IsComplete()
}

// mayBeOpaque reports whether Unpack returns unreadable data of a type as bytes. Data of other types may have compressed
// names, which are valid in their message only (RFC 3597 section 4), or plugins expect them in the form of package dns.
func mayBeOpaque(rrtype uint16) bool {
	switch rrtype {
	case dns.TypeNS, dns.TypeMD, dns.TypeMF, dns.TypeCNAME, dns.TypeSOA, dns.TypeMB, dns.TypeMG, dns.TypeMR, dns.TypePTR, dns.TypeMINFO, dns.TypeMX,
		dns.TypeRP, dns.TypeAFSDB, dns.TypeRT, dns.TypeSIG, dns.TypePX, dns.TypeNXT, dns.TypeSRV, dns.TypeNAPTR,
		dns.TypeA, dns.TypeAAAA, dns.TypeDNAME, dns.TypeRRSIG, dns.TypeOPT, dns.TypeTSIG:
		return false
	}
	return true
}
