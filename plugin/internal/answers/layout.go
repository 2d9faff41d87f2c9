package answers

import (
	"bytes"
	"encoding/binary"

	"github.com/miekg/dns"
)

// layout is the form of the data of a type of record: bytes, names, and a tail.
type layout struct {
	head     int  // length of the part before the names in bytes
	names    int  // number of names
	compress bool // package dns compresses the names, RFC 3597 section 4
	// check reports whether package dns packs the same tail after unpacking it, and returns the number of bytes by which
	// dns.Msg.Len overestimates the tail.
	check func(tail []byte) (excess int, ok bool)
}

// layoutOf returns the layout of a type, without check for other types than the ordinary ones.
func layoutOf(rrtype uint16) layout {
	switch rrtype {
	case dns.TypeA:
		return layout{check: lengthA}
	case dns.TypeAAAA:
		return layout{check: lengthAAAA}
	case dns.TypeCNAME, dns.TypeNS, dns.TypePTR:
		return layout{names: 1, compress: true, check: noTail}
	case dns.TypeDNAME:
		return layout{names: 1, check: noTail}
	case dns.TypeMX:
		return layout{head: 2, names: 1, compress: true, check: noTail}
	case dns.TypeSRV:
		return layout{head: 6, names: 1, check: noTail}
	case dns.TypeSOA:
		return layout{names: 2, compress: true, check: lengthSOA}
	case dns.TypeTXT:
		return layout{check: checkStrings}
	case dns.TypeCAA:
		return layout{head: 1, check: checkCAA}
	case dns.TypeSVCB, dns.TypeHTTPS:
		return layout{head: 2, names: 1, check: checkParameters}
	}
	return layout{}
}

func noTail(b []byte) (int, bool)     { return 0, len(b) == 0 }
func lengthA(b []byte) (int, bool)    { return 0, len(b) == 4 }
func lengthAAAA(b []byte) (int, bool) { return 0, len(b) == 16 }
func lengthSOA(b []byte) (int, bool)  { return 0, len(b) == 20 }

// checkStrings checks the character strings of a TXT record, RFC 1035 section 3.3.14. dns.Msg.Len counts them in
// presentation form.
func checkStrings(b []byte) (excess int, ok bool) {
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

// checkCAA checks a tag of letters and digits and a value, RFC 8659 section 4.1. Package dns changes backslashes.
func checkCAA(b []byte) (excess int, ok bool) {
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
		if key <= last || end > len(b) || !validParameter(dns.SVCBKey(key), b[4:end]) { // #nosec G115 -- 16 bits
			return 0, false
		}
		last, b = key, b[end:]
	}
	return 0, true
}

// validParameter reports whether a registered parameter has a value of its form, RFC 9460 sections 7 and 8.
func validParameter(key dns.SVCBKey, value []byte) bool {
	n := len(value)
	switch key {
	case dns.SVCB_ALPN:
		return validProtocols(value)
	case dns.SVCB_NO_DEFAULT_ALPN, dns.SVCB_OHTTP:
		return n == 0
	case dns.SVCB_PORT:
		return n == 2
	case dns.SVCB_IPV4HINT:
		return n > 0 && n%4 == 0
	case dns.SVCB_IPV6HINT:
		return n > 0 && n%16 == 0 && !hasMapped(value)
	case dns.SVCB_ECHCONFIG, dns.SVCB_DOHPATH:
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
