package index

import (
	"hash/fnv"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unique"
)

// Kind is the kind of a Service or ServiceImport, which decides its DNS records.
type Kind uint8

const (
	// ClusterIP Services have virtual addresses: types ClusterIP, NodePort and LoadBalancer.
	ClusterIP Kind = iota
	// Headless Services (clusterIP: None) have the addresses of their endpoints.
	Headless
	// ExternalName Services are an alias of a name inside or outside of the cluster.
	ExternalName
)

// Symbol is an interned string, such as a port name or a zone, which many records share. It has the size of one word. The
// zero Symbol is the empty string.
type Symbol struct{ h unique.Handle[string] }

// NewSymbol returns the Symbol of s.
func NewSymbol(s string) Symbol {
	if s == "" {
		return Symbol{}
	}
	return Symbol{unique.Make(s)}
}

// String returns the interned string.
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

// NoPort is the Number of a port without a number: its name exists, and has no SRV record.
const NoPort = -1

// Service has the fields of a Service or ServiceImport that DNS answers depend on.
type Service struct {
	// Namespace and Name are the key; both are DNS labels.
	Namespace, Name string
	// Kind is ClusterIP or Headless for a ServiceImport. Read by every answer.
	Kind Kind
	// Wait is the time in milliseconds that queries wait for a name of a headless Service without an endpoint, 0 without the
	// annotation nearside.dev/wait-for-names. Read by AwaitName, and before negative answers are stored.
	Wait uint16
	// IPs are the ClusterIPs, or the ClusterSetIPs of a ServiceImport, none for other kinds. Read by A, AAAA, SRV
	// and, but for a ServiceImport, PTR.
	IPs []netip.Addr
	// Target is the fully qualified external name. It is empty for other kinds, and if it cannot be the target of a
	// CNAME, as an IP address. Read by A, AAAA and CNAME.
	Target string
	// Ports are the Service's own ports. Read by SRV and port names of ClusterIP Services.
	Ports []Port
	// Topology has the settings that select endpoints by caller, nil if there are none. Read by A, AAAA and SRV of headless
	// Services.
	Topology *Topology
	// External are the addresses and names of the Service outside of the cluster, nil if there are none. Read by plugin
	// k8s_external.
	External *External
}

// External are the addresses and host names under which clients outside of the cluster reach a Service: spec.externalIPs, and
// those of its load balancer. An address may occur more than once.
type External struct {
	IPs []netip.Addr
	// Hosts are fully qualified.
	Hosts []string
}

// Equal reports whether the addresses and names are equal.
func (x *External) Equal(y *External) bool {
	if x == nil || y == nil {
		return x == y
	}
	return slices.Equal(x.IPs, y.IPs) && slices.Equal(x.Hosts, y.Hosts)
}

// Topology has the settings of a Service that select its endpoints by caller.
type Topology struct {
	// Keys are the label keys in the annotation nearside.dev/topology-keys, in order; "*" stands for any node. Nil without
	// the annotation.
	Keys []Symbol
	// Local is internalTrafficPolicy: Local.
	Local bool
	// Auto is the annotation service.kubernetes.io/topology-mode: Auto.
	Auto bool
	// Distribution is spec.trafficDistribution.
	Distribution Distribution
}

// Distribution is a trafficDistribution of the Service API.
type Distribution uint8

// The traffic distributions. PreferClose is the older name of PreferSameZone.
const (
	NoDistribution Distribution = iota
	PreferSameZone
	PreferSameNode
)

// Equal reports whether two settings are equal.
func (t *Topology) Equal(u *Topology) bool {
	if t == nil || u == nil {
		return t == u
	}
	return t.Local == u.Local && t.Auto == u.Auto && t.Distribution == u.Distribution &&
		(t.Keys == nil) == (u.Keys == nil) && slices.Equal(t.Keys, u.Keys)
}

// Equal reports whether two records of one Service are equal.
func (s *Service) Equal(t *Service) bool {
	return s.Kind == t.Kind && s.Wait == t.Wait && s.Target == t.Target &&
		slices.Equal(s.IPs, t.IPs) && slices.Equal(s.Ports, t.Ports) && s.Topology.Equal(t.Topology) && s.External.Equal(t.External)
}

// Endpoint is one ready address of an EndpointSlice.
type Endpoint struct {
	// Addr is read by A, AAAA, SRV's additional section and PTR. It has no zone, and is not IPv4-mapped IPv6.
	Addr netip.Addr
	// Name is the endpoint's own label; empty means the address in dashed form. Read by endpoint
	// names, SRV targets and PTR.
	Name string
	// Zone is the topology zone. Read by zonal names, ignoring case, and by topology.
	Zone Symbol
	// Node is the name of the node that runs the endpoint. Read by topology, also to locate callers.
	Node Symbol
	// Hints are those of the EndpointSlice controller; nil if there are none. Endpoints may share them. Read by topology.
	Hints *Hints
}

// Hints are the names of the nodes and zones that should use an endpoint.
type Hints struct{ Nodes, Zones []Symbol }

// Equal reports whether two endpoints have the same hints.
func (h *Hints) Equal(i *Hints) bool {
	if h == nil || i == nil {
		return h == i
	}
	return slices.Equal(h.Nodes, i.Nodes) && slices.Equal(h.Zones, i.Zones)
}

// Label returns the label of the endpoint below the name of its Service: its name, or its address.
func (e Endpoint) Label() string {
	if e.Name != "" {
		return e.Name
	}
	return AddressLabel(e.Addr)
}

// AddressLabel returns an address as a label: 10-1-2-3, 2001-db8--1. A 0 is appended to a final dash, since labels cannot end with
// one.
func AddressLabel(a netip.Addr) string {
	if a.Is4() {
		return strings.ReplaceAll(a.String(), ".", "-")
	}
	s := strings.ReplaceAll(a.String(), ":", "-")
	if strings.HasSuffix(s, "-") {
		s += "0"
	}
	return s
}

