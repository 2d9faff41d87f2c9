package store

import (
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// plainLimit is the maximum length in bytes, without an OPT record, of answers that every client receives, RFC 1035 section 4.2.1.
const plainLimit = dns.MinMsgSize - wire.OPTLen

// excess returns the bytes by which the length of a message that CoreDNS counts exceeds the packed one.
func excess(counted, packed int) int32 {
	return int32(counted - packed) // #nosec G115 -- both are lengths of one message
}

// CountedLen returns the length of the answer in bytes as dns.Msg.Len returns it, which CoreDNS's metrics count.
func (e *Entry) CountedLen() int { return e.Plain.Len() + int(e.plainExcess) }

// Form returns the form of the answer that the server sends to a query whose replies may have limit bytes, nil if the
// answer has to be truncated. fragments is the length in bytes above which CoreDNS compresses names to avoid fragments.
func (e *Entry) Form(q *wire.Query, p *Patch, limit, fragments int) *Answer {
	if n := e.Plain.ReplyLen(q, p) + int(e.plainExcess); n <= limit && n <= fragments {
		return &e.Plain
	}
	if e.compressed == nil || q.Upper || e.compressed.ReplyLen(q, p)+int(e.compressedExcess) > limit {
		return nil
	}
	return e.compressed
}

// fits reports whether every client gets the answer without compression of names.
func (e *Entry) fits() bool { return e.CountedLen()+len(e.Options) <= plainLimit }

// compress sets the compressed answer.
func (e *Entry) compress(m *dns.Msg) error {
	m.Compress = true
	b, err := m.Pack()
	if err != nil {
		return err
	}
	var buf [16]wire.Record
	body, ok := wire.ReadBody(buf[:0], b)
	if !ok {
		return errMalformed
	}
	return e.setCompressed(&body, excess(m.Len(), len(b)))
}

func (e *Entry) setCompressed(body *wire.Body, excess int32) error {
	compressed, err := newAnswer(body)
	if err != nil {
		return err
	}
	e.compressed, e.compressedExcess = &compressed, excess
	return nil
}
