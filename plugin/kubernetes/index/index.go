// Package index maps names to Services and ServiceImports with their endpoints, and addresses to names. Input is stripped
// records from a source; output is immutable entries, which are read without a lock.
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

// Entry is a Service or ServiceImport with its EndpointSlices. It is immutable: an update replaces it by another Entry.
type Entry struct {
	// Service is nil while only its EndpointSlices have arrived.
	Service *Service
	// Slices are the EndpointSlices that belong to it, ordered by name.
	Slices []*Slice

	generation *Generation
	labels     *labelGenerations // nil until it has had manyEndpoints
}

// Generation advances with every change of the Service or its endpoints, and when it is deleted.
func (e *Entry) Generation() *Generation { return e.generation }

// LabelGeneration advances with every change of the endpoints with a label, of the ports of their EndpointSlice or of the Service, and when
// that is deleted. Of an Entry that never had many endpoints, it is Generation.
func (e *Entry) LabelGeneration(label string) *Generation {
	if e.labels == nil {
		return e.generation
	}
	return &e.labels[newHash.addText(label).slot(len(e.labels))]
}

// with returns the entry that replaces this one, with other records.
func (e *Entry) with(s *Service, all []*Slice) *Entry {
	next := *e
	next.Service, next.Slices = s, all
	return &next
}

// advance advances all Generations of the entry.
func (e *Entry) advance() {
	e.generation.advance()
	if e.labels != nil {
		for i := range e.labels {
			e.labels[i].advance()
		}
	}
}

// Ready returns the number of ready endpoint addresses.
func (e *Entry) Ready() (n int) {
	for _, s := range e.Slices {
		n += s.Len()
	}
	return n
}

// Index is the state of the cluster. It is safe for concurrent use; reads take no lock.
type Index struct {
	services   objects
	imports    objects
	namespaces *table[string, struct{}]
	// clusterIPs, externals and endpoints map addresses for PTR records and callers. They lack addresses that only ServiceImports
	// have: those have no PTR records, and the nodes of their endpoints may be in another cluster.
	clusterIPs *table[netip.Addr, *Service]
	externals  *table[netip.Addr, *Service]
	endpoints  addressSlices
	podIPs     *table[netip.Addr, *Pod]
	nodes      nodes
	clusterID  atomic.Pointer[Symbol]

	accessGeneration     Generation
	nameGenerations      [nameGenerations]Generation
	namespaceGenerations [namespaceGenerations]Generation
	addressGenerations   [addressGenerations]Generation

	waits    atomic.Int64 // number of Services with Wait
	writes   atomic.Uint64
	modified atomic.Int64 // time of the last change that can change an answer, Unix time in seconds
	now      func() time.Time

	mu sync.Mutex // held by writers
	// slicesByName and podsByName find the record that an event replaces. Guarded by mu.
	slicesByName map[Name]*Slice
	podsByName   map[Name]*Pod
	podDNS       map[string]*PodDNS // DNS settings that pods share, by their contents
	replaced     [kinds]bool        // kinds that the source has replaced at least once
}

// New returns an empty Index.
func New() *Index {
	return &Index{
		services:     newObjects(func(s *Slice) *string { return &s.Service }),
		imports:      newObjects(func(s *Slice) *string { return &s.Import }),
		namespaces:   newTable[string, struct{}](),
		clusterIPs:   newTable[netip.Addr, *Service](),
		externals:    newTable[netip.Addr, *Service](),
		endpoints:    newAddressSlices(),
		podIPs:       newTable[netip.Addr, *Pod](),
		nodes:        newNodes(),
		now:          time.Now,
		slicesByName: map[Name]*Slice{},
		podsByName:   map[Name]*Pod{},
		podDNS:       map[string]*PodDNS{},
	}
}

// Service returns a Service with its endpoints, or nil. Both names are in lower case.
func (ix *Index) Service(namespace, name string) *Entry { return ix.services.find(namespace, name) }

// Import is Service for ServiceImports.
func (ix *Index) Import(namespace, name string) *Entry { return ix.imports.find(namespace, name) }

// Services returns every Service with its endpoints, ordered by namespace and name.
func (ix *Index) Services() []*Entry { return ix.services.every() }

// Imports is Services for ServiceImports.
func (ix *Index) Imports() []*Entry { return ix.imports.every() }

// HasWaits reports whether a Service has Wait.
func (ix *Index) HasWaits() bool { return ix.waits.Load() > 0 }

// HasNamespace reports whether a namespace exists.
func (ix *Index) HasNamespace(name string) bool {
	_, ok := ix.namespaces.get(name)
	return ok
}

// ServicesByIP returns the Services with a ClusterIP, ordered by namespace and name. There is more than one only while an
// address moves from one Service to another.
func (ix *Index) ServicesByIP(a netip.Addr) []*Service { return inOrder(ix.clusterIPs.all(a)) }

// ServicesByExternalIP returns the Services with an external address, ordered by namespace and name.
func (ix *Index) ServicesByExternalIP(a netip.Addr) []*Service { return inOrder(ix.externals.all(a)) }

// SlicesByIP returns the EndpointSlices of Services with a ready endpoint of that address, ordered by
// namespace and name.
func (ix *Index) SlicesByIP(a netip.Addr) []*Slice {
	return inOrder(ix.endpoints.with(a))
}

// Addresses yields each address of a Service or a ready endpoint, some more than once.
func (ix *Index) Addresses() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a := range ix.clusterIPs.keys() {
			if !yield(a) {
				return
			}
		}
		for _, e := range ix.services.each() {
			for _, s := range e.Slices {
				for i := range s.Len() {
					if !yield(s.addr(i)) {
						return
					}
				}
			}
		}
	}
}

// PodsByIP returns the pods with an address, ordered by namespace and name. Pods in the host network share one.
func (ix *Index) PodsByIP(a netip.Addr) []*Pod { return inOrder(ix.podIPs.all(a)) }

// inOrder returns records ordered by key, each key once. A key occurs twice if a record has the address twice, and while
// a new record replaces an old one.
func inOrder[R interface{ key() Name }](records iter.Seq[R]) []R {
	found := slices.Collect(records)
	slices.SortFunc(found, func(a, b R) int { return a.key().compare(b.key()) })
	return slices.CompactFunc(found, func(a, b R) bool { return a.key() == b.key() })
}

// Writes returns the number of writes, with those that changed nothing.
func (ix *Index) Writes() uint64 { return ix.writes.Load() }

// Modified returns the time of the last change that can change an answer, in Unix time in seconds, 0 before the first
// one. It is the serial of the zones.
func (ix *Index) Modified() int64 { return ix.modified.Load() }

func (s *Service) key() Name { return Name{s.Namespace, s.Name} }
func (s *Slice) key() Name   { return Name{s.Namespace, s.Name} }
func (p *Pod) key() Name     { return Name{p.Namespace, p.Name} }
