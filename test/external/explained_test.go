package external

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// explained is a difference to CoreDNS that is meant to be. The README of k8s_external documents them. correct changes
// CoreDNS's reply to one without the difference.
type explained struct {
	name    string
	correct func(d *difference, stock *dns.Msg)
}

var explanations = []explained{
	{"CoreDNS has an AAAA record without an address for a server with a load balancer's host", func(_ *difference, m *dns.Msg) {
		isEmpty := func(rr dns.RR) bool {
			six, ok := rr.(*dns.AAAA)
			return ok && len(six.AAAA) == 0
		}
		m.Answer, m.Extra = slices.DeleteFunc(m.Answer, isEmpty), slices.DeleteFunc(m.Extra, isEmpty)
	}},
	{"CoreDNS has the letters of the query in the name of the server", func(d *difference, m *dns.Msg) {
		if d.q.Qtype == dns.TypeNS {
			for _, rr := range m.Extra {
				rr.Header().Name = strings.ToLower(rr.Header().Name)
			}
		}
	}},
	{"CoreDNS denies the CNAME of a load balancer's host", func(d *difference, m *dns.Msg) {
		if d.q.Qtype == dns.TypeCNAME && isNODATA(m) && hasType(d.ours, dns.TypeCNAME) {
			m.Answer, m.Ns = d.ours.Answer, nil
		}
	}},
	{"CoreDNS has CNAMEs beside other records, or several", func(d *difference, m *dns.Msg) {
		addresses, hosts := d.external()
		alone := addresses > 0 && !hasType(d.ours, dns.TypeCNAME) || addresses == 0 && hosts > 1 && hasType(d.ours, dns.TypeCNAME)
		extra := slices.ContainsFunc(d.ours.Answer, func(rr dns.RR) bool { return !has(m, rr) })
		if hosts > 0 && hasType(m, dns.TypeCNAME) && alone && !extra {
			m.Answer, m.Ns = d.ours.Answer, d.ours.Ns
		}
	}},
	{"CoreDNS has names for a load balancer without an address and a host", func(d *difference, m *dns.Msg) {
		if !d.ofReverseZone() && strings.Contains(strings.ToLower(d.q.Name), pending+".default.") && d.ours.Rcode == dns.RcodeNameError {
			m.Rcode, m.Authoritative, m.Answer, m.Ns = d.ours.Rcode, d.ours.Authoritative, nil, d.ours.Ns
		}
	}},
	{"CoreDNS has PTR records of Services whose namespace does not exist", func(d *difference, m *dns.Msg) {
		if d.q.Qtype != dns.TypePTR || len(m.Answer) == 0 {
			return
		}
		m.Answer = slices.DeleteFunc(m.Answer, func(rr dns.RR) bool {
			ptr, ok := rr.(*dns.PTR)
			return ok && !d.hasNamespace(dns.SplitDomainName(ptr.Ptr)[1])
		})
		if len(m.Answer) == 0 && len(d.ours.Answer) == 0 {
			m.Rcode, m.Authoritative, m.Ns = d.ours.Rcode, d.ours.Authoritative, d.ours.Ns
		}
	}},
	{"CoreDNS finds an IPv6 address in its canonical form only", func(d *difference, m *dns.Msg) {
		for _, rr := range d.ours.Answer {
			if ptr, ok := rr.(*dns.PTR); ok && !has(m, ptr) && d.isRewritten(ptr.Ptr) {
				m.Rcode, m.Answer, m.Ns = dns.RcodeSuccess, append(m.Answer, ptr), nil
			}
		}
	}},
	{"CoreDNS denies that an address exists, for other types than PTR", func(d *difference, m *dns.Msg) {
		if d.ofReverseZone() && d.q.Qtype != dns.TypePTR && isAddress(d.q.Name) && m.Rcode == dns.RcodeNameError && isNODATA(d.ours) {
			m.Rcode, m.Authoritative, m.Ns = d.ours.Rcode, d.ours.Authoritative, d.ours.Ns
		}
	}},
	{"CoreDNS has Services in reverse zones", func(d *difference, m *dns.Msg) {
		if d.ofReverseZone() && m.Rcode == dns.RcodeSuccess && d.ours.Rcode == dns.RcodeNameError && !isAddress(d.q.Name) {
			m.Rcode, m.Authoritative, m.Answer, m.Ns, m.Extra = d.ours.Rcode, d.ours.Authoritative, nil, d.ours.Ns, nil
		}
	}},
	{"CoreDNS uses the TTL of kubernetes for SRV and CNAME", func(d *difference, m *dns.Msg) {
		for _, rr := range m.Answer {
			if t := rr.Header().Rrtype; t == dns.TypeSRV || t == dns.TypeCNAME {
				if same := find(d.ours, rr); same != nil {
					rr.Header().Ttl = same.Header().Ttl
				}
			}
		}
	}},
}

func (d *difference) ofReverseZone() bool { return isReverse(d.p.zoneOf(d.q.Name)) }

func isAddress(name string) bool {
	return dnsutil.ExtractAddressFromReverse(strings.ToLower(name)) != ""
}

func isNODATA(m *dns.Msg) bool {
	return m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 && len(m.Ns) == 1 && m.Ns[0].Header().Rrtype == dns.TypeSOA
}

func hasType(m *dns.Msg, rrtype uint16) bool {
	return slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == rrtype })
}

func has(m *dns.Msg, rr dns.RR) bool { return find(m, rr) != nil }

// external returns the number of external addresses and of hosts of the Service in the question.
func (d *difference) external() (addresses, hosts int) {
	labels := dns.SplitDomainName(strings.TrimSuffix(strings.ToLower(d.q.Name), strings.ToLower(d.p.zoneOf(d.q.Name))))
	for _, o := range d.objs {
		s, ok := o.(*corev1.Service)
		if !ok || len(labels) < 2 || s.Namespace != labels[len(labels)-1] || s.Name != labels[len(labels)-2] {
			continue
		}
		addresses = len(s.Spec.ExternalIPs)
		for _, in := range s.Status.LoadBalancer.Ingress {
			switch {
			case in.IP != "":
				addresses++
			case in.Hostname != "":
				hosts++
			}
		}
	}
	return addresses, hosts
}

// hasNamespace reports whether a namespace exists.
func (d *difference) hasNamespace(name string) bool {
	return slices.ContainsFunc(d.objs, func(o runtime.Object) bool {
		n, ok := o.(*corev1.Namespace)
		return ok && n.Name == name
	})
}

// isRewritten reports whether the Service with a name has an external address that is not written in the canonical form.
func (d *difference) isRewritten(name string) bool {
	labels := dns.SplitDomainName(name)
	return slices.ContainsFunc(d.objs, func(o runtime.Object) bool {
		s, ok := o.(*corev1.Service)
		return ok && s.Name == labels[0] && s.Namespace == labels[1] && slices.ContainsFunc(s.Spec.ExternalIPs, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && a.String() != text
		})
	})
}

// find returns the record of a reply's answer section that differs at most in the TTL, nil without one.
func find(m *dns.Msg, rr dns.RR) dns.RR {
	if i := slices.IndexFunc(m.Answer, func(other dns.RR) bool { return dns.IsDuplicate(rr, other) }); i >= 0 {
		return m.Answer[i]
	}
	return nil
}
