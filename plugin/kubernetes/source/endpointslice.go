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
func (s Stripper) Slice(o *discoveryv1.EndpointSlice) *index.Slice { return s.SliceOr(o, nil) }

// SliceOr is Slice, except that it returns present, which may be nil, if the record is equal.
func (s Stripper) SliceOr(o *discoveryv1.EndpointSlice, present *index.Slice) *index.Slice {
	return s.slice(o, ready, present)
}

// NotReady returns the records of the endpoints that Slice leaves out: those that terminate, and those that are not ready for
// another reason. Both are nil if Slice returns nil.
func (s Stripper) NotReady(o *discoveryv1.EndpointSlice) (terminating, others *index.Slice) {
	terminates := func(e *discoveryv1.Endpoint) bool {
		return e.Conditions.Terminating != nil && *e.Conditions.Terminating
	}
	terminating = s.slice(o, func(e *discoveryv1.Endpoint) bool { return !ready(e) && terminates(e) }, nil)
	others = s.slice(o, func(e *discoveryv1.Endpoint) bool { return !ready(e) && !terminates(e) }, nil)
	return terminating, others
}

// slice returns the record of an EndpointSlice with the selected endpoints, or present if that is equal.
func (s Stripper) slice(o *discoveryv1.EndpointSlice, selects func(*discoveryv1.Endpoint) bool, present *index.Slice) *index.Slice {
	if o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	skip := s.skipped.object(EndpointSlices, o.Namespace, o.Name)
	service := s.serviceOf(o)
	imported, cluster := s.importOf(o, skip)
	if service == "" && imported == "" {
		return nil
	}
	scratch := sliceScratch.Get().(*index.Slice)
	defer func() {
		clear(scratch.Endpoints)
		*scratch = index.Slice{Ports: scratch.Ports[:0], Endpoints: scratch.Endpoints[:0]}
		sliceScratch.Put(scratch)
	}()
	*scratch = index.Slice{
		Namespace: o.Namespace, Name: o.Name, Service: service, Import: imported, Cluster: cluster,
		Ports: scratch.Ports[:0], Endpoints: scratch.Endpoints[:0],
	}
	for i := range o.Ports {
		scratch.Ports = append(scratch.Ports, slicePort(&o.Ports[i], skip))
	}
	for i := range o.Endpoints {
		if e := &o.Endpoints[i]; selects(e) {
			scratch.Endpoints = s.endpoints(scratch.Endpoints, e, skip)
		}
	}
	if present != nil && present.Equal(scratch) {
		return present
	}
	r := &index.Slice{
		Namespace: strings.Clone(o.Namespace), Name: strings.Clone(o.Name), Service: strings.Clone(service), Import: strings.Clone(imported), Cluster: cluster,
		Ports: append([]index.Port(nil), scratch.Ports...), Endpoints: scratch.Endpoints,
	}
	r.Pack() // now: all records of a list are in memory before the index has the first
	return r
}

// sliceScratch has records until they are packed.
var sliceScratch = sync.Pool{New: func() any { return new(index.Slice) }}

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
