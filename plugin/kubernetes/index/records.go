package index

import (
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"unique"
)

// Kind says which records a Service has.
type Kind uint8

const (
	// ClusterIP Services have virtual addresses: types ClusterIP, NodePort and LoadBalancer.
	ClusterIP Kind = iota
	// Headless Services (clusterIP: None) have the addresses of their endpoints.
	Headless
	// ExternalName Services are an alias of a name outside or inside of the cluster.
	ExternalName
)

// Symbol is a string that many records have in common, such as a port name or a zone: it is kept
// once in the process and takes one word here. The zero Symbol is the empty string.
type Symbol struct{ h unique.Handle[string] }

// NewSymbol returns the Symbol of s.
func NewSymbol(s string) Symbol {
	if s == "" {
		return Symbol{}
	}
	return Symbol{unique.Make(s)}
}

// String returns the string that y stands for.
func (y Symbol) String() string {
	if y == (Symbol{}) {
		return ""
	}
	return y.h.Value()
}

// Port is one port of a Service or of an EndpointSlice.
type Port struct {
	// Name in lower case, empty for the one unnamed port. Read by port names (_port._proto) and AXFR.
	Name Symbol
	// Protocol in lower case: tcp, udp or sctp. Read by port names and AXFR.
	Protocol Symbol
	// Number is 1..65535, or NoPort. Read by SRV.
	Number int32
}

// NoPort is the number of a port that has none: it can be asked for by name, and has no SRV record.
const NoPort = -1

// Service is the part of a Service, or of a ServiceImport, that DNS answers from.
type Service struct {
	// Namespace and Name are the key; both are DNS labels.
	Namespace, Name string
	// Kind is read by every answer. A ServiceImport is ClusterIP or Headless.
	Kind Kind
	// IPs are the ClusterIPs, or the ClusterSetIPs of a ServiceImport, none for other kinds. Read by A, AAAA, SRV
	// and, but for a ServiceImport, PTR.
	IPs []netip.Addr
	// Target is the fully qualified external name. It is empty when the Service has another kind or
	// when no CNAME can point at what it names, such as an IP address. Read by A, AAAA and CNAME.
	Target string
	// Ports are the Service's own ports. Read by SRV and port names of ClusterIP Services.
	Ports []Port
	// Topology is what the Service says of which endpoints a caller is to get; nil where it says nothing.
	// Read by A, AAAA and SRV of headless Services.
	Topology *Topology
}

// Topology is what a Service says of which of its endpoints a caller is to get.
type Topology struct {
	// Keys are the labels of nodes in the order of the annotation nearside.dev/topology-keys; "*" stands for
	// any. Nil without the annotation.
	Keys []Symbol
	// Local is internalTrafficPolicy: Local.
	Local bool
	// Auto is the annotation service.kubernetes.io/topology-mode: Auto.
	Auto bool
	// Distribution is spec.trafficDistribution.
	Distribution Distribution
}

// Distribution is a trafficDistribution of the Service API that DNS knows.
type Distribution uint8

// The traffic distributions. PreferClose is the older name of PreferSameZone.
const (
	NoDistribution Distribution = iota
	PreferSameZone
	PreferSameNode
)

// Equal reports whether two Services say the same of topology.
func (t *Topology) Equal(u *Topology) bool {
	if t == nil || u == nil {
		return t == u
	}
	return t.Local == u.Local && t.Auto == u.Auto && t.Distribution == u.Distribution &&
		(t.Keys == nil) == (u.Keys == nil) && slices.Equal(t.Keys, u.Keys)
}

// Equal reports whether two records of one Service say the same.
func (s *Service) Equal(t *Service) bool {
	return s.Kind == t.Kind && s.Target == t.Target &&
		slices.Equal(s.IPs, t.IPs) && slices.Equal(s.Ports, t.Ports) && s.Topology.Equal(t.Topology)
}

// Endpoint is one ready address of an EndpointSlice.
type Endpoint struct {
	// Addr is read by A, AAAA, SRV's additional section and PTR.
	Addr netip.Addr
	// Name is the endpoint's own label; empty means the address in dashed form. Read by endpoint
	// names, SRV targets and PTR.
	Name string
	// Zone is the topology zone. Read by zonal names, whatever its case, and by topology.
	Zone Symbol
	// Node is the name of the node that it runs on. Read by topology, and to know a client's node.
	Node Symbol
	// Hints say for whom the endpoint is, in the view of the EndpointSlice controller; nil where there are
	// none. Endpoints may share them. Read by topology.
	Hints *Hints
}

// Hints are the names of nodes and zones that an endpoint is for.
type Hints struct{ Nodes, Zones []Symbol }

