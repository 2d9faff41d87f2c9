package index

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// A writer publishes new records before it advances the generations; see Generation. A record equal to the current one
// changes nothing: the current one stays. A record passed to a Put or Replace method belongs to the index: it must not be
// modified any more, nor be put again after it was replaced.

// write calls a function with the writers' lock held.
func (ix *Index) write(f func()) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	defer ix.writes.Add(1)
	f()
}

// replaceKind replaces all records of a kind, with the lock.
func replaceKind[K comparable, R any](ix *Index, kind kind, all []R, key func(R) K, put func(R), current iter.Seq[K], del func(K)) {
	ix.write(func() {
		ix.replaced[kind] = true
		replace(all, key, put, current, del)
	})
}

// replace puts all records, and deletes every current key that none of them has.
func replace[K comparable, R any](all []R, key func(R) K, put func(R), current iter.Seq[K], del func(K)) {
	wanted := make(map[K]struct{}, len(all))
	for _, r := range all {
		wanted[key(r)] = struct{}{}
		put(r)
	}
	for k := range current {
		if _, ok := wanted[k]; !ok {
			del(k)
		}
	}
}

// PutService adds a Service or replaces the one of that name.
func (ix *Index) PutService(s *Service) { ix.write(func() { ix.putService(s) }) }

// DeleteService removes a Service, if it exists.
func (ix *Index) DeleteService(namespace, name string) {
	ix.write(func() { ix.deleteService(Name{namespace, name}) })
}

// ReplaceServices replaces all Services.
func (ix *Index) ReplaceServices(all []*Service) {
	replaceKind(ix, serviceKind, all, (*Service).key, ix.putService, ix.services.keys(), ix.deleteService)
}

// ServiceRecord returns the Service as it was put, or nil.
func (ix *Index) ServiceRecord(namespace, name string) *Service {
	return ix.Service(namespace, name).record()
}

// PutImport adds a ServiceImport or replaces the one of that name.
func (ix *Index) PutImport(s *Service) { ix.write(func() { ix.putImport(s) }) }

// DeleteImport removes a ServiceImport, if it exists.
func (ix *Index) DeleteImport(namespace, name string) {
	ix.write(func() { ix.deleteImport(Name{namespace, name}) })
}

// ReplaceImports replaces all ServiceImports.
func (ix *Index) ReplaceImports(all []*Service) {
	replaceKind(ix, importKind, all, (*Service).key, ix.putImport, ix.imports.keys(), ix.deleteImport)
}

// ImportRecord returns the ServiceImport as it was put, or nil.
func (ix *Index) ImportRecord(namespace, name string) *Service {
	return ix.Import(namespace, name).record()
}

func (ix *Index) putService(s *Service) {
	if e := ix.services.put(s); e != nil {
		ix.countWaits(e.Service, s)
		ix.clusterIPs.move(e.Service.ips(), e.Service, s.ips(), s)
		ix.externals.move(e.Service.externalIPs(), e.Service, s.externalIPs(), s)
		ix.serviceChanged(s.key(), e, e.Service == nil)
		ix.addressesChanged(e, s)
	}
}

func (ix *Index) deleteService(k Name) {
	if e := ix.services.delete(k); e != nil {
		ix.countWaits(e.Service, nil)
		ix.clusterIPs.move(e.Service.ips(), e.Service, nil, nil)
		ix.externals.move(e.Service.externalIPs(), e.Service, nil, nil)
		ix.serviceChanged(k, e, true)
		ix.addressesChanged(e, nil)
	}
}

// countWaits counts the Services with Wait after a change of one of them. old and s may be nil.
func (ix *Index) countWaits(old, s *Service) {
	if old != nil && old.Wait > 0 {
		ix.waits.Add(-1)
	}
	if s != nil && s.Wait > 0 {
		ix.waits.Add(1)
	}
}

func (ix *Index) putImport(s *Service) {
	if e := ix.imports.put(s); e != nil {
		ix.serviceChanged(s.key(), e, e.Service == nil)
	}
}

func (ix *Index) deleteImport(k Name) {
	if e := ix.imports.delete(k); e != nil {
		ix.serviceChanged(k, e, true)
	}
}

// ips returns the addresses of a Service, none of nil.
func (s *Service) ips() []netip.Addr {
	if s == nil {
		return nil
	}
	return s.IPs
}

// externalIPs returns the external addresses of a Service, none of nil.
func (s *Service) externalIPs() []netip.Addr {
	if s == nil || s.External == nil {
		return nil
	}
	return s.External.IPs
}

// serviceChanged advances the generations that answers about a Service or ServiceImport depend on. created is true if it
// was created or deleted.
func (ix *Index) serviceChanged(k Name, e *Entry, created bool) {
	ix.setModified()
	e.advance()
	if created {
		ix.NameGeneration(k.Namespace, k.Name).advance()
	}
}

// addressesChanged advances the generations of the addresses of a Service, given its previous entry: its own addresses,
// and those of its endpoints, since an endpoint has a name only below a Service.
func (ix *Index) addressesChanged(before *Entry, s *Service) {
	old := before.Service
	for _, v := range [...]*Service{old, s} {
		ix.advanceAddresses(v.ips())
		ix.advanceAddresses(v.externalIPs())
	}
	if old == nil || s == nil || old.Kind != s.Kind {
		for _, sl := range before.Slices {
			ix.endpointsChanged(sl)
		}
	}
}

