package answers

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// Section is a section of a reply.
type Section int

// The sections of a reply.
const (
	AnswerSection     Section = sectionAnswer
	AuthoritySection  Section = sectionAuthority
	AdditionalSection Section = sectionAdditional
)

// maxReply is the maximum length in bytes of a Reply without compression of names. Pointers reach all of it.
const maxReply = 1<<14 - 1

// Reply is a reply in wire form, without compression of names and without an OPT record. The question's name is in lower
// case, also as the owner of records. The zero value is ready for Parse, and may be used again. Names and data refer to
// the Reply, and are valid until the next call of Parse.
type Reply struct {
	// Options are those of the OPT record in wire form, a slice of the parsed message; nil without options.
	Options []byte
	// AnyCase reports that all names are in lower case, except the question's name in the query.
	AnyCase bool

	packed  []byte
	nameLen int // length of the question's name
	records []RR
	first   [4]int // indices in records of the first record of each section, and their number
	excess  int    // bytes by which dns.Msg.Len overestimates the length
	opt     bool   // the message has an OPT record

	compressed []byte
	suffixes   suffixes
}

// RR is a resource record of a Reply.
type RR struct {
	Type             uint16
	owner, data, end uint16 // offsets
}

// Rcode returns the response code, RFC 1035 section 4.1.1.
func (r *Reply) Rcode() int { return int(r.packed[3] & rcodeMask) }

// Name returns the question's name in wire form and lower case.
func (r *Reply) Name() []byte { return r.packed[HeaderLen : HeaderLen+r.nameLen] }

// Type returns the question's type.
func (r *Reply) Type() uint16 { return binary.BigEndian.Uint16(r.packed[HeaderLen+r.nameLen:]) }

// AnswersTo reports whether the question is that of a query.
func (r *Reply) AnswersTo(q *Query, query []byte) bool {
	return r.Type() == q.Type && q.Class == dns.ClassINET && EqualNames(r.Name(), query[HeaderLen:HeaderLen+q.NameLen])
}

// Records returns the records of a section.
func (r *Reply) Records(s Section) []RR { return r.records[r.first[s]:r.first[s+1]] }

// Owner returns the owner name of a record in wire form.
func (r *Reply) Owner(x RR) []byte { return r.packed[x.owner : x.data-10] }

// Data returns the data of a record. Names in them are in wire form.
func (r *Reply) Data(x RR) []byte { return r.packed[x.data:x.end] }

// TTL returns the TTL of a record in seconds.
func (r *Reply) TTL(x RR) uint32 { return binary.BigEndian.Uint32(r.packed[x.data-6:]) }

// SetTTL sets the TTL of a record, in seconds.
func (r *Reply) SetTTL(x RR, ttl uint32) { binary.BigEndian.PutUint32(r.packed[x.data-6:], ttl) }

// EqualNames reports whether two names in wire form are equal, regardless of case.
func EqualNames(a, b []byte) bool { return equalFold(a, b) }

// Parse parses an ordinary reply: opcode QUERY, not truncated, no extended code, one question, only records of class IN
// and of the types of layoutOf, names of printable characters without escapes, at most one OPT record with version 0
// and only extended errors, search lists, cookies, server identifiers and padding, no trailing bytes. It returns false for
// every other message, valid or not. For an accepted reply, package dns packs the same bytes.
func (r *Reply) Parse(b []byte) bool {
	if len(b) < HeaderLen+1+4 || b[2]&(bitQR|opcodeMask|bitTC) != bitQR || binary.BigEndian.Uint16(b[4:]) != 1 {
		return false
	}
	if r.packed == nil {
		r.packed = make([]byte, 0, maxReply)
	}
	r.packed, r.records = append(r.packed[:0], b[:HeaderLen]...), r.records[:0]
	r.Options, r.AnyCase, r.excess, r.opt = nil, true, 0, false
	at, ok := r.appendName(b, HeaderLen, len(b))
	if !ok || at+4 > len(b) || !r.append(b[at:at+4]) || binary.BigEndian.Uint16(b[at+2:]) != dns.ClassINET {
		return false
	}
	r.nameLen = len(r.packed) - HeaderLen - 4
	lowerName(r.Name())
	at += 4
	for section, countAt := range sectionCounts {
		r.first[section] = len(r.records)
		for range binary.BigEndian.Uint16(b[countAt:]) {
			if at, ok = r.parseRecord(b, at, section); !ok {
				return false
			}
		}
	}
	r.first[3] = len(r.records)
	return at == len(b)
}

