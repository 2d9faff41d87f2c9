package wire

import (
	"encoding/binary"
	"sync"
)

// maxPlain is the maximum length in bytes of a reply without compression of names. Compression pointers reach all offsets in it.
const maxPlain = 1<<14 - 1

// Reply is a parsed reply: the message as it was received, and the same without compression of names and without the OPT
// record. The zero value is ready for Parse, and may be used again. Names and data are slices of the Reply, valid until it is used
// again.
type Reply struct {
	// Message is the message, which Parse does not copy.
	Message []byte
	// Rcode is the response code, with the upper bits of an OPT record (RFC 6891 section 6.1.3).
	Rcode int
	OPT   OPT
	// Ordinary reports that Parse has accepted the message. Only such a message has the facts below. ReadPlain sets Plain for others
	// as well.
	Ordinary bool
	// Escapes reports that the presentation form of a name has escapes.
	Escapes bool
	// AnyCase reports that the reply suits a question in any case: all names but the question's, also as an owner, are in lower case.
	AnyCase bool

	plain   []byte // without compression; the question's name is in lower case, also as the owner of records
	nameLen int    // length of the question's name
	records []Record
	first   [Sections + 1]int // indices in records of the first record of each section, and the number of records
	excess  int               // bytes by which dns.Msg.Len overestimates the length of a message without Escapes

	compressed        []byte
	compressedRecords []Record
	suffixes          suffixes
}

// Truncated reports whether the message has the flag TC.
func (r *Reply) Truncated() bool { return r.Message[FlagsAt]&TC != 0 }

// DO reports whether the OPT record has the flag DNSSEC OK.
func (r *Reply) DO() bool {
	return r.OPT.IsPresent() && binary.BigEndian.Uint32(r.Message[r.OPT.TTLAt():])&DO != 0
}

// Options returns the options of the OPT record, a slice of the message; empty without one.
func (r *Reply) Options() []byte { return r.Message[r.OPT.Data:r.OPT.End] }

// Plain returns the reply without compression of names and without the OPT record.
func (r *Reply) Plain() Body { return Body{r.plain, r.records, r.first} }

// Excess returns the number of bytes by which dns.Msg.Len overestimates the length of Plain, by text with escapes in records of
// type TXT, and by signatures and keys. Escapes in names are not counted.
func (r *Reply) Excess() int { return r.excess }

// Name returns the question's name in lower case.
func (r *Reply) Name() []byte { return r.plain[HeaderLen : HeaderLen+r.nameLen] }

// Type returns the question's type.
func (r *Reply) Type() uint16 { return binary.BigEndian.Uint16(r.plain[HeaderLen+r.nameLen:]) }

// Class returns the question's class.
func (r *Reply) Class() uint16 { return binary.BigEndian.Uint16(r.plain[HeaderLen+r.nameLen+2:]) }

// Records returns the records of a section, without the OPT record. Their offsets are those in Plain.
func (r *Reply) Records(s Section) []Record { return r.records[r.first[s]:r.first[s+1]] }

// Owner returns the owner name of a record.
func (r *Reply) Owner(x Record) []byte { return r.plain[x.Owner : x.Data-RecordLen] }

// Data returns the data of a record.
func (r *Reply) Data(x Record) []byte { return r.plain[x.Data:x.End] }

// ClassOf returns the class of a record.
func (r *Reply) ClassOf(x Record) uint16 { return binary.BigEndian.Uint16(r.plain[x.TTLAt()-2:]) }

// TTL returns the TTL of a record in seconds.
func (r *Reply) TTL(x Record) uint32 { return binary.BigEndian.Uint32(r.plain[x.TTLAt():]) }

// SetTTL sets the TTL of a record in Plain, in seconds.
func (r *Reply) SetTTL(x Record, ttl uint32) { binary.BigEndian.PutUint32(r.plain[x.TTLAt():], ttl) }

