// Package wire reads queries and patches answers as bytes. In go datagrams and packed answers; out come
// facts about a query and an answer fitted to it. It is a leaf: it knows no sockets, no plugins and no
// cluster, it does not log, and what it does for one query allocates nothing.
package answers

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// Sizes of the parts of a message in bytes, RFC 1035 section 4.1 and RFC 6891 section 6.1.2.
const (
	HeaderLen  = 12
	OptLen     = 11                                  // an OPT record without options
	MaxNameLen = 255                                 // of a name, with its root label
	MaxQuery   = HeaderLen + MaxNameLen + 4 + OptLen // without options
)

// optionHead is the length of the code and the length of an EDNS option, RFC 6891 section 6.1.2.
const optionHead = 4

// maxOptions is the greatest length of the options that Parse takes, in bytes.
const maxOptions = optionHead + caller.MaxData + optionHead + searchlist.MaxOption

const maxLabelLen = 63

// Bits of the third and the fourth byte of a header, RFC 1035 section 4.1.1 and RFC 4035 section 3.
const (
	bitQR, bitAA, bitTC, bitRD = 0x80, 0x04, 0x02, 0x01
	bitRA, bitZ, bitAD, bitCD  = 0x80, 0x40, 0x20, 0x10
	opcodeMask, rcodeMask      = 0x78, 0x0f
)

// doFlag is the DNSSEC OK flag in the TTL of an OPT record, RFC 3225.
const doFlag = 0x8000

// Query is what is known of a query. Its name stands at HeaderLen, in wire form.
type Query struct {
	NameLen int // of the question's name in bytes, with the root label
	Type    uint16
	Class   uint16
	UDPSize uint16 // of the OPT record, as it was sent; 0 without one
	EDNS    bool   // there is an OPT record
	DO      bool   // DNSSEC OK
	RD      bool   // recursion desired
	CD      bool   // checking disabled
	AD      bool   // authenticated data is understood, RFC 6840 section 5.7
	Upper   bool   // the name has upper-case letters
	Caller  int    // where in the query the data of option caller.Code begin; 0 without one
	Search  []byte // the data of option search.Code, a part of what was read; nil without one
}

// Parse reads a query and reports whether it is an ordinary one: opcode QUERY, no flags but RD, AD and
// CD, one question of class IN, at most an OPT record without options but one that names the caller and one of a
// search list, and no byte more. Everything else is refused, be it right or wrong; nothing is accepted that package dns rejects.
func (q *Query) Parse(b []byte) bool {
	if len(b) < HeaderLen+1+4 || len(b) > MaxQuery+maxOptions {
		return false
	}
	if b[2]&^bitRD != 0 || b[3]&^(bitAD|bitCD) != 0 {
		return false
	}
	// One question, no answer, no authority, at most one additional record.
	if b[4] != 0 || b[5] != 1 || b[6] != 0 || b[7] != 0 || b[8] != 0 || b[9] != 0 || b[10] != 0 || b[11] > 1 {
		return false
	}
	*q = Query{RD: b[2]&bitRD != 0, AD: b[3]&bitAD != 0, CD: b[3]&bitCD != 0}
	if !q.parseName(b) {
		return false
	}
	end := HeaderLen + q.NameLen + 4
	if len(b) < end {
		return false
	}
	q.Type, q.Class = binary.BigEndian.Uint16(b[end-4:]), binary.BigEndian.Uint16(b[end-2:])
	if q.Class != dns.ClassINET {
		return false
	}
	if b[11] == 0 {
		return len(b) == end
	}
	return q.parseOpt(b[end:])
}

// parseName measures the name of the question, in which no pointer may be.
func (q *Query) parseName(b []byte) bool {
	for at := HeaderLen; ; {
		if at >= len(b) || at-HeaderLen >= MaxNameLen {
			return false
		}
		n := int(b[at])
		if n == 0 {
			q.NameLen = at + 1 - HeaderLen
			return true
		}
		next := at + 1 + n
		if n > maxLabelLen || next > len(b) {
			return false
		}
		for _, c := range b[at+1 : next] {
			if c-'A' < 26 {
				q.Upper = true
			}
		}
		at = next
	}
}

