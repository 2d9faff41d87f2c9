package forward

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// ednsRoom is the maximum reply in bytes to a query to which an OPT record is added: the limit of a client without EDNS
// (RFC 1035 section 4.2.1), plus the reply's OPT record, which is removed.
const ednsRoom = dns.MinMsgSize + wire.OPTLen

// newCaller returns the EDNS option with node and zone of the caller, in wire form.
func newCaller(node, zone string) ([]byte, bool) {
	data, ok := caller.Append(nil, node, zone)
	return wire.AppendOption(nil, wire.OptionCaller, data), ok
}

// isOurs reports whether an option is for cluster DNS only.
func isOurs(code uint16) bool {
	return code == wire.OptionCaller || code == wire.OptionSearchList || code == wire.OptionNotify
}

// isHop reports whether an option is between two servers only: ours, edns-tcp-keepalive (RFC 7828 section 3.2.1) and a cookie
// (RFC 7873 section 5), which has the client's address in it.
func isHop(code uint16) bool {
	return isOurs(code) || code == dns.EDNS0TCPKEEPALIVE || code == dns.EDNS0COOKIE
}

// isHopOnly reports whether an option of a reply to a query with a search list is not forwarded: isHop, except for the result of
// the list, which the client receives.
func isHopOnly(code uint16) bool { return isHop(code) && code != wire.OptionSearchList }

// isOursOnly is isHopOnly for a signed reply: options that are not ours remain, since their removal would break the signature.
func isOursOnly(code uint16) bool { return isOurs(code) && code != wire.OptionSearchList }

// hopOf returns a function that reports whether an option of a message is not forwarded: isHop, but a signed message keeps
// options that are not ours (RFC 8945 section 5.5). A client's caller option is dropped, signed or not, since clients could name
// any node; so are a search list, which addOptions adds for cluster DNS, and a request for notification.
func hopOf(m *dns.Msg) func(code uint16) bool {
	if m.IsTsig() != nil {
		return isOurs
	}
	return isHop
}

// withoutHops returns a query without the options that are not forwarded. The client's query is not changed.
func withoutHops(r *dns.Msg) *dns.Msg {
	out := r
	for i, rr := range r.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok || !hasOption(opt, hopOf(r)) {
			continue
		}
		if out == r {
			out = withExtra(r, slices.Clone(r.Extra))
		}
		o := *opt
		o.Option = slices.Clone(opt.Option)
		removeOptions(&o, hopOf(r))
		out.Extra[i] = &o
	}
	return out
}

func hasOption(opt *dns.OPT, is func(code uint16) bool) bool {
	return slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool { return is(o.Option()) })
}

func removeOptions(opt *dns.OPT, remove func(code uint16) bool) {
	opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool { return remove(o.Option()) })
}

// withExtra returns a message with other additional records. All else is shared with its argument.
func withExtra(r *dns.Msg, extra []dns.RR) *dns.Msg {
	out := *r
	out.Extra = extra
	return &out
}

// clean removes from a reply the options that are not forwarded, and the OPT record if the client's query had none. The
// result of a search list stays if the upstream got the list.
func (x *exchange) clean(m *message, searched bool) error {
	hop := isHop
	if searched {
		hop = isHopOnly
	}
	switch {
	case !m.OPT.IsPresent(), m.OPT.Last && !x.addedOPT && !m.HasOption(hop):
		return nil
	case !m.OPT.Last:
		return m.change(func(reply *dns.Msg) { x.cleanMessage(reply, searched) })
	case x.addedOPT:
		m.RemoveOPT()
	default:
		m.RemoveOptions(hop)
	}
	return nil
}

// cleanMessage is clean for an unpacked reply.
func (x *exchange) cleanMessage(reply *dns.Msg, searched bool) {
	if x.addedOPT {
		reply.Extra = slices.DeleteFunc(reply.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
		if reply.Rcode > wire.MaxRcode {
			reply.Rcode = dns.RcodeServerFailure
		}
		return
	}
	hop := hopOf(reply)
	if searched {
		hop = isHopOnly
		if reply.IsTsig() != nil {
			hop = isOursOnly
		}
	}
	for _, rr := range reply.Extra {
		if opt, ok := rr.(*dns.OPT); ok {
			removeOptions(opt, hop)
		}
	}
}

// isNamed reports whether the query of a call has options for cluster DNS.
func (x *exchange) isNamed(call *transport.Call) bool { return &call.Query[0] != &x.plain[0] }

// refuses reports whether a server may have refused a query because of EDNS or of an option (RFC 6891 sections 7 and 6.1.3).
// A server that implements RFC 6891 ignores unknown options.
func (m *message) refuses() bool {
	switch m.Rcode {
	case dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeBadVers:
		return true
	}
	return false
}

// repeatPlain repeats a refused query over the same transport without our EDNS options, which the upstream may not accept.
func (x *exchange) repeatPlain(a *attempt, rcode int, overUDP bool, now time.Time) {
	a.to.works()
	a.to.observe(rcode, now.Sub(a.started))
	a.refused = true
	if overUDP {
		x.sendUDP(a)
	} else {
		x.sendStream(a)
	}
}
