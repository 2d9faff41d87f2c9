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

// found is what a name stands for.
type found struct {
	kind  foundKind
	name  objectName   // of endpoints and clusterIPs
	entry *index.Entry // of endpoints, clusterIPs and alias
	addr  netip.Addr   // of a pod
	ptr   []string     // of an address

	policy topology.Policy // of endpoints: which of them a caller sees
}

type foundKind uint8

const (
	nothing       foundKind = iota // the name does not exist
	fixed                          // the name exists in every cluster, and has no records of its own
	node                           // the name exists, and has no records: a namespace, a zone without endpoints
	schemaVersion                  // dns-version
	nameServer                     // ns.dns
	clusterIPs                     // a Service by its ClusterIPs
	endpoints                      // endpoints of a Service
	alias                          // an ExternalName Service
	pod                            // a pod by its address
	address                        // an address in a reverse zone
)

// known reports whether the answer for a type is the same in every cluster. NS is not: the server's
// names are those of its Services.
func (f *found) known(qtype uint16) bool {
	return f.kind == schemaVersion || f.kind == fixed && qtype != dns.TypeNS
}

// isClusterset reports whether the names of a zone are those of ServiceImports.
func (k *Kubernetes) isClusterset(zone string) bool {
	return slices.ContainsFunc(k.clustersets, func(z string) bool { return strings.EqualFold(z, zone) })
}

// grammar returns that of the names of a zone, given whether it is one of a clusterset.
func (k *Kubernetes) grammar(imported bool) grammar {
	return grammar{zonal: k.source.Zones && !imported, imported: imported}
}

// find returns what a name in a zone stands for; the name is in lower case. The basis takes in what that
// follows from.
func (k *Kubernetes) find(name, zone string, d *dependencies) found {
	base, reverse := below(name, zone), dnsutil.IsReverse(name) > 0
	imported := k.isClusterset(zone)
	switch {
	case base == "ns.dns":
		return found{kind: nameServer}
	case base == "dns": // ns.dns is below it
		return found{kind: fixed}
	case base == "dns-version":
		return found{kind: schemaVersion}
	case reverse:
		if f := k.findAddress(name, d); f.kind != nothing || base != "" {
			return f
		}
		return found{kind: fixed}
	case base == "" || base == labelService || base == labelPod && !imported:
		return found{kind: fixed}
	}
	n, err := parseName(name, zone, k.grammar(imported))
	if err != nil || !k.exposes(n.namespace) {
		return found{}
	}
	switch {
	case n.kind == labelPod && (k.pods == podsDisabled || imported):
		return found{}
	case n.object == "":
		return found{kind: node}
	case n.kind == labelPod:
		return k.findPod(n, d)
	default:
		return k.findService(n, d)
	}
}

// findPod returns the pod that a name like 1-2-3-4.ns.pod.zone stands for.
func (k *Kubernetes) findPod(n objectName, d *dependencies) found {
	a, ok := undashed(n.object)
	if !ok {
		return found{}
	}
	if k.pods == podsVerified {
		d.onAddress(a)
		known := false
		for _, p := range k.index.PodsByIP(a) {
			known = known || p.Namespace == n.namespace
		}
		if !known {
			return found{}
		}
	}
	return found{kind: pod, name: n, addr: a}
}

// findService returns what is at a Service or ServiceImport, or below it.
func (k *Kubernetes) findService(n objectName, d *dependencies) found {
	e := d.onObject(k.index, &n)
	if e == nil || k.ignoreEmpty && e.Service.Kind == index.ClusterIP && e.Ready() == 0 {
		return found{}
	}
	kind := e.Service.Kind
	if n.zone != "" && kind != index.Headless {
		return found{} // a ClusterIP is in no zone
	}
	switch {
	case kind == index.ExternalName:
		if n.endpoint != "" || n.port != "" || n.protocol != "" || e.Service.Target == "" {
			return found{}
		}
		return found{kind: alias, entry: e, name: n}
	case kind == index.Headless || n.endpoint != "":
		f := found{kind: endpoints, entry: e, name: n, policy: k.policyOf(e.Service, &n)}
		for range f.endpoints() {
			return f
		}
		if n.zone != "" {
			f.kind = node // the Service exists, and its zones come and go
			return f
		}
		return found{}
	default:
		if !n.hasPort(e.Service.Ports) {
			return found{}
		}
		return found{kind: clusterIPs, entry: e, name: n}
	}
}

// in returns the Service or ServiceImport of the name, or nil.
func (n *objectName) in(ix records) *index.Entry {
	if n.imported {
		return ix.Import(n.namespace, n.object)
	}
	return ix.Service(n.namespace, n.object)
}

// matches reports whether the name means a port.
func (n *objectName) matches(p index.Port) bool {
	return (n.port == "" || n.port == p.Name.String()) && (n.protocol == "" || n.protocol == p.Protocol.String())
}

// hasPort reports whether the name means one of the ports. A list without ports is meant by a name
// that asks for none.
func (n *objectName) hasPort(ports []index.Port) bool {
	if len(ports) == 0 {
		return n.port == "" && n.protocol == ""
	}
	for _, p := range ports {
		if n.matches(p) {
			return true
		}
	}
	return false
}

