package store

import (
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
