package expand

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// packedReply is a reply of a WireHandler.
type packedReply struct {
	entry *answers.Entry
	patch answers.Patch // without options
	list  []byte        // data of the search list, nil unless there is exactly one

	// The query:
	flags answers.Query
	name  string

	alias string // the target of an alias that is not a part of the reply, "" for none
	wire  []byte // the reply with the TTLs of its time, nil until it is needed
}

// newPackedReply returns the reply to a query with flags.
func newPackedReply(e *answers.Entry, p *answers.Patch, flags *answers.Query, name string) *reply {
	r := &struct {
		reply
		own packedReply
	}{
		reply{serial: e.Serial, stored: e.Expires != 0, lifetime: e.Lifetime(answers.Now())},
		packedReply{entry: e, patch: *p, flags: *flags, name: name},
	}
	r.own.patch.Options = nil
	r.packed = &r.own
	if !flags.EDNS {
		return &r.reply
	}
	var errors bool
	if r.own.list, errors = readOptions(p.Options); errors {
		if m := r.message(); m != nil {
			m.Extra = append(m.Extra, unpackOptions(p.Options))
		}
	}
	return &r.reply
}

// readOptions returns the data of the search list in options in wire form, nil unless there is exactly one, and whether
// there are others.
func readOptions(options []byte) (list []byte, others bool) {
	lists := 0
	for len(options) > 0 {
		code, data, rest, ok := wire.CutOption(options)
		switch {
		case !ok:
			return nil, true
		case code == searchlist.OptionCode:
			lists++
			list = append([]byte{}, data...)
		default:
			others = true
		}
		options = rest
	}
	if lists != 1 {
		list = nil
	}
	return list, others
}

// unpackOptions returns an OPT record with options in wire form.
func unpackOptions(options []byte) dns.RR {
	b := append(make([]byte, wire.OPTLen, wire.OPTLen+len(options)), options...)
	binary.BigEndian.PutUint16(b[1:], dns.TypeOPT)
	binary.BigEndian.PutUint16(b[wire.OPTLen-2:], uint16(len(options))) // #nosec G115 -- stored options are short
	rr, _, err := dns.UnpackRR(b, 0)
	if err != nil {
		return &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	}
	return rr
}

// pack sets wire. It returns an error for an invalid name.
func (r *packedReply) pack() error {
	if r.wire != nil {
		return nil
	}
	var query [answers.MaxQuery]byte
	end, err := dns.PackDomainName(r.name, query[:], wire.HeaderLen, nil, false)
	if err != nil {
		return err
	}
	q := r.flags
	q.NameLen, q.Upper, q.EDNS = end-wire.HeaderLen, false, false
	r.wire = r.entry.Plain.AppendReply(make([]byte, 0, r.entry.Plain.Len()), query[:end], &q, &r.patch)
	return nil
}

// hasAnswer reports whether the reply has records in the answer section.
func (r *packedReply) hasAnswer() bool {
	if !r.entry.Plain.HasData() || r.alias == "" {
		return r.entry.Plain.HasData()
	}
	if r.pack() != nil {
		return false
	}
	count := binary.BigEndian.Uint16(r.wire[wire.ANCountAt:])
	if _, ok := r.cutAlias(r.wire[wire.QuestionEnd(r.wire):]); ok {
		count--
	}
	return count > 0
}

// unpack returns the reply as a message.
func (r *packedReply) unpack() (*dns.Msg, error) {
	if err := r.pack(); err != nil {
		return nil, err
	}
	m, err := answers.Unpack(r.wire)
	if err != nil {
		return nil, err
	}
	if len(m.Answer) > 0 {
		if alias, ok := m.Answer[0].(*dns.CNAME); ok && strings.EqualFold(alias.Target, r.alias) {
			m.Answer = m.Answer[1:]
		}
	}
	return m, nil
}

// compose is the function compose for a client's question in wire form. answered reports whether the reply has records in
// the answer section. It returns nil for a reply that has to be composed as a message.
func (r *packedReply) compose(question []byte, qname string, out *outcome) (composed []byte, answered bool) {
	if r.pack() != nil {
		return nil, false
	}
	end := wire.QuestionEnd(r.wire)
	count, records := binary.BigEndian.Uint16(r.wire[wire.ANCountAt:]), r.wire[end:]
	if rest, ok := r.cutAlias(records); ok && count > 0 {
		count, records = count-1, rest
	}
	var target [wire.MaxName]byte
	n := 0
	switch {
	case count == 0 || out.owner == qname:
	case out.owner == "":
		return nil, false
	default:
		var err error
		if n, err = dns.PackDomainName(out.owner, target[:], 0, nil, false); err != nil {
			return nil, false
		}
	}
	b := make([]byte, 0, wire.HeaderLen+2*len(question)+wire.RecordLen+n+len(records))
	b = append(append(b, r.wire[:wire.HeaderLen]...), question...)
	if !bytes.Equal(r.wire[wire.HeaderLen:end], question) {
		b[wire.RcodeAt] &^= wire.AD // no signature covers the question's name
	}
	if n > 0 {
		count++
		b = append(b, question[:len(question)-wire.TypeClassLen]...)
		b = binary.BigEndian.AppendUint16(b, dns.TypeCNAME)
		b = binary.BigEndian.AppendUint16(b, dns.ClassINET)
		b = binary.BigEndian.AppendUint32(b, out.aliasTTL(binary.BigEndian.Uint32(records[wire.NameEnd(records, 0)+4:])))
		b = binary.BigEndian.AppendUint16(b, uint16(n)) // #nosec G115 -- the length of a name
		b = append(b, target[:n]...)
	}
	binary.BigEndian.PutUint16(b[wire.ANCountAt:], count)
	return append(b, records...), count > 0
}

// cutAlias returns records without the first one if that is the alias.
func (r *packedReply) cutAlias(records []byte) (rest []byte, ok bool) {
	if r.alias == "" || len(records) == 0 {
		return records, false
	}
	data := wire.NameEnd(records, 0) + wire.RecordLen
	end := data + int(binary.BigEndian.Uint16(records[data-2:]))
	if binary.BigEndian.Uint16(records[data-wire.RecordLen:]) != dns.TypeCNAME {
		return records, false
	}
	target, _, err := dns.UnpackDomainName(records[data:end], 0)
	return records[end:], err == nil && strings.EqualFold(target, r.alias)
}
