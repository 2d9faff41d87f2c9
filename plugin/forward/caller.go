package forward

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

const (
	// ednsRoom is the maximum reply in bytes to a query to which an OPT record is added: the limit of a client without EDNS
	// (RFC 1035 section 4.2.1), and the OPT record, which is removed.
	ednsRoom = dns.MinMsgSize + 11
	// unnamedFor is the time for which an upstream that refuses the option gets queries without it.
	unnamedFor = time.Minute
	// maxPlainRcode is the maximum response code of a reply without an OPT record.
	maxPlainRcode = 0xf
)

// newCaller returns the option with node and zone of the caller. Queries share it.
func newCaller(node, zone string) (dns.EDNS0, bool) {
	data, ok := caller.Append(nil, node, zone)
	return &dns.EDNS0_LOCAL{Code: caller.Code, Data: data}, ok
}

func isSearch(o dns.EDNS0) bool { return o.Option() == searchlist.OptionCode }

// isOurs reports whether an option is for cluster DNS only.
func isOurs(o dns.EDNS0) bool { return o.Option() == caller.Code || isSearch(o) }

// isHop reports whether an option is valid between two servers only.
func isHop(o dns.EDNS0) bool { return isOurs(o) || o.Option() == dns.EDNS0TCPKEEPALIVE }

// hopOf returns a function that reports whether an option of a message is not forwarded. edns-tcp-keepalive is between two
// servers (RFC 7828 section 3.2.1), but stays in a signed message (RFC 8945 section 5.5). The caller of a client is dropped,
// signed or not, since clients could set any; so is a search list, which newExchange adds for cluster DNS.
func hopOf(m *dns.Msg) func(dns.EDNS0) bool {
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
		if !ok || !slices.ContainsFunc(opt.Option, hopOf(r)) {
			continue
		}
		if out == r {
			out = withExtra(r, slices.Clone(r.Extra))
		}
		o := *opt
		o.Option = slices.DeleteFunc(slices.Clone(opt.Option), hopOf(r))
		out.Extra[i] = &o
	}
	return out
}

// withExtra returns a message with other additional records. All else is shared with its argument.
func withExtra(r *dns.Msg, extra []dns.RR) *dns.Msg {
	out := *r
	out.Extra = extra
	return &out
}

// forCluster returns a query for cluster DNS: with the caller, and with the client's search list if cluster DNS may try it.
// Its other records are shared with the query for other upstreams.
func (f *Forward) forCluster(plain, clients *dns.Msg) (r *dns.Msg, searches bool) {
	list, searches := f.listOf(clients)
	if !searches {
		return adding(plain, f.caller), false
	}
	return adding(plain, f.caller, &dns.EDNS0_LOCAL{Code: searchlist.OptionCode, Data: list}), true
}

// adding returns a query with additional options. All else is shared with its argument.
func adding(r *dns.Msg, options ...dns.EDNS0) *dns.Msg {
	own := r.IsEdns0()
	if own == nil {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Class: ednsRoom}, Option: slices.Clone(options)}
		return withExtra(r, append(slices.Clip(r.Extra), opt))
	}
	opt := *own
	opt.Option = append(slices.Clip(own.Option), options...)
	extra := slices.Clone(r.Extra)
	extra[slices.Index(extra, dns.RR(own))] = &opt
	return withExtra(r, extra)
}

// clean removes from a reply the options that are not forwarded, and the OPT record if the client's query had none. The
// result of a search list stays if the upstream got one.
func (x *exchange) clean(reply *dns.Msg, searched bool) {
	if x.addedOPT {
		reply.Extra = slices.DeleteFunc(reply.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
		if reply.Rcode > maxPlainRcode {
			reply.Rcode = dns.RcodeServerFailure
		}
		return
	}
	hop := hopOf(reply)
	for _, rr := range reply.Extra {
		if opt, ok := rr.(*dns.OPT); ok {
			opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool { return hop(o) && !(searched && isSearch(o)) })
		}
	}
}

// isNamed reports whether the query of a call has the caller.
func (x *exchange) isNamed(call *transport.Call) bool {
	return x.plain != nil && &call.Query[0] == &x.query[0]
}

// refuses reports whether a server may have refused a query because of EDNS or of an option (RFC 6891 sections 7 and 6.1.3).
// A server that implements RFC 6891 ignores unknown options.
func refuses(reply *dns.Msg) bool {
	switch reply.Rcode {
	case dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeBadVers:
		return true
	}
	return false
}

// packUnnamed packs the query without the caller, once. It reports whether that is possible.
func (x *exchange) packUnnamed() bool {
	if x.unnamed == nil {
		x.unnamed, _ = x.plain.Pack() // it could be packed with more options
	}
	return x.unnamed != nil
}

// repeatUnnamed repeats a refused query without the caller, over the same transport.
func (x *exchange) repeatUnnamed(a *attempt, refusal *dns.Msg, overUDP bool, now time.Time) {
	a.to.works()
	a.to.observe(refusal.Rcode, now.Sub(a.started))
	a.refusal = refusal.Rcode
	if overUDP {
		x.sendUDP(a)
	} else {
		x.sendStream(a)
	}
}

// queryFor returns the query of an attempt.
func (x *exchange) queryFor(a *attempt) []byte {
	if x.plain != nil && (a.refusal != 0 || a.to.isUnnamed()) && x.packUnnamed() {
		return x.unnamed
	}
	return x.query
}

// isUnnamed reports whether an upstream gets queries without the caller.
func (u *upstream) isUnnamed() bool {
	until := u.unnamedUntil.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// markUnnamed sends queries without the caller to an upstream for unnamedFor: it refused a query with the option and
// answered it without.
func (u *upstream) markUnnamed(refusal int, now time.Time) {
	code := dns.RcodeToString[refusal]
	if refusal == dns.RcodeBadVers { // RcodeToString returns BADSIG, another name of the code
		code = "BADVERS"
	}
	if u.unnamedUntil.Swap(now.Add(unnamedFor).UnixNano()) == 0 {
		log.Warningf("Upstream %s answers %s to queries with the option caller: it gets queries without it, and with it again after %v",
			u.address, code, unnamedFor)
	}
}
