package wire

import (
	"encoding/binary"
	"slices"
)

// MaxQuery is the maximum length of an ordinary query in bytes, without EDNS options.
const MaxQuery = HeaderLen + MaxName + TypeClassLen + OPTLen

// minUDPSize is the length in bytes of UDP messages that every client can receive, RFC 1035 section 4.2.1.
const minUDPSize = 512

// maxOptions is the maximum length in bytes of the EDNS options that Parse accepts.
const maxOptions = OptionLen + MaxCaller + OptionLen + MaxSearchList + OptionLen

// Query has the header flags, the question and the EDNS fields of a query. The name is in the query's bytes at HeaderLen.
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
	Notify  bool   // the client requests notification when the answer ends (OptionNotify)
	Caller  int    // offset in the query of the data of option OptionCaller; 0 without one
	Search  []byte // the data of option OptionSearchList, a slice of the query or message; nil without one
}

// Parse parses an ordinary query: opcode QUERY, no flags except RD, AD and CD, one question of class IN, at most one
// OPT record with at most one caller option, one search list and one request for notification, no trailing bytes. It
// returns false for every other message, valid or not. Every accepted query is valid for package dns.
func (q *Query) Parse(b []byte) bool {
	if len(b) < HeaderLen+1+4 || len(b) > MaxQuery+maxOptions {
		return false
	}
	if b[2]&^RD != 0 || b[3]&^(AD|CD) != 0 {
		return false
	}
	// One question, no answer, no authority, at most one additional record.
	if b[4] != 0 || b[5] != 1 || b[6] != 0 || b[7] != 0 || b[8] != 0 || b[9] != 0 || b[10] != 0 || b[11] > 1 {
		return false
	}
	*q = Query{RD: b[2]&RD != 0, AD: b[3]&AD != 0, CD: b[3]&CD != 0}
	if !q.ParseQuestion(b) || q.Class != classIN {
		return false
	}
	end := q.QuestionEnd()
	if b[11] == 0 {
		return len(b) == end
	}
	return q.parseOpt(b[end:])
}

// ParseQuestion sets NameLen, Upper, Type and Class from the first question of a message, of any class. The rest of the message
// may be of any form. It returns false without a valid question, which has no compression pointer.
func (q *Query) ParseQuestion(b []byte) bool {
	end := NameEnd(b, HeaderLen)
	if end == 0 || end+TypeClassLen > len(b) {
		return false
	}
	q.NameLen, q.Upper = end-HeaderLen, HasUpper(b[HeaderLen:end])
	q.Type, q.Class = binary.BigEndian.Uint16(b[end:]), binary.BigEndian.Uint16(b[end+2:])
	return true
}

// parseOpt parses an OPT record with version 0 and no flag except DO; it must end the message.
func (q *Query) parseOpt(b []byte) bool {
	if !IsOPT(b) {
		return false
	}
	flags := binary.BigEndian.Uint32(b[5:])
	if flags&^DO != 0 || int(binary.BigEndian.Uint16(b[9:])) != len(b)-OPTLen {
		return false
	}
	if !q.parseOptions(b) {
		return false
	}
	q.EDNS, q.UDPSize, q.DO = true, UDPSize(b), flags != 0
	return true
}

// parseOptions parses the options of an OPT record: at most one caller option, one search list and one request for
// notification, in any order.
func (q *Query) parseOptions(opt []byte) bool {
	start := q.QuestionEnd()
	for options := opt[OPTLen:]; len(options) > 0; {
		code, data, rest, ok := CutOption(options)
		switch {
		case !ok:
			return false
		case code == OptionCaller && q.Caller == 0:
			q.Caller = start + len(opt) - len(options) + OptionLen
		case code == OptionSearchList && q.Search == nil && len(data) <= MaxSearchList:
			q.Search = slices.Clip(data)
		case code == OptionNotify && !q.Notify && len(data) == 0:
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
func (q *Query) Name(query []byte) []byte { return query[HeaderLen : HeaderLen+q.NameLen] }

// QuestionEnd returns the offset behind the question in the query.
func (q *Query) QuestionEnd() int { return HeaderLen + q.NameLen + TypeClassLen }

// AppendOPT appends an OPT record with UDPSize, the flag DO of the query, and options in wire form.
func (q *Query) AppendOPT(dst, options []byte) []byte {
	flags := uint32(0)
	if q.DO {
		flags = DO
	}
	return AppendOPT(dst, q.UDPSize, flags, options)
}

// Limit returns the maximum length in bytes of a reply over UDP, RFC 6891 section 6.2.5.
func (q *Query) Limit() int {
	return max(int(q.UDPSize), minUDPSize)
}

// HasOtherVersion reports whether a message ends in an OPT record without options and with an EDNS version other than 0:
// the reply is BADVERS for every question (RFC 6891 section 6.1.3).
func HasOtherVersion(b []byte) bool {
	if len(b) < HeaderLen+OPTLen || b[10] != 0 || b[11] != 1 {
		return false
	}
	opt := b[len(b)-OPTLen:]
	return IsOPT(opt) && opt[6] != 0 && opt[9] == 0 && opt[10] == 0
}

// AppendQuestionName appends the name of the first question of a message to dst, in wire form and lower case. The rest of the
// message may be of any form, or malformed.
func AppendQuestionName(dst, b []byte) ([]byte, bool) {
	if len(b) < HeaderLen || Count(b, QDCountAt) == 0 {
		return dst, false
	}
	end := NameEnd(b, HeaderLen)
	if end == 0 {
		return dst, false
	}
	return AppendLower(dst, b[HeaderLen:end]), true
}
