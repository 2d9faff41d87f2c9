package kubernetes

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// query is a query for one name.
type query struct {
	ctx          context.Context
	state        request.Request
	zone         string // in the letter case of the query
	owner        string // owner name of the records, in the letter case of the query
	qtype        uint16
	caller       *queryCaller  // nil if the answer is the same for every caller
	dependencies *dependencies // nil if the reply is not stored
	waits        bool          // queries wait for the name, or for a candidate
	stale        bool          // records are those of a snapshot
	explained    *explanation  // nil for an ordinary query
	trusted      bool          // the caller option is trusted whatever the client's address is
}

// Versions of the implemented specifications, of Kubernetes and of KEP-1645 for zones of a clusterset, and the TTL of their
// TXT records in seconds.
const (
	specVersion           = "1.1.0"
	clustersetSpecVersion = "1.0.0"
	specVersionTTL        = 28800
)

// maxChain is the maximum number of CNAMEs in a zone before the last one.
const maxChain = 10

// answer adds the records of an existing name to a reply. Without records of the type it is NODATA.
func (k *Kubernetes) answer(q *query, f result, m *dns.Msg) {
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
		for _, target := range f.targets {
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

// addressRecords returns the A or AAAA records of a name, after the CNAMEs to them. chain has the CNAMEs followed before.
func (k *Kubernetes) addressRecords(q *query, f result, chain []dns.RR) (records []dns.RR, truncated bool) {
	if f.kind == alias {
		return k.follow(q, f.entry.Service.Target, chain)
	}
	records = k.rrset(q.owner, q.qtype, k.addresses(q, f))
	if len(chain) == 0 || len(records) == 0 {
		return records, false
	}
	return append(chain, records...), false
}

// addresses returns the addresses of a name, with duplicates. They may be of both families.
func (k *Kubernetes) addresses(q *query, f result) (addrs []netip.Addr) {
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
		if f.name.endpoint == "" {
			addrs = make([]netip.Addr, 0, f.entry.Ready())
		}
		if f.policy.Filters() {
			for _, e := range k.selectEndpoints(q, &f) {
				addrs = append(addrs, e.Addr)
			}
			return addrs
		}
		for e := range f.endpoints() {
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// rrset returns the A or AAAA records of a name without duplicates.
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

// set is a set of comparable values.
type set[T comparable] map[T]struct{}

// add reports whether a value is new to the set.
func (s set[T]) add(v T) bool {
	n := len(s)
	s[v] = struct{}{}
	return len(s) > n
}

// addressSet is a set of addresses: a slice if it is small, since hashing would take longer.
type addressSet struct {
	few  []netip.Addr
	many set[netip.Addr]
}

func newAddressSet(n int) *addressSet {
	if n > 16 {
		return &addressSet{many: make(set[netip.Addr], n)}
	}
	return &addressSet{few: make([]netip.Addr, 0, n)}
}

// add reports whether the address is new to the set.
func (s *addressSet) add(a netip.Addr) bool {
	if s.many != nil {
		return s.many.add(a)
	}
	if slices.Contains(s.few, a) {
		return false
	}
	s.few = append(s.few, a)
	return true
}

func (k *Kubernetes) cname(owner, target string) *dns.CNAME {
	return &dns.CNAME{Hdr: k.header(owner, dns.TypeCNAME), Target: target}
}

// follow resolves the target of an ExternalName: from the index if it is in the zone, else by a query through the server, also for a name
// that option fallthrough leaves to the next plugin. As in CoreDNS, the answer is only the CNAME if another server has no records of the
// target, and empty if a target of this plugin has no address.
func (k *Kubernetes) follow(q *query, target string, chain []dns.RR) (records []dns.RR, truncated bool) {
	link := k.cname(q.owner, target)
	if plugin.Name(q.owner).Matches(target) || len(chain) > maxChain || dnsutil.DuplicateCNAME(link, chain) {
		return nil, false
	}
	chain = append(chain, link)
	name := strings.ToLower(target)
	if !dns.IsSubDomain(q.zone, target) || k.isClusterset(plugin.Zones(k.Zones).Matches(name)) {
		return k.lookup(q, target, chain)
	}
	next := *q
	next.owner = target
	f := k.find(name, q.zone, q.dependencies)
	q.explained.found(&next, &f, name, q.zone)
	if f.kind == notFound && k.Fall.Through(name) {
		return k.lookup(q, target, chain)
	}
	q.dependencies.onNodes(&f)
	return k.addressRecords(&next, f, chain)
}

// maxNested limits the depth of queries through the server for targets: a target may lead back to this plugin, by another zone
// of the block or by plugin rewrite.
const maxNested = 8

// lookup returns CNAMEs, and the records of their target by a query through the server.
func (k *Kubernetes) lookup(q *query, target string, chain []dns.RR) (records []dns.RR, truncated bool) {
	q.dependencies.onUntracked() // the target, a name of another server
	depth, _ := q.ctx.Value(dnsserver.LoopKey{}).(int)
	if depth >= maxNested {
		return nil, false
	}
	ctx := context.WithValue(q.ctx, dnsserver.LoopKey{}, depth+1)
	q.explained.external(target)
	state := q.state
	state.Req = searchlist.WithoutOption(state.Req) // the search list does not apply to the target
	reply, err := k.upstream.Lookup(ctx, state, target, q.qtype)
	if err != nil || reply == nil {
		return nil, false
	}
	return append(chain, reply.Answer...), reply.Truncated
}

// srvTarget is an SRV record before its weight is calculated.
type srvTarget struct {
	name string
	addr netip.Addr
	port int32
}

// srvRecords returns the SRV records of a name and the addresses of their targets. As in CoreDNS, the weight depends on the
// number of ports of all addresses, including duplicates and ports without a number.
func (k *Kubernetes) srvRecords(q *query, f result) (records, extra []dns.RR) {
	targets := k.srvTargets(q, f)
	if len(targets) == 0 {
		return nil, nil
	}
	header := k.header(q.owner, dns.TypeSRV)
	weight := uint16(max(1, 100/len(targets)))
	seen := set[srvTarget]{}
	for _, t := range targets {
		if t.port == index.NoPort {
			continue
		}
		if seen.add(srvTarget{name: t.name, port: t.port}) {
			records = append(records, &dns.SRV{Hdr: header, Weight: weight, Port: uint16(t.port), Target: t.name})
		}
		if seen.add(srvTarget{name: t.name, addr: t.addr}) {
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

// noPorts replaces an empty list of ports: the name exists without a port, and counts for the weight.
var noPorts = []index.Port{{Number: index.NoPort}}

func (k *Kubernetes) srvTargets(q *query, f result) (targets []srvTarget) {
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
			for _, e := range k.selectEndpoints(q, &f) {
				add(f.name.endpointName(e.Endpoint, e.Slice, base), e.Addr, e.Slice.Ports)
			}
			return targets
		}
		for e, slice := range f.endpoints() {
			add(f.name.endpointName(e, slice, base), e.Addr, slice.Ports)
		}
	case pod:
		// The ports of a pod are unknown; the answer has port 0, as in CoreDNS.
		name := dnsutil.Join(f.name.object, f.name.namespace, labelPod, q.zone)
		targets = []srvTarget{{name, f.addr, 0}}
	}
	return targets
}
