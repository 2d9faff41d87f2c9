package fastpath

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// lengthLen is the number of bytes of the length before a message, RFC 1035 section 4.2.2.
const lengthLen = 2

// input has the received bytes of messages that are not handled.
type input struct {
	bytes []byte // nil without any
}

// next returns the next complete message of the retained bytes and data, nil without one, and the rest of data. An incomplete
// message is retained; its buffer grows with the bytes received, not with the length announced.
func (in *input) next(data []byte) (message, rest []byte) {
	for {
		from := data
		if len(in.bytes) > 0 {
			from = in.bytes
		}
		want := lengthLen
		if len(from) >= lengthLen {
			want += int(binary.BigEndian.Uint16(from))
			if len(from) >= want {
				break
			}
		}
		if len(data) == 0 {
			return nil, nil
		}
		n := min(want-len(in.bytes), len(data))
		in.bytes = append(in.bytes, data[:n]...)
		data = data[n:]
	}
	if len(in.bytes) == 0 {
		end := lengthLen + int(binary.BigEndian.Uint16(data))
		return data[lengthLen:end:end], data[end:]
	}
	end := lengthLen + int(binary.BigEndian.Uint16(in.bytes))
	message = in.bytes[lengthLen:end:end]
	if in.bytes = in.bytes[end:]; len(in.bytes) == 0 {
		in.bytes = nil
	}
	return message, data
}

// outputs are buffers of connections with answers that are not sent.
var outputs = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxPooled is the capacity in bytes above which a buffer is not used again.
const maxPooled = 128 << 10

// output has framed messages that are not sent.
type output struct {
	bytes    []byte // nil without any
	buffer   *[]byte
	progress time.Duration // last time at which the kernel accepted bytes or the output was empty
}

// begin makes the buffer ready for a message.
func (o *output) begin() {
	if o.bytes == nil {
		o.buffer, _ = outputs.Get().(*[]byte)
		o.bytes, o.progress = (*o.buffer)[:0], validity.Now()
	}
}

// message appends a message with its length.
func (o *output) message(message []byte) {
	o.begin()
	o.bytes = appendMessage(o.bytes, message)
}

// answer appends a stored answer to a query with its length.
func (o *output) answer(form *store.Answer, query []byte, q *wire.Query, p *store.Patch) {
	o.begin()
	o.bytes = appendFrame(o.bytes, form, query, q, p)
}

// frames appends framed messages, whose first bytes may have been sent.
func (o *output) frames(frames []byte) {
	o.begin()
	o.bytes = append(o.bytes, frames...)
}

// sent removes a number of bytes that the kernel has accepted.
func (o *output) sent(n int) {
	if o.bytes = o.bytes[:copy(o.bytes, o.bytes[n:])]; n > 0 {
		o.progress = validity.Now()
	}
	if len(o.bytes) == 0 {
		o.release()
	}
}

// release removes all messages, and returns the buffer.
func (o *output) release() {
	if o.buffer != nil && cap(o.bytes) <= maxPooled {
		*o.buffer = o.bytes[:0]
		outputs.Put(o.buffer)
	}
	o.bytes, o.buffer = nil, nil
}

// appendFrame appends an answer with its length.
func appendFrame(out []byte, form *store.Answer, query []byte, q *wire.Query, p *store.Patch) []byte {
	start := len(out)
	out = form.AppendReply(append(out, 0, 0), query, q, p)
	binary.BigEndian.PutUint16(out[start:], uint16(len(out)-start-lengthLen)) // #nosec G115 -- formOf limits it
	return out
}

// appendMessage appends a message with its length.
func appendMessage(out, message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(message))), message...) // #nosec G115 -- the caller limits it
}
