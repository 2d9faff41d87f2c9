package index

import (
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

// Service is the part of a Service that DNS answers from.
type Service struct {
	// Namespace and Name are the key; both are DNS labels.
	Namespace, Name string
	// Kind is read by every answer.
	Kind Kind
	// IPs are the ClusterIPs, none for other kinds. Read by A, AAAA, SRV and PTR.
	IPs []netip.Addr
	// Target is the fully qualified external name. It is empty when the Service has another kind or
	// when no CNAME can point at what it names, such as an IP address. Read by A, AAAA and CNAME.
	Target string
	// Ports are the Service's own ports. Read by SRV and port names of ClusterIP Services.
	Ports []Port
}

// Equal reports whether two records of one Service say the same.
func (s *Service) Equal(t *Service) bool {
	return s.Kind == t.Kind && s.Target == t.Target &&
		slices.Equal(s.IPs, t.IPs) && slices.Equal(s.Ports, t.Ports)
}

// Endpoint is one ready address of an EndpointSlice.
type Endpoint struct {
	// Addr is read by A, AAAA, SRV's additional section and PTR.
	Addr netip.Addr
	// Name is the endpoint's own label; empty means the address in dashed form. Read by endpoint
	// names, SRV targets and PTR.
	Name string
	// Zone is the topology zone in lower case. Read by zonal names.
	Zone Symbol
}

// Slice is the part of an EndpointSlice that DNS answers from. Only ready endpoints are in it.
type Slice struct {
	// Namespace and Name are the key of the EndpointSlice.
	Namespace, Name string
	// Service is the name of the Service that the endpoints belong to.
	Service string
	// Ports hold for every endpoint. Read by SRV and port names of headless Services. None means
	// that the endpoints have addresses but no SRV record.
	Ports []Port
	// Endpoints are in the order of the object.
	Endpoints []Endpoint
}

// Equal reports whether two records of one EndpointSlice say the same.
func (s *Slice) Equal(t *Slice) bool {
	return s.Service == t.Service && slices.Equal(s.Ports, t.Ports) && slices.Equal(s.Endpoints, t.Endpoints)
}

// Pod is the part of a Pod that DNS answers from.
type Pod struct {
	// Namespace and Name are the key. Read by pod names and by metadata of the client.
	Namespace, Name string
	// IPs are the addresses of the pod. Read by pod names in mode verified, and to know a client.
	IPs []netip.Addr
	// Labels are read by metadata of the client.
	Labels map[string]string
}

// Equal reports whether two records of one pod say the same.
func (p *Pod) Equal(q *Pod) bool {
	return slices.Equal(p.IPs, q.IPs) && maps.Equal(p.Labels, q.Labels)
}
