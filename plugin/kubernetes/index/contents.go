package index

import (
	"iter"
	"maps"
	"slices"
)

// Contents are all records of an index. Records passed to Restore belong to the index afterwards.
type Contents struct {
	Services, Imports iter.Seq[*Service]
	Slices            iter.Seq[*Slice]
	Namespaces        iter.Seq[string]
	Pods              iter.Seq[*Pod]
	Nodes             iter.Seq[*Node]
	ClusterID         Symbol
}

// kind is a kind of records that is replaced at once.
type kind uint8

const (
	serviceKind kind = iota
	importKind
	sliceKind
	namespaceKind
	podKind
	nodeKind
	clusterIDKind
	kinds
)

// Contents returns the records. They are read without a lock: records that are put, replaced or deleted while a sequence is read
// may or may not be in it. Pods without an address are left out.
func (ix *Index) Contents() Contents {
	return Contents{
		Services:   ix.services.records(),
		Imports:    ix.imports.records(),
		Slices:     ix.slices(),
		Namespaces: ix.namespaces.keys(),
		Pods: func(yield func(*Pod) bool) {
			for a, p := range ix.podIPs.each() {
				if a == p.IPs[0] && !yield(p) { // a pod has one value for each of its addresses
					return
				}
			}
		},
		Nodes: func(yield func(*Node) bool) {
			for _, n := range ix.nodes.byName.each() {
				if !yield(n) {
					return
				}
			}
		},
		ClusterID: ix.ClusterID(),
	}
}

// records yields the records of existing objects.
func (o objects) records() iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		for _, e := range o.each() {
			if e.Service != nil && !yield(e.Service) {
				return
			}
		}
	}
}

// slices yields each EndpointSlice once: one that belongs to a Service and to a ServiceImport is in two entries.
func (ix *Index) slices() iter.Seq[*Slice] {
	return func(yield func(*Slice) bool) {
		for _, e := range ix.services.each() {
			for _, s := range e.Slices {
				if !yield(s) {
					return
				}
			}
		}
		for _, e := range ix.imports.each() {
			for _, s := range e.Slices {
				if !s.ofService() && !yield(s) {
					return
				}
			}
		}
	}
}

// Restore puts records of an earlier time. It leaves out the kinds that the source has replaced already, since the index has
// newer records of them; the first Replace of another kind removes its restored records.
func (ix *Index) Restore(c Contents) {
	ix.write(func() {
		restore(ix, nodeKind, c.Nodes, ix.putNode)
		if !ix.replaced[clusterIDKind] {
			ix.setClusterID(c.ClusterID)
		}
		if !ix.replaced[sliceKind] {
			endpoints := 0
			for s := range c.Slices {
				endpoints += s.Len()
			}
			ix.endpoints.reserve(ix.endpoints.size + endpoints)
		}
		restore(ix, sliceKind, c.Slices, ix.putSlice)
		restore(ix, podKind, c.Pods, ix.putPod)
		restore(ix, serviceKind, c.Services, ix.putService)
		restore(ix, importKind, c.Imports, ix.putImport)
		if !ix.replaced[namespaceKind] {
			ix.replaceNamespaces(slices.Collect(c.Namespaces)) // one pass over the objects for all of them
		}
	})
}

// DropRestored deletes the records of each kind that the source has never replaced.
func (ix *Index) DropRestored() {
	ix.write(func() {
		drop(ix, serviceKind, ix.services.keys(), ix.deleteService)
		drop(ix, importKind, ix.imports.keys(), ix.deleteImport)
		drop(ix, sliceKind, maps.Keys(ix.slicesByName), ix.deleteSlice)
		drop(ix, podKind, maps.Keys(ix.podsByName), ix.deletePod)
		drop(ix, nodeKind, ix.nodes.byName.keys(), ix.deleteNode)
		if !ix.replaced[clusterIDKind] {
			ix.setClusterID(Symbol{})
		}
		if !ix.replaced[namespaceKind] {
			ix.replaceNamespaces(nil)
		}
	})
}

func drop[K any](ix *Index, k kind, keys iter.Seq[K], del func(K)) {
	if ix.replaced[k] {
		return
	}
	for key := range keys {
		del(key)
	}
}

func restore[R any](ix *Index, k kind, all iter.Seq[R], put func(R)) {
	if ix.replaced[k] {
		return
	}
	for r := range all {
		put(r)
	}
}
