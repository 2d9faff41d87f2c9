package expand

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// packedReply is a reply of a WireHandler.
type packedReply struct {
	entry *answers.Entry
	patch answers.Patch // without options
	list  []byte        // data of the search list, nil unless there is exactly one

	// The query:
	flags answers.Query
	name  string
	qtype uint16
}

// newPackedReply returns the reply to a query with flags.
func newPackedReply(e *answers.Entry, p *answers.Patch, flags *answers.Query, name string, qtype uint16) *reply {
	own := &packedReply{entry: e, patch: *p, flags: *flags, name: name, qtype: qtype}
	own.patch.Options = nil
	r := &reply{packed: own, serial: e.Serial, stored: e.Expires != 0}
	if !flags.EDNS {
		return r
	}
	var errors bool
	if own.list, errors = readOptions(p.Options); errors {
		list := own.list
		if m := r.message(); m != nil {
			m.Extra = append(m.Extra, unpackOptions(p.Options))
		}
		own.list = list
	}
	return r
}

// readOptions returns the data of the search list in options in wire form, nil unless there is exactly one, and whether
// there are others.
func readOptions(options []byte) (list []byte, others bool) {
	lists := 0
	for len(options) >= 4 {
		end := 4 + int(binary.BigEndian.Uint16(options[2:]))
		if end > len(options) {
			return nil, true
		}
		if binary.BigEndian.Uint16(options) == searchlist.OptionCode {
			lists++
			list = append([]byte{}, options[4:end]...)
		} else {
			others = true
		}
		options = options[end:]
	}
	if lists != 1 {
		list = nil
	}
	return list, others
}

// unpackOptions returns an OPT record with options in wire form.
func unpackOptions(options []byte) dns.RR {
	b := append(make([]byte, answers.OptLen, answers.OptLen+len(options)), options...)
	binary.BigEndian.PutUint16(b[1:], dns.TypeOPT)
	binary.BigEndian.PutUint16(b[answers.OptLen-2:], uint16(len(options))) // #nosec G115 -- stored options are short
	rr, _, err := dns.UnpackRR(b, 0)
	if err != nil {
		return &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	}
	return rr
}

// unpack returns the reply as a message.
func (r *packedReply) unpack() (*dns.Msg, error) {
	var buf [answers.MaxQuery]byte
	end, err := dns.PackDomainName(r.name, buf[:], answers.HeaderLen, nil, false)
	if err != nil {
		return nil, err
	}
	q := r.flags
	q.NameLen, q.Upper = end-answers.HeaderLen, false
	return r.entry.Message(buf[:end], q, &r.patch)
}