// endpoints yields the endpoints that the name means, with the slice of each, whose ports it may mean: of an
// endpoint name the one, of a zonal name those of the zone.
func (f *found) endpoints() iter.Seq2[*index.Endpoint, *index.Slice] {
	return func(yield func(*index.Endpoint, *index.Slice) bool) {
		any := false
		all := func(in func(*index.Endpoint) bool) bool {
			for _, s := range f.entry.Slices {
				if !f.name.hasPort(s.Ports) || !f.name.inCluster(s) {
					continue
				}
				for i := range s.Endpoints {
					if e := &s.Endpoints[i]; in(e) {
						any = true
						if !yield(e, s) {
							return false
						}
					}
				}
			}
			return true
		}
		if !all(f.name.selector()) || any || !f.name.prefer {
			return
		}
		all(func(*index.Endpoint) bool { return true })
	}
}

// inCluster reports whether the name of an endpoint is of the cluster that the endpoints of a slice are in. Other names
// are of all clusters.
func (n *objectName) inCluster(s *index.Slice) bool {
	return !n.imported || n.endpoint == "" || n.cluster == s.Cluster.String()
}

// selector returns the test of whether the name means an endpoint.
func (n *objectName) selector() func(*index.Endpoint) bool {
	switch {
	case n.zone != "":
		return func(e *index.Endpoint) bool { return strings.EqualFold(e.Zone.String(), n.zone) }
	case n.endpoint != "":
		byAddress, _ := undashed(n.endpoint)
		if byAddress.IsValid() && dashed(byAddress) != n.endpoint {
			byAddress = netip.Addr{}
		}
		return func(e *index.Endpoint) bool {
			if e.Name != "" {
				return e.Name == n.endpoint
			}
			return e.Addr == byAddress
		}
	default:
		return func(*index.Endpoint) bool { return true }
	}
}

// maxName is the greatest length of a fully qualified name in characters: 255 octets in wire form (RFC 1035, section
// 3.1), which has one more.
const maxName = 254

// endpointName returns the name of an endpoint, given that of its Service or ServiceImport; empty if it is too long to
// be a name, as the ID of a cluster may make it.
func (n *objectName) endpointName(e *index.Endpoint, s *index.Slice, of string) string {
	if id := s.Cluster.String(); n.imported && id != "" {
		of = id + "." + of
	}
	name := label(e) + "." + of
	if len(name) > maxName {
		return ""
	}
	return name
}

// label returns the name of an endpoint below its Service.
func label(e *index.Endpoint) string {
	if e.Name != "" {
		return e.Name
	}
	return dashed(e.Addr)
}

// dashed returns an address in the form that is one label: 10-1-2-3, 2001-db8--1. Since a label
// cannot end in a dash, a 0 takes the place of what the last colons left out.
func dashed(a netip.Addr) string {
	if a.Is4() {
		return strings.ReplaceAll(a.String(), ".", "-")
	}
	s := strings.ReplaceAll(a.String(), ":", "-")
	if strings.HasSuffix(s, "-") {
		s += "0"
	}
	return s
}

// undashed returns the address that a label stands for. Three single dashes make it IPv4.
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

// findAddress returns the names of an address in a reverse zone.
func (k *Kubernetes) findAddress(name string, d *dependencies) found {
	a, err := netip.ParseAddr(dnsutil.ExtractAddressFromReverse(name))
	if err != nil {
		return found{}
	}
	// Labels that are more than one digit or octet may look like an address when they are joined.
	if again, err := dns.ReverseAddr(a.String()); err != nil || again != name {
		return found{}
	}
	d.onAddress(a)
	targets := k.pointers(a)
	if len(targets) == 0 {
		return found{}
	}
	return found{kind: address, ptr: targets}
}

// pointers returns what PTR records of an address point at: the Service that has it as ClusterIP,
// or else each endpoint of a Service that has it, ClusterIP Services included.
func (k *Kubernetes) pointers(a netip.Addr) (targets []string) {
	if k.primaryZone == "" {
		return nil
	}
	for _, s := range k.index.ServicesByIP(a) {
		if k.exposes(s.Namespace) {
			return []string{serviceName(s, k.primaryZone)}
		}
	}
	seen := map[string]struct{}{}
	for _, sl := range k.index.SlicesByIP(a) {
		e := k.index.Service(sl.Namespace, sl.Service)
		if e == nil || e.Service.Kind == index.ExternalName || !k.exposes(sl.Namespace) {
			continue
		}
		for i := range sl.Endpoints {
			if ep := &sl.Endpoints[i]; ep.Addr == a {
				name := label(ep) + "." + serviceName(e.Service, k.primaryZone)
				if _, ok := seen[name]; !ok {
					seen[name] = struct{}{}
					targets = append(targets, name)
				}
			}
		}
	}
	return targets
}

// serviceName returns the full name of a Service.
func serviceName(s *index.Service, zone string) string {
	return dnsutil.Join(s.Name, s.Namespace, labelService, zone)
}
