package differential

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// serverRules are the rules for the name servers of a zone. The zero rules are CoreDNS's.
type serverRules struct {
	bound    bool // bound addresses are the server's
	existing bool // only Services that exist and have addresses
	exposed  bool // only Services in selected namespaces
	forward  bool // the servers of a reverse zone have their names in the first other zone
	services bool // the servers of a clusterset's zone have their names in the first zone that has Services
	anyCase  bool // in any case of letters
	root     bool // of the root zone, too
	naming
}

// servers are the name servers of a zone with their addresses, for a question.
type servers struct {
	denied bool // ns.dns does not exist
	broken bool // an address is the text <nil>
	all    []serverAddr
}

type serverAddr struct {
	name string
	ip   netip.Addr
}

// aboutServers reports whether a question is for the name servers of a zone or their addresses.
func (d *difference) aboutServers() bool {
	return d.zoneOf(d.q.name) != "" && (d.q.qtype == dns.TypeNS && d.is() || d.is("ns", "dns"))
}

// servers returns the name servers of the question's zone.
func (d *difference) servers(rules serverRules) (s servers) {
	zone := d.q.name[len(d.q.name)-len(d.zoneOf(d.q.name)):]
	if !rules.anyCase && zone != strings.ToLower(zone) {
		return servers{denied: true}
	}
	s.denied = zone == "." && !rules.root
	own := d.c.own
	if d.bind {
		own = own[:1]
		if !rules.bound {
			own = nil
		}
	}
	in := zone
	if isReverse(zone) && rules.forward || d.isClusterset(strings.ToLower(zone)) && rules.services {
		in = d.primary()
	}
	found := false
	for _, ip := range own {
		for _, a := range d.c.pools.byIP[ip] {
			if a.text != ip.String() && !rules.canonical || rules.exposed && !d.c.namespaces[a.slice.Namespace] {
				continue
			}
			found = true
			service := d.c.service(a.slice.Namespace, serviceOf(a.slice))
			if service == nil {
				continue
			}
			s.broken = s.broken || isExternalName(service) && !rules.existing
			name := fullName(in, service.Name, service.Namespace, "svc")
			for _, text := range clusterIPs(service) {
				s.all = append(s.all, serverAddr{name, netip.MustParseAddr(text)})
			}
			if isHeadless(service) {
				for _, b := range d.c.pools.bySlice[a.slice] {
					if parsed, err := netip.ParseAddr(b.text); err == nil {
						s.all = append(s.all, serverAddr{rules.label(b, d.podNames) + "." + name, parsed})
					}
				}
			}
		}
	}
	if !found || len(s.all) == 0 && rules.existing {
		for _, ip := range own {
			s.all = append(s.all, serverAddr{fullName(zone, "ns.dns"), ip})
		}
	}
	return s
}

// answered reports whether an answer has these servers.
func (d *difference) answered(a answer, s servers) bool {
	var answer, extra []dns.RR
	switch apex := d.is(); {
	case apex && s.broken:
		return a.rcode() == dns.RcodeServerFailure
	case !apex && s.denied:
		return d.denied(a)
	case apex:
		for _, server := range s.all {
			answer = append(answer, &dns.NS{Hdr: d.header(d.q.name, dns.TypeNS), Ns: server.name})
			extra = append(extra, d.address(server.name, server.ip))
		}
	default:
		for _, server := range s.all {
			if rr := d.address(d.q.name, server.ip); rr.Header().Rrtype == d.q.qtype {
				answer = append(answer, rr)
			}
		}
		if s.broken && d.q.qtype == dns.TypeAAAA {
			answer = append(answer, &dns.CNAME{Hdr: d.header(d.q.name, dns.TypeCNAME), Target: "<nil>."})
		}
	}
	if len(answer) == 0 {
		return a.nodata()
	}
	return a.rcode() == dns.RcodeSuccess && a.sections == [3]string{asText(answer), "", asText(extra)}
}
