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
	// ednsRoom is the greatest reply in bytes, of a query to which an OPT record is added: what a client
	// without EDNS takes (RFC 1035 section 4.2.1), and the OPT record that is taken out again.
	ednsRoom = dns.MinMsgSize + 11
	// unnamedFor is for how long an upstream is not told who is calling that has refused a query for that.
	unnamedFor = time.Minute
	// maxPlainRcode is the greatest response code that a reply without an OPT record can have.
	maxPlainRcode = 0xf
)

// newCaller returns the option that names who is calling. It is not changed after that.
func newCaller(node, zone string) (dns.EDNS0, bool) {
	data, ok := caller.Append(nil, node, zone)
	return &dns.EDNS0_LOCAL{Code: caller.Code, Data: data}, ok
}

func isCaller(o dns.EDNS0) bool { return o.Option() == caller.Code }

func isSearch(o dns.EDNS0) bool { return o.Option() == searchlist.OptionCode }

// isOurs tells of the options that are for cluster DNS alone.
func isOurs(o dns.EDNS0) bool { return isCaller(o) || isSearch(o) }

func isKeepAlive(o dns.EDNS0) bool { return o.Option() == dns.EDNS0TCPKEEPALIVE }

// isHop tells of the options that go no further than the next server.
func isHop(o dns.EDNS0) bool { return isOurs(o) || isKeepAlive(o) }

// hopOf returns which options of a message are not passed on. edns-tcp-keepalive is between a client and
// this server, or this server and the upstream, RFC 7828 section 3.2.1; what is signed keeps it, RFC 8945
// section 5.5. It is not for a client to say who is calling, signed or not; nor is a search list for servers that are
// not the cluster's own, which newExchange sees to.
func hopOf(m *dns.Msg) func(dns.EDNS0) bool {
	if m.IsTsig() != nil {
		return isOurs
	}
	return isHop
}

// withoutHops returns a query without the options that are not passed on. The client's stays as it is.
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

// withExtra returns a message that has other additional records, and the rest in common with another.
func withExtra(r *dns.Msg, extra []dns.RR) *dns.Msg {
	out := *r
	out.Extra = extra
	return &out
}

// forCluster returns a query as cluster DNS gets it: it says who is calling, and has the search list of the client's
// if there is one that may be tried there. All else it has in common with the query as others get it.
func (f *Forward) forCluster(plain, clients *dns.Msg) (r *dns.Msg, searches bool) {
	list, searches := f.listOf(clients)
	if !searches {
		return adding(plain, f.caller), false
	}
	return adding(plain, f.caller, &dns.EDNS0_LOCAL{Code: searchlist.OptionCode, Data: list}), true
}

// adding returns a query that has options more, and all else in common with another.
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

// clean takes out of a reply what the client has not asked for: the options that are not passed on, and the
// OPT record itself if it is there because of one that was added. What is said of a search list stays if the upstream
// was sent one.
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

// isNamed reports whether a call says who is calling.
func (x *exchange) isNamed(call *transport.Call) bool {
	return x.plain != nil && &call.Query[0] == &x.query[0]
}

// refuses reports whether a reply may be there because of EDNS or of an option: RFC 6891 section 7 and
// section 6.1.3. A server of RFC 6891 does not mind an option that it does not know.
func refuses(reply *dns.Msg) bool {
	switch reply.Rcode {
	case dns.RcodeFormatError, dns.RcodeNotImplemented, dns.RcodeBadVers:
		return true
	}
	return false
}

// packUnnamed makes the query that does not say who is calling, of one that does.
func (x *exchange) packUnnamed() bool {
	if x.unnamed == nil {
		x.unnamed, _ = x.plain.Pack() // it could be packed with more in it
	}
	return x.unnamed != nil
}

// askUnnamed asks an upstream again that has refused a query, the same way.
func (x *exchange) askUnnamed(a *attempt, refusal *dns.Msg, overUDP bool, now time.Time) {
	a.to.works()
	a.to.observe(refusal.Rcode, now.Sub(a.started))
	a.refusal = refusal.Rcode
	if overUDP {
		x.sendUDP(a)
	} else {
		x.sendStream(a)
	}
}

// queryFor returns what an attempt sends.
func (x *exchange) queryFor(a *attempt) []byte {
	if x.plain != nil && (a.refusal != 0 || a.to.isUnnamed()) && x.packUnnamed() {
		return x.unnamed
	}
	return x.query
}

// isUnnamed reports whether an upstream is not to be told who is calling.
func (u *upstream) isUnnamed() bool {
	until := u.unnamedUntil.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// leaveUnnamed notes that an upstream answers what it has refused before, if it is not told who is calling.
func (u *upstream) leaveUnnamed(refusal int, now time.Time) {
	code := dns.RcodeToString[refusal]
	if refusal == dns.RcodeBadVers { // which has two names
		code = "BADVERS"
	}
	if u.unnamedUntil.Swap(now.Add(unnamedFor).UnixNano()) == 0 {
		log.Warningf("Upstream %s answers %s to queries that say who is calling (option caller): it is asked without that, and with it again after %v",
			u.address, code, unnamedFor)
	}
}
