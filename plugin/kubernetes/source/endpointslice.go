package source

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Slice returns the record of an EndpointSlice with its ready endpoints, or nil if it belongs to no object that is read
// or its addressType is FQDN.
func (s Stripper) Slice(o *discoveryv1.EndpointSlice) *index.Slice { return s.slice(o, ready) }

// NotReady returns the records of the endpoints that Slice leaves out: those that terminate, and those that are not ready for
// another reason. Both are nil if Slice returns nil.
func (s Stripper) NotReady(o *discoveryv1.EndpointSlice) (terminating, others *index.Slice) {
	terminates := func(e *discoveryv1.Endpoint) bool {
		return e.Conditions.Terminating != nil && *e.Conditions.Terminating
	}
	terminating = s.slice(o, func(e *discoveryv1.Endpoint) bool { return !ready(e) && terminates(e) })
	others = s.slice(o, func(e *discoveryv1.Endpoint) bool { return !ready(e) && !terminates(e) })
	return terminating, others
}

// slice returns the record of an EndpointSlice with the selected endpoints.
func (s Stripper) slice(o *discoveryv1.EndpointSlice, selects func(*discoveryv1.Endpoint) bool) *index.Slice {
	if o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	skip := s.skipped.object(EndpointSlices, o.Namespace, o.Name)
	service := s.serviceOf(o)
	imported, cluster := s.importOf(o, skip)
	if service == "" && imported == "" {
		return nil
	}
	r := &index.Slice{
		Namespace: strings.Clone(o.Namespace),
		Name:      strings.Clone(o.Name),
		Service:   strings.Clone(service),
		Import:    imported,
		Cluster:   cluster,
	}
	for i := range o.Ports {
		r.Ports = append(r.Ports, slicePort(&o.Ports[i], skip))
	}
	scratch := endpointScratch.Get().(*[]index.Endpoint)
	defer endpointScratch.Put(scratch)
	r.Endpoints = (*scratch)[:0]
	for i := range o.Endpoints {
		if e := &o.Endpoints[i]; selects(e) {
			r.Endpoints = s.endpoints(r.Endpoints, e, skip)
		}
	}
	*scratch = r.Endpoints
	r.Pack() // now: all records of a list are in memory before the index has the first
	clear(*scratch)
	return r
}

// endpointScratch has the endpoints of a slice until they are packed.
var endpointScratch = sync.Pool{New: func() any { return new([]index.Endpoint) }}

// serviceOf returns the name of the Service that an EndpointSlice belongs to, or "".
func (s Stripper) serviceOf(o *discoveryv1.EndpointSlice) string {
	if s.ImportsOnly {
		return ""
	}
	return o.Labels[discoveryv1.LabelServiceName]
}

func slicePort(p *discoveryv1.EndpointPort, skip skippedObject) index.Port {
	var (
		name     string
		protocol corev1.Protocol
		number   int32 = index.NoPort
	)
	if p.Name != nil {
		name = *p.Name
	}
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	if p.Port != nil {
		number = *p.Port
	}
	return port(name, protocol, number, skip)
}

// ready reports whether an endpoint is served. An unknown state means ready (EndpointSlice API).
func ready(e *discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

func (s Stripper) endpoints(to []index.Endpoint, e *discoveryv1.Endpoint, skip skippedObject) []index.Endpoint {
	name := s.endpointName(e, skip)
	var zone, node index.Symbol
	if (s.Zones || s.Topology) && e.Zone != nil {
		zone = index.NewSymbol(*e.Zone)
	}
	if s.Topology && e.NodeName != nil {
		node = index.NewSymbol(*e.NodeName)
	}
	hints := s.hints(e, to)
	for _, text := range e.Addresses {
		if a, ok := address(text, skip); ok {
			to = append(to, index.Endpoint{Addr: a, Name: name, Zone: zone, Node: node, Hints: hints})
		}
	}
	return to
}

// endpointName returns the label of an endpoint, or "" if its address is to be the label. The label may be in the memory of the
// object.
func (s Stripper) endpointName(e *discoveryv1.Endpoint, skip skippedObject) string {
	if e.Hostname != nil && *e.Hostname != "" {
		if name := strings.ToLower(*e.Hostname); isLabel(name) {
			return name
		}
		skip.part("hostname", fmt.Sprintf("%q is not a DNS label", *e.Hostname))
	}
	// A pod's name may be longer than a label, or have dots: then the address is used.
	if s.EndpointPodNames && e.TargetRef != nil && isLabel(e.TargetRef.Name) {
		return e.TargetRef.Name
	}
	return ""
}
