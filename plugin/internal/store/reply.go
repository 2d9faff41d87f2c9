package store

import (
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// FillReply sets the answer of the entry to a parsed reply, as Fill does with a message, and AnyCase. The reply may be changed
// afterwards.
func (e *Entry) FillReply(r *wire.Reply) error {
	body := r.Plain()
	plain, err := newAnswer(&body)
	if err != nil {
		return err
	}
	e.Plain, e.AnyCase = plain, r.AnyCase
	if r.Ordinary && !r.Escapes {
		e.plainExcess = int32(r.Excess()) // #nosec G115 -- below the length
		if e.fits() {
			return nil
		}
		if body, ok := r.Compressed(); ok {
			return e.setCompressed(&body, e.plainExcess)
		}
	}
	m, err := Unpack(body.Bytes)
	if err != nil {
		return err
	}
	if e.plainExcess = excess(m.Len(), plain.Len()); e.fits() {
		return nil
	}
	return e.compress(m)
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
