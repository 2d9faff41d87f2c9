package expand

import (
	"encoding/binary"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// compose returns the reply to the client's question, in wire form without compression of names and without an OPT record. Its ID,
// RD and CD are those of the candidate's reply, not yet the client's.
func (k *walk) compose(out *outcome) ([]byte, error) {
	r := out.reply
	count, records := r.answers()
	b := make([]byte, wire.HeaderLen, wire.HeaderLen+2*(wire.MaxName+wire.RecordLen)+len(records))
	copy(b, r.packed)
	b, err := appendName(b, k.original.Name)
	if err != nil {
		return nil, err
	}
	name := b[wire.HeaderLen:]
	b = binary.BigEndian.AppendUint16(b, k.original.Qtype)
	b = binary.BigEndian.AppendUint16(b, k.original.Qclass)
	if out.result == failure || string(b[wire.HeaderLen:]) != string(r.packed[wire.HeaderLen:wire.QuestionEnd(r.packed)]) {
		b[wire.RcodeAt] &^= wire.AD // no signature covers the question's name
	}
	switch {
	case out.result == failure:
		b[wire.RcodeAt] = b[wire.RcodeAt]&^wire.RcodeMask | dns.RcodeServerFailure
		clear(b[wire.ANCountAt:wire.HeaderLen])
		return b, nil
	case count == 0 || out.owner == k.original.Name:
	case out.owner != "":
		if b, err = appendAlias(b, name, out.owner, out.aliasTTL(ttlOf(records))); err != nil {
			return nil, err
		}
		count++
	case !wire.EqualNames(records[:wire.NameEnd(records, 0)], name): // a dangling alias of another candidate
		for ; count > 0; count-- {
			first, _ := wire.ReadRecord(records, 0)
			records = records[first.End:]
		}
	}
	binary.BigEndian.PutUint16(b[wire.ANCountAt:], uint16(count)) // #nosec G115 -- one more than in a message that has room for it
	b = append(b, records...)
	if out.waits {
		expire(b)
	}
	return b, nil
}

// appendName appends a name in wire form.
func appendName(b []byte, name string) ([]byte, error) {
	var buf [wire.MaxName + 1]byte
	end, err := dns.PackDomainName(name, buf[:], 0, nil, false)
	if err != nil {
		return nil, err
	}
	return append(b, buf[:end]...), nil
}

// appendAlias appends a CNAME record. Its owner is in wire form.
func appendAlias(b, owner []byte, target string, ttl uint32) ([]byte, error) {
	b = append(b, owner...)
	b = binary.BigEndian.AppendUint16(b, dns.TypeCNAME)
	b = binary.BigEndian.AppendUint16(b, dns.ClassINET)
	b = binary.BigEndian.AppendUint32(b, ttl)
	length := len(b)
	b, err := appendName(append(b, 0, 0), target)
	if err == nil {
		binary.BigEndian.PutUint16(b[length:], uint16(len(b)-length-2)) // #nosec G115 -- the length of a name
	}
	return b, err
}

// ttlOf returns the TTL of the first of some records, in seconds.
func ttlOf(records []byte) uint32 {
	first, _ := wire.ReadRecord(records, 0)
	return binary.BigEndian.Uint32(records[first.TTLAt():])
}

// soaMinimum is the length of the last field of a SOA record, RFC 1035 section 3.3.13.
const soaMinimum = 4

// expire sets the TTL and the minimum of the SOA record to 0, so that no cache stores a negative answer (RFC 2308 section 5).
func expire(b []byte) {
	for r := wire.Records(b); r.Next(); {
		if r.Section == wire.Authority && r.Type == dns.TypeSOA {
			clear(b[r.TTLAt():][:4])
			clear(b[r.End-soaMinimum : r.End])
		}
	}
}

// aliasTTL returns the TTL of an alias to a record, given the record's TTL, in seconds: an earlier candidate that does not
// exist now may exist before the record expires.
func (out *outcome) aliasTTL(record uint32) uint32 {
	if out.validity.Ended() {
		return record
	}
	if out.vouched > 0 {
		record = min(record, seconds(out.vouched))
	}
	if out.limit == 0 {
		return record
	}
	return min(record, seconds(max(0, out.limit-validity.Now())))
}

// seconds returns a time in seconds, rounded up.
func seconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second) // #nosec G115 -- a TTL, or less
}

// addErrors adds extended errors, as EDNS options, to the reply to a client with EDNS.
func addErrors(r, m *dns.Msg, options []byte) {
	if len(options) == 0 || r.IsEdns0() == nil {
		return
	}
	if rr, _, err := dns.UnpackRR(wire.AppendOPT(nil, 0, 0, options), 0); err == nil {
		m.Extra = append(m.Extra, rr)
	}
}
