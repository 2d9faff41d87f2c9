package forward

import (
	"errors"
	"math"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

var _ wirechain.Exchanger = (*Forward)(nil)

// wireQuery is a query of Exchange.
type wireQuery struct {
	wire.Query
	packed   []byte
	receiver wirechain.Receiver
}

// Exchange implements wirechain.Exchanger.
func (f *Forward) Exchange(b *batch.Batch, q *wire.Query, packed []byte, tcp bool, r wirechain.Receiver) bool {
	name := q.Name(packed)
	first, tail := f.stanzaFor(name)
	if first == nil || isTransfer(q.Type) || first.mayLeave(name) && tail != nil || first.mayAnswer(name, q.Type) {
		return false
	}
	first.exchange(b, q, packed, tcp, r)
	return true
}

// perQuery is the number of times that a query without an answer is in flight to an upstream.
const perQuery = 2

// Capacity implements wirechain.Exchanger: it returns the lowest capacity of the stanzas.
func (f *Forward) Capacity() int {
	lowest := math.MaxInt
	for stanza, ok := f, true; ok; stanza, ok = stanza.Next.(*Forward) {
		capacity, udp := 0, 0
		for _, u := range *stanza.upstreams.Load() {
			if carrier := u.checkCarrier(); carrier == u.udp {
				udp = carrier.Capacity() // upstreams share the sockets of the process
			} else {
				capacity += carrier.Capacity()
			}
		}
		capacity += udp
		if capacity > 0 { // else queries fail at once
			lowest = min(lowest, max(1, capacity/perQuery))
		}
	}
	return lowest
}

// stanzaFor returns the first stanza for a name, or nil, and the handler behind the last stanza.
func (f *Forward) stanzaFor(name []byte) (first *Forward, tail plugin.Handler) {
	tail = f
	for stanza, ok := f, true; ok; stanza, ok = tail.(*Forward) {
		if first == nil && stanza.matchesWire(name) {
			first = stanza
		}
		tail = stanza.Next
	}
	return first, tail
}

// mayLeave reports whether a query for a name may be passed on to the handler behind the last stanza, by the options next
// and next_on_nodata of this stanza and those after it.
func (f *Forward) mayLeave(name []byte) bool {
	next, passes := f.passesTo(name)
	return passes && (next == nil || next.mayLeave(name))
}

// mayAnswer reports whether this stanza, or one that may get the query from it, answers a private name itself.
func (f *Forward) mayAnswer(name []byte, qtype uint16) bool {
	if f.localZone(name, qtype) != nil {
		return true
	}
	next, _ := f.passesTo(name)
	return next != nil && next.mayAnswer(name, qtype)
}

// passesTo reports whether a query for a name may be passed on by the options next and next_on_nodata, and returns the stanza that
// gets it, nil for the handler behind the last stanza.
func (f *Forward) passesTo(name []byte) (first *Forward, passes bool) {
	next, ok := f.Next.(*Forward)
	if !ok || len(f.next) == 0 && !f.nextOnNodata {
		return nil, false
	}
	first, _ = next.stanzaFor(name)
	return first, true
}

// matchesWire is matches for a name in wire form, in any case.
func (f *Forward) matchesWire(name []byte) bool {
	if !f.zone.has(name) {
		return false
	}
	if len(name) == len(f.zone) {
		return true
	}
	for _, z := range f.excepted {
		if z.has(name) {
			return false
		}
	}
	return true
}

// exchange forwards a query for this stanza.
func (f *Forward) exchange(b *batch.Batch, q *wire.Query, packed []byte, tcp bool, r wirechain.Receiver) {
	if err := f.admit(); err != nil {
		r.Receive(b, nil, nil, dns.RcodeRefused, err)
		return
	}
	x := f.newExchange(tcp, nil)
	x.wire = wireQuery{*q, packed, r}
	x.receiver = (*wireReceiver)(x)
	x.setQuery(q, packed)
	x.run(b)
}

// wireReceiver is an exchange as the receiver of its own result.
type wireReceiver exchange

// replied implements receiver.
func (w *wireReceiver) replied(b *batch.Batch, reply message, _ *upstream, err error) {
	x := (*exchange)(w)
	switch {
	case err != nil:
		w.Receive(b, nil, nil, failureCode(err), err)
	case x.f.passesOn(reply.Rcode, wire.Count(reply.Message, wire.ANCountAt)):
		w.passOn(b)
	default:
		w.Receive(b, reply.Reply, reply.voucher, dns.RcodeSuccess, nil)
	}
}

// passOn forwards the query by the next stanza for its name. Meanwhile it still counts for max_concurrent of this stanza.
func (w *wireReceiver) passOn(b *batch.Batch) {
	x := (*exchange)(w)
	next, _ := x.f.Next.(*Forward)
	next, _ = next.stanzaFor(x.wire.Name(x.wire.packed))
	if next == nil {
		w.Receive(b, nil, nil, dns.RcodeServerFailure, plugin.Error(pluginName, errors.New("no next plugin found")))
		return
	}
	x.mu.Lock()
	x.users++ // until Receive of next
	x.mu.Unlock()
	next.exchange(b, &x.wire.Query, x.wire.packed, x.overTCP, (*nextReceiver)(x))
}

// Receive implements wirechain.Receiver.
func (w *wireReceiver) Receive(b *batch.Batch, reply *wire.Reply, v *vouch.Voucher, code int, err error) {
	w.f.dismiss()
	w.wire.receiver.Receive(b, reply, v, code, err)
}

// nextReceiver is an exchange as the receiver of the result of the next stanza.
type nextReceiver exchange

// Receive implements wirechain.Receiver.
func (n *nextReceiver) Receive(b *batch.Batch, reply *wire.Reply, _ *vouch.Voucher, code int, err error) {
	(*wireReceiver)(n).Receive(b, reply, nil, code, err) // see withoutVoucher
	(*exchange)(n).leave()
}
