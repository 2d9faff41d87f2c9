package kubernetes

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

// result is the result of the lookup of a name.
type result struct {
	kind    resultKind
	name    objectName   // for endpoints and clusterIPs
	entry   *index.Entry // for endpoints, clusterIPs and alias
	addr    netip.Addr   // for pod
	targets []string     // for reverseName

	policy topology.Policy // for endpoints: selects the endpoints for the caller
	waits  bool            // for notFound: queries wait for the name
}

type resultKind uint8

const (
	notFound      resultKind = iota // the name does not exist
	fixedName                       // the name exists in every cluster, and has no records of its own
	emptyName                       // the name exists and has no records: a namespace, or a zone without endpoints
	schemaVersion                   // dns-version
	nameServer                      // ns.dns
	clusterIPs                      // a Service with ClusterIPs
	endpoints                       // endpoints of a Service
	alias                           // an ExternalName Service
	pod                             // a pod's address
	reverseName                     // an address in a reverse zone
)

// isFixed reports whether the answer for a type is the same in every cluster. For NS it is not: the names of the server
// are those of its Services.
func (f *result) isFixed(qtype uint16) bool {
	return f.kind == schemaVersion || f.kind == fixedName && qtype != dns.TypeNS
}

// isClusterset reports whether a zone has the names of ServiceImports.
func (k *Kubernetes) isClusterset(zone string) bool {
	return slices.ContainsFunc(k.clustersets, func(z string) bool { return strings.EqualFold(z, zone) })
}

// grammar returns the grammar of a zone's names. imported is true for a zone of a clusterset.
func (k *Kubernetes) grammar(imported bool) grammar {
	return grammar{zonal: k.source.Zones && !imported, imported: imported}
}

// find looks up a name in a zone, in lower case, and records the dependencies of the result.
func (k *Kubernetes) find(name, zone string, d *dependencies) result {
	base, reverse := below(name, zone), dnsutil.IsReverse(name) > 0
	imported := k.isClusterset(zone)
	switch {
	case base == "ns.dns":
		return result{kind: nameServer}
	case base == "dns": // the parent of ns.dns
		return result{kind: fixedName}
	case base == "dns-version":
		return result{kind: schemaVersion}
	case reverse:
		if f := k.findAddress(name, d); f.kind != notFound || base != "" {
			return f
		}
		return result{kind: fixedName}
	case base == "" || base == labelService || base == labelPod && !imported:
		return result{kind: fixedName}
	}
	n, err := parseName(name, zone, k.grammar(imported))
	switch {
	case err != nil || !k.selects(n.namespace) || n.kind == labelPod && (k.pods == podsDisabled || imported):
		return result{}
	case n.object != "" && n.kind != labelPod:
		return k.findService(n, d)
	}
	d.onNamespace(n.namespace)
	switch {
	case !k.index.HasNamespace(n.namespace):
		return result{}
	case n.object == "":
		return result{kind: emptyName}
	default:
		return k.findPod(n, d)
	}
}

// findPod looks up the name of a pod, such as 1-2-3-4.ns.pod.zone.
func (k *Kubernetes) findPod(n objectName, d *dependencies) result {
	a, ok := undashed(n.object)
	if !ok {
		return result{}
	}
	if k.pods == podsVerified {
		d.onAddress(a)
		inNamespace := func(p *index.Pod) bool { return p.Namespace == n.namespace }
		if !slices.ContainsFunc(k.index.PodsByIP(a), inNamespace) {
			return result{}
		}
	}
	return result{kind: pod, name: n, addr: a}
}

// findService looks up the name of a Service or ServiceImport, or a name below it.
func (k *Kubernetes) findService(n objectName, d *dependencies) result {
	e := d.onObject(k.index, &n)
	if e == nil || k.ignoreEmpty && e.Service.Kind == index.ClusterIP && e.Ready() == 0 {
		return result{}
	}
	kind := e.Service.Kind
	if n.zone != "" && kind != index.Headless {
		return result{} // ClusterIPs have no zone
	}
	switch {
	case kind == index.ExternalName:
		if n.endpoint != "" || n.port != "" || n.protocol != "" || e.Service.Target == "" {
			return result{}
		}
		return result{kind: alias, entry: e, name: n}
	case kind == index.Headless || n.endpoint != "":
		f := result{kind: endpoints, entry: e, name: n, policy: k.policyOf(e.Service, &n)}
		for range f.endpoints() {
			return f
		}
		if n.zone != "" {
			f.kind = emptyName // endpoints in the zone may exist at another time
			return f
		}
		return result{waits: n.mayAppear(e.Service)}
	default:
		if !n.hasPort(e.Service.Ports) {
			return result{}
		}
		return result{kind: clusterIPs, entry: e, name: n}
	}
}

