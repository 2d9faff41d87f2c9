package wire

import (
	"bytes"
	"encoding/binary"
)

// Types of records, RFC 1035 section 3.2.2 and the registry of the IANA.
const (
	typeA      = 1
	typeNS     = 2
	typeCNAME  = 5
	typeSOA    = 6
	typePTR    = 12
	typeMX     = 15
	typeTXT    = 16
	typeAAAA   = 28
	typeSRV    = 33
	typeDNAME  = 39
	typeDS     = 43
	typeSSHFP  = 44
	typeRRSIG  = 46
	typeDNSKEY = 48
	typeTLSA   = 52
	typeSVCB   = 64
	typeHTTPS  = 65
	typeCAA    = 257
)

// layout is the form of the data of a type of record: bytes, names, and a tail.
type layout struct {
	head     int  // length of the part before the names in bytes
	names    int  // number of names
	compress bool // package dns compresses the names, RFC 3597 section 4
	opaque   bool // bytes of any form, which may have names
	// check reports whether package dns packs the same tail after unpacking it, and returns the number of bytes by which
	// dns.Msg.Len overestimates the tail.
	check func(tail []byte) (excess int, ok bool)
}

// layoutOf returns the layout of a type, without check for one that package dns knows, and this package does not.
func layoutOf(rrtype uint16) layout {
	switch rrtype {
	case typeA:
		return layout{check: lengthA}
	case typeAAAA:
		return layout{check: lengthAAAA}
	case typeCNAME, typeNS, typePTR:
		return layout{names: 1, compress: true, check: noTail}
	case typeDNAME:
		return layout{names: 1, check: noTail}
	case typeMX:
		return layout{head: 2, names: 1, compress: true, check: noTail}
	case typeSRV:
		return layout{head: 6, names: 1, check: noTail}
	case typeSOA:
		return layout{names: 2, compress: true, check: lengthSOA}
	case typeTXT:
		return layout{check: checkStrings}
	case typeCAA:
		return layout{head: 1, check: checkCAA}
	case typeSVCB, typeHTTPS:
		return layout{head: 2, names: 1, check: checkParameters}
	case typeDS:
		return layout{head: 4, check: anyTail}
	case typeRRSIG:
		return layout{head: 18, names: 1, check: checkBase64}
	case typeDNSKEY:
		return layout{head: 4, check: checkBase64}
	case typeSSHFP:
		return layout{head: 2, check: anyTail}
	case typeTLSA:
		return layout{head: 3, check: anyTail}
	}
	if isOpaque(rrtype) {
		return layout{opaque: true, check: anyBytes}
	}
	return layout{}
}

// isOpaque reports whether a type has no form that package dns knows: its data are bytes, and no names in them are compressed
// (RFC 3597 sections 3 and 4). Types from 128 to 255 are for queries (RFC 6895 section 3.1).
func isOpaque(rrtype uint16) bool {
	const (
		firstUnknown, lastUnknown = 66, 98 // behind HTTPS, before SPF
		firstFree, lastFree       = 110, 127
		firstLate                 = 262 // behind RESINFO
		typeTA, typeDLV           = 32768, 32769
	)
	switch {
	case firstUnknown <= rrtype && rrtype <= lastUnknown, firstFree <= rrtype && rrtype <= lastFree:
		return true
	}
	return rrtype >= firstLate && rrtype != typeTA && rrtype != typeDLV
}

func noTail(b []byte) (int, bool)     { return 0, len(b) == 0 }
func anyTail(b []byte) (int, bool)    { return 0, len(b) > 0 }
func anyBytes(b []byte) (int, bool)   { return 0, true }
func lengthA(b []byte) (int, bool)    { return 0, len(b) == 4 }
func lengthAAAA(b []byte) (int, bool) { return 0, len(b) == 16 }
func lengthSOA(b []byte) (int, bool)  { return 0, len(b) == 20 }

// checkBase64 checks the signature of an RRSIG record or the key of a DNSKEY record, RFC 4034 sections 2.1 and 3.1. dns.Msg.Len
// counts whole groups of three bytes.
func checkBase64(b []byte) (excess int, ok bool) { return (3 - len(b)%3) % 3, len(b) > 0 }

// checkStrings checks the character strings of a TXT record, RFC 1035 section 3.3.14. dns.Msg.Len counts them in
// presentation form.
func checkStrings(b []byte) (excess int, ok bool) {
	if len(b) == 0 {
		return 0, false
	}
	for len(b) > 0 {
		n := 1 + int(b[0])
		if n > len(b) {
			return 0, false
		}
		for _, c := range b[1:n] {
			switch {
			case c == '"' || c == '\\':
				excess++ // \"
			case c < ' ' || c > '~':
				excess += 3 // \000
			}
		}
		b = b[n:]
	}
	return excess, true
}

// checkCAA checks a tag of letters and digits, and a value without backslashes, which package dns changes, RFC 8659 section 4.1.
func checkCAA(b []byte) (excess int, ok bool) {
	if len(b) == 0 {
		return 0, false
	}
	n := 1 + int(b[0])
	if n == 1 || n >= len(b) || len(b)-n > 255 {
		return 0, false
	}
	for _, c := range b[1:n] {
		if lower(c)-'a' >= 26 && c-'0' >= 10 {
			return 0, false
		}
	}
	return 0, bytes.IndexByte(b[n:], '\\') < 0
}

// checkParameters checks the parameters of an SVCB or HTTPS record, RFC 9460 section 2.2. Their keys are in strictly
// increasing order.
func checkParameters(b []byte) (excess int, ok bool) {
	for last := -1; len(b) > 0; {
		if len(b) < 4 {
			return 0, false
		}
		key, end := int(binary.BigEndian.Uint16(b)), 4+int(binary.BigEndian.Uint16(b[2:]))
		if key <= last || end > len(b) || !validParameter(key, b[4:end]) { // #nosec G115 -- 16 bits
			return 0, false
		}
		last, b = key, b[end:]
	}
	return 0, true
}

// validParameter reports whether a registered parameter has a value of its form, RFC 9460 sections 7 and 8.
func validParameter(key int, value []byte) bool {
	const alpn, noDefaultALPN, port, ipv4hint, ech, ipv6hint, dohpath, ohttp = 1, 2, 3, 4, 5, 6, 7, 8
	n := len(value)
	switch key {
	case alpn:
		return validProtocols(value)
	case noDefaultALPN, ohttp:
		return n == 0
	case port:
		return n == 2
	case ipv4hint:
		return n > 0 && n%4 == 0
	case ipv6hint:
		return n > 0 && n%16 == 0 && !hasMapped(value)
	case ech, dohpath:
		return n > 0
	}
	return false
}

// validProtocols reports whether a value is a list of non-empty protocol identifiers, RFC 9460 section 7.1.1.
func validProtocols(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	for len(b) > 0 {
		n := 1 + int(b[0])
		if n == 1 || n > len(b) {
			return false
		}
		b = b[n:]
	}
	return true
}

// mappedPrefix is the prefix of IPv4-mapped addresses, RFC 4291 section 2.5.5.2.
var mappedPrefix = []byte{10: 0xff, 11: 0xff}

// hasMapped reports whether one of several IPv6 addresses is an IPv4-mapped one, which package dns refuses.
func hasMapped(addresses []byte) bool {
	for ; len(addresses) >= 16; addresses = addresses[16:] {
		if bytes.HasPrefix(addresses, mappedPrefix) {
			return true
		}
	}
	return false
}
