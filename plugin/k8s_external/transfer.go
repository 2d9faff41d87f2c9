package external

import (
	"context"
	"errors"
	"slices"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/plugin/transfer"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
)

var errNotSynced = errors.New("Services of the cluster are not synced")

// Transfer implements transfer.Transferer. It returns every record with which queries are answered, except those of arbitrary
// labels before a Service, and those of load balancers' host names.
func (e *External) Transfer(zone string, serial uint32) (<-chan []dns.RR, error) {
	if !slices.Contains(e.Zones, zone) {
		return nil, transfer.ErrNotAuthoritative
	}
	if !e.services.Synced() {
		return nil, errNotSynced
	}
	soa := e.soa(zone)
	out := make(chan []dns.RR)
	go func() {
		defer close(out)
		out <- []dns.RR{soa}
		if serial != 0 && int32(serial-soa.Serial) >= 0 { // #nosec G115 -- serial arithmetic, RFC 1982
			return
		}
		out <- []dns.RR{e.ns(zone)}
		out <- e.addressRecords(e.serverName(zone), 0, e.services.NameServers(e.headless))
		if isReverse(zone) {
			e.transferAddresses(zone, out)
		} else {
			e.transferServices(zone, out)
		}
		out <- []dns.RR{soa}
	}()
	return out, nil
}

func (e *External) transferAddresses(zone string, out chan<- []dns.RR) {
	seen := map[string]bool{}
	for _, n := range e.services.All() {
		targets, _ := e.services.Find(n, false, nil)
		for _, t := range targets {
			name, err := dns.ReverseAddr(t.Addr.String())
			if err != nil || seen[name] || !dns.IsSubDomain(zone, name) {
				continue
			}
			seen[name] = true
			var records []dns.RR
			for _, s := range e.services.At(name, nil) {
				records = append(records, &dns.PTR{Hdr: e.header(name, dns.TypePTR), Ptr: serviceName(s, e.pointerZone())})
			}
			out <- records
		}
	}
}

func (e *External) transferServices(zone string, out chan<- []dns.RR) {
	for _, n := range e.services.All() {
		if base := n.Service + "." + n.Namespace; e.isOwn(base) {
			continue
		}
		targets, _ := e.services.Find(n, e.headless, nil)
		service := serviceName(n, zone)
		out <- e.transferName(service, service, targets, dns.TypeA, dns.TypeAAAA, dns.TypeSRV)
		seen := map[exposed.Name]bool{}
		for _, t := range targets {
			if port := (exposed.Name{Port: t.PortName, Protocol: t.Protocol}); t.PortName != "" && !seen[port] {
				seen[port] = true
				n.Endpoint, n.Port, n.Protocol = "", t.PortName, t.Protocol
				found, _ := e.services.Find(n, e.headless, nil)
				out <- e.transferName(dnsutil.Join("_"+t.PortName, "_"+t.Protocol, service), service, found, dns.TypeSRV)
			}
			if endpoint := (exposed.Name{Endpoint: t.Endpoint}); t.Endpoint != "" && !seen[endpoint] {
				seen[endpoint] = true
				n.Endpoint, n.Port, n.Protocol = t.Endpoint, "", ""
				found, _ := e.services.Find(n, e.headless, nil)
				out <- e.transferName(t.Endpoint+"."+service, service, found, dns.TypeA, dns.TypeAAAA, dns.TypeSRV)
			}
		}
	}
}

// transferName returns the records of a name with the given types. A name that is too long has none: a message with it would end the
// transfer.
func (e *External) transferName(owner, service string, targets []exposed.Target, types ...uint16) []dns.RR {
	if len(owner) > maxName {
		return nil
	}
	m := new(dns.Msg)
	for _, qtype := range types {
		e.records(&query{ctx: context.Background(), qtype: qtype}, owner, service, targets, m)
	}
	return dns.Dedup(m.Answer, nil) // the CNAME of a host is that of both types of addresses
}