// parseOpt reads the OPT record, which has to be all that is left: version 0, no flag but DO.
func (q *Query) parseOpt(b []byte) bool {
	if len(b) < OptLen || b[0] != 0 || binary.BigEndian.Uint16(b[1:]) != dns.TypeOPT {
		return false
	}
	flags := binary.BigEndian.Uint32(b[5:])
	if flags&^doFlag != 0 || int(binary.BigEndian.Uint16(b[9:])) != len(b)-OptLen {
		return false
	}
	if !q.parseOptions(b) {
		return false
	}
	q.EDNS, q.UDPSize, q.DO = true, binary.BigEndian.Uint16(b[3:]), flags != 0
	return true
}

// parseOptions reads the options of an OPT record: one that names the caller and one of a search list, each at
// most once and in either order.
func (q *Query) parseOptions(opt []byte) bool {
	for at := OptLen; at < len(opt); {
		if at+optionHead > len(opt) {
			return false
		}
		data := at + optionHead
		end := data + int(binary.BigEndian.Uint16(opt[at+2:]))
		if end > len(opt) {
			return false
		}
		switch code := binary.BigEndian.Uint16(opt[at:]); {
		case code == caller.Code && q.Caller == 0:
			q.Caller = HeaderLen + q.NameLen + 4 + data
		case code == searchlist.OptionCode && q.Search == nil && end-data <= searchlist.MaxOption:
			q.Search = opt[data:end:end]
		default:
			return false
		}
		at = end
	}
	return true
}

// CallerData returns the data of the option that names the caller, nil without one.
func (q *Query) CallerData(query []byte) []byte {
	if q.Caller == 0 {
		return nil
	}
	return query[q.Caller:][:binary.BigEndian.Uint16(query[q.Caller-2:])]
}

// Limit returns how long an answer over UDP may be in bytes, RFC 6891 section 6.2.5.
func (q *Query) Limit() int {
	return max(int(q.UDPSize), dns.MinMsgSize)
}

// FromMsg appends to buf, which is empty, a query as Parse reads it, with the header flags, the question
// and the EDNS facts of a message; of its options, only Search is read, and any class is taken. It fails if the
// message has not one question, one whose name can't be packed, more than one search list or one that is too
// long, or an option that may change the answer and is not in the key, such as a client subnet (RFC 7871): the reply
// to such a query belongs to its client, and no reply to another query answers it.
func (q *Query) FromMsg(buf []byte, m *dns.Msg) ([]byte, bool) {
	if len(m.Question) != 1 || cap(buf) < MaxQuery {
		return nil, false
	}
	question := m.Question[0]
	b := buf[:MaxQuery]
	clear(b[:HeaderLen])
	end, err := dns.PackDomainName(question.Name, b, HeaderLen, nil, false)
	if err != nil {
		return nil, false
	}
	binary.BigEndian.PutUint16(b, m.Id)
	b[5] = 1
	*q = Query{
		Type: question.Qtype, Class: question.Qclass,
		RD: m.RecursionDesired, CD: m.CheckingDisabled, AD: m.AuthenticatedData,
	}
	if !q.parseName(b[:end]) {
		return nil, false
	}
	binary.BigEndian.PutUint16(b[end:], q.Type)
	binary.BigEndian.PutUint16(b[end+2:], q.Class)
	if opt := m.IsEdns0(); opt != nil {
		q.EDNS, q.UDPSize, q.DO = true, opt.UDPSize(), opt.Do()
	}
	if _, has := UnkeyedOption(m); has {
		return nil, false
	}
	if searchlist.HasOption(m) {
		var one bool
		if q.Search, one = searchlist.OptionOf(m); !one || len(q.Search) > searchlist.MaxOption {
			return nil, false
		}
	}
	b[2], b[3] = flag(q.RD, bitRD), flag(q.AD, bitAD)|flag(q.CD, bitCD)
	return b[:end+4], true
}

// UnkeyedOption returns the code of the first EDNS option of a query that may change the answer and is not in the key,
// and whether there is one.
func UnkeyedOption(m *dns.Msg) (code uint16, has bool) {
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		for _, o := range opt.Option {
			if !keepsAnswer(o.Option()) {
				return o.Option(), true
			}
		}
	}
	return 0, false
}

// optionKeyTag is the code of edns-key-tag, RFC 8145 section 4.1.
const optionKeyTag = 14

