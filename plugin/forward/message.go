package forward

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/coherence"
)

// Sizes and offsets in bytes, RFC 1035 section 4.1 and RFC 6891 section 6.1.2.
const (
	headerLen  = 12
	typeClass  = 4
	recordLen  = 10 // without name and data
	optLen     = 11 // an OPT record without options
	optionHead = 4  // code and length of an EDNS option
	maxName    = 255
	maxLabel   = 63
	// maxPointers bounds the compression pointers of one name. It is lower than that of package dns.
	maxPointers = 100

	flagsAt   = 2
	rcodeAt   = 3
	qdcountAt = 4
	ancountAt = 6
	nscountAt = 8
	arcountAt = 10

	truncationBit = 0x02 // of the byte flagsAt
	rcodeMask     = 0x0f // of the byte rcodeAt
)

// message is a reply in wire form.
type message struct {
	b      []byte
	rcode  int  // with the upper bits of the OPT record
	opt    int  // offset of the last OPT record; 0 without one
	simple bool // at most one OPT record, which is the last record

	voucher *coherence.Voucher // of the session over which it was received, or nil
}

func (m *message) truncated() bool { return m.b[flagsAt]&truncationBit != 0 }

func (m *message) count(at int) int { return int(binary.BigEndian.Uint16(m.b[at:])) }

// parse parses a complete message with one question, which is checked already. It returns false if the message is malformed,
// or of a form that it does not know; package dns accepts every message for which it returns true. With unpacked set, package
// dns has accepted the message, and the data of records are not examined.
func (m *message) parse(b []byte, unpacked bool) bool {
	*m = message{b: b, rcode: int(b[rcodeAt] & rcodeMask), simple: true}
	at := nameEnd(b, headerLen)
	if m.count(qdcountAt) != 1 || at == 0 || at+typeClass > len(b) {
		return false
	}
	at += typeClass
	before := m.count(ancountAt) + m.count(nscountAt)
	for i := range before + m.count(arcountAt) {
		data := nameEnd(b, at)
		if data == 0 || data+recordLen > len(b) {
			return false
		}
		rrtype := binary.BigEndian.Uint16(b[data:])
		data += recordLen
		end := data + int(binary.BigEndian.Uint16(b[data-2:]))
		if end > len(b) {
			return false
		}
		switch {
		case !unpacked && rrtype == dns.TypeOPT:
			if i < before || m.opt > 0 || b[at] != 0 || !validOptions(b[data:end]) {
				return false
			}
		case !unpacked && !validData(b[:end], rrtype, data):
			return false
		}
		if rrtype == dns.TypeOPT && i >= before {
			m.simple = m.opt == 0 && b[at] == 0 && end == len(b)
			m.opt = data - recordLen - 1
			m.rcode = int(b[rcodeAt]&rcodeMask) | int(b[data-6])<<4
		}
		at = end
	}
	return at == len(b)
}

// nameEnd returns the offset behind the name at an offset, or 0 if the name is malformed. Pointers must be to earlier bytes.
func nameEnd(b []byte, at int) (end int) {
	for length, pointers := 1, 0; at < len(b); {
		switch c := int(b[at]); {
		case c == 0:
			return max(end, at+1)
		case c <= maxLabel:
			if length += 1 + c; length > maxName {
				return 0
			}
			if at += 1 + c; end == 0 && at >= len(b) {
				return 0
			}
		case c < 0xc0 || at+1 >= len(b):
			return 0
		default:
			if end == 0 {
				end = at + 2
			}
			to := int(binary.BigEndian.Uint16(b[at:]) & 0x3fff)
			if pointers++; to >= at || pointers > maxPointers {
				return 0
			}
			at = to
		}
	}
	return 0
}

// validData reports whether the data from an offset to the end of b are of a common type and valid for package dns.
func validData(b []byte, rrtype uint16, data int) bool {
	end := len(b)
	switch length := end - data; rrtype {
	case dns.TypeA:
		return length == 4
	case dns.TypeAAAA:
		return length == 16
	case dns.TypeCNAME, dns.TypeNS, dns.TypePTR, dns.TypeDNAME:
		return nameEnd(b, data) == end
	case dns.TypeMX:
		return length > 2 && nameEnd(b, data+2) == end
	case dns.TypeSRV:
		return length > 6 && nameEnd(b, data+6) == end
	case dns.TypeSOA:
		mailbox := nameEnd(b, data)
		if mailbox == 0 {
			return false
		}
		serial := nameEnd(b, mailbox)
		return serial > 0 && serial+20 == end
	case dns.TypeTXT:
		for length > 0 && data < end {
			data += 1 + int(b[data])
		}
		return length > 0 && data == end
	case dns.TypeDS:
		return length > 4
	case dns.TypeRRSIG:
		signature := 0
		if length > 18 {
			signature = nameEnd(b, data+18)
		}
		return signature > 0 && signature < end
	}
	return false
}

// validOptions reports whether EDNS options are common ones and valid for package dns.
func validOptions(options []byte) bool {
	for len(options) > 0 {
		code, data, rest, ok := answers.CutOption(options)
		switch code {
		case dns.EDNS0NSID, dns.EDNS0COOKIE, dns.EDNS0PADDING:
		case dns.EDNS0TCPKEEPALIVE:
			ok = ok && (len(data) == 0 || len(data) == 2)
		case dns.EDNS0EDE:
			ok = ok && len(data) >= 2
		default:
			ok = ok && code >= dns.EDNS0LOCALSTART // package dns may examine others
		}
		if !ok {
			return false
		}
		options = rest
	}
	return true
}

// removeOPT removes the OPT record, which is the last record. Without it a response code above maxPlainRcode becomes SERVFAIL.
func (m *message) removeOPT() {
	m.b = m.b[:m.opt]
	binary.BigEndian.PutUint16(m.b[arcountAt:], uint16(m.count(arcountAt)-1)) // #nosec G115 -- it has an OPT record
	if m.opt = 0; m.rcode > maxPlainRcode {
		m.rcode = dns.RcodeServerFailure
		m.b[rcodeAt] = m.b[rcodeAt]&^rcodeMask | dns.RcodeServerFailure
	}
}

// removeOptions removes EDNS options from the OPT record, which is the last record.
func (m *message) removeOptions(remove func(code uint16) bool) {
	begin := m.opt + optLen
	to := begin
	for at := begin; at < len(m.b); {
		end := at + optionHead + int(binary.BigEndian.Uint16(m.b[at+2:]))
		if !remove(binary.BigEndian.Uint16(m.b[at:])) {
			to += copy(m.b[to:], m.b[at:end])
		}
		at = end
	}
	m.b = m.b[:to]
	binary.BigEndian.PutUint16(m.b[begin-2:], uint16(to-begin)) // #nosec G115 -- it was longer
}

// hasOption reports whether the OPT record has an EDNS option of which a function returns true.
func (m *message) hasOption(is func(code uint16) bool) bool {
	if m.opt == 0 {
		return false
	}
	begin := m.opt + optLen
	end := begin + int(binary.BigEndian.Uint16(m.b[begin-2:]))
	for at := begin; at < end; at += optionHead + int(binary.BigEndian.Uint16(m.b[at+2:])) {
		if is(binary.BigEndian.Uint16(m.b[at:])) {
			return true
		}
	}
	return false
}