func (e Endpoint) equal(f Endpoint) bool {
	return e.Addr == f.Addr && e.Name == f.Name && e.Zone == f.Zone && e.Node == f.Node && e.Hints.Equal(f.Hints)
}

// Slice has the fields of an EndpointSlice that DNS answers depend on. Only ready endpoints are in it.
type Slice struct {
	// Namespace and Name are the key of the EndpointSlice.
	Namespace, Name string
	// Service is the name of the Service that the endpoints belong to, empty for none.
	Service string
	// Import is the name of the ServiceImport that the endpoints belong to, empty for none.
	Import string
	// Cluster is the ID of the endpoints' cluster, in lower case. It is zero without an ID, and for one that cannot be part
	// of a name. Read by endpoint names of ServiceImports and by topology.
	Cluster Symbol
	// Ports are those of every endpoint. Read by SRV and port names of headless Services. Without ports, the endpoints have
	// addresses but no SRV record.
	Ports []Port
	// Endpoints are the endpoints in the order of the object, until Pack replaces them by a packed form. All reads both forms.
	Endpoints []Endpoint

	packed packedEndpoints
}

// Equal reports whether two records of one EndpointSlice are equal.
func (s *Slice) Equal(t *Slice) bool {
	return s.Service == t.Service && s.Import == t.Import && s.Cluster == t.Cluster &&
		slices.Equal(s.Ports, t.Ports) && s.sameEndpoints(t)
}

// Pod has the fields of a Pod that DNS answers depend on.
type Pod struct {
	// Namespace and Name are the key. Read by pod names and by the client's metadata.
	Namespace, Name string
	// IPs are the addresses of the pod. Read by pod names in mode verified, and to find a client's pod.
	IPs []netip.Addr
	// Labels are read by the client's metadata.
	Labels PodLabels
	// Node is the name of the node that runs the pod. Read to locate callers.
	Node Symbol
	// HostNetwork is true if IPs are those of the node, which pods share. Read by clients' search lists.
	HostNetwork bool
	// Ending is true if another pod may have the IPs now or soon. Read by clients' search lists.
	Ending bool
	// Ndots is the option ndots of the resolver, 0 to 15. Read by explanations. Snapshots lack it: search lists of their pods are unknown.
	Ndots uint8
	// DNS has the DNS settings; nil for policy ClusterFirst without dnsConfig. Read by clients' search lists.
	DNS *PodDNS
}

// PodDNS has the DNS settings of a pod.
type PodDNS struct {
	// Policy is dnsPolicy: ClusterFirst, ClusterFirstWithHostNet, Default or None.
	Policy string
	// Searches are dnsConfig.searches, unmodified and in order.
	Searches []string
}

// Equal reports whether two settings are equal.
func (d *PodDNS) Equal(e *PodDNS) bool {
	if d == nil || e == nil {
		return d == e
	}
	return d.Policy == e.Policy && slices.Equal(d.Searches, e.Searches)
}

// PodLabels are the labels of a pod. The zero PodLabels are none.
type PodLabels struct{ pairs string } // keys and values in turn, each with separator after it, ordered by key

// separator is not in labels, whose keys and values have letters, digits and some punctuation.
const separator = "\x00"

// NewPodLabels returns the labels of a map.
func NewPodLabels(labels map[string]string) PodLabels {
	var pairs strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs.WriteString(key + separator + labels[key] + separator)
	}
	return PodLabels{strings.Clone(pairs.String())}
}

// All yields the keys and values, ordered by key.
func (l PodLabels) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := l.pairs; rest != ""; {
			key, after, _ := strings.Cut(rest, separator)
			value, next, _ := strings.Cut(after, separator)
			if rest = next; !yield(key, value) {
				return
			}
		}
	}
}

// Equal reports whether two records of one pod are equal.
func (p *Pod) Equal(q *Pod) bool {
	return p.Node == q.Node && p.HostNetwork == q.HostNetwork && p.Ending == q.Ending && p.Ndots == q.Ndots &&
		slices.Equal(p.IPs, q.IPs) && p.Labels == q.Labels && p.DNS.Equal(q.DNS)
}

// Node has the fields of a Node that topology depends on.
type Node struct {
	// Name is the key.
	Name Symbol
	// UID distinguishes the node from an earlier one of the same name. Read by PutNode.
	UID UID
	// Labels are the labels passed to PutNode, ordered by key. PutNode replaces them by keys and values. Read by Label.
	Labels []Label
	// CIDRs are the ranges of the pods' addresses, and the node's own addresses as single-address ranges; nil if unknown.
	// Read to locate callers.
	CIDRs []netip.Prefix

	number uint32
	keys   *keyList // label keys of a node of the index
	values []Symbol // label values, in the order of keys
}

// UID is a hash of an object's UID, to distinguish two objects of one name.
type UID uint64

// NewUID returns the hash of metadata.uid.
func NewUID(text string) UID {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return UID(h.Sum64())
}

// Label is one label of a Node.
type Label struct{ Key, Value Symbol }

// Number is a number of the node, from 1, unique among all nodes that the index has ever had.
func (n *Node) Number() uint32 { return n.number }

// Equal reports whether two records of one Node are equal.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.UID == o.UID && n.sameLabels(o) && slices.Equal(n.CIDRs, o.CIDRs)
}

// Covers reports whether another record of the Node is equal, or equal but for missing CIDRs.
func (n *Node) Covers(o *Node) bool {
	return n.UID == o.UID && n.sameLabels(o) && (o.CIDRs == nil || slices.Equal(n.CIDRs, o.CIDRs))
}