// Parse parses an ordinary reply: opcode QUERY, one question, only records of class IN and of types with a layout, at most one
// OPT record, with version 0 and options of common types, and no trailing bytes. It returns false for every other message, valid
// or not. Package dns accepts a message that Parse accepts, and without Escapes packs it to the same bytes.
func (r *Reply) Parse(b []byte) bool {
	r.Message, r.Ordinary = b, false
	if len(b) < HeaderLen || b[FlagsAt]&(QR|OpcodeMask) != QR || Count(b, QDCountAt) != 1 {
		return false
	}
	if r.plain == nil {
		r.plain = make([]byte, 0, maxPlain+MaxName)
	}
	r.plain, r.records = append(r.plain[:0], b[:HeaderLen]...), r.records[:0]
	r.Rcode, r.OPT, r.Escapes, r.AnyCase, r.excess = int(b[RcodeAt]&RcodeMask), OPT{}, false, true, 0
	at, ok := r.appendName(b, HeaderLen, len(b))
	if !ok || at+TypeClassLen > len(b) || !r.append(b[at:at+TypeClassLen]) || binary.BigEndian.Uint16(b[at+2:]) != classIN {
		return false
	}
	r.nameLen = len(r.plain) - HeaderLen - TypeClassLen
	LowerName(r.Name())
	at += TypeClassLen
	for s := range Sections {
		r.first[s] = len(r.records)
		for range Count(b, s.CountAt()) {
			if at, ok = r.parseRecord(b, at, s); !ok {
				return false
			}
		}
	}
	r.first[Sections] = len(r.records)
	r.Ordinary = at == len(b)
	return r.Ordinary
}

// Read sets Message, Rcode and OPT for a reply that package dns has accepted, with one question. All other fields are those of
// an earlier message. It returns false for a message with trailing bytes.
func (r *Reply) Read(b []byte) (ok bool) {
	r.Message, r.Ordinary, r.Rcode = b, false, int(b[RcodeAt]&RcodeMask)
	if r.OPT, ok = FindOPT(b); r.OPT.IsPresent() {
		r.Rcode |= int(b[r.OPT.TTLAt()]) << 4
	}
	return ok && Count(b, QDCountAt) == 1
}

// ReadPlain is Parse for a reply of any form in which no name is compressed, as package dns packs it. If the reply is not Ordinary,
// Escapes, AnyCase and Excess are not set. It returns false for a message without exactly one question, or with trailing bytes.
func (r *Reply) ReadPlain(b []byte) bool {
	question := QuestionEnd(b)
	if question == 0 {
		return false
	}
	if r.Parse(b) {
		return true
	}
	if !r.Read(b) {
		return false
	}
	r.plain, r.records = append(r.plain[:0], b[:question]...), r.records[:0]
	r.nameLen, r.first, r.excess, r.Escapes, r.AnyCase = question-TypeClassLen-HeaderLen, [Sections + 1]int{}, 0, false, false
	LowerName(r.Name())
	for records := Records(b); records.Next(); {
		x, at := records.Record, len(r.plain)
		if x.Type == TypeOPT && records.Section == Additional {
			addCount(r.plain, Additional, -1)
			continue
		}
		moved := x.Owner - uint32(at) // #nosec G115 -- an offset in the message, which is not shorter
		r.plain = append(r.plain, b[x.Owner:x.End]...)
		x.Owner, x.Data, x.End = x.Owner-moved, x.Data-moved, x.End-moved
		if owner := r.Owner(x); EqualNames(owner, r.Name()) {
			copy(owner, r.Name())
		}
		r.records = append(r.records, x)
		for s := records.Section + 1; s <= Sections; s++ {
			r.first[s] = len(r.records)
		}
	}
	return true
}

// ParseRenamed is Parse for a reply without compression, with another name in the question. Records are unchanged.
func (r *Reply) ParseRenamed(plain, name []byte) bool {
	b := append(append(r.compressed[:0], plain[:HeaderLen]...), name...)
	r.compressed = append(b, plain[NameEnd(plain, HeaderLen):]...)
	return r.Parse(r.compressed)
}

// parseRecord parses the record at an offset, and returns its end.
func (r *Reply) parseRecord(b []byte, at int, s Section) (end int, ok bool) {
	x := Record{Owner: uint32(len(r.plain))} // #nosec G115 -- up to maxPlain
	owner := at
	if at, ok = r.appendName(b, at, len(b)); !ok || at+RecordLen > len(b) {
		return 0, false
	}
	x.Type = binary.BigEndian.Uint16(b[at:])
	end = at + RecordLen + int(binary.BigEndian.Uint16(b[at+8:]))
	if end > len(b) {
		return 0, false
	}
	if x.Type == TypeOPT {
		r.plain = r.plain[:x.Owner]
		if s != Additional || at != owner+1 || r.OPT.IsPresent() {
			return 0, false
		}
		r.OPT = OPT{Record{TypeOPT, uint32(owner), uint32(at + RecordLen), uint32(end)}, end == len(b)} // #nosec G115 -- within the message
		return end, r.parseOPT(b[at:end])
	}
	if binary.BigEndian.Uint16(b[at+2:]) != classIN || !r.append(b[at:at+RecordLen]) {
		return 0, false
	}
	x.Data = uint32(len(r.plain)) // #nosec G115
	if owner := r.Owner(x); EqualNames(owner, r.Name()) {
		copy(owner, r.Name())
	} else if HasUpper(owner) {
		r.AnyCase = false
	}
	if !r.appendData(b[:end], at+RecordLen, x.Type) {
		return 0, false
	}
	x.End = uint32(len(r.plain))                                         // #nosec G115
	binary.BigEndian.PutUint16(r.plain[x.Data-2:], uint16(x.End-x.Data)) // #nosec G115 -- without compression
	r.records = append(r.records, x)
	return end, true
}

