package kubernetes

import (
	"context"
	"net/netip"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// query is one question on its way to an answer.
type query struct {
	ctx          context.Context
	state        request.Request
	zone         string // the zone, as it was asked
	owner        string // the name that records are made for, as it was asked
	qtype        uint16
	asker        *asker        // nil where the answer is for all
	dependencies *dependencies // nil if the reply is not cached
}

// The versions of the specifications that the answers follow, that of Kubernetes and that of KEP-1645 for zones of a
// clusterset, and the time to live of that statement in seconds.
const (
	specVersion           = "1.1.0"
	clustersetSpecVersion = "1.0.0"
	specVersionTTL        = 28800
)

// maxChain is the number of CNAMEs that are followed inside of the zone.
const maxChain = 10

// answer fills in the records of a name that exists. None of the type is NODATA.
func (k *Kubernetes) answer(q *query, f found, m *dns.Msg) {
	switch q.qtype {
	case dns.TypeA, dns.TypeAAAA:
		m.Answer, m.Truncated = k.addressRecords(q, f, nil)
	case dns.TypeSRV:
		m.Answer, m.Extra = k.srvRecords(q, f)
	case dns.TypeCNAME:
		if f.kind == alias {
			m.Answer = []dns.RR{k.cname(q.owner, f.entry.Service.Target)}
		}
	case dns.TypePTR:
		for _, target := range f.ptr {
			m.Answer = append(m.Answer, &dns.PTR{Hdr: k.header(q.owner, dns.TypePTR), Ptr: target})
		}
	case dns.TypeTXT:
		if f.kind == schemaVersion {
			h := k.header(q.owner, dns.TypeTXT)
			h.Ttl = specVersionTTL
			version := specVersion
			if k.isClusterset(q.zone) {
				version = clustersetSpecVersion
			}
			m.Answer = []dns.RR{&dns.TXT{Hdr: h, Txt: []string{version}}}
		}
	case dns.TypeSOA:
		if q.owner == q.zone {
			q.dependencies.onUntracked() // the serial
			m.Answer = []dns.RR{k.soa(q.zone)}
		}
	case dns.TypeNS:
		if q.owner == q.zone {
			q.dependencies.onUntracked() // the server's own addresses
			m.Answer, m.Extra = k.nsRecords(q.zone)
		}
	}
}

func (k *Kubernetes) header(owner string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: k.ttl}
}

// addressRecords returns the A or AAAA records of a name, behind the CNAMEs that lead to them.
// chain holds the CNAMEs that led here.
func (k *Kubernetes) addressRecords(q *query, f found, chain []dns.RR) (records []dns.RR, truncated bool) {
	if f.kind == alias {
		return k.chase(q, f.entry.Service.Target, chain)
	}
	addrs := k.addresses(q, f)
	return k.rrset(q.owner, q.qtype, addrs), false
}

