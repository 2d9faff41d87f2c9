package transport

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Check returns the reason to drop a message with the id of a query, or "" if it answers the query. A server that could
// not read the query, or refuses it, may omit the question (RFC 1035 section 4.1.1 requires it for no response code).
func Check(query, reply []byte) (reason string) {
	return check(query[:wire.QuestionEnd(query)], reply)
}

// check is Check for a query that ends with its question.
func check(question, reply []byte) (reason string) {
	if len(reply) < wire.HeaderLen || reply[wire.FlagsAt]&wire.QR == 0 || (reply[wire.FlagsAt]^question[wire.FlagsAt])&wire.OpcodeMask != 0 {
		return Malformed
	}
	if wire.Count(reply, wire.QDCountAt) == 0 && isRefusal(reply[wire.RcodeAt]&wire.RcodeMask) {
		return ""
	}
	if wire.Count(reply, wire.QDCountAt) != 1 || len(reply) < len(question) {
		return WrongQuestion
	}
	got, want := reply[wire.HeaderLen:len(question)], question[wire.HeaderLen:]
	if bytes.Equal(got, want) {
		return ""
	}
	name := len(want) - wire.TypeClassLen
	if bytes.Equal(got[name:], want[name:]) && wire.EqualNames(got[:name], want[:name]) {
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

// keepAlive is the option edns-tcp-keepalive of a client, RFC 7828 section 3.1.
var keepAlive = []byte{0, wire.OptionKeepAlive, 0, 0}

// onlyAdditional are the record counts of a message with one additional record.
var onlyAdditional = []byte{0, 0, 0, 0, 0, 1}

// keepAliveOf returns the idle time that a server allows by edns-tcp-keepalive in an answer, RFC 7828 section 3.1.
func keepAliveOf(reply []byte) (idle time.Duration, ok bool) {
	data, ok := wire.MessageOption(reply, wire.OptionKeepAlive)
	if !ok || len(data) != 2 {
		return 0, false
	}
	return time.Duration(binary.BigEndian.Uint16(data)) * 100 * time.Millisecond, true
}

// isCut reports whether a reply with a question ends before the last record that its header counts.
func isCut(reply []byte) bool {
	if wire.Count(reply, wire.QDCountAt) == 0 {
		return false
	}
	r := wire.Records(reply)
	for r.Next() {
		continue
	}
	return r.IsCut()
}

// appendKeepAlive appends a query to dst, with edns-tcp-keepalive if its only record is an OPT record. Other queries
// are not changed: an OPT record in the query would add one to the answer.
func appendKeepAlive(dst, query []byte, question int) []byte {
	start := len(dst)
	dst = append(dst, query...)
	opt := query[question:]
	if !bytes.Equal(query[wire.ANCountAt:wire.HeaderLen], onlyAdditional) || !wire.IsOPT(opt) {
		return dst
	}
	if r, ok := wire.ReadRecord(query, question); !ok || int(r.End) != len(query) || len(query)+len(keepAlive) > maxMessage {
		return dst
	}
	dst = append(dst, keepAlive...)
	wire.EndOPT(dst, start+question)
	return dst
}
