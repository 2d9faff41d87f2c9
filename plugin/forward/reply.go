package forward

import (
	"errors"
	"fmt"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

var (
	errMalformed = errors.New("malformed answer")
	errRepacked  = errors.New("it cannot be packed")
)

// message is a parsed reply of an upstream.
type message struct {
	*wire.Reply                // nil between two events
	voucher     *vouch.Voucher // of the session over which it was received, or nil
}

// read parses a reply that is known to be valid, and sets the response code of any other.
func (m *message) read(b []byte) bool {
	if m.Reply == nil {
		m.Reply = wire.NewReply()
	}
	return m.Parse(b) || m.Read(b)
}

// release ends the use of the reply.
func (m *message) release() {
	if m.Reply != nil {
		m.Reply.Release()
	}
	*m = message{}
}

// reserved is a message that is used if no better one arrives.
type reserved struct {
	b       []byte // a copy
	voucher *vouch.Voucher
}

func (r *reserved) truncated() bool { return r.b[wire.FlagsAt]&wire.TC != 0 }

// useReserved makes the reserved message the present one.
func (x *exchange) useReserved() {
	x.message.read(x.reserved.b)
	x.message.voucher = x.reserved.voucher
}

// readReply parses the reply of a call. The message is in the buffer of the call's reply, or a new one.
func (x *exchange) readReply(m *message, call *transport.Call, from *upstream, overUDP bool) error {
	if m.Reply == nil {
		m.Reply = wire.NewReply()
	}
	if m.Parse(call.Reply) {
		return nil
	}
	err := x.unpackReply(m, call.Reply)
	if err == nil {
		return nil
	}
	proto := protoUDP
	if !overUDP {
		proto = from.streamProto()
	}
	droppedAnswers.WithLabelValues(from.address, proto, transport.Malformed).Inc()
	return err
}

// unpackReply parses a reply of an unusual form: package dns decides whether it is well-formed, apart from the data of its records
// (see store.Unpack). A missing question is restored: the upstream could not read the query, or refuses it. A reply without all of
// the records that its header counts is truncated.
func (x *exchange) unpackReply(m *message, b []byte) error {
	reply, err := store.Unpack(b)
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	if len(reply.Question) == 0 {
		query := new(dns.Msg)
		if err := query.Unpack(x.plain); err != nil {
			return fmt.Errorf("unpack the query: %w", err)
		}
		reply.Question = query.Question
	}
	records := len(reply.Answer) + len(reply.Ns) + len(reply.Extra)
	for section := range wire.Sections {
		records -= wire.Count(b, section.CountAt())
	}
	reply.Truncated = reply.Truncated || records < 0
	if !dropMisplacedOPT(reply) && new(dns.Msg).Unpack(b) == nil && m.Read(b) { // Read fails without a question
		return nil
	}
	return m.pack(reply)
}

// dropMisplacedOPT drops all OPT records of a reply except the last one in the additional section, whose name becomes the root. It
// reports whether the reply has changed. RFC 6891 section 6.1.1 forbids the others, and some clients refuse the whole reply.
func dropMisplacedOPT(reply *dns.Msg) (changed bool) {
	last := reply.IsEdns0()
	if last != nil && last.Hdr.Name != "." {
		last.Hdr.Name, changed = ".", true
	}
	for _, section := range []*[]dns.RR{&reply.Answer, &reply.Ns, &reply.Extra} {
		before := len(*section)
		*section = slices.DeleteFunc(*section, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT && rr != dns.RR(last) })
		changed = changed || len(*section) < before
	}
	return changed
}

// pack sets the message to a packed one.
func (m *message) pack(reply *dns.Msg) error {
	reply.Compress = true
	b, err := reply.Pack()
	if err == nil && !m.read(b) {
		err = errRepacked
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return nil
}

// change changes the message by a function for an unpacked one.
func (m *message) change(change func(*dns.Msg)) error {
	reply, err := store.Unpack(m.Message)
	if err != nil {
		return err
	}
	change(reply)
	return m.pack(reply)
}
