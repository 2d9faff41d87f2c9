package answers

import "github.com/nearside-dns/nearside/plugin/internal/wire"

// FillReply sets the answer of the entry to an ordinary reply without escapes, as Fill does with a message. AnyCase is set. The
// reply may be changed afterwards. It returns false for a reply that needs compression and has too many names.
func (e *Entry) FillReply(r *wire.Reply) bool {
	body := r.Plain()
	plain, err := newAnswer(&body)
	if err != nil {
		return false
	}
	e.Plain, e.plainExcess, e.AnyCase = plain, int32(r.Excess()), r.AnyCase // #nosec G115 -- below the length
	if len(body.Bytes)+r.Excess()+len(e.Options) <= plainLimit {
		return true
	}
	body, ok := r.Compressed()
	if !ok {
		return false
	}
	compressed, err := newAnswer(&body)
	if err != nil {
		return false
	}
	e.compressed, e.compressedExcess = &compressed, e.plainExcess
	return true
}