// ParseRenamed is Parse for a stored answer without compression, with another name in the question. Records are unchanged.
func (r *Reply) ParseRenamed(a *Answer, name []byte) bool {
	b := append(append(r.compressed[:0], a.packed[:HeaderLen]...), name...)
	r.compressed = append(b, a.packed[nameEnd(a.packed, HeaderLen):]...)
	return r.Parse(r.compressed)
}

// parseRecord parses the record at an offset, and returns its end.
func (r *Reply) parseRecord(b []byte, at, section int) (end int, ok bool) {
	x := RR{owner: uint16(len(r.packed))} // #nosec G115 -- up to maxReply
	if at, ok = r.appendName(b, at, len(b)); !ok || at+10 > len(b) {
		return 0, false
	}
	x.Type = binary.BigEndian.Uint16(b[at:])
	end = at + 10 + int(binary.BigEndian.Uint16(b[at+8:]))
	if end > len(b) {
		return 0, false
	}
	if x.Type == dns.TypeOPT {
		return end, len(r.packed)-int(x.owner) == 1 && section == sectionAdditional && r.parseOPT(b[at:end], int(x.owner))
	}
	if binary.BigEndian.Uint16(b[at+2:]) != dns.ClassINET || !r.append(b[at:at+10]) {
		return 0, false
	}
	x.data = uint16(len(r.packed)) // #nosec G115
	if owner := r.Owner(x); equalFold(owner, r.Name()) {
		copy(owner, r.Name())
	} else if hasUpper(owner) {
		r.AnyCase = false
	}
	if !r.appendData(b[:end], at+10, x.Type) {
		return 0, false
	}
	x.end = uint16(len(r.packed))                                 // #nosec G115
	binary.BigEndian.PutUint16(r.packed[x.data-2:], x.end-x.data) // without compression
	r.records = append(r.records, x)
	return end, true
}

// parseOPT parses an OPT record, from its type on, and removes its owner name, which was appended at an offset. Flags are
// ignored.
func (r *Reply) parseOPT(b []byte, owner int) bool {
	if r.opt || b[4] != 0 || b[5] != 0 || !ordinaryOptions(b[10:]) { // extended code, version
		return false
	}
	r.opt, r.Options = true, b[10:]
	r.packed = r.packed[:owner]
	binary.BigEndian.PutUint16(r.packed[10:], binary.BigEndian.Uint16(r.packed[10:])-1)
	return true
}

// ordinaryOptions reports whether all options of an OPT record are of the types that Parse accepts, and valid.
func ordinaryOptions(b []byte) bool {
	for len(b) > 0 {
		code, data, rest, ok := CutOption(b)
		if !ok {
			return false
		}
		switch code {
		case dns.EDNS0EDE:
			ok = len(data) >= 2 // RFC 8914 section 2
		case searchlist.OptionCode, dns.EDNS0COOKIE, dns.EDNS0NSID, dns.EDNS0PADDING:
		default:
			ok = false
		}
		if !ok {
			return false
		}
		b = rest
	}
	return true
}

// CutOption returns the first of the options of an OPT record, and the options after it. It returns false if the option is
// incomplete.
func CutOption(b []byte) (code uint16, data, rest []byte, ok bool) {
	if len(b) < optionHead {
		return 0, nil, nil, false
	}
	end := optionHead + int(binary.BigEndian.Uint16(b[2:]))
	if end > len(b) {
		return 0, nil, nil, false
	}
	return binary.BigEndian.Uint16(b), b[optionHead:end], b[end:], true
}

