package index

import (
	"net/netip"
	"slices"
)

// Every writer publishes the new records first and advances the generations then; see Generation. A
// record that says what the present one says changes nothing: the present one stays.
// A record handed in belongs to the index from then on: it is not changed any more, and not put again
// after it was replaced.

// PutService adds a Service or replaces the one of that name.
func (ix *Index) PutService(s *Service) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.putService(s)
}

// DeleteService removes a Service, if it is there.
func (ix *Index) DeleteService(namespace, name string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.deleteService(Name{namespace, name})
}

// ReplaceServices makes the Services of the index those of all, and no others.
func (ix *Index) ReplaceServices(all []*Service) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.services.replace(all, ix.putService, ix.deleteService)
}

// ServiceRecord returns the Service as it was put, or nil.
func (ix *Index) ServiceRecord(namespace, name string) *Service {
	return ix.Service(namespace, name).record()
}

// PutImport adds a ServiceImport or replaces the one of that name.
func (ix *Index) PutImport(s *Service) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.putImport(s)
}

// DeleteImport removes a ServiceImport, if it is there.
func (ix *Index) DeleteImport(namespace, name string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.deleteImport(Name{namespace, name})
}

// ReplaceImports makes the ServiceImports of the index those of all, and no others.
func (ix *Index) ReplaceImports(all []*Service) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.imports.replace(all, ix.putImport, ix.deleteImport)
}

// ImportRecord returns the ServiceImport as it was put, or nil.
func (ix *Index) ImportRecord(namespace, name string) *Service {
	return ix.Import(namespace, name).record()
}

func (ix *Index) putService(s *Service) {
	e := ix.services.put(s)
	if e == nil {
		return
	}
	old := e.Service
	ix.moveClusterIPs(old, s)
	ix.serviceChanged(s.Namespace, e, old == nil)
	ix.addressesChanged(old, s, e.Slices)
}

func (ix *Index) deleteService(k Name) {
	e := ix.services.delete(k)
	if e == nil {
		return
	}
	ix.moveClusterIPs(e.Service, nil)
	ix.serviceChanged(k.Namespace, e, true)
	ix.addressesChanged(e.Service, nil, e.Slices)
}

func (ix *Index) putImport(s *Service) {
	if e := ix.imports.put(s); e != nil {
		ix.serviceChanged(s.Namespace, e, e.Service == nil)
	}
}

func (ix *Index) deleteImport(k Name) {
	if e := ix.imports.delete(k); e != nil {
		ix.serviceChanged(k.Namespace, e, true)
	}
}

// moveClusterIPs makes the addresses of a Service lead to its new record.
func (ix *Index) moveClusterIPs(old, s *Service) {
	if s != nil {
		for _, a := range s.IPs {
			ix.clusterIPs.add(a, s)
		}
	}
	if old != nil {
		for _, a := range old.IPs {
			ix.clusterIPs.remove(a, func(v *Service) bool { return v == old })
		}
	}
}

// serviceChanged advances the generations that answers about a Service or ServiceImport hang on; nameChanged tells
// that its name came or went.
func (ix *Index) serviceChanged(in string, e *Entry, nameChanged bool) {
	ix.touch()
	e.generation.advance()
	if nameChanged {
		if ns, ok := ix.namespaces.get(in); ok {
			ns.generation.advance()
		}
	}
}

// addressesChanged advances the generations of the addresses that lead, or led, to a Service: its
// own, and those of its endpoints, since an endpoint has a name only under a Service.
func (ix *Index) addressesChanged(old, s *Service, under []*Slice) {
	for _, v := range []*Service{old, s} {
		if v != nil {
			for _, a := range v.IPs {
				ix.AddressGeneration(a).advance()
			}
		}
	}
	if old == nil || s == nil || old.Kind != s.Kind {
		for _, sl := range under {
			ix.endpointsChanged(sl)
		}
	}
}

func (ix *Index) endpointsChanged(s *Slice) {
	if s.named() {
		for i := range s.Endpoints {
			ix.AddressGeneration(s.Endpoints[i].Addr).advance()
		}
	}
}

// named reports whether a slice is of a Service, by which its addresses have names.
func (s *Slice) named() bool { return s != nil && s.Service != "" }

// touch notes that an answer may be another now. The time never goes back: zones whose serial does are
// not transferred. It is part of answers, so it is set before their generations advance.
func (ix *Index) touch() { ix.modified.Store(max(ix.modified.Load(), ix.now().Unix())) }

// PutSlice adds an EndpointSlice or replaces the one of that name.
func (ix *Index) PutSlice(s *Slice) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.putSlice(s)
}

// DeleteSlice removes an EndpointSlice, if it is there.
func (ix *Index) DeleteSlice(namespace, name string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.deleteSlice(Name{namespace, name})
}

// ReplaceSlices makes the EndpointSlices of the index those of all, and no others.
func (ix *Index) ReplaceSlices(all []*Slice) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	keep := make(map[Name]struct{}, len(all))
	for _, s := range all {
		keep[s.key()] = struct{}{}
		ix.putSlice(s)
	}
	for k := range ix.slicesByName {
		if _, ok := keep[k]; !ok {
			ix.deleteSlice(k)
		}
	}
}

// SliceRecord returns the EndpointSlice as it was put, or nil.
func (ix *Index) SliceRecord(namespace, name string) *Slice {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.slicesByName[Name{namespace, name}]
}

