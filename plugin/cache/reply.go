package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// wildcardLabel is the metadata that says which wildcard record an answer was made from.
const wildcardLabel = "zone/wildcard"

// buffers are for answers between their packed form and a message.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// give answers a query with an entry. The message is made from the bytes that the fast path gives, so
// that it does not matter which way a query takes.
func (c *Cache) give(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, query []byte, q wire.Query, e *store.Entry, p wire.Patch) (int, error) {
	if kept, ok := e.State.(*kept); ok && kept.wildcard != "" {
		metadata.SetValueFunc(ctx, wildcardLabel, func() string { return kept.wildcard })
	}
	m, err := unpack(query, q, e, &p)
	if err != nil {
		c.store.Remove(e)
		return dns.RcodeServerFailure, fmt.Errorf("plugin/%s: what is kept for %s: %w", pluginName, r.Question[0].Name, err)
	}
	if q.EDNS && len(p.Options) > 0 {
		m.Extra = append(m.Extra, optWith(unpackErrors(p.Options)))
	}
	return write(w, m)
}

// unpack returns the message that a patched answer is, without an OPT record: who writes it adds that.
func unpack(query []byte, q wire.Query, e *store.Entry, p *wire.Patch) (*dns.Msg, error) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	q.EDNS = false
	*b = e.Plain.AppendReply((*b)[:0], query, &q, p)
	m := new(dns.Msg)
	return m, m.Unpack(*b)
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
func (a *asked) adapt(m *dns.Msg, errors []dns.EDNS0) {
	if !a.q.DO && !a.q.AD { // RFC 6840 section 5.8
		m.AuthenticatedData = false
	}
	if a.q.EDNS && len(errors) > 0 {
		m.Extra = append(m.Extra, optWith(errors))
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

// takeOpt takes the OPT record out of a reply: it is between two servers, RFC 6891 section 6.2.1. Only
// the extended errors in it are about the answer.
func takeOpt(m *dns.Msg) (errors []dns.EDNS0) {
	rest := m.Extra[:0]
	for _, rr := range m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			rest = append(rest, rr)
			continue
		}
		for _, option := range opt.Option {
			if e, ok := option.(*dns.EDNS0_EDE); ok && len(errors) < maxErrors {
				if len(e.ExtraText) > maxErrorText {
					e.ExtraText = ""
				}
				errors = append(errors, e)
			}
		}
	}
	m.Extra = rest
	return errors
}

// packErrors returns extended errors in wire form.
func packErrors(errors []dns.EDNS0) (b []byte) {
	for _, option := range errors {
		if e, ok := option.(*dns.EDNS0_EDE); ok {
			b = binary.BigEndian.AppendUint16(b, dns.EDNS0EDE)
			b = binary.BigEndian.AppendUint16(b, uint16(2+len(e.ExtraText))) // #nosec G115 -- it is short
			b = binary.BigEndian.AppendUint16(b, e.InfoCode)
			b = append(b, e.ExtraText...)
		}
	}
	return b
}

// unpackErrors is the inverse of packErrors.
func unpackErrors(b []byte) (errors []dns.EDNS0) {
	for len(b) >= 6 {
		end := 4 + int(binary.BigEndian.Uint16(b[2:]))
		errors = append(errors, &dns.EDNS0_EDE{InfoCode: binary.BigEndian.Uint16(b[4:]), ExtraText: string(b[6:end])})
		b = b[end:]
	}
	return errors
}