// addresses returns the addresses of both families that a name stands for. Some may repeat.
func (k *Kubernetes) addresses(q *query, f found) (addrs []netip.Addr) {
	switch f.kind {
	case clusterIPs:
		return f.entry.Service.IPs
	case pod:
		return []netip.Addr{f.addr}
	case nameServer:
		q.dependencies.onUntracked() // the server's own addresses
		for _, ns := range k.nameServers(q.zone) {
			addrs = append(addrs, ns.addr)
		}
	case endpoints:
		addrs = make([]netip.Addr, 0, f.entry.Ready())
		if f.policy.Filters() {
			for _, c := range k.chosen(q, &f) {
				addrs = append(addrs, c.Endpoint.Addr)
			}
			return addrs
		}
		for e := range f.endpoints() {
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// rrset returns the records of one type, A or AAAA, each address once.
func (k *Kubernetes) rrset(owner string, qtype uint16, addrs []netip.Addr) []dns.RR {
	n := 0
	for _, a := range addrs {
		if a.Is4() == (qtype == dns.TypeA) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	set := newAddressSet(n)
	records := make([]dns.RR, 0, n)
	header := k.header(owner, qtype)
	for _, a := range addrs {
		if a.Is4() == (qtype == dns.TypeA) && set.add(a) {
			records = append(records, addressRecord(header, a))
		}
	}
	return records
}

func addressRecord(h dns.RR_Header, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: h, A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: h, AAAA: a.AsSlice()}
}

// addressSet tells whether an address was seen. Few addresses are searched, many are hashed.
type addressSet struct {
	few  []netip.Addr
	many map[netip.Addr]struct{}
}

func newAddressSet(n int) *addressSet {
	if n > 16 {
		return &addressSet{many: make(map[netip.Addr]struct{}, n)}
	}
	return &addressSet{few: make([]netip.Addr, 0, n)}
}

// add reports whether the address is new to the set.
func (s *addressSet) add(a netip.Addr) bool {
	if s.many != nil {
		_, seen := s.many[a]
		s.many[a] = struct{}{}
		return !seen
	}
	for _, b := range s.few {
		if a == b {
			return false
		}
	}
	s.few = append(s.few, a)
	return true
}

func (k *Kubernetes) cname(owner, target string) *dns.CNAME {
	return &dns.CNAME{Hdr: k.header(owner, dns.TypeCNAME), Target: target}
}

// chase follows an ExternalName: inside of the zone in the index, elsewhere through the server. As
// in CoreDNS a target elsewhere that fails leaves the CNAME alone in the answer, and one in the zone
// that has no address leaves nothing.
func (k *Kubernetes) chase(q *query, target string, chain []dns.RR) (records []dns.RR, truncated bool) {
	q.dependencies.onUntracked() // the target, which another server or another Service may have
	link := k.cname(q.owner, target)
	if plugin.Name(q.owner).Matches(target) || len(chain) > maxChain || dnsutil.DuplicateCNAME(link, chain) {
		return nil, false
	}
	if !dns.IsSubDomain(q.zone, target) || k.isClusterset(plugin.Zones(k.Zones).Matches(strings.ToLower(target))) {
		state := q.state
		state.Req = searchlist.WithoutOption(state.Req) // the list is not of the target
		reply, err := k.upstream.Lookup(q.ctx, state, target, q.qtype)
		if err != nil || reply == nil {
			return nil, false
		}
		return append([]dns.RR{link}, reply.Answer...), reply.Truncated
	}
	next := *q
	next.owner = target
	rest, truncated := k.addressRecords(&next, k.find(strings.ToLower(target), q.zone, nil), append(chain, link))
	if len(rest) == 0 {
		return nil, truncated
	}
	return append([]dns.RR{link}, rest...), truncated
}

// srvTarget is one SRV record before its weight is known.
type srvTarget struct {
	name string
	addr netip.Addr
	port int32
}

// srvRecords returns the SRV records of a name and the addresses of their targets. Each port of each
// address counts for the weight, before what stands twice is left out and ports without a number
// are: as in CoreDNS.
func (k *Kubernetes) srvRecords(q *query, f found) (records, extra []dns.RR) {
	targets := k.srvTargets(q, f)
	if len(targets) == 0 {
		return nil, nil
	}
	header := k.header(q.owner, dns.TypeSRV)
	weight := uint16(max(1, 100/len(targets)))
	type named struct {
		name string
		port int32
	}
	type glue struct {
		name string
		addr netip.Addr
	}
	seen, glued := map[named]struct{}{}, map[glue]struct{}{}
	for _, t := range targets {
		if t.port == index.NoPort {
			continue
		}
		if _, ok := seen[named{t.name, t.port}]; !ok {
			seen[named{t.name, t.port}] = struct{}{}
			records = append(records, &dns.SRV{Hdr: header, Weight: weight, Port: uint16(t.port), Target: t.name})
		}
		if _, ok := glued[glue{t.name, t.addr}]; !ok {
			glued[glue{t.name, t.addr}] = struct{}{}
			extra = append(extra, addressRecord(k.header(t.name, addressType(t.addr)), t.addr))
		}
	}
	return records, extra
}

func addressType(a netip.Addr) uint16 {
	if a.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

// noPorts stands for a list without ports: the name exists, and it counts for the weight.
var noPorts = []index.Port{{Number: index.NoPort}}

func (k *Kubernetes) srvTargets(q *query, f found) (targets []srvTarget) {
	add := func(name string, addr netip.Addr, ports []index.Port) {
		if name == "" {
			return
		}
		if len(ports) == 0 {
			ports = noPorts
		}
		for _, p := range ports {
			if f.name.matches(p) {
				targets = append(targets, srvTarget{name, addr, p.Number})
			}
		}
	}
	switch f.kind {
	case clusterIPs:
		name := serviceName(f.entry.Service, q.zone)
		for _, a := range f.entry.Service.IPs {
			add(name, a, f.entry.Service.Ports)
		}
	case endpoints:
		base := serviceName(f.entry.Service, q.zone)
		if f.policy.Filters() {
			for _, c := range k.chosen(q, &f) {
				add(f.name.endpointName(c.Endpoint, c.Slice, base), c.Endpoint.Addr, c.Slice.Ports)
			}
			return targets
		}
		for e, slice := range f.endpoints() {
			add(f.name.endpointName(e, slice, base), e.Addr, slice.Ports)
		}
	case pod:
		// A pod has no ports that DNS knows of; CoreDNS answers port 0, and so do we.
		name := dnsutil.Join(f.name.object, f.name.namespace, labelPod, q.zone)
		targets = []srvTarget{{name, f.addr, 0}}
	}
	return targets
}