func (ix *Index) putSlice(s *Slice) {
	old := ix.slicesByName[s.key()]
	if old != nil && old.Equal(s) {
		return
	}
	if old != nil {
		s.Name = old.Name
	}
	both := [...]objects{ix.services, ix.imports}
	for _, o := range both {
		o.adopt(s) // before readers have it
	}
	ix.slicesByName[s.key()] = s
	var changed []*Entry
	for _, o := range both {
		changed = append(changed, o.link(s))
	}
	ix.moveEndpoints(old, s)
	for _, o := range both {
		if old != nil && o.owner(old) != o.owner(s) {
			changed = append(changed, o.unlink(old))
		}
	}
	ix.slicesChanged(changed, old, s)
}

func (ix *Index) deleteSlice(k Name) {
	old := ix.slicesByName[k]
	if old == nil {
		return
	}
	delete(ix.slicesByName, k)
	changed := []*Entry{ix.services.unlink(old), ix.imports.unlink(old)}
	ix.moveEndpoints(old, nil)
	ix.slicesChanged(changed, old, nil)
}

// moveEndpoints makes the addresses of an EndpointSlice of a Service lead to its new record.
func (ix *Index) moveEndpoints(old, s *Slice) {
	for a, p := range s.places() {
		ix.endpoints.add(a, p)
	}
	for a := range old.places() {
		ix.endpoints.remove(a, func(v place) bool { return v.slice == old })
	}
}

// places returns one place for each address of an EndpointSlice, none if it is not of a Service. Many endpoints may
// have the same address.
func (s *Slice) places() map[netip.Addr]place {
	if !s.named() {
		return nil
	}
	all := make(map[netip.Addr]place, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		p, found := all[e.Addr]
		switch {
		case !found:
			p = place{s, &e.Node}
		case p.node == nil || e.Node == Symbol{} || e.Node == *p.node:
			continue
		case *p.node == Symbol{}:
			p.node = &e.Node
		default:
			p.node = nil
		}
		all[e.Addr] = p
	}
	return all
}

// slicesChanged advances the generations that answers hang on from entries and from the records of a slice; any of
// them may be nil.
func (ix *Index) slicesChanged(entries []*Entry, old, s *Slice) {
	ix.touch()
	for _, e := range entries {
		if e != nil {
			e.generation.advance()
		}
	}
	ix.endpointsChanged(old)
	ix.endpointsChanged(s)
}

// PutNamespace adds a namespace, if it is not there.
func (ix *Index) PutNamespace(name string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.putNamespace(name)
}

// DeleteNamespace removes a namespace, if it is there. Its objects stay until they are deleted,
// without a name.
func (ix *Index) DeleteNamespace(name string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.deleteNamespace(name)
}

// ReplaceNamespaces makes the namespaces of the index those of all, and no others.
func (ix *Index) ReplaceNamespaces(all []string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	keep := make(map[string]struct{}, len(all))
	for _, name := range all {
		keep[name] = struct{}{}
		ix.putNamespace(name)
	}
	for name := range ix.namespaces.each() {
		if _, ok := keep[name]; !ok {
			ix.deleteNamespace(name)
		}
	}
}

// Outdate has every answer made anew: the source knows less than before.
func (ix *Index) Outdate() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.namespacesGeneration.advance()
}

func (ix *Index) putNamespace(name string) {
	if _, ok := ix.namespaces.get(name); ok {
		return
	}
	ix.namespaces.set(name, &namespace{name: name, generation: new(Generation)})
	ix.touch()
	ix.namespacesGeneration.advance()
}

func (ix *Index) deleteNamespace(name string) {
	ns, ok := ix.namespaces.get(name)
	if !ok {
		return
	}
	ix.namespaces.remove(name, func(*namespace) bool { return true })
	ix.touch()
	ns.generation.advance()
	ix.namespacesGeneration.advance()
}

// PutPod adds a pod or replaces the one of that name.
func (ix *Index) PutPod(p *Pod) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.putPod(p)
}

// DeletePod removes a pod, if it is there.
func (ix *Index) DeletePod(namespace, name string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.deletePod(Name{namespace, name})
}

// ReplacePods makes the pods of the index those of all, and no others.
func (ix *Index) ReplacePods(all []*Pod) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	keep := make(map[Name]struct{}, len(all))
	for _, p := range all {
		keep[p.key()] = struct{}{}
		ix.putPod(p)
	}
	for k := range ix.podsByName {
		if _, ok := keep[k]; !ok {
			ix.deletePod(k)
		}
	}
}

// PodRecord returns the pod as it was put, or nil.
func (ix *Index) PodRecord(namespace, name string) *Pod {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.podsByName[Name{namespace, name}]
}

func (ix *Index) putPod(p *Pod) {
	old := ix.podsByName[p.key()]
	if old != nil && old.Equal(p) {
		return
	}
	p.DNS = ix.sharedDNS(p.DNS)
	ix.podsByName[p.key()] = p
	ix.movePod(old, p)
	if old == nil || !slices.Equal(old.IPs, p.IPs) { // labels are in no answer
		ix.podChanged(old, p)
	}
}

func (ix *Index) deletePod(k Name) {
	old := ix.podsByName[k]
	if old == nil {
		return
	}
	delete(ix.podsByName, k)
	ix.movePod(old, nil)
	ix.podChanged(old)
}

func (ix *Index) movePod(old, p *Pod) {
	if p != nil {
		for _, a := range p.IPs {
			ix.podIPs.add(a, p)
		}
	}
	if old != nil {
		for _, a := range old.IPs {
			ix.podIPs.remove(a, func(v *Pod) bool { return v == old })
		}
	}
}

func (ix *Index) podChanged(pods ...*Pod) {
	ix.touch()
	for _, p := range pods {
		if p != nil {
			for _, a := range p.IPs {
				ix.AddressGeneration(a).advance()
			}
		}
	}
}
