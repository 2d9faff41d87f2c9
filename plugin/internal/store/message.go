package store

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// QueryFromMsg sets a query from a message and appends its packed header and question to buf, which must be empty with a
// capacity of MaxQuery. Any class is accepted; of the options, only Search is set. It returns false for a query whose reply is
// for its client only: one that is not plain (isPlain), has an invalid name, several search lists, one of more than
// wire.MaxSearchList bytes, or an option that may change the answer and is not in the key, such as a client subnet (RFC 7871).
func QueryFromMsg(q *wire.Query, buf []byte, m *dns.Msg) ([]byte, bool) {
	if !isPlain(m) || cap(buf) < wire.MaxQuery {
		return nil, false
	}
	question := m.Question[0]
	b := buf[:wire.MaxQuery]
	clear(b[:wire.HeaderLen])
	end, err := dns.PackDomainName(question.Name, b, wire.HeaderLen, nil, false)
	if err != nil {
		return nil, false
	}
	binary.BigEndian.PutUint16(b, m.Id)
	b[5] = 1
	binary.BigEndian.PutUint16(b[end:], question.Qtype)
	binary.BigEndian.PutUint16(b[end+2:], question.Qclass)
	b = b[:end+wire.TypeClassLen]
	*q = wire.Query{RD: m.RecursionDesired, CD: m.CheckingDisabled, AD: m.AuthenticatedData}
	if !q.ParseQuestion(b) {
		return nil, false
	}
	if opt := m.IsEdns0(); opt != nil {
		q.EDNS, q.UDPSize, q.DO = true, opt.UDPSize(), opt.Do()
	}
	if _, unkeyed := UnkeyedOption(m); unkeyed {
		return nil, false
	}
	if searchlist.HasOption(m) {
		var one bool
		if q.Search, one = searchlist.OptionOf(m); !one || len(q.Search) > wire.MaxSearchList {
			return nil, false
		}
	}
	b[2], b[3] = wire.Flag(q.RD, wire.RD), wire.Flag(q.AD, wire.AD)|wire.Flag(q.CD, wire.CD)
	return b, true
}

// isPlain reports whether a message has the parts of an ordinary query only: opcode QUERY, no flags except RD, AD and CD,
// one question, and no record except one OPT record. A server may refuse, or answer in another way, a query with a
// signature, with other records or with other flags.
func isPlain(m *dns.Msg) bool {
	plain := dns.MsgHdr{
		Id: m.Id, RecursionDesired: m.RecursionDesired, AuthenticatedData: m.AuthenticatedData, CheckingDisabled: m.CheckingDisabled,
	}
	if m.MsgHdr != plain || len(m.Question) != 1 || len(m.Answer)+len(m.Ns) > 0 {
		return false
	}
	return len(m.Extra) == 0 || len(m.Extra) == 1 && m.IsEdns0() != nil && m.Extra[0].Header().Name == "."
}

// UnkeyedOption returns the code of the first EDNS option of a query that may change the answer and is not in the key.
// It returns false without such an option.
func UnkeyedOption(m *dns.Msg) (code uint16, found bool) {
	opt := m.IsEdns0()
	if opt == nil {
		return 0, false
	}
	for _, o := range opt.Option {
		if code := o.Option(); !isOurs(code) && !isForHop(code) {
			return code, true
		}
	}
	return 0, false
}

// RemoveHop removes the parts of a query's OPT record that concern one hop, and are not in the key: the version, the flags except
// DO, and the options that a server answers in its OPT record or for its transport. A server may refuse a query with them.
func RemoveHop(opt *dns.OPT) {
	opt.Hdr.Ttl &= wire.DO
	opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool { return isForHop(o.Option()) })
}

// isOurs reports whether an EDNS option is one of this project: a plugin that depends on the caller sets Views, the search
// list is in the key, and a notification changes no answer.
func isOurs(option uint16) bool {
	switch option {
	case wire.OptionCaller, wire.OptionSearchList, wire.OptionNotify:
		return true
	}
	return false
}

// optionKeyTag is the code of edns-key-tag, RFC 8145 section 4.1.
const optionKeyTag = 14

// isForHop reports whether an EDNS option is for the transport, or for the OPT record of the reply, which is not cached: it
// does not change the answer. Others may: the client subnet, CHAIN (RFC 7901), the device and policy IDs that vendors put
// into unregistered and local codes, and future codes.
func isForHop(option uint16) bool {
	switch option {
	case dns.EDNS0NSID, dns.EDNS0DAU, dns.EDNS0DHU, dns.EDNS0N3U, dns.EDNS0EXPIRE, dns.EDNS0COOKIE, dns.EDNS0TCPKEEPALIVE,
		dns.EDNS0PADDING, optionKeyTag, dns.EDNS0EDE, dns.EDNS0REPORTING, dns.EDNS0ZONEVERSION:
		return true
	}
	return false
}
