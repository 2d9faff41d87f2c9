package differential

import (
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// explain returns the names of the allowed differences that together cause this one, or nothing.
func (d *difference) explain() (names []string) {
	switch {
	case d.q.qtype == dns.TypePTR && addressOf(d.q.name).IsValid():
		names = d.explainPointers()
	case d.aboutServers():
		names = d.explainServers()
	case d.aboutImport():
		names = d.explainImport()
	}
	if names != nil {
		return names
	}
	for _, a := range table() {
		if a.explains != nil && !(a.asks && d.nested) && a.explains(d) {
			return []string{a.name}
		}
	}
	return d.explainAlias()
}

// explained reports whether the answers are equal, or differ by allowed differences only.
func (d *difference) explained() bool { return d.same() || len(d.explain()) > 0 }

// explainAlias explains a difference by that of the alias's target.
func (d *difference) explainAlias() []string {
	labels := d.labels()
	if len(labels) != 3 || labels[0] != "svc" || d.depth > 12 || d.q.qtype != dns.TypeA && d.q.qtype != dns.TypeAAAA {
		return nil
	}
	s := d.c.service(labels[1], labels[2])
	if s == nil || !isExternalName(s) || d.zoneOf(dns.Fqdn(s.Spec.ExternalName)) == "" {
		return nil
	}
	target := dns.Fqdn(s.Spec.ExternalName)
	asked := target
	if zone := d.zoneOf(d.q.name); dns.IsSubDomain(zone, target) { // CoreDNS compares it to the zone as it was queried
		asked = target[:len(target)-len(zone)] + d.q.name[len(d.q.name)-len(zone):]
	}
	o := d.again(asked, d.q.qtype)
	o.depth, o.nested = d.depth+1, d.nested
	if o.same() || !d.leads(d.stock, target, o, o.stock) || !d.leads(d.ours, target, o, o.ours) {
		return nil
	}
	return o.explain()
}

// leads reports whether an answer is that for the target of an alias, behind the CNAME and except for case. If the
// target has no records, either answer may be empty; an alias of a name that does not exist does not fall through.
func (d *difference) leads(a answer, target string, o *difference, to answer) bool {
	if a.reply == nil || to.reply == nil {
		return false
	}
	var rest []dns.RR
	for _, rr := range a.reply.Answer {
		if cname, ok := rr.(*dns.CNAME); !ok || cname.Hdr.Name != d.q.name || cname.Target != target {
			rest = append(rest, rr)
		}
	}
	return strings.EqualFold(strings.Join(recordSet(rest), "\n"), to.sections[0]) || (!to.has(d.q.qtype) || o.denied(to)) && !a.has(d.q.qtype)
}

// explainPointers finds the minimal set of rules that turn CoreDNS's answer into ours.
func (d *difference) explainPointers() []string {
	answers := func(a answer, rules pointerRules) bool {
		possible := d.c.pointerSets(d.q.name, rules)
		if a.reply == nil {
			return unpackable(possible)
		}
		return slices.ContainsFunc(possible, func(set []string) bool { return d.pointsTo(a, set) })
	}
	if !answers(d.stock, pointerRules{}) {
		return nil
	}
	return fewest(func(a allowed) func(*pointerRules) { return a.pointers }, func(r pointerRules) bool { return answers(d.ours, r) })
}

// explainServers does the same for name servers.
func (d *difference) explainServers() []string {
	if !d.answered(d.stock, d.servers(serverRules{})) {
		return nil
	}
	return fewest(func(a allowed) func(*serverRules) { return a.servers }, func(r serverRules) bool { return d.answered(d.ours, d.servers(r)) })
}

// explainImport does the same for names of ServiceImports.
func (d *difference) explainImport() []string {
	if !d.imports(importRules{}).is(d, d.stock) {
		return nil
	}
	return fewest(func(a allowed) func(*importRules) { return a.imports }, func(r importRules) bool { return d.imports(r).is(d, d.ours) })
}

// fewest returns the names of the smallest set of lines whose rules together explain the difference.
func fewest[R any](ruleOf func(allowed) func(*R), do func(R) bool) (names []string) {
	var with []allowed
	for _, a := range table() {
		if ruleOf(a) != nil {
			with = append(with, a)
		}
	}
	for count := 1; count <= len(with); count++ {
		for chosen := 1; chosen < 1<<len(with); chosen++ {
			if bits.OnesCount(uint(chosen)) != count {
				continue
			}
			var rules R
			names = nil
			for i, a := range with {
				if chosen>>i&1 == 1 {
					ruleOf(a)(&rules)
					names = append(names, a.name)
				}
			}
			if do(rules) {
				return names
			}
		}
	}
	return nil
}

// pointsTo reports whether an answer has exactly these PTR records, or is right for a name without any.
func (d *difference) pointsTo(a answer, targets []string) bool {
	if len(targets) == 0 {
		return d.denied(a) || d.is() && a.nodata() // a zone can be that of an address
	}
	var got []string
	for _, rr := range a.reply.Answer {
		if ptr, ok := rr.(*dns.PTR); ok && ptr.Hdr.Name == d.q.name && ptr.Hdr.Ttl == d.ttl {
			got = append(got, ptr.Ptr)
		}
	}
	slices.Sort(got)
	return a.records() && len(got) == len(a.reply.Answer) && slices.Equal(slices.Compact(got), targets)
}

// unpackable reports whether CoreDNS cannot pack its answer.
func (p *pair) unpackable(c *cluster, q question) bool {
	switch q.qtype {
	case dns.TypePTR:
		return addressOf(q.name).IsValid() && p.zoneOf(q.name) != "" && unpackable(c.pointerSets(q.name, pointerRules{}))
	case dns.TypeSRV:
		d := &difference{pair: p, c: c, q: q}
		return d.aboutImport() && d.imports(importRules{}).broken
	}
	return false
}

// changed returns the set of records after a change to a copy of each.
func changed(records []dns.RR, change func(dns.RR)) []string {
	var copies []dns.RR
	for _, rr := range records {
		rr = dns.Copy(rr)
		change(rr)
		copies = append(copies, rr)
	}
	return recordSet(copies)
}

// namedAs reports whether the difference is that of endpoints' names: the question is for a renamed endpoint, or its
// answers are equal if an endpoint's old and new name count as the same.
func (d *difference) namedAs(ours naming) bool {
	if d.stock.reply == nil || d.ours.reply == nil {
		return false
	}
	labels := d.labels()
	same := sameNames{}
	asked := false
	for _, a := range d.c.pools.endpoints {
		was, is := naming{}.label(a, d.podNames), ours.label(a, d.podNames)
		if was == is {
			continue
		}
		service := "." + serviceOf(a.slice) + "." + a.slice.Namespace + ".svc."
		same.join(was+service, is+service)
		asked = asked || len(labels) == 4 && labels[0] == "svc" && labels[1] == a.slice.Namespace && labels[2] == serviceOf(a.slice) &&
			(labels[3] == strings.ToLower(was) || labels[3] == is)
	}
	if asked {
		return d.isNamed(d.stock, naming{}) && d.isNamed(d.ours, ours)
	}
	rename := func(rr dns.RR) {
		rr.Header().Name = same.one(rr.Header().Name)
		if srv, ok := rr.(*dns.SRV); ok {
			srv.Target = same.one(srv.Target)
		}
	}
	return d.stock.head == d.ours.head && d.stock.sections[1] == d.ours.sections[1] &&
		slices.Equal(changed(d.stock.reply.Answer, rename), changed(d.ours.reply.Answer, rename)) &&
		slices.Equal(changed(d.stock.reply.Extra, rename), changed(d.ours.reply.Extra, rename))
}

// isNamed reports whether an answer for an endpoint's name is right with this naming.
func (d *difference) isNamed(a answer, n naming) bool {
	labels := d.labels()
	var named []netip.Addr
	for _, e := range addresses(d.c.slicesOf(labels[1], labels[2])) {
		ip, err := netip.ParseAddr(e.text)
		switch label := strings.ToLower(n.label(e, d.podNames)); {
		case label != labels[3]:
		case err != nil: // it is a name; see ofNames
			return true
		default:
			named = append(named, ip)
		}
	}
	if s := d.c.service(labels[1], labels[2]); len(named) == 0 || s == nil || isExternalName(s) || !d.c.namespaces[labels[1]] {
		return d.denied(a)
	}
	return d.q.qtype != dns.TypeSOA && d.hasAddresses(a, named) // a SOA has another explanation
}

// hasAddresses reports whether an answer, if it is one of addresses, has these.
func (d *difference) hasAddresses(a answer, ips []netip.Addr) bool {
	var records []dns.RR
	for _, ip := range ips {
		if rr := d.address(d.q.name, ip); rr.Header().Rrtype == d.q.qtype {
			records = append(records, rr)
		}
	}
	if d.q.qtype != dns.TypeA && d.q.qtype != dns.TypeAAAA {
		return !d.denied(a)
	}
	return a.rcode() == dns.RcodeSuccess && a.reply.Authoritative && a.sections[0] == asText(records)
}

// inZone returns the addresses of slices with the topology zone of a zonal name: its labels from the directive on, the
// last first.
func inZone(in []*discoveryv1.EndpointSlice, labels []string) (ips []netip.Addr) {
	directive, parts := labels[0], slices.Clone(labels[1:])
	slices.Reverse(parts)
	var all []netip.Addr
	for _, a := range addresses(in) {
		ip, err := netip.ParseAddr(a.text)
		if err != nil {
			continue
		}
		all = append(all, ip)
		if a.endpoint.Zone != nil && strings.EqualFold(*a.endpoint.Zone, strings.Join(parts, ".")) {
			ips = append(ips, ip)
		}
	}
	if directive == "prefer" && len(ips) == 0 {
		return all
	}
	return ips
}

// sameNames are prefixes of names, up to and with ".svc.", that count as the same. Each refers to another or to none.
type sameNames map[string]string

func (s sameNames) first(name string) string {
	for s[name] != "" {
		name = s[name]
	}
	return name
}

func (s sameNames) join(a, b string) {
	if a, b = s.first(a), s.first(b); a != b {
		s[a] = b
	}
}

// one returns the one name that represents all that count as name. A Service may be named svc.
func (s sameNames) one(name string) string {
	const mark = ".svc."
	for at := 0; ; {
		i := strings.Index(name[at:], mark)
		if i < 0 {
			return name
		}
		end := at + i + len(mark)
		if first := s.first(name[:end]); first != name[:end] {
			return first + name[end:]
		}
		at = end - 1
	}
}

// ofNames reports whether the difference is CoreDNS's answer for a slice of names: CNAMEs and their targets, or a
// Service that is not empty because of it.
func (d *difference) ofNames() bool {
	labels := d.labels()
	if d.stock.reply == nil || d.ours.reply == nil || len(labels) < 3 || labels[0] != "svc" {
		return false
	}
	in, imported := d.c.slicesOf, d.isClusterset(d.zoneOf(d.q.name))
	if imported {
		in = d.c.importedOf
	}
	switch ready := addresses(in(labels[1], labels[2])); {
	case !slices.ContainsFunc(ready, address.isName):
		return false
	case d.ignoreEmpty && d.denied(d.ours) && !slices.ContainsFunc(ready, address.isIP):
		return true
	case imported && d.noEndpoints && d.denied(d.ours): // as without names: see import: noendpoints
		return true
	}
	more, had := slices.Clone(d.stock.reply.Answer), d.ours.reply.Answer
	if d.denied(d.ours) {
		had = nil
	}
	for _, rr := range had {
		at := slices.IndexFunc(more, func(s dns.RR) bool { return s.String() == rr.String() })
		if at < 0 {
			return false
		}
		more = slices.Delete(more, at, at+1)
	}
	targets := map[string]bool{}
	for _, rr := range more {
		if cname, ok := rr.(*dns.CNAME); ok {
			targets[cname.Target] = true
		} else if !targets[rr.Header().Name] {
			return false
		}
	}
	return len(more) > 0 || d.stock.nodata() && d.denied(d.ours)
}

// twoZones reports whether endpoints of a slice have the same address and different zones.
func twoZones(s *discoveryv1.EndpointSlice) bool {
	zones := map[string]string{}
	for _, a := range addresses([]*discoveryv1.EndpointSlice{s}) {
		zone := ""
		if a.endpoint.Zone != nil {
			zone = *a.endpoint.Zone
		}
		if known, ok := zones[a.text]; ok && known != zone {
			return true
		}
		zones[a.text] = zone
	}
	return false
}

// aliasOfNext reports whether our answer is the CNAMEs to a name of the zone that falls through, and the records of that name, where CoreDNS
// has none.
func (d *difference) aliasOfNext() bool {
	if !d.stock.nodata() || !d.ours.records() {
		return false
	}
	records, name := d.ours.reply.Answer, d.q.name
	for len(records) > 0 && d.zoneOf(name) != "" {
		link, ok := records[0].(*dns.CNAME)
		if !ok || !strings.EqualFold(link.Hdr.Name, name) {
			break
		}
		records, name = records[1:], link.Target
	}
	target := d.again(name, d.q.qtype)
	return name != d.q.name && d.fallsThrough(name) && target.explained() && target.denied(target.ours) && asText(records) == target.ours.sections[0]
}
