package answers

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// MaxQuery is the maximum length of an ordinary query in bytes, without EDNS options.
const MaxQuery = wire.HeaderLen + wire.MaxName + wire.TypeClassLen + wire.OPTLen

// maxOptions is the maximum length in bytes of the EDNS options that Parse accepts.
const maxOptions = wire.OptionLen + wire.MaxCaller + wire.OptionLen + wire.MaxSearchList + wire.OptionLen

// Query has the header flags, the question and the EDNS fields of a query. The name is in the query's bytes at wire.HeaderLen.
type Query struct {
	NameLen int // length of the question's name in bytes, with the root label
	Type    uint16
	Class   uint16
	UDPSize uint16 // of the OPT record, not adjusted to a minimum; 0 without one
	EDNS    bool   // the query has an OPT record
	DO      bool   // DNSSEC OK
	RD      bool   // recursion desired
	CD      bool   // checking disabled
	AD      bool   // authenticated data is understood, RFC 6840 section 5.7
	Upper   bool   // the name has upper-case letters
	Notify  bool   // the client requests notification when the answer ends (wire.OptionNotify)
	Caller  int    // offset in the query of the data of option wire.OptionCaller; 0 without one
	Search  []byte // the data of option wire.OptionSearchList, a slice of the query or message; nil without one
}

// Parse parses an ordinary query: opcode QUERY, no flags except RD, AD and CD, one question of class IN, at most one
// OPT record with at most one caller option, one search list and one request for notification, no trailing bytes. It
// returns false for every other message, valid or not. Every accepted query is valid for package dns.
func (q *Query) Parse(b []byte) bool {
	if len(b) < wire.HeaderLen+1+4 || len(b) > MaxQuery+maxOptions {
		return false
	}
	if b[2]&^wire.RD != 0 || b[3]&^(wire.AD|wire.CD) != 0 {
		return false
	}
	// One question, no answer, no authority, at most one additional record.
	if b[4] != 0 || b[5] != 1 || b[6] != 0 || b[7] != 0 || b[8] != 0 || b[9] != 0 || b[10] != 0 || b[11] > 1 {
		return false
	}
	*q = Query{RD: b[2]&wire.RD != 0, AD: b[3]&wire.AD != 0, CD: b[3]&wire.CD != 0}
	if !q.parseName(b) {
		return false
	}
	end := q.QuestionEnd()
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

// parseName sets NameLen and Upper. A name with a compression pointer is invalid.
func (q *Query) parseName(b []byte) bool {
	end := wire.NameEnd(b, wire.HeaderLen)
	if end == 0 {
		return false
	}
	q.NameLen, q.Upper = end-wire.HeaderLen, wire.HasUpper(b[wire.HeaderLen:end])
	return true
}

// parseOpt parses an OPT record with version 0 and no flag except DO; it must end the message.
func (q *Query) parseOpt(b []byte) bool {
	if !wire.IsOPT(b) {
		return false
	}
	flags := binary.BigEndian.Uint32(b[5:])
	if flags&^wire.DO != 0 || int(binary.BigEndian.Uint16(b[9:])) != len(b)-wire.OPTLen {
		return false
	}
	if !q.parseOptions(b) {
		return false
	}
	q.EDNS, q.UDPSize, q.DO = true, wire.UDPSize(b), flags != 0
	return true
}

// parseOptions parses the options of an OPT record: at most one caller option, one search list and one request for
// notification, in any order.
func (q *Query) parseOptions(opt []byte) bool {
	start := q.QuestionEnd()
	for options := opt[wire.OPTLen:]; len(options) > 0; {
		code, data, rest, ok := wire.CutOption(options)
		switch {
		case !ok:
			return false
		case code == wire.OptionCaller && q.Caller == 0:
			q.Caller = start + len(opt) - len(options) + wire.OptionLen
		case code == wire.OptionSearchList && q.Search == nil && len(data) <= wire.MaxSearchList:
			q.Search = slices.Clip(data)
		case code == wire.OptionNotify && !q.Notify && len(data) == 0:
			q.Notify = true
		default:
			return false
		}
		options = rest
	}
	return true
}

// CallerData returns the data of the caller option (package caller), nil without one.
func (q *Query) CallerData(query []byte) []byte {
	if q.Caller == 0 {
		return nil
	}
	return query[q.Caller:][:binary.BigEndian.Uint16(query[q.Caller-2:])]
}

// Name returns the question's name, a slice of the query.
func (q *Query) Name(query []byte) []byte { return query[wire.HeaderLen : wire.HeaderLen+q.NameLen] }

// QuestionEnd returns the offset behind the question in the query.
func (q *Query) QuestionEnd() int { return wire.HeaderLen + q.NameLen + wire.TypeClassLen }

// flags returns the flags of the OPT record.
func (q *Query) flags() uint32 {
	if q.DO {
		return wire.DO
	}
	return 0
}

// Limit returns the maximum length in bytes of a reply over UDP, RFC 6891 section 6.2.5.
func (q *Query) Limit() int {
	return max(int(q.UDPSize), dns.MinMsgSize)
}

// FromMsg sets the query from a message and appends its packed header and question to buf, which must be empty with a
// capacity of MaxQuery. Any class is accepted; of the options, only Search is set. FromMsg returns false, since
// the reply is for its client only, unless the message isPlain with a valid name, at most one search list of at most
// wire.MaxSearchList bytes, and no option that may change the answer without being in the key, such as a client
// subnet (RFC 7871).
func (q *Query) FromMsg(buf []byte, m *dns.Msg) ([]byte, bool) {
	if !isPlain(m) || cap(buf) < MaxQuery {
		return nil, false
	}
	question := m.Question[0]
	b := buf[:MaxQuery]
	clear(b[:wire.HeaderLen])
	end, err := dns.PackDomainName(question.Name, b, wire.HeaderLen, nil, false)
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
	if _, unkeyed := UnkeyedOption(m); unkeyed {
		return nil, false
	}
	if searchlist.HasOption(m) {
		var one bool
		if q.Search, one = searchlist.OptionOf(m); !one || len(q.Search) > wire.MaxSearchList {
			return nil, false
		}
	}
	b[2], b[3] = wire.Flag(q.RD, wire.RD), wire.Flag(q.AD, wire.AD)|wire.Flag(q.CD, wire.CD)
	return b[:end+4], true
}

// isPlain reports whether a message has the parts of an ordinary query only: opcode QUERY, no flags except RD, AD and CD,
// one question, and no record except one OPT record. A server may refuse, or answer in another way, a query with a
// signature, with other records or with other flags.
func isPlain(m *dns.Msg) bool {
	plain := dns.MsgHdr{
		Id: m.Id, RecursionDesired: m.RecursionDesired, AuthenticatedData: m.AuthenticatedData, CheckingDisabled: m.CheckingDisabled,
	}
	if m.MsgHdr != plain || len(m.Question) != 1 || len(m.Answer)+len(m.Ns) > 0 {
		return false
	}
	return len(m.Extra) == 0 || len(m.Extra) == 1 && m.IsEdns0() != nil && m.Extra[0].Header().Name == "."
}

// UnkeyedOption returns the code of the first EDNS option of a query that may change the answer and is not in the key.
// It returns false without such an option.
func UnkeyedOption(m *dns.Msg) (code uint16, found bool) {
	opt := m.IsEdns0()
	if opt == nil {
		return 0, false
	}
	for _, o := range opt.Option {
		if code := o.Option(); !isOurs(code) && !isForHop(code) {
			return code, true
		}
	}
	return 0, false
}

// RemoveHop removes from the OPT record of a query all that concerns one hop, and is not part of the key: the flags except
// DO, and the options that a server answers in its OPT record or for its transport. A server may refuse it.
func RemoveHop(opt *dns.OPT) {
	opt.Hdr.Ttl &= wire.DO
	opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool { return isForHop(o.Option()) })
}