// keepsAnswer reports whether an EDNS option leaves the answer as it is, or is in the key. Those that do not are the
// client subnet, CHAIN (RFC 7901), the device and policy IDs that vendors put into unregistered and local codes, and
// what is not known yet.
func keepsAnswer(option uint16) bool {
	switch option {
	case caller.Code, searchlist.OptionCode:
		return true // the plugin that reads the first limits its answer to a view (package store); the second is in the key
	case dns.EDNS0NSID, dns.EDNS0DAU, dns.EDNS0DHU, dns.EDNS0N3U, dns.EDNS0EXPIRE, dns.EDNS0COOKIE, dns.EDNS0TCPKEEPALIVE,
		dns.EDNS0PADDING, optionKeyTag, dns.EDNS0EDE, dns.EDNS0REPORTING, dns.EDNS0ZONEVERSION:
		return true // they concern the transport, or add to the OPT record of the reply, which is not cached
	}
	return false
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// keyHead is the length of a key before the name: the space, the type, the class, the flags.
const keyHead = 4 + 2 + 2 + 1

// keyFlags is where in a key the flags stand.
const keyFlags = keyHead - 1

// Flags in a key: those of the query on which answers differ, and what follows the name.
const (
	keyDO     = 1
	keyCD     = 2
	keySearch = 4 // the data of a search list, and their length in one byte before them
	keyPath   = 8 // the number of a search path
)

// numberLen is the length of a view, and of a search path, in a key.
const numberLen = 4

// MaxKey is the greatest length of a key in bytes.
const MaxKey = keyHead + MaxNameLen + 1 + searchlist.MaxOption + numberLen + numberLen

// AppendKey appends to dst what an answer is kept under: a space of answers, the name in lower case, the
// type, the class, the flags DO and CD, on which answers differ, and the search list.
func (q *Query) AppendKey(dst []byte, space uint32, query []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, space)
	dst = binary.BigEndian.AppendUint16(dst, q.Type)
	dst = binary.BigEndian.AppendUint16(dst, q.Class)
	dst = append(dst, flag(q.DO, keyDO)|flag(q.CD, keyCD)|flag(q.Search != nil, keySearch))
	name := query[HeaderLen : HeaderLen+q.NameLen]
	if q.Upper {
		for _, c := range name {
			dst = append(dst, lower(c))
		}
	} else {
		dst = append(dst, name...)
	}
	if q.Search == nil {
		return dst
	}
	return append(append(dst, byte(len(q.Search))), q.Search...)
}

// HasOtherVersion reports whether a message ends in an OPT record without options whose version of EDNS is not 0. A
// server refuses that whatever it asks for (RFC 6891 section 6.1.3).
func HasOtherVersion(b []byte) bool {
	if len(b) < HeaderLen+OptLen || b[10] != 0 || b[11] != 1 {
		return false
	}
	opt := b[len(b)-OptLen:]
	return opt[0] == 0 && binary.BigEndian.Uint16(opt[1:]) == dns.TypeOPT && opt[6] != 0 && opt[9] == 0 && opt[10] == 0
}

// AppendName appends to dst the name of the first question of a message in lower case. The message may be
// an unusual one, or malformed behind the name.
func AppendName(dst, b []byte) ([]byte, bool) {
	var q Query
	if len(b) < HeaderLen || b[4] == 0 && b[5] == 0 || !q.parseName(b) {
		return dst, false
	}
	for _, c := range b[HeaderLen : HeaderLen+q.NameLen] {
		dst = append(dst, lower(c))
	}
	return dst, true
}

// KeyName returns the name in a key, in wire form and lower case.
func KeyName(key []byte) []byte {
	end := keyHead
	for key[end] != 0 {
		end += 1 + int(key[end])
	}
	return key[keyHead : end+1]
}

// AppendKeyView makes of a key the one of the answer in one view, where answers depend on who asks.
func AppendKeyView(key []byte, view uint32) []byte { return binary.BigEndian.AppendUint32(key, view) }

// AppendKeyPath makes of a key that has no view the one of the answer that was found along a search path. No
// other key is equal to it.
func AppendKeyPath(key []byte, path uint32) []byte {
	key[keyFlags] |= keyPath
	return binary.BigEndian.AppendUint32(key, path)
}

// SetKeyspace puts another space into a key.
func SetKeyspace(key []byte, space uint32) { binary.BigEndian.PutUint32(key, space) }

// lower returns a letter in lower case. The length of a label is no letter: it is below 'A'.
func lower(c byte) byte {
	if c-'A' < 26 {
		return c + ('a' - 'A')
	}
	return c
}
