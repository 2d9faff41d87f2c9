// Package index holds what is known of the cluster in the form that answers are made from: names to
// Services and ServiceImports with their endpoints, addresses to names. In go stripped records from a source, out come
// entries that never change and are read without a lock.
//
// It is pure Go data: it imports neither client-go nor dns packages.
package index

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Name is the key of a namespaced object.
type Name struct{ Namespace, Name string }

func (n Name) compare(o Name) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// Entry is all that is known under the name of one Service, or one ServiceImport, at one moment. It never
// changes; an update puts another Entry in its place.
type Entry struct {
	// Service is nil while only its EndpointSlices have arrived.
	Service *Service
	// Slices are the EndpointSlices that belong to it, ordered by name.
	Slices []*Slice

	generation *Generation
}

// Generation advances with every change of the Service, of its endpoints, and when it goes.
func (e *Entry) Generation() *Generation { return e.generation }

// Ready returns the number of ready endpoint addresses.
func (e *Entry) Ready() (n int) {
	for _, s := range e.Slices {
		n += len(s.Endpoints)
	}
	return n
}

// place is an EndpointSlice with at least one endpoint of an address.
type place struct {
	slice *Slice
	// node is the name of the node that the endpoints of the address are on, nil if they are on several nodes.
	node *Symbol
}

// namespace is what is known of a namespace that exists.
type namespace struct {
	name       string
	generation *Generation
}

// Index is the state of the cluster. Any number of goroutines may read it while others write;
// writes follow each other.
type Index struct {
	services   objects
	imports    objects
	namespaces *table[string, *namespace]
	// clusterIPs and endpoints lead from an address to what has it, so that PTR needs no search. What only
	// ServiceImports have is not in them: it has no PTR, and the nodes of its endpoints may be another cluster's.
	clusterIPs *table[netip.Addr, *Service]
	endpoints  *table[netip.Addr, place]
	podIPs     *table[netip.Addr, *Pod]
	nodes      nodes
	clusterID  atomic.Pointer[Symbol]

	namespacesGeneration Generation
	addressGenerations   [addressGenerations]Generation

	modified atomic.Int64 // Unix time in seconds of the last change that an answer can show
	now      func() time.Time

	mu sync.Mutex // held by writers
	// slicesByName and podsByName lead to the record that an event replaces. Guarded by mu.
	slicesByName map[Name]*Slice
	podsByName   map[Name]*Pod
	podDNS       map[string]*PodDNS // what pods say of their resolvers, by that
}

// addressGenerations is the number of Generations that all addresses share by hash, a power of two.
const addressGenerations = 256

// New returns an empty Index.
func New() *Index {
	return &Index{
		services:     newObjects(func(s *Slice) *string { return &s.Service }),
		imports:      newObjects(func(s *Slice) *string { return &s.Import }),
		namespaces:   newTable[string, *namespace](),
		clusterIPs:   newTable[netip.Addr, *Service](),
		endpoints:    newTable[netip.Addr, place](),
		podIPs:       newTable[netip.Addr, *Pod](),
		nodes:        newNodes(),
		now:          time.Now,
		slicesByName: map[Name]*Slice{},
		podsByName:   map[Name]*Pod{},
		podDNS:       map[string]*PodDNS{},
	}
}

// Service returns what is known of a Service, or nil where there is none. Both names are in lower
// case.
func (ix *Index) Service(namespace, name string) *Entry { return ix.services.find(namespace, name) }

// Import is Service for ServiceImports.
func (ix *Index) Import(namespace, name string) *Entry { return ix.imports.find(namespace, name) }

// Services returns every Service with its endpoints, ordered by namespace and name.
func (ix *Index) Services() []*Entry { return ix.services.every() }

// Imports is Services for ServiceImports.
func (ix *Index) Imports() []*Entry { return ix.imports.every() }

// HasNamespace reports whether a namespace exists.
func (ix *Index) HasNamespace(name string) bool {
	_, ok := ix.namespaces.get(name)
	return ok
}

// NamespaceGeneration advances with every Service or ServiceImport that is created or deleted in the namespace, and
// when the namespace goes. It is nil where the namespace does not exist.
func (ix *Index) NamespaceGeneration(name string) *Generation {
	ns, ok := ix.namespaces.get(name)
	if !ok {
		return nil
	}
	return ns.generation
}

// NamespacesGeneration advances with every namespace that is created or deleted, and with Outdate.
func (ix *Index) NamespacesGeneration() *Generation { return &ix.namespacesGeneration }

// ServicesByIP returns the Services with a ClusterIP, ordered by namespace and name. It is one at
// most, but for moments in which an address passes from one Service to another.
func (ix *Index) ServicesByIP(a netip.Addr) []*Service {
	return inOrder(ix.clusterIPs.all(a))
}

// SlicesByIP returns the EndpointSlices of Services with a ready endpoint of that address, ordered by
// namespace and name.
func (ix *Index) SlicesByIP(a netip.Addr) []*Slice {
	return inOrder(func(yield func(*Slice) bool) {
		for at := range ix.endpoints.all(a) {
			if !yield(at.slice) {
				return
			}
		}
	})
}

// Addresses yields each address that a Service or a ready endpoint has, some more than once.
func (ix *Index) Addresses() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a := range ix.clusterIPs.each() {
			if !yield(a) {
				return
			}
		}
		for a := range ix.endpoints.each() {
			if !yield(a) {
				return
			}
		}
	}
}

// PodsByIP returns the pods with an address, ordered by namespace and name: those of the host
// network share one.
func (ix *Index) PodsByIP(a netip.Addr) []*Pod {
	return inOrder(ix.podIPs.all(a))
}

// inOrder returns records ordered by key, each key once. A key is there twice when a record has the
// address twice, and for the moment in which a record takes the place of another.
func inOrder[R interface{ key() Name }](records iter.Seq[R]) []R {
	found := slices.Collect(records)
	slices.SortFunc(found, func(a, b R) int { return a.key().compare(b.key()) })
	return slices.CompactFunc(found, func(a, b R) bool { return a.key() == b.key() })
}

// AddressGeneration advances with every change of what an address leads to. Addresses share a few
// hundred of them, so it may advance without one.
func (ix *Index) AddressGeneration(a netip.Addr) *Generation {
	h := uint32(2166136261)
	for _, b := range a.As16() {
		h = (h ^ uint32(b)) * 16777619
	}
	return &ix.addressGenerations[(h^h>>16)%addressGenerations]
}

// Modified returns the time of the last change that an answer can show, 0 before the first.
// It is the serial of the zones: Unix time in seconds.
func (ix *Index) Modified() int64 { return ix.modified.Load() }

func (s *Service) key() Name { return Name{s.Namespace, s.Name} }
func (s *Slice) key() Name   { return Name{s.Namespace, s.Name} }
func (p *Pod) key() Name     { return Name{p.Namespace, p.Name} }