func (ix *Index) advanceAddresses(all []netip.Addr) {
	for _, a := range all {
		ix.AddressGeneration(a).advance()
	}
}

func (ix *Index) endpointsChanged(s *Slice) {
	if s.ofService() {
		for i := range s.Len() {
			ix.AddressGeneration(s.addr(i)).advance()
		}
	}
}

// ofService reports whether a slice belongs to a Service: its addresses have PTR records then.
func (s *Slice) ofService() bool { return s != nil && s.Service != "" }

// setModified sets the time of the last change. The time never goes back, since a zone with a lower serial is not transferred.
// It is part of answers, so it is set before their generations advance.
func (ix *Index) setModified() { ix.modified.Store(max(ix.modified.Load(), ix.now().Unix())) }

// PutSlice adds an EndpointSlice or replaces the one of that name.
func (ix *Index) PutSlice(s *Slice) { ix.write(func() { ix.putSlice(s) }) }

// DeleteSlice removes an EndpointSlice, if it exists.
func (ix *Index) DeleteSlice(namespace, name string) {
	ix.write(func() { ix.deleteSlice(Name{namespace, name}) })
}

// ReplaceSlices replaces all EndpointSlices.
func (ix *Index) ReplaceSlices(all []*Slice) {
	endpoints := 0
	for _, s := range all {
		endpoints += s.Len()
	}
	ix.write(func() { ix.endpoints.reserve(endpoints) })
	replaceKind(ix, sliceKind, all, (*Slice).key, ix.putSlice, maps.Keys(ix.slicesByName), ix.deleteSlice)
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
	s.Pack()
	both := [...]objects{ix.services, ix.imports}
	for _, o := range both {
		o.shareStrings(s) // before readers see it
	}
	ix.slicesByName[s.key()] = s
	var changed []*Entry
	for _, o := range both {
		changed = append(changed, o.link(s))
	}
	ix.endpoints.move(old, s)
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
	ix.endpoints.move(old, nil)
	ix.slicesChanged(changed, old, nil)
}

// slicesChanged advances the generations that depend on entries and on the old and new record of a slice; each of them may
// be nil.
func (ix *Index) slicesChanged(entries []*Entry, old, s *Slice) {
	ix.setModified()
	for _, e := range entries {
		if e != nil {
			e.generation.advance()
		}
	}
	for e, record := range changedEndpoints(old, s) {
		if record.ofService() {
			ix.AddressGeneration(e.Addr).advance()
		}
		for _, entry := range entries {
			if entry != nil && entry.labels != nil {
				entry.LabelGeneration(e.Label()).advance()
			}
		}
	}
}

// changedEndpoints yields the endpoints that only one of two records of an EndpointSlice has, and perhaps others, with the record; each of
// the records may be nil. If the records differ in more than endpoints, it yields all.
func changedEndpoints(old, s *Slice) iter.Seq2[Endpoint, *Slice] {
	return func(yield func(Endpoint, *Slice) bool) {
		var i, j int
		sameBesides := old != nil && s != nil && old.Service == s.Service && old.Import == s.Import && old.Cluster == s.Cluster &&
			slices.Equal(old.Ports, s.Ports)
		for sameBesides && i < old.Len() && j < s.Len() {
			a, b := old.Endpoint(i), s.Endpoint(j)
			switch {
			case a.equal(b):
				i++
				j++
			case i+1 < old.Len() && old.Endpoint(i+1).equal(b): // a was removed
				if i++; !yield(a, old) {
					return
				}
			case j+1 < s.Len() && a.equal(s.Endpoint(j+1)): // b was added
				if j++; !yield(b, s) {
					return
				}
			default:
				i++
				j++
				if !yield(a, old) || !yield(b, s) {
					return
				}
			}
		}
		for ; i < old.Len(); i++ {
			if !yield(old.Endpoint(i), old) {
				return
			}
		}
		for ; j < s.Len(); j++ {
			if !yield(s.Endpoint(j), s) {
				return
			}
		}
	}
}

// PutPod adds a pod or replaces the one of that name.
func (ix *Index) PutPod(p *Pod) { ix.write(func() { ix.putPod(p) }) }

// DeletePod removes a pod, if it exists.
func (ix *Index) DeletePod(namespace, name string) {
	ix.write(func() { ix.deletePod(Name{namespace, name}) })
}

// ReplacePods replaces all pods.
func (ix *Index) ReplacePods(all []*Pod) {
	replaceKind(ix, podKind, all, (*Pod).key, ix.putPod, maps.Keys(ix.podsByName), ix.deletePod)
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
	ix.podIPs.move(old.ips(), old, p.ips(), p)
	if old == nil || !slices.Equal(old.IPs, p.IPs) { // no answer has the other fields
		ix.podChanged(old, p)
	}
}

func (ix *Index) deletePod(k Name) {
	if old := ix.podsByName[k]; old != nil {
		delete(ix.podsByName, k)
		ix.podIPs.move(old.ips(), old, nil, nil)
		ix.podChanged(old, nil)
	}
}

// ips returns the addresses of a pod, none of nil.
func (p *Pod) ips() []netip.Addr {
	if p == nil {
		return nil
	}
	return p.IPs
}

func (ix *Index) podChanged(old, p *Pod) {
	ix.setModified()
	ix.advanceAddresses(old.ips())
	ix.advanceAddresses(p.ips())
}
