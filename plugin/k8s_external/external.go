// Package external answers queries for the names of Services in zones outside of the cluster's, by the addresses at which
// clients outside of the cluster reach them. Input is queries and the Services of plugin kubernetes in the same server block;
// output is resource records. It is a drop-in replacement of CoreDNS's plugin k8s_external, and imports no other plugin.
package external

import (
	"context"
	"net/netip"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// External is the plugin's handler for one server block.
type External struct {
	Next plugin.Handler

	// Zones are the zones that the plugin answers for, normalized.
	Zones []string
	// Fall has the zones whose nonexistent names are passed to the next plugin.
	Fall fall.F

	apex     string // the subdomain of each zone that has the names of the DNS server, without a dot at the end
	ttl      uint32 // seconds
	headless bool

	services exposed.Services // set before the server answers
	upstream upstreamer
	space    *store.Keyspace // of the store of the fast path
	late     bool            // another plugin may change answers before they are sent: this one stores none for the fast path
	signed   bool            // SOA records are signed, so that the serial of a stored one cannot be replaced
}

// upstreamer looks up the names of load balancers, through the server itself.
type upstreamer interface {
	Lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*dns.Msg, error)
}

// Name implements plugin.Handler.
func (e *External) Name() string { return pluginName }

// OwnZones implements block.ZoneOwner.
func (e *External) OwnZones() []string { return e.Zones }

// query is a query for a name in a zone.
type query struct {
	ctx   context.Context
	state request.Request
	zone  string // normalized
	base  string // the part of the name before the zone, in lower case, "" for the zone itself
	qtype uint16
	// validity bounds how long the reply is stored, nil if it is not.
	validity *validity.Validity
	// untracked is set if the reply depends on data that no Generation counts, foreign if it has data of another server.
	untracked, foreign bool
}

// ServeDNS implements plugin.Handler.
func (e *External) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 0 {
		return dns.RcodeFormatError, nil
	}
	qname := r.Question[0].Name
	name := strings.ToLower(qname)
	q := query{ctx: ctx, state: request.Request{W: w, Req: r}, zone: plugin.Zones(e.Zones).Matches(name), qtype: r.Question[0].Qtype}
	if q.zone == "" {
		return plugin.NextOrFailure(pluginName, e.Next, ctx, w, r)
	}
	if q.qtype == dns.TypeAXFR || q.qtype == dns.TypeIXFR {
		return dns.RcodeRefused, nil // plugin transfer precedes this one
	}
	q.base, _ = dnsutil.TrimZone(name, q.zone) // "" and an error for the zone itself
	inFront := store.PropertiesOf(ctx, r)
	synced := e.services.Synced() // before the lookup, which may find only a part of the Services until then
	if synced && e.isStorable(r, name, inFront) {
		q.validity = new(validity.Validity)
	}
	f := e.find(&q, name)
	if f.rcode == dns.RcodeNameError && !f.own && e.Fall.Through(name) {
		return e.next(&q, inFront)
	}
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	m.Rcode = f.rcode
	if !f.fixed && !synced {
		m.Rcode = dns.RcodeServerFailure
	} else if m.Rcode == dns.RcodeSuccess {
		e.answer(&q, &f, m)
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{e.soa(q.zone)}
	}
	e.store(&q, m, inFront)
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// result is the result of the lookup of a name.
type result struct {
	rcode int
	own   bool // a name of the zone itself or of its server
	fixed bool // the reply is the same in every cluster

	isServer bool             // the name of the server
	targets  []exposed.Target // of the name of a Service or below it
	services []exposed.Name   // with the address of a reverse name
}

// find looks up a name in lower case, and records the dependencies of the result.
func (e *External) find(q *query, name string) (f result) {
	switch server := nsLabel + "." + e.apex; {
	case q.base == "":
		return result{own: true, fixed: q.qtype != dns.TypeNS}
	case q.base == e.apex:
		return result{own: true, fixed: true}
	case q.base == server:
		return result{own: true, isServer: true}
	case e.isOwn(q.base):
		return result{own: true, fixed: true, rcode: dns.RcodeNameError}
	case dnsutil.IsReverse(name) > 0:
		f.services = e.services.At(name, q.validity)
		f.exist(len(f.services) > 0)
	default:
		n, ok := parseName(q.base)
		if ok {
			f.targets, ok = e.services.Find(n, e.headless, q.validity)
		}
		f.exist(ok)
	}
	return f
}

// isOwn reports whether a name without its zone is one of the zone's server: no Service has it.
func (e *External) isOwn(base string) bool {
	return base == e.apex || strings.HasSuffix(base, "."+e.apex)
}

func (f *result) exist(does bool) {
	if !does {
		f.rcode = dns.RcodeNameError
	}
}

// parseName parses a name without its zone. It returns false if the name has more labels than any name of a Service.
//
// As in CoreDNS, the underscores of port and protocol are optional: two labels before a Service are port and protocol, one
// is an endpoint.
func parseName(base string) (n exposed.Name, ok bool) {
	labels := dns.SplitDomainName(base)
	last := len(labels) - 1
	n.Namespace = labels[last]
	if last > 0 {
		n.Service = labels[last-1]
	}
	switch before := labels[:max(0, last-1)]; len(before) {
	case 0:
	case 1:
		n.Endpoint = strings.TrimPrefix(before[0], "_")
	case 2:
		n.Port, n.Protocol = strings.TrimPrefix(before[0], "_"), strings.TrimPrefix(before[1], "_")
	default:
		return n, false
	}
	return n, true
}

// isReverse reports whether a zone has reverse names: in-addr.arpa., ip6.arpa. or a zone below one of them.
func isReverse(zone string) bool {
	return zone == "in-addr.arpa." || zone == "ip6.arpa." || dnsutil.IsReverse(zone) > 0
}

// pointerZone returns the zone of the targets of PTR records.
func (e *External) pointerZone() string {
	for _, zone := range e.Zones {
		if !isReverse(zone) {
			return zone
		}
	}
	return e.Zones[0] // as in CoreDNS
}

// serverAddresses returns the addresses of the server itself. No Generation counts them.
func (e *External) serverAddresses(q *query) []netip.Addr {
	q.untracked = true
	return e.services.NameServers(e.headless)
}
