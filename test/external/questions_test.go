package external

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// qtypes are the types of questions for each name.
var qtypes = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeTXT, dns.TypeSOA, dns.TypeNS, dns.TypeANY}

// questions returns those for every name that the objects of a cluster have in a zone, for names beside them, and for the names
// of the zone itself.
func (v *variant) questions(objs []runtime.Object) (all []dns.Question) {
	names := map[string]bool{}
	for _, zone := range v.zones {
		for _, label := range []string{"", "x.", "dns.", "ns1.dns.", "ns2.dns.", "a.ns1.dns.", v.apex + ".", "ns1." + v.apex + ".", "NS1." + v.apex + ".", "missing.", "web.missing.", "web.", "4.3.2.1.", "1."} {
			names[label+zone] = true
		}
		names[strings.ToUpper(zone)] = true
		for _, name := range relative(objs) {
			names[name+"."+zone] = true
		}
	}
	for _, a := range addresses(objs) {
		if name, err := dns.ReverseAddr(a.String()); err == nil && v.zoneOf(name) != "" {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if _, ok := dns.IsDomainName(name); !ok {
			continue
		}
		types := qtypes
		if isAddress(name) { // CoreDNS's kubernetes, the next plugin, has NODATA for SOA at names that do not exist
			types = []uint16{dns.TypePTR, dns.TypeA, dns.TypeTXT}
		}
		for _, qtype := range types {
			if v.cached && v.ofServer(name, qtype) {
				continue // stored for the TTL, also by kubernetes
			}
			all = append(all, question(name, qtype))
		}
	}
	return all
}

// relative returns the names of objects without a zone.
func relative(objs []runtime.Object) []string {
	names := map[string]bool{}
	for _, o := range objs {
		switch o := o.(type) {
		case *corev1.Namespace:
			names[o.Name], names["missing."+o.Name] = true, true
		case *corev1.Service:
			service := o.Name + "." + o.Namespace
			for _, below := range []string{"", "a.", "_http.", "_http._tcp.", "_HTTP._Tcp.", "http.tcp.", "_none._tcp.", "_._tcp.", "_https._udp.", "x._http._tcp.", "_quic._udp."} {
				names[below+service] = true
			}
			names[strings.ToUpper(service)] = true
			for _, p := range o.Spec.Ports {
				if p.Name != "" {
					names["_"+p.Name+"._"+strings.ToLower(string(p.Protocol))+"."+service] = true
				}
			}
		case *discoveryv1.EndpointSlice:
			service := o.Labels[discoveryv1.LabelServiceName] + "." + o.Namespace
			for _, e := range o.Endpoints {
				if e.Hostname != nil {
					names[*e.Hostname+"."+service] = true
				}
				if e.TargetRef != nil {
					names[e.TargetRef.Name+"."+service] = true
				}
				for _, a := range e.Addresses {
					names[strings.NewReplacer(".", "-", ":", "-").Replace(a)+"."+service] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// addresses returns the external addresses of Services, and the ClusterIPs that one Service has: CoreDNS has a PTR record of any of
// several.
func addresses(objs []runtime.Object) (all []netip.Addr) {
	clusterIPs := map[string]int{}
	for _, o := range objs {
		if s, ok := o.(*corev1.Service); ok {
			clusterIPs[s.Spec.ClusterIP]++
		}
	}
	for _, o := range objs {
		s, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		texts := slices.Clone(s.Spec.ExternalIPs)
		if clusterIPs[s.Spec.ClusterIP] == 1 {
			texts = append(texts, s.Spec.ClusterIP)
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			texts = append(texts, in.IP)
		}
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil {
				all = append(all, a)
			}
		}
	}
	return all
}

// ofServer reports whether an answer has the addresses of the server.
func (v *variant) ofServer(name string, qtype uint16) bool {
	zone := v.zoneOf(name)
	return qtype == dns.TypeNS && strings.EqualFold(name, zone) || strings.EqualFold(name, "ns1."+v.apex+"."+zone)
}

// zoneOf returns the zone that has a name, "" for none.
func (v *variant) zoneOf(name string) (longest string) {
	for _, zone := range v.zones {
		if dns.IsSubDomain(zone, name) && len(zone) > len(longest) {
			longest = zone
		}
	}
	return longest
}
