// Package dnssec signs replies while they are sent, for clients that request it. Input is replies of the plugins behind it
// and the keys of zones in files; output is the same replies with signatures (RFC 4034) and NSEC records. It is a drop-in
// replacement of CoreDNS's plugin dnssec, and imports no other plugin.
package dnssec

import (
	"context"
	"slices"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

const pluginName = "dnssec"

var log = clog.NewWithPlugin(pluginName)

// handler is the plugin in a server block.
type handler struct {
	Next plugin.Handler

	zones plugin.Zones // normalized
	*signer
}

// Name implements plugin.Handler.
func (h *handler) Name() string { return pluginName }

// ServeDNS implements plugin.Handler.
func (h *handler) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	zone := h.zones.Matches(state.Name())
	if zone == "" || state.QClass() != dns.ClassINET {
		return plugin.NextOrFailure(pluginName, h.Next, ctx, w, r)
	}
	signed := &writer{w, h, metrics.WithServer(ctx)}
	if state.QType() == dns.TypeDNSKEY && state.Name() == zone {
		m := new(dns.Msg).SetReply(r)
		m.Authoritative = true
		m.Answer = h.dnskeys(zone)
		if state.Do() {
			m = signed.sign(m)
		}
		if err := w.WriteMsg(m); err != nil {
			return dns.RcodeServerFailure, err
		}
		return dns.RcodeSuccess, nil
	}
	if !state.Do() {
		return plugin.NextOrFailure(pluginName, h.Next, ctx, w, r)
	}
	return plugin.NextOrFailure(pluginName, h.Next, ctx, signed, r)
}

// writer signs the replies to a query.
type writer struct {
	dns.ResponseWriter
	*handler
	server string // label of metrics
}

// WriteMsg implements dns.ResponseWriter.
func (w *writer) WriteMsg(m *dns.Msg) error { return w.ResponseWriter.WriteMsg(w.sign(m)) }

// Write implements dns.ResponseWriter.
func (w *writer) Write(packed []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(packed); err != nil {
		return 0, err
	}
	return len(packed), w.WriteMsg(m)
}

// sign returns a reply with signatures. It changes neither the message nor its records, which other queries may share. If a
// part cannot be signed, no part is.
func (w *writer) sign(m *dns.Msg) *dns.Msg {
	if len(m.Question) == 0 {
		return m
	}
	zone := w.zones.Matches(m.Question[0].Name)
	if zone == "" {
		return m
	}
	signed := *m
	var err error
	switch kind, _ := response.Typify(m, w.now()); kind {
	case response.Meta, response.Update: // records after the last SOA record of a transfer are not part of the zone
		return m
	case response.Delegation:
		signed.Ns, err = w.withDelegation(m.Ns)
	case response.NameError, response.NoData:
		if len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA {
			return m
		}
		err = w.deny(&signed, zone)
	default:
		for _, section := range []*[]dns.RR{&signed.Answer, &signed.Ns, &signed.Extra} {
			if *section, err = w.withSignatures(*section); err != nil {
				break
			}
		}
	}
	if err != nil {
		log.Debugf("Reply to %s %s is not signed: %v", m.Question[0].Name, dns.Type(m.Question[0].Qtype), err)
		return m
	}
	return &signed
}

// withSignatures returns the records of a section, and the signatures of its RRsets that are in the zones. It adds no signature that
// the section has already: plugin file looks up the target of an alias through the server, which signs that reply.
func (w *writer) withSignatures(section []dns.RR) ([]dns.RR, error) {
	all := section[:len(section):len(section)]
	for _, rrset := range rrsets(section) {
		zone := w.zones.Matches(rrset[0].Header().Name)
		if zone == "" { // the target of an alias in another zone
			continue
		}
		signatures, err := w.signatures(rrset, zone, w.server)
		if err != nil {
			return nil, err
		}
		for _, s := range signatures {
			if !slices.ContainsFunc(section, func(rr dns.RR) bool { return dns.IsDuplicate(rr, s) }) {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// rrsets returns the RRsets of a section that are to be signed, in the order of their first records.
func rrsets(section []dns.RR) [][]dns.RR {
	type key struct {
		name   string
		rrtype uint16
	}
	index := map[key]int{}
	var all [][]dns.RR
	for _, rr := range section {
		h := rr.Header()
		if h.Rrtype == dns.TypeRRSIG || h.Rrtype == dns.TypeOPT {
			continue
		}
		k := key{dns.CanonicalName(h.Name), h.Rrtype}
		i, ok := index[k]
		if !ok {
			i = len(all)
			index[k] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], rr)
	}
	return all
}
