package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// allowed is an intended difference. It checks a found difference, with both answers.
type allowed struct {
	name   string
	reason string
	// explains reports whether a difference is this one. It may send more queries to both servers.
	explains func(d *difference) bool
	// asks is set if explains needs another difference to be explained by an earlier one.
	asks bool
	// pointers is the changed part of the rules for PTR in our server, instead of explains.
	pointers func(*pointerRules)
	// servers is the same for the name servers of a zone.
	servers func(*serverRules)
	// imports is the same for names of ServiceImports.
	imports func(*importRules)
	// seldom is the reason if a run may not see the difference.
	seldom func(r *run) bool
}

// table returns all intended differences. The README of the plugin documents them.
func table() []allowed { return append(commonTable(), importTable()...) }

// commonTable returns those that do not concern ServiceImports alone.
func commonTable() []allowed {
	return []allowed{
		{
			name:   "dns, which is above ns.dns",
			reason: "RFC 8020: a name with names below it exists. CoreDNS has NXDOMAIN",
			explains: func(d *difference) bool {
				return d.is("dns") && d.denied(d.stock) && d.ours.nodata()
			},
		},
		{
			name:    "NS and ns.dns, case",
			reason:  "RFC 4343: names are compared without regard to case. CoreDNS has NODATA for NS and NXDOMAIN for ns.dns",
			servers: func(r *serverRules) { r.anyCase = true },
		},
		{
			name:    "ns.dns in the root zone",
			reason:  "the NS records of a zone name it. CoreDNS has NXDOMAIN if the zone is the root",
			servers: func(r *serverRules) { r.root = true },
		},
		{
			name:    "NS with bind",
			reason:  "the addresses that are bound are the server's: CoreDNS has no NS records then, for it cannot parse them",
			seldom:  func(r *run) bool { return len(r.own) == 0 },
			servers: func(r *serverRules) { r.bound = true },
		},
		{
			name:    "NS in a reverse zone",
			reason:  "NS names a name that resolves: that of the Service in the first zone that is no reverse zone. CoreDNS puts it below the reverse zone",
			seldom:  func(r *run) bool { return len(r.own) == 0 },
			servers: func(r *serverRules) { r.forward = true },
		},
		{
			name:    "NS of a Service that is not there",
			reason:  "NS names a name that resolves. Where a slice of no Service, or of an ExternalName, has the server's address, CoreDNS has no NS records, SERVFAIL, or a CNAME of <nil>",
			seldom:  func(r *run) bool { return len(r.own) == 0 },
			servers: func(r *serverRules) { r.existing = true },
		},
		{
			name:    "NS of a Service in a namespace that is not answered for",
			reason:  "NS names a name that resolves, and namespaces hold for every name",
			seldom:  func(r *run) bool { return len(r.own) == 0 },
			servers: func(r *serverRules) { r.exposed = true },
		},
		{
			name:   "svc and pod below a reverse zone",
			reason: "a reverse zone has no Services and no pods; CoreDNS has NODATA",
			explains: func(d *difference) bool {
				return isReverse(d.zoneOf(d.q.name)) && (d.is("svc") || d.is("pod")) && d.stock.nodata() && d.denied(d.ours)
			},
		},
		{
			name:     "PTR of an address of several Services",
			reason:   "the first one counts; CoreDNS takes any, a different one each time",
			pointers: func(*pointerRules) {},
		},
		{
			name:     "PTR in a namespace that is not answered for",
			reason:   "namespaces and namespace_labels hold for every name; CoreDNS shows the names of others unless namespaces is set",
			pointers: func(r *pointerRules) { r.exposed = true },
		},
		{
			name:     "PTR of an endpoint of no Service",
			reason:   "a PTR points at a name that exists. CoreDNS makes one of every slice; that of a slice without the label service-name cannot be packed, and there is no reply",
			pointers: func(r *pointerRules) { r.existing = true },
		},
		{
			name:     "PTR of a name that is no address",
			reason:   "RFC 3596 2.5: 32 labels of a digit. CoreDNS overlooks some before them, reads addresses of IPv4 inside of IPv6 as IPv4, and joins the digits of labels",
			pointers: func(r *pointerRules) { r.exact = true },
		},
		{
			name:     "PTR of an address in a form that is not the shortest",
			reason:   "RFC 5952: it is the same address; CoreDNS compares text",
			pointers: func(r *pointerRules) { r.canonical = true },
		},
		{
			name:     "PTR of a pod whose name is not one label",
			reason:   "the name that CoreDNS makes of it does not resolve",
			pointers: func(r *pointerRules) { r.oneLabel = true },
		},
		{
			name:     "PTR into the root zone",
			reason:   "the root zone can be a cluster's. CoreDNS makes names of it that cannot be packed, and there is no reply",
			pointers: func(r *pointerRules) { r.root = true },
		},
		{
			name:   "pod by an address in a form that is not the shortest",
			reason: "RFC 5952: it is the same address; CoreDNS compares text",
			explains: func(d *difference) bool {
				labels := d.labels()
				if !d.verified || len(labels) < 3 || labels[0] != "pod" || !d.denied(d.stock) || d.denied(d.ours) {
					return false
				}
				a, err := netip.ParseAddr(strings.ReplaceAll(labels[2], "-", ":"))
				if err != nil {
					return false
				}
				shortest := dashed(a.Unmap().String())
				o := d.again(strings.Replace(strings.ToLower(d.q.name), labels[2]+".", shortest+".", 1), d.q.qtype)
				return shortest != labels[2] && o.explained() && !o.denied(o.ours) && onlyCase(d.ours, o.ours.replaced(shortest+".", labels[2]+"."))
			},
		},
		{
			name:   "SRV of a pod",
			reason: "one target has all of the weight: CoreDNS shares it between all pods that have the address",
			explains: func(d *difference) bool {
				labels := d.labels()
				if !d.verified || d.q.qtype != dns.TypeSRV || len(labels) < 3 || labels[0] != "pod" || d.stock.sections[2] != d.ours.sections[2] {
					return false
				}
				// Their number does not follow from the objects: a pod that is being deleted is counted with its former
				// addresses.
				for pods := 2; pods <= len(d.c.pods); pods++ {
					if d.stock.replaced(fmt.Sprintf("SRV\t0 %d 0 ", 100/pods), "SRV\t0 100 0 ").sections == d.ours.sections {
						return true
					}
				}
				return false
			},
		},
		{
			name:     "endpoint's name of an address in a form that is not the shortest",
			reason:   "RFC 5952, and the specification's endpoint names: CoreDNS makes a label of any text, so one endpoint can have several",
			servers:  func(r *serverRules) { r.canonical = true },
			imports:  func(r *importRules) { r.canonical = true },
			explains: func(d *difference) bool { return d.namedAs(naming{canonical: true}) },
		},
		{
			name:     "endpoint's name of a pod whose name is not one label",
			reason:   "the name that CoreDNS makes of it does not resolve",
			servers:  func(r *serverRules) { r.oneLabel = true },
			imports:  func(r *importRules) { r.oneLabel = true },
			explains: func(d *difference) bool { return d.namedAs(naming{canonical: true, oneLabel: true}) },
		},
		{
			name:     "EndpointSlices of names",
			reason:   "specification 2.4: headless Services have A and AAAA. CoreDNS has CNAMEs of FQDN slices, several at one name or beside other records, which RFC 1034 forbids",
			explains: (*difference).ofNames,
			imports:  func(r *importRules) { r.numeric = true },
		},
		{
			name:     "ExternalName whose target falls through",
			reason:   "specification 2.5: a CNAME. CoreDNS has NODATA for a target in the zone that only the next plugin has",
			asks:     true,
			explains: (*difference).aliasOfNext,
		},
		{
			name:   "zone of an address that one slice has twice",
			reason: "a zone is an endpoint's. CoreDNS stores one for each address of a slice, that of the last endpoint",
			explains: func(d *difference) bool {
				labels := d.labels()
				if !d.zonal || len(labels) < 6 || labels[0] != "svc" || labels[3] != "_zone" || labels[4] != "pin" && labels[4] != "prefer" {
					return false
				}
				in := d.c.slicesOf(labels[1], labels[2])
				return slices.ContainsFunc(in, twoZones) && d.hasAddresses(d.ours, inZone(in, labels[4:]))
			},
		},
		{
			name:    "type at a name that exists",
			reason:  "RFC 2308, 8020: NXDOMAIN is for a name and all its types. CoreDNS has it for TXT at most names, for types besides TXT at dns-version, and for types besides PTR at an address",
			asks:    true,
			imports: func(r *importRules) { r.typeless = true },
			explains: func(d *difference) bool {
				if !d.denied(d.stock) || !d.ours.nodata() {
					return false
				}
				for _, t := range []uint16{dns.TypeA, dns.TypePTR, dns.TypeTXT} {
					if o := d.again(d.q.name, t); t != d.q.qtype && o.explained() && !o.denied(o.ours) {
						return true
					}
				}
				return false
			},
		},
		{
			name:   "SOA at a name that does not exist",
			reason: "RFC 2308: NXDOMAIN, whatever the type. CoreDNS has NODATA",
			asks:   true,
			explains: func(d *difference) bool {
				if d.q.qtype != dns.TypeSOA || !d.stock.nodata() || !d.denied(d.ours) {
					return false
				}
				for _, t := range []uint16{dns.TypeA, dns.TypePTR, dns.TypeTXT} {
					if o := d.again(d.q.name, t); !o.explained() || !o.denied(o.ours) {
						return false
					}
				}
				return true
			},
		},
	}
}

// entry is one line of all tables.
type entry struct {
	name, reason string
	seldom       func(*run) bool
}

// entries returns the lines of all tables.
func entries() (all []entry) {
	for _, a := range table() {
		all = append(all, entry{a.name, a.reason, a.seldom})
	}
	for _, a := range transferTable() {
		all = append(all, entry{a.name, a.reason, a.seldom})
	}
	return append(all, wholeTransfers...)
}
