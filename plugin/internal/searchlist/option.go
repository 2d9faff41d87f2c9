// Package search is the EDNS option by which a node's cache hands the search list of a client to cluster DNS,
// so that one query is enough for all the names that the client would ask one after the other. It is a leaf:
// bytes and messages, and nothing of sockets, plugins or the cluster.
//
// In a query, the option's data is the suffixes of the search list in their order, in wire form (RFC 1035 section
// 3.1), in lower case, without compression, one after the other:
//
//	+----------------------------------+----------------------+---- ...
//	| 2 ns 3 svc 7 cluster 5 local 0   | 3 svc 7 cluster ...  |
//	+----------------------------------+----------------------+---- ...
//
// The first suffix is the one that QNAME ends in; what stands before it, at least one label, is the name that
// the client looks for (the base). The candidates are the base with each of the suffixes.
//
// In a reply, the option says that every candidate was tried. Its data is the suffix of the one whose answer the
// reply is, or empty if none has data of the type asked. A reply without the option is the one to QNAME alone.
package searchlist

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"
)

// OptionCode is the option's code, one of those for local use (RFC 6891 section 9).
const OptionCode = 65314

// The greatest number of suffixes, and the greatest length of the option's data in bytes.
const (
	MaxSuffixes = 8
	MaxOption   = 255
)

const (
	maxName  = 255 // of a name in bytes, with the root label, RFC 1035 section 2.3.4
	maxLabel = 63
	// optionHead is the length of the code and the length of an EDNS option, RFC 6891 section 6.1.2.
	optionHead = 4
	// udpSize is what an added OPT record says of the replies that there is room for, in bytes.
	udpSize = 1232
)

// Append appends the option's data to dst: names in presentation form, fully qualified, in any case. It fails if
// there is none of them, if there are too many or too much of them, or if one is no name or the root.
func AppendSuffixes(dst []byte, suffixes []string) ([]byte, bool) {
	if len(suffixes) == 0 || len(suffixes) > MaxSuffixes {
		return dst, false
	}
	out, room := dst, MaxOption
	for _, s := range suffixes {
		var name [maxName]byte
		n, err := dns.PackDomainName(s, name[:], 0, nil, false)
		if err != nil || n < 2 || n > room {
			return dst, false
		}
		room -= n
		for _, c := range name[:n] { // the length of a label is no letter
			out = append(out, lower(c))
		}
	}
	return out, true
}

// Parse returns the suffixes as Append takes them, none if there is no data. It fails if Append does not make
// these data.
func ParseSuffixes(data []byte) (suffixes []string, ok bool) {
	if len(data) > MaxOption {
		return nil, false
	}
	for at := 0; at < len(data); {
		end, ok := skipName(data, at)
		if !ok || end-at < 2 || len(suffixes) == MaxSuffixes {
			return nil, false
		}
		name, _, err := dns.UnpackDomainName(data[at:end], 0)
		if err != nil {
			return nil, false
		}
		suffixes, at = append(suffixes, name), end
	}
	return suffixes, true
}

// skipName returns where a name in lower case ends. A pointer is none.
func skipName(b []byte, at int) (end int, ok bool) {
	for at < len(b) {
		n := int(b[at])
		at++
		if n == 0 {
			return at, true
		}
		if n > maxLabel || at+n > len(b) || slices.ContainsFunc(b[at:at+n], isUpper) {
			return 0, false
		}
		at += n
	}
	return 0, false
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }

func lower(c byte) byte {
	if isUpper(c) {
		return c + ('a' - 'A')
	}
	return c
}

// AppendOption appends to dst the option with these data, as it stands in an OPT record.
func AppendOption(dst, data []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, OptionCode)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(data))) // #nosec G115 -- at most MaxOption
	return append(dst, data...)
}

// In reports whether the option is among options as they stand in an OPT record.
func InOptions(options []byte) bool {
	for len(options) >= optionHead {
		if binary.BigEndian.Uint16(options) == OptionCode {
			return true
		}
		options = options[min(len(options), optionHead+int(binary.BigEndian.Uint16(options[2:]))):]
	}
	return false
}

// Answers reports whether a reply with these data may be one to a query with those: it names one of the query's
// suffixes, or none.
func Answers(reply, query []byte) bool {
	if len(reply) == 0 {
		return true
	}
	for at := 0; at < len(query); {
		end, ok := skipName(query, at)
		if !ok {
			return false
		}
		if string(query[at:end]) == string(reply) {
			return true
		}
		at = end
	}
	return false
}

// Has reports whether a message has the option in its OPT record, once or more often.
func HasOption(m *dns.Msg) bool {
	opt := m.IsEdns0()
	return opt != nil && slices.ContainsFunc(opt.Option, isOption)
}

// Of returns the data of the option in a message's OPT record, which is not nil, or false if there is none or
// more than one.
func OptionOf(m *dns.Msg) (data []byte, ok bool) {
	opt := m.IsEdns0()
	if opt == nil {
		return nil, false
	}
	for _, o := range opt.Option {
		local, is := o.(*dns.EDNS0_LOCAL)
		if !is || local.Code != OptionCode {
			continue
		}
		if data != nil {
			return nil, false
		}
		if data = local.Data; data == nil {
			data = []byte{}
		}
	}
	return data, data != nil
}

// With returns a message that has the option with these data, once, and all else in common with another. An OPT
// record is added if there is none.
func WithOption(m *dns.Msg, data []byte) *dns.Msg {
	option := &dns.EDNS0_LOCAL{Code: OptionCode, Data: data}
	own := m.IsEdns0()
	out := *m
	if own == nil {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Class: udpSize}, Option: []dns.EDNS0{option}}
		out.Extra = append(slices.Clip(m.Extra), opt)
		return &out
	}
	opt := *own
	opt.Option = append(slices.DeleteFunc(slices.Clone(own.Option), isOption), option)
	out.Extra = slices.Clone(m.Extra)
	out.Extra[slices.Index(out.Extra, dns.RR(own))] = &opt
	return &out
}

// Without returns a message that has no such option, and all else in common with another: the message itself if
// it has none.
func WithoutOption(m *dns.Msg) *dns.Msg {
	if !HasOption(m) {
		return m
	}
	own := m.IsEdns0()
	opt := *own
	opt.Option = slices.DeleteFunc(slices.Clone(own.Option), isOption)
	out := *m
	out.Extra = slices.Clone(m.Extra)
	out.Extra[slices.Index(out.Extra, dns.RR(own))] = &opt
	return &out
}

func isOption(o dns.EDNS0) bool { return o.Option() == OptionCode }