// append appends bytes, unless the reply is too long.
func (r *Reply) append(b []byte) bool {
	if len(r.packed)+len(b) > maxReply {
		return false
	}
	r.packed = append(r.packed, b...)
	return true
}

// appendData appends the data of a record, from an offset to the end of b.
func (r *Reply) appendData(b []byte, at int, rrtype uint16) bool {
	l := layoutOf(rrtype)
	if l.check == nil || at+l.head >= len(b) || !r.append(b[at:at+l.head]) {
		return false
	}
	at += l.head
	for range l.names {
		start, ok := len(r.packed), false
		if at, ok = r.appendName(b, at, len(b)); !ok {
			return false
		}
		if hasUpper(r.packed[start:]) {
			r.AnyCase = false
		}
	}
	excess, ok := l.check(b[at:])
	r.excess += excess
	return ok && r.append(b[at:])
}

// maxPointers is the maximum number of compression pointers in one name, that of package dns.
const maxPointers = 126

// appendName appends the name at an offset of a message without compression, and returns the offset after it. The name
// ends before limit. Each pointer refers to a prior name, RFC 1035 section 4.1.4.
func (r *Reply) appendName(b []byte, at, limit int) (end int, ok bool) {
	room, start, pointers := maxNameLen, at, 0
	for at < limit {
		n := int(b[at])
		next := at + 1 + n
		switch {
		case n == 0:
			if pointers == 0 {
				end = next
			}
			return end, r.append(b[at:next])
		case n&0xc0 == 0xc0:
			if pointers++; pointers > maxPointers || at+2 > limit {
				return 0, false
			}
			if pointers == 1 {
				end = at + 2
			}
			at = int(binary.BigEndian.Uint16(b[at:]) & 0x3fff)
			if at < HeaderLen || at >= start {
				return 0, false
			}
			start = at
		default:
			room -= 1 + n
			if n > maxLabelLen || next > limit || room < 1 || !plainLabel(b[at+1:next]) || !r.append(b[at:next]) {
				return 0, false
			}
			at = next
		}
	}
	return 0, false
}

// PlainName reports whether the presentation form of a valid name in wire form has no escapes.
func PlainName(name []byte) bool {
	for name[0] != 0 {
		next := 1 + int(name[0])
		if !plainLabel(name[1:next]) {
			return false
		}
		name = name[next:]
	}
	return true
}

// plainLabel reports whether the presentation form of a label has no escapes.
func plainLabel(label []byte) bool {
	for _, c := range label {
		if !plainCharacter[c] {
			return false
		}
	}
	return true
}

// plainCharacter has the printable ASCII characters that package dns does not escape in names.
var plainCharacter = func() (plain [256]bool) {
	for c := '!'; c <= '~'; c++ {
		plain[c] = true
	}
	for _, c := range []byte(`.'@;()"\`) {
		plain[c] = false
	}
	return plain
}()

func lowerName(b []byte) {
	for i, c := range b {
		b[i] = lower(c)
	}
}

func hasUpper(b []byte) bool {
	for _, c := range b {
		if c-'A' < 26 {
			return true
		}
	}
	return false
}

// FillReply sets the answer of the entry to a reply, as Fill does with a message. AnyCase is set. The reply may be changed
// afterwards. It returns false for a reply that needs compression and has too many names.
func (e *Entry) FillReply(r *Reply) bool {
	plain, err := newAnswer(r.packed)
	if err != nil {
		return false
	}
	e.Plain, e.plainExcess, e.AnyCase = plain, int32(r.excess), r.AnyCase
	if len(r.packed)+r.excess+len(e.Options) <= plainLimit {
		return true
	}
	if !r.compress() {
		return false
	}
	compressed, err := newAnswer(r.compressed)
	if err != nil {
		return false
	}
	e.compressed, e.compressedExcess = &compressed, int32(r.excess)
	return true
}