// isOurs reports whether an EDNS option is one of this project: a plugin that depends on the caller sets Views, the search
// list is in the key, and a notification changes no answer.
func isOurs(option uint16) bool {
	switch option {
	case wire.OptionCaller, wire.OptionSearchList, wire.OptionNotify:
		return true
	}
	return false
}

// optionKeyTag is the code of edns-key-tag, RFC 8145 section 4.1.
const optionKeyTag = 14

// isForHop reports whether an EDNS option is for the transport, or for the OPT record of the reply, which is not cached: it
// does not change the answer. Others may: the client subnet, CHAIN (RFC 7901), the device and policy IDs that vendors put
// into unregistered and local codes, and future codes.
func isForHop(option uint16) bool {
	switch option {
	case dns.EDNS0NSID, dns.EDNS0DAU, dns.EDNS0DHU, dns.EDNS0N3U, dns.EDNS0EXPIRE, dns.EDNS0COOKIE, dns.EDNS0TCPKEEPALIVE,
		dns.EDNS0PADDING, optionKeyTag, dns.EDNS0EDE, dns.EDNS0REPORTING, dns.EDNS0ZONEVERSION:
		return true
	}
	return false
}

// keyHead is the length of a key before the name: keyspace, type, class, flags.
const keyHead = 4 + 2 + 2 + 1

// keyFlags is the offset of the flags in a key.
const keyFlags = keyHead - 1

// Flags in a key: the query's flags that change answers, and the fields after the name.
const (
	keyDO     = 1
	keyCD     = 2
	keySearch = 4 // one byte of length and the data of a search list
	keyList   = 8 // the ID of a search list
)