// Equal reports whether two endpoints have the same hints.
func (h *Hints) Equal(i *Hints) bool {
	if h == nil || i == nil {
		return h == i
	}
	return slices.Equal(h.Nodes, i.Nodes) && slices.Equal(h.Zones, i.Zones)
}

func (e Endpoint) equal(f Endpoint) bool {
	return e.Addr == f.Addr && e.Name == f.Name && e.Zone == f.Zone && e.Node == f.Node && e.Hints.Equal(f.Hints)
}

// Slice is the part of an EndpointSlice that DNS answers from. Only ready endpoints are in it.
type Slice struct {
	// Namespace and Name are the key of the EndpointSlice.
	Namespace, Name string
	// Service is the name of the Service that the endpoints belong to, empty if there is none.
	Service string
	// Import is the name of the ServiceImport that the endpoints belong to, empty if there is none.
	Import string
	// Cluster is the ID of the cluster that the endpoints are in, in lower case. It is zero if there is none, or none
	// that can be part of a name. Read by endpoint names of ServiceImports and by topology.
	Cluster Symbol
	// Ports hold for every endpoint. Read by SRV and port names of headless Services. None means
	// that the endpoints have addresses but no SRV record.
	Ports []Port
	// Endpoints are in the order of the object.
	Endpoints []Endpoint
}

// Equal reports whether two records of one EndpointSlice say the same.
func (s *Slice) Equal(t *Slice) bool {
	return s.Service == t.Service && s.Import == t.Import && s.Cluster == t.Cluster &&
		slices.Equal(s.Ports, t.Ports) && slices.EqualFunc(s.Endpoints, t.Endpoints, Endpoint.equal)
}

// Pod is the part of a Pod that DNS answers from.
type Pod struct {
	// Namespace and Name are the key. Read by pod names and by metadata of the client.
	Namespace, Name string
	// IPs are the addresses of the pod. Read by pod names in mode verified, and to know a client.
	IPs []netip.Addr
	// Labels are read by metadata of the client.
	Labels map[string]string
	// Node is the name of the node that it runs on. Read to know a client's node.
	Node Symbol
	// HostNetwork is true where IPs are those of the node, which many have. Read to know a client's search path.
	HostNetwork bool
	// Ending is true while the pod may have lost its IPs, or is about to: they may be another pod's. Read to know a
	// client's search path.
	Ending bool
	// DNS is what the pod says of its resolver; nil where that is policy ClusterFirst and nothing else. Read to
	// know a client's search path.
	DNS *PodDNS
}

// PodDNS is what a pod says of its resolver.
type PodDNS struct {
	// Policy is its dnsPolicy: ClusterFirst, ClusterFirstWithHostNet, Default or None.
	Policy string
	// Searches are those of its dnsConfig, in order and as they are written there.
	Searches []string
}

// Equal reports whether two pods say the same of their resolvers.
func (d *PodDNS) Equal(e *PodDNS) bool {
	if d == nil || e == nil {
		return d == e
	}
	return d.Policy == e.Policy && slices.Equal(d.Searches, e.Searches)
}

// Equal reports whether two records of one pod say the same.
func (p *Pod) Equal(q *Pod) bool {
	return p.Node == q.Node && p.HostNetwork == q.HostNetwork && p.Ending == q.Ending &&
		slices.Equal(p.IPs, q.IPs) && maps.Equal(p.Labels, q.Labels) && p.DNS.Equal(q.DNS)
}

// Node is the part of a Node that topology reads.
type Node struct {
	// Name is the key.
	Name Symbol
	// UID tells a node from an earlier one of its name. Read by PutNode.
	UID UID
	// Labels are given to PutNode, ordered by key; it keeps them in a smaller form. Read by Label.
	Labels []Label
	// CIDRs are the ranges of its pods' addresses, and its own addresses as such, nil while they are not known.
	// Read to know a client's node.
	CIDRs []netip.Prefix

	number uint32
	keys   *keyList // of the labels of a node of the index
	values []Symbol // of its labels, in the order of keys
}

// UID is a hash of an object's UID, which is all that it takes to tell two objects of one name apart.
type UID uint64

// NewUID returns the UID for one as the API has it.
func NewUID(text string) UID {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // it never fails
	return UID(h.Sum64())
}

// Label is one label of a Node.
type Label struct{ Key, Value Symbol }

// Number is that of the node among all that the index has ever had, from 1.
func (n *Node) Number() uint32 { return n.number }

// Equal reports whether two records of one Node say the same.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.UID == o.UID && n.sameLabels(o) && slices.Equal(n.CIDRs, o.CIDRs)
}

// Covers reports whether another record of the Node says nothing else. One without CIDRs does not speak of
// them.
func (n *Node) Covers(o *Node) bool {
	return n.UID == o.UID && n.sameLabels(o) && (o.CIDRs == nil || slices.Equal(n.CIDRs, o.CIDRs))
}
