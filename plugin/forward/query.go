package forward

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// queries are the forms of a query that upstreams get.
type queries struct {
	plain    []byte // without the options for cluster DNS; it may be a slice of wireQuery.packed
	named    []byte // with the caller; empty until it is needed
	notify   []byte // with the request for notification as well; empty until it is needed
	buf      []byte // of plain
	opt      int    // offset of the OPT record of plain, 0 without one
	list     []byte // the client's search list
	extends  bool   // cluster DNS gets options
	addedOPT bool   // named and notify have an OPT record that plain has not
	searches bool   // named has the client's search list
	alone    bool   // a zone transfer, which needs its own connection
	unusual  bool   // see isUnusual
	signed   bool   // with a TSIG record
}

// isTransfer reports whether a query is for a zone transfer.
func isTransfer(qtype uint16) bool { return qtype == dns.TypeAXFR || qtype == dns.TypeIXFR }

// setMessage packs a client's query. It gets the options for cluster DNS unless it is signed.
func (x *exchange) setMessage(state *request.Request) error {
	r := state.Req
	if len(r.Question) != 1 { // RFC 9619
		return errQuestions
	}
	x.alone, x.unusual, x.signed = isTransfer(r.Question[0].Qtype), isUnusual(r), r.IsTsig() != nil
	out := withoutHops(r)
	if out.Compress { // options could not be added before the end
		out = withExtra(out, out.Extra)
		out.Compress = false
	}
	packed, err := out.PackBuffer(x.buf[:cap(x.buf)])
	if err != nil {
		return fmt.Errorf("pack the query: %w", err)
	}
	x.plain, x.buf = packed, packed
	if !x.hasOptions() || x.signed {
		return nil
	}
	list, _ := searchlist.OptionOf(r)
	opt := 0
	if out.IsEdns0() != nil {
		found, _ := wire.FindOPT(x.plain) // as IsEdns0 of package dns finds it
		opt = int(found.Owner)
	}
	x.addOptions(opt, state.Name(), list)
	return nil
}

// isUnusual reports whether a query has anything but RD, AD, CD, a question and an OPT record. A server may close the connection
// because of it, as one with sessions does after edns-tcp-keepalive, which a signed query retains (RFC 8490 section 7.1.2): over
// TCP and TLS such a query has its own connection.
func isUnusual(r *dns.Msg) bool {
	return r.Opcode != dns.OpcodeQuery || r.Authoritative || r.Truncated || r.RecursionAvailable || r.Zero || r.Rcode != 0 ||
		len(r.Answer)+len(r.Ns) > 0 || len(r.Extra) > 1 || len(r.Extra) == 1 && r.Extra[0].Header().Rrtype != dns.TypeOPT
}

// setQuery sets an ordinary query, without its options, which are for one hop. A query without options is not copied.
func (x *exchange) setQuery(q *wire.Query, packed []byte) {
	end := q.QuestionEnd()
	opt := 0
	if q.EDNS {
		opt = end
		end += wire.OPTLen
	}
	if x.plain = packed[:end:end]; len(packed) > end {
		x.buf = append(x.buf[:0], x.plain...)
		x.plain = x.buf
		clear(x.plain[end-2:]) // the length of the options
	}
	if !x.hasOptions() {
		return
	}
	name := ""
	if q.Search != nil {
		name, _, _ = dns.UnpackDomainName(packed[:wire.HeaderLen+q.NameLen], wire.HeaderLen) // Parse accepts valid names only
	}
	x.addOptions(opt, name, q.Search)
}

// hasOptions reports whether the query gets options for cluster DNS.
func (x *exchange) hasOptions() bool { return x.f.caller != nil || x.f.coherent }

// addOptions makes cluster DNS get the caller, the client's search list if cluster DNS may try it, and a request for notification.
// The options are added to the OPT record of the plain query at offset opt, behind which no names are compressed, or to a new OPT
// record if opt is 0.
func (x *exchange) addOptions(opt int, name string, list []byte) {
	x.opt, x.list, x.extends, x.addedOPT = opt, list, true, opt == 0
	x.searches = x.f.caller != nil && list != nil && x.f.mayTry(name, list)
}

// queryFor returns the query of an attempt, over UDP or another transport.
func (x *exchange) queryFor(a *attempt, overUDP bool) []byte {
	query := &x.named
	notify := x.f.coherent && !x.alone && !overUDP && a.to.notifies()
	switch {
	case !x.extends || a.refused || a.to.unnamed.Load() || x.f.caller == nil && !notify:
		return x.plain
	case notify:
		query = &x.notify
	}
	if len(*query) == 0 {
		*query = x.withOptions((*query)[:0], notify)
	}
	if len(*query) == 0 {
		return x.plain // it has no room for options
	}
	return *query
}

// notifyOption is the option that requests notification.
var notifyOption = wire.AppendOption(nil, wire.OptionNotify, nil)

// withOptions appends the query with the options for cluster DNS to b, which is empty; see addOptions. It returns no bytes if
// the query has no room for them.
func (x *exchange) withOptions(b []byte, notify bool) []byte {
	opt, end := x.opt, len(x.plain)
	if opt == 0 {
		opt = end
		b = wire.AddOPT(append(b, x.plain...), ednsRoom)
	} else {
		end = opt + wire.OPTLen + int(binary.BigEndian.Uint16(x.plain[opt+wire.OPTLen-2:]))
		b = append(b, x.plain[:end]...)
	}
	b = append(b, x.f.caller...)
	if x.searches {
		b = searchlist.AppendOption(b, x.list)
	}
	if notify {
		b = append(b, notifyOption...)
	}
	wire.EndOPT(b, opt)
	if b = append(b, x.plain[end:]...); len(b) > dns.MaxMsgSize {
		return b[:0]
	}
	return b
}

// zone is a zone in wire form.
type zone []byte

// newZone returns a zone of the Corefile, which is valid.
func newZone(name string) zone {
	b := make([]byte, wire.MaxName+1)
	end, err := dns.PackDomainName(name, b, 0, nil, false)
	if err != nil {
		return nil
	}
	return slices.Clip(b[:end])
}

// has reports whether a name in wire form, in any case, is in the zone.
func (z zone) has(name []byte) bool {
	for len(name) > len(z) {
		name = name[1+int(name[0]):]
	}
	return len(z) > 0 && wire.EqualNames(name, z)
}