// parseOPT parses an OPT record from its type on. Flags are ignored.
func (r *Reply) parseOPT(b []byte) bool {
	extended, version := b[4], b[5]
	if version != 0 || !validOptions(b[RecordLen:]) {
		return false
	}
	r.Rcode |= int(extended) << 4
	addCount(r.plain, Additional, -1)
	return true
}

// append appends bytes, unless the reply is too long.
func (r *Reply) append(b []byte) bool {
	if len(r.plain)+len(b) > maxPlain {
		return false
	}
	r.plain = append(r.plain, b...)
	return true
}

// appendName appends the name at an offset without compression, and returns the offset behind it.
func (r *Reply) appendName(b []byte, at, limit int) (end int, ok bool) {
	start := len(r.plain)
	r.plain, end = appendName(r.plain, b, at, limit)
	if end == 0 || len(r.plain) > maxPlain {
		return 0, false
	}
	r.Escapes = r.Escapes || !isPlain(r.plain[start:])
	return end, true
}

// appendData appends the data of a record, from an offset to the end of b.
func (r *Reply) appendData(b []byte, at int, rrtype uint16) bool {
	l := layoutOf(rrtype)
	if l.check == nil || at+l.head > len(b) || !r.append(b[at:at+l.head]) {
		return false
	}
	r.AnyCase = r.AnyCase && !l.opaque
	at += l.head
	for range l.names {
		start, ok := len(r.plain), false
		if at, ok = r.appendName(b, at, len(b)); !ok {
			return false
		}
		if HasUpper(r.plain[start:]) {
			r.AnyCase = false
		}
	}
	excess, ok := l.check(b[at:])
	r.excess += excess
	return ok && r.append(b[at:])
}

// RemoveOPT removes the OPT record, which is Last, from the message. Without it a response code above MaxRcode becomes SERVFAIL.
func (r *Reply) RemoveOPT() {
	r.Message = r.Message[:r.OPT.Owner]
	addCount(r.Message, Additional, -1)
	r.OPT = OPT{}
	if r.Rcode <= MaxRcode {
		return
	}
	r.Rcode = servfail
	setRcode(r.Message, servfail)
	if r.Ordinary {
		setRcode(r.plain, servfail)
	}
}

func setRcode(b []byte, rcode byte) { b[RcodeAt] = b[RcodeAt]&^RcodeMask | rcode }

// servfail is the response code of a server's failure, RFC 1035 section 4.1.1.
const servfail = 2

// RemoveOptions removes options from the OPT record, which is Last, in the message.
func (r *Reply) RemoveOptions(remove func(code uint16) bool) {
	to := int(r.OPT.Data)
	for options := r.Options(); len(options) > 0; {
		code, data, rest, ok := CutOption(options)
		if !ok {
			break
		}
		if !remove(code) {
			to += copy(r.Message[to:], options[:OptionLen+len(data)])
		}
		options = rest
	}
	r.Message, r.OPT.End = r.Message[:to], uint32(to) // #nosec G115 -- it was longer
	EndOPT(r.Message, int(r.OPT.Owner))
}

// HasOption reports whether the OPT record has an option with a code for which a function returns true.
func (r *Reply) HasOption(is func(code uint16) bool) bool {
	for options := r.Options(); len(options) > 0; {
		code, _, rest, ok := CutOption(options)
		if !ok {
			return false
		}
		if is(code) {
			return true
		}
		options = rest
	}
	return false
}

// replies are reused.
var replies = sync.Pool{New: func() any { return new(Reply) }}

// NewReply returns a Reply for Parse.
func NewReply() *Reply { return replies.Get().(*Reply) }

// Release ends the use of a Reply of NewReply.
func (r *Reply) Release() {
	if cap(r.plain)+cap(r.compressed) > maxSpare || cap(r.records) > maxRecords {
		return // it is left to the garbage collector
	}
	r.Message = nil
	replies.Put(r)
}

// Limits of the buffers of a Reply that is reused, in bytes and records: more than those of an ordinary one.
const (
	maxSpare   = 4 * maxPlain
	maxRecords = 2 * maxPlain / (1 + RecordLen)
)
