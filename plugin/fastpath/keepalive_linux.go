package fastpath

import (
	"math"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// keepAliveLen is the length in bytes of an edns-tcp-keepalive option with a timeout, RFC 7828 section 3.1.
const keepAliveLen = 6

// appendKeepAlive appends the option with an idle timeout, in units of 100 milliseconds, to the options of an OPT record.
func appendKeepAlive(options []byte, idle time.Duration) []byte {
	tenths := min(idle/(100*time.Millisecond), math.MaxUint16)
	return wire.AppendOption(options, dns.EDNS0TCPKEEPALIVE, []byte{byte(tenths >> 8), byte(tenths)}) // #nosec G115 -- limited
}

// withoutKeepAlive removes empty edns-tcp-keepalive options from a query, in place, and reports whether it had any: the
// option is for the connection, and the query is as ordinary as one without it. A query whose last and only additional
// record is no OPT record, such as a signed one, is not changed.
func withoutKeepAlive(query []byte) (rest []byte, found bool) {
	opt := optOfQuery(query)
	if opt == 0 {
		return query, false
	}
	for options := query[opt+wire.OPTLen:]; len(options) > 0; {
		code, data, next, ok := wire.CutOption(options)
		if !ok {
			break
		}
		if code == dns.EDNS0TCPKEEPALIVE && len(data) == 0 {
			at := len(query) - len(options)
			query, found = append(query[:at], next...), true
			next = query[at:]
		}
		options = next
	}
	if found {
		wire.EndOPT(query, opt)
	}
	return query, found
}

// optOfQuery returns the offset of the OPT record of a query that has one question and no other record, 0 without one.
func optOfQuery(b []byte) int {
	if len(b) < wire.HeaderLen || b[wire.FlagsAt]&wire.QR != 0 || string(b[wire.QDCountAt:wire.HeaderLen]) != "\x00\x01\x00\x00\x00\x00\x00\x01" {
		return 0
	}
	return lastOPT(b)
}

// addKeepAlive appends the option to the OPT record of a reply of the plugin chain, if that is the last record: a signed
// reply must not change, and the option is optional.
func addKeepAlive(reply []byte, idle time.Duration) []byte {
	opt := lastOPT(reply)
	if opt == 0 || len(reply)+keepAliveLen > dns.MaxMsgSize {
		return reply
	}
	reply = appendKeepAlive(reply, idle)
	wire.EndOPT(reply, opt)
	return reply
}

// lastOPT returns the offset of the OPT record that ends a message and is its only one, 0 without one.
func lastOPT(b []byte) int {
	if opt, ok := wire.FindOPT(b); ok && opt.Last {
		return int(opt.Owner)
	}
	return 0
}
