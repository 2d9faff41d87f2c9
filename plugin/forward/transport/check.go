package transport

import (
	"bytes"
	"encoding/binary"
	"time"
)

// Sizes of the parts of a message in bytes, RFC 1035 section 4.1 and RFC 6891 section 6.1.2.
const (
	headerLen = 12
	typeClass = 4
	optLen    = 11 // without options
	recordLen = 10 // without the name and the data
	maxLabel  = 63
	maxName   = 255
)

// Places and bits of a header, RFC 1035 section 4.1.1.
const (
	flagsAt      = 2
	responseIs   = 0x80 // of the byte flagsAt
	opcodeIs     = 0x78 // of the byte flagsAt
	truncationIs = 0x02 // of the byte flagsAt
	rcodeIs      = 0x0f // of the byte after
	qdcountAt    = 4
	ancountAt    = 6
	nscountAt    = 8
	arcountAt    = 10
)

// verdict is what is wrong with an answer.
type verdict int

const (
	right verdict = iota
	wrongID
	wrongQuestion
	wrongCase
	malformed
)

// questionEnd returns where the question of a message ends that has one, without pointers in its name, or
// 0.
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

// check compares an answer with the query that its id belongs to. The question is the query up to its
// question's end. A server that could not read the query, or does not want to, may leave the question out
// (RFC 1035 section 4.1.1 says of no code that it has to be there).
func check(question, reply []byte) verdict {
	if len(reply) < headerLen || reply[flagsAt]&responseIs == 0 || (reply[flagsAt]^question[flagsAt])&opcodeIs != 0 {
		return malformed
	}
	if binary.BigEndian.Uint16(reply[qdcountAt:]) == 0 && refuses(reply[flagsAt+1]&rcodeIs) {
		return right
	}
	if binary.BigEndian.Uint16(reply[qdcountAt:]) != 1 || len(reply) < len(question) {
		return wrongQuestion
	}
	is, want := reply[headerLen:len(question)], question[headerLen:]
	if bytes.Equal(is, want) {
		return right
	}
	name := len(want) - typeClass
	if bytes.Equal(is[name:], want[name:]) && equalFold(is[:name], want[:name]) {
		return wrongCase
	}
	return wrongQuestion
}

// refuses reports whether a code says nothing of the name, but that there is no answer: FORMERR, SERVFAIL,
// NOTIMP or REFUSED, RFC 1035 section 4.1.1.
func refuses(rcode byte) bool { return rcode == 1 || rcode == 2 || rcode == 4 || rcode == 5 }

// equalFold compares names in wire form. The lengths of labels are no letters: they are below 'A'.
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

// keepAlive is the edns-tcp-keepalive option as a client sends it, RFC 7828 section 3.1.
var keepAlive = []byte{0, optionKeepAlive, 0, 0}

// oneRecord are the numbers of records in a message that has only an additional one.
var oneRecord = []byte{0, 0, 0, 0, 0, 1}

// mayStay returns for how long the server lets the connection of an answer be idle, RFC 7828 section 3.1,
// if it says so.
func mayStay(reply []byte) (idle time.Duration, ok bool) {
	count := func(at int) int { return int(binary.BigEndian.Uint16(reply[at:])) }
	if count(arcountAt) == 0 {
		return 0, false
	}
	at := headerLen
	for range count(qdcountAt) {
		at = skipName(reply, at) + typeClass
	}
	before := count(ancountAt) + count(nscountAt)
	for i := range before + count(arcountAt) {
		at = skipName(reply, at)
		if at+recordLen > len(reply) {
			return 0, false
		}
		data := at + recordLen
		end := data + count(at+recordLen-2)
		if i >= before && count(at) == typeOPT && end <= len(reply) {
			return keepAliveOf(reply[data:end])
		}
		at = end
	}
	return 0, false
}

// keepAliveOf returns what the edns-tcp-keepalive among options says.
func keepAliveOf(options []byte) (idle time.Duration, ok bool) {
	for len(options) >= 4 {
		code, length := binary.BigEndian.Uint16(options), int(binary.BigEndian.Uint16(options[2:]))
		if options = options[4:]; length > len(options) {
			break
		}
		if code == optionKeepAlive && length == 2 {
			return time.Duration(binary.BigEndian.Uint16(options)) * 100 * time.Millisecond, true
		}
		options = options[length:]
	}
	return 0, false
}

// skipName returns where a name ends, which is behind the message if it does not end in it.
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

// asksToStay appends to dst a query that asks how long the connection may be idle. A query whose last
// record is not an OPT record is appended as it is: what has none gets none, since its answer would have
// one too.
func asksToStay(dst, query []byte, question int) []byte {
	start := len(dst)
	dst = append(dst, query...)
	opt := query[question:]
	if !bytes.Equal(query[ancountAt:headerLen], oneRecord) || len(opt) < optLen || opt[0] != 0 || binary.BigEndian.Uint16(opt[1:]) != typeOPT {
		return dst
	}
	options := int(binary.BigEndian.Uint16(opt[9:]))
	if optLen+options != len(opt) || len(query)+len(keepAlive) > maxMessage {
		return dst
	}
	binary.BigEndian.PutUint16(dst[start+question+9:], uint16(options+len(keepAlive))) // #nosec G115 -- a message is shorter
	return append(dst, keepAlive...)
}