// in returns the Service or ServiceImport of the name, nil if it or its namespace does not exist.
func (n *objectName) in(ix records) *index.Entry {
	if !ix.HasNamespace(n.namespace) {
		return nil
	}
	if n.imported {
		return ix.Import(n.namespace, n.object)
	}
	return ix.Service(n.namespace, n.object)
}

// matches reports whether the port and protocol in the name, as far as it has them, are those of p.
func (n *objectName) matches(p index.Port) bool {
	return (n.port == "" || n.port == p.Name.String()) && (n.protocol == "" || n.protocol == p.Protocol.String())
}

// hasPort reports whether the port and the protocol in the queried name are those of one of the ports. If there are no ports, it
// reports whether the queried name has neither.
func (n *objectName) hasPort(ports []index.Port) bool {
	if len(ports) == 0 {
		return n.port == "" && n.protocol == ""
	}
	return slices.ContainsFunc(ports, n.matches)
}

// endpoints yields the endpoints of a name with their slices: all for the name of a Service, one for the name of an
// endpoint, those in the zone for a zonal name. With the name of a port, only slices with such a port count.
func (f *result) endpoints() iter.Seq2[index.Endpoint, *index.Slice] {
	return func(yield func(index.Endpoint, *index.Slice) bool) {
		exists := false
		byAddress := f.name.endpointAddress()
		each := func(zone string) bool {
			for _, s := range f.entry.Slices {
				if !f.name.hasPort(s.Ports) || !f.name.inCluster(s) {
					continue
				}
				for i := f.name.next(s, 0, zone, byAddress); i < s.Len(); i = f.name.next(s, i+1, zone, byAddress) {
					if exists = true; !yield(s.Endpoint(i), s) {
						return false
					}
				}
			}
			return true
		}
		if each(f.name.zone) && !exists && f.name.prefer {
			each("")
		}
	}
}

// inCluster reports whether the endpoints of a slice are in the cluster in the name of an imported endpoint. Other names
// are independent of the cluster.
func (n *objectName) inCluster(s *index.Slice) bool {
	return !n.imported || n.endpoint == "" || n.cluster == s.Cluster.String()
}

// next returns the number of the first endpoint of the name, at from or later, in a zone ("" for any); s.Len() if there is
// none. byAddress is the endpointAddress of the name.
func (n *objectName) next(s *index.Slice, from int, zone string, byAddress netip.Addr) int {
	if n.endpoint != "" {
		return s.NextNamed(from, n.endpoint, byAddress)
	}
	if zone != "" {
		for from < s.Len() && !strings.EqualFold(s.Endpoint(from).Zone.String(), zone) {
			from++
		}
	}
	return from
}

// endpointAddress returns the address that is the label of the queried endpoint, the zero Addr if the label is none.
func (n *objectName) endpointAddress() netip.Addr {
	if n.endpoint == "" {
		return netip.Addr{}
	}
	a, _ := undashed(n.endpoint)
	if a.IsValid() && index.AddressLabel(a) != n.endpoint {
		return netip.Addr{}
	}
	return a
}

// maxName is the maximum length of a fully qualified name in characters. In wire form it has one octet more, 255 (RFC 1035,
// section 3.1).
const maxName = 254

// endpointName returns the name of an endpoint below a Service or ServiceImport, "" if it is too long, as with a long
// cluster ID.
func (n *objectName) endpointName(e index.Endpoint, s *index.Slice, service string) string {
	name := e.Label() + "." + service
	if id := s.Cluster.String(); n.imported && id != "" {
		name = e.Label() + "." + id + "." + service
	}
	if len(name) > maxName {
		return ""
	}
	return name
}

// undashed parses an address in the form of index.AddressLabel. With three single dashes it is IPv4.
func undashed(label string) (netip.Addr, bool) {
	sep := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		sep = "."
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", sep))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// serviceName returns the full name of a Service.
func serviceName(s *index.Service, zone string) string {
	return dnsutil.Join(s.Name, s.Namespace, labelService, zone)
}