// numberLen is the length in a key of the number of a view, and of the ID of a search list.
const numberLen = 4

// MaxKey is the maximum length of a key in bytes, without the names of a view's node and zone: a key with them fits unless it
// also has a long name or a long search list.
const MaxKey = keyHead + wire.MaxName + 1 + wire.MaxSearchList + numberLen + numberLen

// AppendKey appends the key of the query's answer to dst: the keyspace, type, class, the flags DO and CD, the name in
// lower case, and the search list.
func (q *Query) AppendKey(dst []byte, keyspace uint32, query []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, keyspace)
	dst = binary.BigEndian.AppendUint16(dst, q.Type)
	dst = binary.BigEndian.AppendUint16(dst, q.Class)
	dst = append(dst, wire.Flag(q.DO, keyDO)|wire.Flag(q.CD, keyCD)|wire.Flag(q.Search != nil, keySearch))
	if name := q.Name(query); q.Upper {
		dst = wire.AppendLower(dst, name)
	} else {
		dst = append(dst, name...)
	}
	if q.Search == nil {
		return dst
	}
	return append(append(dst, byte(len(q.Search))), q.Search...)
}

// FromKey sets the query from a key without the number of a view or the ID of a search list, and appends the query in wire
// form to buf, which must be empty: with RD, and with an OPT record, so that the reply may have options. The query has the
// same key in the keyspace. FromKey returns false for any other key.
func (q *Query) FromKey(buf, key []byte) ([]byte, bool) {
	if len(key) < keyHead+1 || key[keyFlags]&^(keyDO|keyCD|keySearch) != 0 {
		return nil, false
	}
	end := wire.NameEnd(key, keyHead)
	if end == 0 {
		return nil, false
	}
	flags, search := key[keyFlags], key[end:]
	b := append(buf, 0, 0, wire.RD, wire.Flag(flags&keyCD != 0, wire.CD), 0, 1, 0, 0, 0, 0, 0, 1)
	b = append(append(b, key[keyHead:end]...), key[4:keyFlags]...)
	opt := len(b)
	b = wire.AppendOPT(b, searchlist.UDPSize, (&Query{DO: flags&keyDO != 0}).flags(), nil)
	if flags&keySearch != 0 {
		if len(search) == 0 || len(search) != 1+int(search[0]) {
			return nil, false
		}
		b, search = searchlist.AppendOption(b, search[1:]), nil
		wire.EndOPT(b, opt)
	}
	return b, len(search) == 0 && q.Parse(b) && !q.Upper
}

// HasOtherVersion reports whether a message ends in an OPT record without options and with an EDNS version other than 0:
// the reply is BADVERS for every question (RFC 6891 section 6.1.3).
func HasOtherVersion(b []byte) bool {
	if len(b) < wire.HeaderLen+wire.OPTLen || b[10] != 0 || b[11] != 1 {
		return false
	}
	opt := b[len(b)-wire.OPTLen:]
	return wire.IsOPT(opt) && opt[6] != 0 && opt[9] == 0 && opt[10] == 0
}

// AppendName appends the name of the first question of a message to dst, in wire form and lower case. The rest of the
// message may be of any form, or malformed.
func AppendName(dst, b []byte) ([]byte, bool) {
	if len(b) < wire.HeaderLen || wire.Count(b, wire.QDCountAt) == 0 {
		return dst, false
	}
	end := wire.NameEnd(b, wire.HeaderLen)
	if end == 0 {
		return dst, false
	}
	return wire.AppendLower(dst, b[wire.HeaderLen:end]), true
}

// KeyName returns the name in a key, in wire form and lower case. It is a slice of the key.
func KeyName(key []byte) []byte {
	return key[keyHead:wire.NameEnd(key, keyHead)]
}

// appendKeyView returns the key of the answer for one view of callers (see Views): the number, then the node with its length,
// and the zone.
func appendKeyView(key []byte, v *View) []byte {
	key = binary.BigEndian.AppendUint32(key, v.Number)
	if v.Node == "" {
		return key
	}
	key = append(key, byte(len(v.Node))) // #nosec G115 -- at most caller.MaxNode
	return append(append(key, v.Node...), v.Zone...)
}

// AppendKeyList returns the key of the answer found with a search list, by the ID of the list. The key must not have a
// view. Keys without a list, and keys with a list in an EDNS option, differ from the result.
func AppendKeyList(key []byte, list uint32) []byte {
	key[keyFlags] |= keyList
	return binary.BigEndian.AppendUint32(key, list)
}

// SetKeyspace replaces the keyspace of a key.
func SetKeyspace(key []byte, keyspace uint32) { binary.BigEndian.PutUint32(key, keyspace) }
