package external

import (
	"context"
	"net/netip"
	"slices"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// maxName is the maximum length of a fully qualified name in characters. In wire form it has one octet more (RFC 1035, section 2.3.4).
const maxName = 254

// nsLabel is the label of the server below the apex name.
const nsLabel = "ns1"

// Fields of the SOA record in seconds, as in CoreDNS.
const (
	soaRefresh = 7200
	soaRetry   = 1800
	soaExpire  = 86400
)

// answer adds the records of an existing name to a reply. Without records of the type it is NODATA.
func (e *External) answer(q *query, f *result, m *dns.Msg) {
	owner := q.state.Req.Question[0].Name
	switch {
	case q.base == "" && q.qtype == dns.TypeSOA:
		q.untracked = true // no Generation counts the changes of the serial
		m.Answer = []dns.RR{e.soa(q.zone)}
	case q.base == "" && q.qtype == dns.TypeNS:
		m.Answer = []dns.RR{e.ns(q.zone)}
		m.Extra = e.addressRecords(e.serverName(q.zone), 0, e.serverAddresses(q))
	case f.isServer:
		m.Answer = e.addressRecords(owner, q.qtype, e.serverAddresses(q))
	case q.qtype == dns.TypePTR:
		for _, n := range f.services {
			m.Answer = append(m.Answer, &dns.PTR{Hdr: e.header(owner, dns.TypePTR), Ptr: serviceName(n, e.pointerZone())})
		}
	case len(f.targets) > 0:
		n, _ := parseName(q.base)
		e.records(q, owner, serviceName(n, q.zone), f.targets, m)
	}
}

func (e *External) header(owner string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: e.ttl}
}

// soa returns the SOA record of a zone. The serial is the Unix time of the last change in the cluster.
func (e *External) soa(zone string) *dns.SOA {
	return &dns.SOA{
		Hdr:     e.header(zone, dns.TypeSOA),
		Ns:      e.serverName(zone),
		Mbox:    dnsutil.Join("hostmaster", e.apex, zone),
		Serial:  uint32(e.services.Modified()), // #nosec G115 -- serials wrap, RFC 1982
		Refresh: soaRefresh,
		Retry:   soaRetry,
		Expire:  soaExpire,
		Minttl:  e.ttl,
	}
}

func (e *External) ns(zone string) *dns.NS {
	return &dns.NS{Hdr: e.header(zone, dns.TypeNS), Ns: e.serverName(zone)}
}

func (e *External) serverName(zone string) string { return dnsutil.Join(nsLabel, e.apex, zone) }

func serviceName(n exposed.Name, zone string) string {
	return dnsutil.Join(n.Service, n.Namespace, zone)
}

// addressRecords returns the records of addresses, of one type or, with 0, of both.
func (e *External) addressRecords(owner string, qtype uint16, addrs []netip.Addr) (records []dns.RR) {
	for _, a := range addrs {
		if rrtype := addressType(a); qtype == 0 || qtype == rrtype {
			records = append(records, e.addressRecord(owner, a))
		}
	}
	return records
}

func (e *External) addressRecord(owner string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: e.header(owner, dns.TypeA), A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: e.header(owner, dns.TypeAAAA), AAAA: a.AsSlice()}
}

func addressType(a netip.Addr) uint16 {
	if a.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

// records adds the records of targets, each once. service is the full name of their Service. A CNAME is the only record of a name
// (RFC 1034, section 3.6.2): a Service without addresses has one, to its first host.
func (e *External) records(q *query, owner, service string, targets []exposed.Target, m *dns.Msg) {
	isAddress := func(t exposed.Target) bool { return t.Host == "" }
	switch q.qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME:
	case dns.TypeSRV:
		e.srvRecords(q, owner, service, targets, m)
		return
	default:
		return
	}
	if len(targets) > 0 && !slices.ContainsFunc(targets, isAddress) {
		host := targets[0].Host
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: e.header(owner, dns.TypeCNAME), Target: host})
		if q.qtype != dns.TypeCNAME {
			records, truncated := e.resolve(q, host, q.qtype)
			m.Answer, m.Truncated = append(m.Answer, records...), truncated
		}
		return
	}
	seen := map[netip.Addr]bool{}
	for _, t := range targets {
		if isAddress(t) && addressType(t.Addr) == q.qtype && !seen[t.Addr] {
			seen[t.Addr] = true
			m.Answer = append(m.Answer, e.addressRecord(owner, t.Addr))
		}
	}
}

// srvRecords adds the SRV records of targets and the addresses of their names. As in CoreDNS, the weight depends on the number
// of ports of all targets, including duplicates and ports without a number.
func (e *External) srvRecords(q *query, owner, service string, targets []exposed.Target, m *dns.Msg) {
	weight := uint16(max(1, 100/max(1, len(targets))))
	type record struct {
		name string
		addr netip.Addr
		port int32
	}
	seen := map[record]bool{}
	isNew := func(r record) bool {
		known := seen[r]
		seen[r] = true
		return !known
	}
	for _, t := range targets {
		if t.Port == exposed.NoPort {
			continue
		}
		name := service
		switch {
		case t.Host != "":
			name = t.Host
		case t.Endpoint != "":
			name = t.Endpoint + "." + service
		}
		if len(name) > maxName {
			continue
		}
		if isNew(record{name: name, port: t.Port}) {
			m.Answer = append(m.Answer, &dns.SRV{Hdr: e.header(owner, dns.TypeSRV), Weight: weight, Port: uint16(t.Port), Target: name}) // #nosec G115 -- 1 to 65535
		}
		switch {
		case !isNew(record{name: name, addr: t.Addr}):
		case t.Host == "":
			m.Extra = append(m.Extra, e.addressRecord(name, t.Addr))
		default:
			for _, qtype := range [...]uint16{dns.TypeA, dns.TypeAAAA} {
				records, _ := e.resolve(q, t.Host, qtype)
				m.Extra = append(m.Extra, records...)
			}
		}
	}
}

// maxDepth limits the chain of load balancers' host names that are in zones of this plugin themselves.
const maxDepth = 3

// resolve returns the records of a load balancer's host name, by a query through the server; in a zone transfer it returns none.
func (e *External) resolve(q *query, host string, qtype uint16) (records []dns.RR, truncated bool) {
	depth, _ := q.ctx.Value(dnsserver.LoopKey{}).(int)
	switch {
	case q.state.W == nil:
		return nil, false
	case depth >= maxDepth:
		if q.validity != nil {
			q.validity.End() // a query that begins with this name gets more records
		}
		return nil, false
	}
	q.foreign = true
	if depth > 0 && q.validity != nil {
		q.validity.End() // the reply may lack the records of the last host
	}
	ctx := context.WithValue(q.ctx, dnsserver.LoopKey{}, depth+1)
	state := q.state
	state.Req = searchlist.WithoutOption(state.Req) // the search list does not apply to the host
	reply, err := e.upstream.Lookup(ctx, state, host, qtype)
	if err != nil || reply == nil {
		return nil, false
	}
	return reply.Answer, reply.Truncated
}
