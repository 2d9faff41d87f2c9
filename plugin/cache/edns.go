package cache

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
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

// storedOptions returns an OPT record with the options of a reply that readOptions reads, since package dns cannot pack all options
// of plugins. It returns nil if the reply has no OPT record, and its response code needs none.
func storedOptions(m *dns.Msg) *dns.OPT {
	var stored *dns.OPT
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if stored == nil {
			stored = optWith(nil)
		}
		stored.Hdr.Ttl = opt.Hdr.Ttl
		for _, option := range opt.Option {
			switch o := option.(type) {
			case *dns.EDNS0_EDE:
				stored.Option = append(stored.Option, o)
			case *dns.EDNS0_LOCAL:
				if o.Code == wire.OptionSearchList {
					stored.Option = append(stored.Option, o)
				}
			}
		}
	}
	if stored == nil && m.Rcode > wire.MaxRcode {
		stored = optWith(nil)
	}
	return stored
}

// maxSearchOption is the maximum length of a search list's option in bytes.
const maxSearchOption = wire.OptionLen + wire.MaxSearchList

// replyOptions are the options of a reply that concern the answer; the rest of its OPT record concerns one hop (RFC 6891
// section 6.2.1).
type replyOptions struct {
	packed    []byte // the stored options: extended errors, and in reply to a query with a search list the option of package searchlist
	tried     bool   // the upstream has tried the search list of the query
	allDenied bool   // no candidate of the list has data
}

// clone returns the stored options, nil for none.
func (o *replyOptions) clone() []byte {
	if len(o.packed) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(o.packed)), o.packed...)
}

// readOptions reads the options of a reply. It appends the stored options to dst, which has room for them. search are the data of
// the query's search list, nil without one. It returns false for an invalid reply to the search list.
func readOptions(dst, options, search []byte) (o replyOptions, valid bool) {
	errors := 0
	valid = true
	for len(options) > 0 {
		code, data, rest, ok := wire.CutOption(options)
		if !ok {
			break
		}
		switch {
		case code == dns.EDNS0EDE && len(data) >= 2:
			if errors++; errors <= maxErrors {
				dst = appendError(dst, data)
			}
		case code == wire.OptionSearchList && search != nil:
			valid = valid && !o.tried && searchlist.ValidReply(data, search)
			o.tried, o.allDenied = true, len(data) == 0
			dst = searchlist.AppendOption(dst, data)
		}
		options = rest
	}
	o.packed = dst
	return o, valid
}

// appendError appends an extended error with its text, if that is not too long.
func appendError(dst, data []byte) []byte {
	if len(data) > 2+maxErrorText {
		data = data[:2]
	}
	return wire.AppendOption(dst, dns.EDNS0EDE, data)
}

// unpackOptions returns stored options.
func unpackOptions(b []byte) (options []dns.EDNS0) {
	for len(b) > 0 {
		code, data, rest, ok := wire.CutOption(b)
		if !ok {
			break
		}
		if code == wire.OptionSearchList {
			options = append(options, &dns.EDNS0_LOCAL{Code: code, Data: slices.Clone(data)})
		} else {
			options = append(options, &dns.EDNS0_EDE{InfoCode: binary.BigEndian.Uint16(data), ExtraText: string(data[2:])})
		}
		b = rest
	}
	return options
}
