package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// wildcardLabel is the metadata that says which wildcard record an answer was made from.
const wildcardLabel = "zone/wildcard"

// give answers a query with an entry, and tells who has asked for it in front what the answer hangs on. The message is made from the bytes that the fast path gives, so
// that it does not matter which way a query takes.
func (c *Cache) give(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, query []byte, q answers.Query, e *answers.Entry, p answers.Patch) (int, error) {
	if kept, ok := e.State.(*kept); ok && kept.wildcard != "" {
		metadata.SetValueFunc(ctx, wildcardLabel, func() string { return kept.wildcard })
	}
	m, err := e.Message(query, q, &p)
	if err != nil {
		c.store.Remove(e)
		return dns.RcodeServerFailure, fmt.Errorf("plugin/%s: what is kept for %s: %w", pluginName, r.Question[0].Name, err)
	}
	fillIn(ctx, r, e)
	if q.EDNS && len(p.Options) > 0 {
		m.Extra = append(m.Extra, optWith(unpackOptions(p.Options)))
	}
	return write(w, m)
}

// write gives a client its answer.
func write(w dns.ResponseWriter, m *dns.Msg) (int, error) {
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// tailor makes a reply fit the query: it is the copy of one to another query for the same.
func (a *asked) tailor(m *dns.Msg) {
	m.Id, m.RecursionDesired, m.CheckingDisabled = a.msg.Id, a.msg.RecursionDesired, a.msg.CheckingDisabled
	m.Question = append(m.Question[:0], a.msg.Question...)
}

// adapt leaves what the client understands of a reply without an OPT record.
func (a *asked) adapt(m *dns.Msg, options []dns.EDNS0) {
	if !a.q.DO && !a.q.AD { // RFC 6840 section 5.8
		m.AuthenticatedData = false
	}
	if a.q.EDNS && len(options) > 0 {
		m.Extra = append(m.Extra, optWith(options))
	}
}

// optWith returns an OPT record; the server fills in the rest of it.
func optWith(options []dns.EDNS0) *dns.OPT {
	return &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: options}
}

// What is kept of extended errors: RFC 8914 section 2 allows the text to be cut.
const (
	maxErrors    = 4
	maxErrorText = 255 // bytes
)

// hasScope reports whether a reply is only for clients of a subnet (RFC 7871 section 7.3). A plugin behind the cache may
// have added the subnet to a query that came without one.
func hasScope(m *dns.Msg) bool {
	opt := m.IsEdns0()
	return opt != nil && slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool {
		subnet, ok := o.(*dns.EDNS0_SUBNET)
		return ok && subnet.SourceScope > 0
	})
}

// takeOpt takes the OPT record out of a reply: it is between two servers, RFC 6891 section 6.2.1. Only
// the extended errors in it are about the answer, and the option of package search in a reply to a search list.
func (a *asked) takeOpt(m *dns.Msg) (options []dns.EDNS0) {
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
				if o.Code == searchlist.OptionCode && a.q.Search != nil {
					options = append(options, o)
				}
			}
		}
	}
	m.Extra = rest
	return options
}

// packOptions returns options that takeOpt leaves in wire form.
func packOptions(options []dns.EDNS0) (b []byte) {
	for _, option := range options {
		switch o := option.(type) {
		case *dns.EDNS0_EDE:
			b = binary.BigEndian.AppendUint16(b, dns.EDNS0EDE)
			b = binary.BigEndian.AppendUint16(b, uint16(2+len(o.ExtraText))) // #nosec G115 -- it is short
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
