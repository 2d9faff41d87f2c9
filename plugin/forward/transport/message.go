package transport

import (
	"bytes"
	"encoding/binary"
	"time"
)

// Sizes in bytes, RFC 1035 section 4.1 and RFC 6891 section 6.1.2.
const (
	headerLen = 12
	typeClass = 4
	optLen    = 11 // without options
	recordLen = 10 // without name and data
	maxLabel  = 63
	maxName   = 255
)

// Offsets and bits of the header, RFC 1035 section 4.1.1.
const (
	flagsAt       = 2
	responseBit   = 0x80 // of the byte flagsAt
	opcodeMask    = 0x78 // of the byte flagsAt
	truncationBit = 0x02 // of the byte flagsAt
	rcodeMask     = 0x0f // of the next byte
	qdcountAt     = 4
	ancountAt     = 6
	nscountAt     = 8
	arcountAt     = 10
)

// questionEnd returns the offset behind the only question of a message, whose name is not compressed, or 0.
func questionEnd(b []byte) int {
	if len(b) < headerLen || binary.BigEndian.Uint16(b[qdcountAt:]) != 1 {
		return 0
	}
	at := headerLen
	for at < len(b) {
		label := int(b[at])
		at++
		switch {
		case label > maxLabel || at-headerLen > maxName:
			return 0
		case label == 0:
			if at += typeClass; at > len(b) {
				return 0
			}
			return at
		}
		at += label
	}
	return 0
}

// Check returns the reason to drop a message with the id of a query, or "" if it answers the query. A server that could
// not read the query, or refuses it, may omit the question (RFC 1035 section 4.1.1 requires it for no response code).
func Check(query, reply []byte) (reason string) {
	return check(query[:questionEnd(query)], reply)
}

// check is Check for a query that ends with its question.
func check(question, reply []byte) (reason string) {
	if len(reply) < headerLen || reply[flagsAt]&responseBit == 0 || (reply[flagsAt]^question[flagsAt])&opcodeMask != 0 {
		return Malformed
	}
	if binary.BigEndian.Uint16(reply[qdcountAt:]) == 0 && isRefusal(reply[flagsAt+1]&rcodeMask) {
		return ""
	}
	if binary.BigEndian.Uint16(reply[qdcountAt:]) != 1 || len(reply) < len(question) {
		return WrongQuestion
	}
	got, want := reply[headerLen:len(question)], question[headerLen:]
	if bytes.Equal(got, want) {
		return ""
	}
	name := len(want) - typeClass
	if bytes.Equal(got[name:], want[name:]) && equalFold(got[:name], want[:name]) {
		return WrongCase
	}
	return WrongQuestion
}

// isRefusal reports whether a response code does not depend on the name: FORMERR, SERVFAIL, NOTIMP or REFUSED, RFC
// 1035 section 4.1.1.
func isRefusal(rcode byte) bool {
	return rcode == formErr || rcode == servFail || rcode == notImp || rcode == refusal
}

// Response codes, RFC 1035 section 4.1.1.
const (
	formErr  = 1
	servFail = 2
	notImp   = 4
	refusal  = 5
)

// equalFold compares names in wire form. The lengths of labels are below 'A'.
func equalFold(a, b []byte) bool {
	for i := range a {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// Numbers of RFC 6891 section 6.1.1 and RFC 7828 section 3.1.
const (
	typeOPT         = 41
	optionKeepAlive = 11
)

// keepAlive is the option edns-tcp-keepalive of a client, RFC 7828 section 3.1.
var keepAlive = []byte{0, optionKeepAlive, 0, 0}

// onlyAdditional are the record counts of a message with one additional record.
var onlyAdditional = []byte{0, 0, 0, 0, 0, 1}

// keepAliveOf returns the idle time that a server allows by edns-tcp-keepalive in an answer, RFC 7828 section 3.1.
func keepAliveOf(reply []byte) (idle time.Duration, ok bool) {
	data, ok := optionOf(reply, optionKeepAlive)
	if !ok || len(data) != 2 {
		return 0, false
	}
	return time.Duration(binary.BigEndian.Uint16(data)) * 100 * time.Millisecond, true
}

// optionOf returns the data of an EDNS option of an answer.
func optionOf(reply []byte, code uint16) (data []byte, ok bool) {
	count := func(at int) int { return int(binary.BigEndian.Uint16(reply[at:])) }
	if count(arcountAt) == 0 {
		return nil, false
	}
	at := headerLen
	for range count(qdcountAt) {
		at = skipName(reply, at) + typeClass
	}
	before := count(ancountAt) + count(nscountAt)
	for i := range before + count(arcountAt) {
		at = skipName(reply, at)
		if at+recordLen > len(reply) {
			return nil, false
		}
		data := at + recordLen
		end := data + count(at+recordLen-2)
		if i >= before && count(at) == typeOPT && end <= len(reply) {
			return optionIn(reply[data:end], code)
		}
		at = end
	}
	return nil, false
}

// isCut reports whether a reply with a question, which ends at an offset, ends before the last record that its header counts.
func isCut(reply []byte, at int) bool {
	count := func(at int) int { return int(binary.BigEndian.Uint16(reply[at:])) }
	if count(qdcountAt) == 0 {
		return false
	}
	for range count(ancountAt) + count(nscountAt) + count(arcountAt) {
		if at = skipName(reply, at) + recordLen; at > len(reply) {
			return true
		}
		at += count(at - 2)
	}
	return at > len(reply)
}

// optionIn returns the data of the first option with a code among EDNS options.
func optionIn(options []byte, code uint16) (data []byte, ok bool) {
	for len(options) >= 4 {
		found, length := binary.BigEndian.Uint16(options), int(binary.BigEndian.Uint16(options[2:]))
		if options = options[4:]; length > len(options) {
			break
		}
		if found == code {
			return options[:length], true
		}
		options = options[length:]
	}
	return nil, false
}

// skipName returns the offset behind a name, which is beyond a message that ends within the name.
func skipName(b []byte, at int) int {
	for at < len(b) {
		switch length := int(b[at]); {
		case length == 0:
			return at + 1
		case length > maxLabel: // a pointer ends a name
			return at + 2
		default:
			at += 1 + length
		}
	}
	return at
}

// appendKeepAlive appends a query to dst, with edns-tcp-keepalive if its only record is an OPT record. Other queries
// are not changed: an OPT record in the query would add one to the answer.
func appendKeepAlive(dst, query []byte, question int) []byte {
	start := len(dst)
	dst = append(dst, query...)
	opt := query[question:]
	if !bytes.Equal(query[ancountAt:headerLen], onlyAdditional) || len(opt) < optLen || opt[0] != 0 || binary.BigEndian.Uint16(opt[1:]) != typeOPT {
		return dst
	}
	options := int(binary.BigEndian.Uint16(opt[9:]))
	if optLen+options != len(opt) || len(query)+len(keepAlive) > maxMessage {
		return dst
	}
	binary.BigEndian.PutUint16(dst[start+question+9:], uint16(options+len(keepAlive))) // #nosec G115 -- a message is shorter
	return append(dst, keepAlive...)
}
