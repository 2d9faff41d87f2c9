package cache

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// optWith returns an OPT record with options; the server sets its other fields.
func optWith(options []dns.EDNS0) *dns.OPT {
	return &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: options}
}

// Limits of the extended errors that are stored with an answer; RFC 8914 section 2 permits truncated texts.
const (
	maxErrors    = 4
	maxErrorText = 255 // bytes
)

// hasScope reports whether a reply is only for clients of a subnet (RFC 7871 section 7.3). A plugin behind the cache may
// have added the subnet to the query.
func hasScope(m *dns.Msg) bool {
	opt := m.IsEdns0()
	return opt != nil && slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool {
		subnet, ok := o.(*dns.EDNS0_SUBNET)
		return ok && subnet.SourceScope > 0
	})
}

// takeOptions removes the OPT record from a reply, since it concerns one hop (RFC 6891 section 6.2.1), and returns the
// options that belong to the answer: extended errors, and in reply to a query with a search list the option of package
// searchlist.
func (q *clientQuery) takeOptions(m *dns.Msg) (options []dns.EDNS0) {
	rest := m.Extra[:0]
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			rest = append(rest, rr)
			continue
		}
		errors := 0
		for _, option := range opt.Option {
			switch o := option.(type) {
			case *dns.EDNS0_EDE:
				if errors++; errors > maxErrors {
					continue
				}
				if len(o.ExtraText) > maxErrorText {
					o.ExtraText = ""
				}
				options = append(options, o)
			case *dns.EDNS0_LOCAL:
				if o.Code == searchlist.OptionCode && q.Search != nil {
					options = append(options, o)
				}
			}
		}
	}
	m.Extra = rest
	return options
}

// packOptions returns options of takeOptions in wire form.
func packOptions(options []dns.EDNS0) (b []byte) {
	for _, option := range options {
		switch o := option.(type) {
		case *dns.EDNS0_EDE:
			b = binary.BigEndian.AppendUint16(b, dns.EDNS0EDE)
			b = binary.BigEndian.AppendUint16(b, uint16(2+len(o.ExtraText))) // #nosec G115 -- limited by maxErrorText
			b = binary.BigEndian.AppendUint16(b, o.InfoCode)
			b = append(b, o.ExtraText...)
		case *dns.EDNS0_LOCAL:
			b = searchlist.AppendOption(b, o.Data)
		}
	}
	return b
}

// unpackOptions is the inverse of packOptions.
func unpackOptions(b []byte) (options []dns.EDNS0) {
	for len(b) >= 4 {
		end := 4 + int(binary.BigEndian.Uint16(b[2:]))
		if code := binary.BigEndian.Uint16(b); code == searchlist.OptionCode {
			options = append(options, &dns.EDNS0_LOCAL{Code: code, Data: slices.Clone(b[4:end])})
		} else {
			options = append(options, &dns.EDNS0_EDE{InfoCode: binary.BigEndian.Uint16(b[4:]), ExtraText: string(b[6:end])})
		}
		b = b[end:]
	}
	return options
}
