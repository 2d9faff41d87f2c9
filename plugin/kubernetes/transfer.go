package kubernetes

import (
	"context"
	"errors"
	"slices"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/plugin/transfer"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

var errNotSynced = errors.New("records of the cluster are not synced")

// Transfer implements transfer.Transferer. It returns every record of Services or, of a reverse zone, every PTR record. It
// omits pods, endpoint names of Services with ClusterIPs, zonal names and dns-version.
func (k *Kubernetes) Transfer(zone string, serial uint32) (<-chan []dns.RR, error) {
	if !slices.Contains(k.Zones, zone) {
		return nil, transfer.ErrNotAuthoritative
	}
	if complete, stale := k.state(k.isClusterset(zone)); !complete || stale {
		return nil, errNotSynced
	}
	soa := k.soa(zone)
	out := make(chan []dns.RR)
	go func() {
		defer close(out)
		out <- []dns.RR{soa}
		if serial != 0 && int32(serial-soa.Serial) >= 0 { // #nosec G115 -- serial arithmetic, RFC 1982
			return
		}
		ns, _ := k.nsRecords(zone) // the addresses of Services are among the zone's own records
		out <- ns
		out <- k.transferName(zone, dnsutil.Join("ns.dns", zone), result{kind: nameServer}, dns.TypeA, dns.TypeAAAA)
		if isReverse(zone) {
			k.transferAddresses(zone, out)
		} else {
			k.transferServices(zone, out)
		}
		out <- []dns.RR{soa}
	}()
	return out, nil
}

func (k *Kubernetes) transferAddresses(zone string, out chan<- []dns.RR) {
	seen := newAddressSet(1024)
	for a := range k.index.Addresses() {
		name, err := dns.ReverseAddr(a.String())
		if err != nil || !dns.IsSubDomain(zone, name) || !seen.add(a) {
			continue
		}
		m := new(dns.Msg)
		k.answer(&query{zone: zone, owner: name, qtype: dns.TypePTR}, result{kind: reverseName, targets: k.ptrTargets(a)}, m)
		out <- m.Answer
	}
}

func (k *Kubernetes) transferServices(zone string, out chan<- []dns.RR) {
	all, imported := k.index.Services, k.isClusterset(zone)
	if imported {
		all = k.index.Imports
	}
	for _, e := range all() {
		s := e.Service
		if !k.exposes(s.Namespace) {
			continue
		}
		n := objectName{kind: labelService, namespace: s.Namespace, object: s.Name, imported: imported}
		f := k.findService(n, nil)
		if f.kind == notFound {
			continue
		}
		name := serviceName(s, zone)
		if f.kind == alias {
			out <- k.transferName(zone, name, f, dns.TypeCNAME)
			continue
		}
		out <- k.transferName(zone, name, f, dns.TypeA, dns.TypeAAAA, dns.TypeSRV)
		for _, p := range namedPorts(e) {
			n.port, n.protocol = p.Name.String(), p.Protocol.String()
			owner := dnsutil.Join("_"+n.port, "_"+n.protocol, name)
			out <- k.transferName(zone, owner, k.findService(n, nil), dns.TypeSRV)
		}
		if f.kind == endpoints {
			k.transferEndpoints(zone, name, f, out)
		}
	}
}

func (k *Kubernetes) transferEndpoints(zone, service string, f result, out chan<- []dns.RR) {
	seen := set[string]{}
	for e, slice := range f.endpoints() {
		n := f.name
		n.endpoint, n.cluster = e.Label(), slice.Cluster.String()
		owner := n.endpointName(e, slice, service)
		if owner != "" && seen.add(owner) {
			out <- k.transferName(zone, owner, k.findService(n, nil), dns.TypeA, dns.TypeAAAA)
		}
	}
}

// transferName returns the records of a name with the given types, not filtered by caller. A name that is too long has none: a message
// with it would end the transfer.
func (k *Kubernetes) transferName(zone, owner string, f result, types ...uint16) (records []dns.RR) {
	if len(owner) > maxName {
		return nil
	}
	f.policy = topology.Policy{}
	for _, t := range types {
		m := new(dns.Msg)
		k.answer(&query{ctx: context.Background(), zone: zone, owner: owner, qtype: t}, f, m)
		records = append(records, m.Answer...)
	}
	return records
}

// namedPorts returns the ports of a Service that have a name, without duplicates.
func namedPorts(e *index.Entry) (ports []index.Port) {
	add := func(all []index.Port) {
		for _, p := range all {
			p.Number = 0 // several ports may have one name
			if p.Name.String() != "" && !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
	}
	if e.Service.Kind != index.Headless {
		add(e.Service.Ports)
		return ports
	}
	for _, s := range e.Slices {
		add(s.Ports)
	}
	return ports
}
