package searchlist

import (
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// MaxSuffixes is the maximum number of suffixes.
const MaxSuffixes = 8

// UDPSize is the UDP payload size in OPT records that are added to queries, in bytes.
const UDPSize = 1232

// AppendSuffixes appends the option's data for suffixes to dst. The suffixes are in presentation form, fully qualified, in
// any case. It returns false without suffixes, above MaxSuffixes or wire.MaxSearchList, and for the root or an invalid name.
func AppendSuffixes(dst []byte, suffixes []string) ([]byte, bool) {
	if len(suffixes) == 0 || len(suffixes) > MaxSuffixes {
		return dst, false
	}
	length := 0
	for _, s := range suffixes {
		length += len(s) + 1
	}
	out, room := slices.Grow(dst, min(length, wire.MaxSearchList)), wire.MaxSearchList
	for _, s := range suffixes {
		var name [wire.MaxName]byte
		n, err := dns.PackDomainName(s, name[:], 0, nil, false)
		if err != nil || n < 2 || n > room {
			return dst, false
		}
		room -= n
		out = wire.AppendLower(out, name[:n])
	}
	return out, true
}

// ParseSuffixes returns the suffixes in an option's data, in presentation form; none for empty data. It returns false for
// data that AppendSuffixes does not produce.
func ParseSuffixes(data []byte) (suffixes []string, ok bool) {
	if len(data) > wire.MaxSearchList {
		return nil, false
	}
	for at := 0; at < len(data); {
		end := suffixEnd(data, at)
		if end-at < 2 || len(suffixes) == MaxSuffixes {
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

// CutSuffix returns the first suffix in an option's data, in wire form, and the data after it. It returns false for empty
// data, and for data that AppendSuffixes does not produce.
func CutSuffix(data []byte) (suffix, rest []byte, ok bool) {
	end := suffixEnd(data, 0)
	if end < 2 || len(data) > wire.MaxSearchList {
		return nil, nil, false
	}
	return data[:end], data[end:], true
}

// suffixEnd returns the end of the name at an offset, 0 if it is malformed or has upper-case letters or a compression pointer.
func suffixEnd(b []byte, at int) (end int) {
	if end = wire.NameEnd(b, at); end == 0 || wire.HasUpper(b[at:end]) {
		return 0
	}
	return end
}

// AppendOption appends the option with data to dst, in the wire form of OPT records.
func AppendOption(dst, data []byte) []byte {
	return wire.AppendOption(dst, wire.OptionSearchList, data)
}

// InOptions reports whether options, in the wire form of OPT records, include a search list.
func InOptions(options []byte) bool {
	_, ok := wire.FindOption(options, wire.OptionSearchList)
	return ok
}

// ValidReply reports whether the data in a reply are valid for the data in its query: one of the query's suffixes, or none.
func ValidReply(reply, query []byte) bool {
	if len(reply) == 0 {
		return true
	}
	for at := 0; at < len(query); {
		end := suffixEnd(query, at)
		if end == 0 {
			return false
		}
		if string(query[at:end]) == string(reply) {
			return true
		}
		at = end
	}
	return false
}

// HasOption reports whether a message has at least one search list in its OPT record.
func HasOption(m *dns.Msg) bool {
	opt := m.IsEdns0()
	return opt != nil && slices.ContainsFunc(opt.Option, isOption)
}

// OptionOf returns the data of the search list in a message's OPT record, not nil. It returns false unless there is
// exactly one.
func OptionOf(m *dns.Msg) (data []byte, ok bool) {
	opt := m.IsEdns0()
	if opt == nil {
		return nil, false
	}
	for _, o := range opt.Option {
		local, ok := o.(*dns.EDNS0_LOCAL)
		if !ok || local.Code != wire.OptionSearchList {
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

// WithOption returns a copy of a message that has the option with data once. It adds an OPT record if there is none, and
// shares all other parts with the message.
func WithOption(m *dns.Msg, data []byte) *dns.Msg {
	option := &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: data}
	own := m.IsEdns0()
	out := *m
	if own == nil {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Class: UDPSize}, Option: []dns.EDNS0{option}}
		out.Extra = append(slices.Clip(m.Extra), opt)
		return &out
	}
	opt := *own
	opt.Option = append(slices.DeleteFunc(slices.Clone(own.Option), isOption), option)
	out.Extra = slices.Clone(m.Extra)
	out.Extra[slices.Index(out.Extra, dns.RR(own))] = &opt
	return &out
}

// WithoutOption returns a copy of a message without search lists that shares all other parts with the message, or the
// message itself if it has none.
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

func isOption(o dns.EDNS0) bool { return o.Option() == wire.OptionSearchList }
