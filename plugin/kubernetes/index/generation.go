package index

import (
	"net/netip"
	"sync/atomic"
)

// Generation is a counter that advances with every change of the records that an answer is made from. A writer publishes
// new records before it advances the counter, and both before the event that brought the change counts as processed.
//
// A stored answer is never older than the last processed event, if its reader (1) finds the Generation, (2) loads the
// number, (3) looks up the Generation again and continues only if it is the same one, and (4) makes the answer from the
// records of the second lookup: an object that was deleted and created again has another Generation, and the old one
// never advances again.
//
// An answer depends on AccessGeneration and on
//   - the Generation of the Entry of an existing Service or ServiceImport in an existing namespace, or its LabelGeneration if only endpoints
//     with one label matter,
//   - NameGeneration for the name of one that does not exist, or whose namespace does not,
//   - NamespaceGeneration if only the existence of the namespace matters,
//   - AddressGeneration for a PTR record, and for the pods with an address,
//   - NodesGeneration if the locations of endpoints and caller matter.
//
// All Generations but those of Entries exist as long as the Index: names, namespaces and addresses share a fixed number of them
// by hash, so that each also advances with changes of other names, namespaces or addresses.
type Generation struct {
	n       atomic.Uint64
	watcher atomic.Pointer[watcher]
}

// watcher is called after each change.
type watcher struct{ advanced interface{ Advanced() } }

// Load returns the current number.
func (g *Generation) Load() uint64 { return g.n.Load() }

// Watch sets the watcher, whose Advanced is called after each change, unless there is one already. It returns the watcher.
func (g *Generation) Watch(w interface{ Advanced() }) interface{ Advanced() } {
	if set := g.watcher.Load(); set != nil {
		return set.advanced
	}
	g.watcher.CompareAndSwap(nil, &watcher{w})
	return g.watcher.Load().advanced
}

func (g *Generation) advance() {
	g.n.Add(1)
	if w := g.watcher.Load(); w != nil {
		w.advanced.Advanced()
	}
}

// The numbers of shared Generations, powers of two. Each has 16 bytes; the fewer there are, the more sessions are notified
// although their answers did not change.
const (
	nameGenerations      = 8192
	namespaceGenerations = 1024
	addressGenerations   = 4096
)

// labelGenerations are those of the labels of an Entry's endpoints, by hash. An Entry has them from manyEndpoints on: with each change,
// all of its stored answers would end.
type labelGenerations [1024]Generation

const manyEndpoints = 500

// hash is a hash of text (FNV-1a).
type hash uint32

const newHash hash = 2166136261

func (h hash) add(b byte) hash { return (h ^ hash(b)) * 16777619 }

func (h hash) addText(s string) hash {
	for i := range len(s) {
		h = h.add(s[i])
	}
	return h
}

// slot returns an index into an array of a length that is a power of two.
func (h hash) slot(length int) int { return int(h^h>>16) & (length - 1) }

// AccessGeneration advances with Outdate. Every answer depends on it.
func (ix *Index) AccessGeneration() *Generation { return &ix.accessGeneration }

// NameGeneration advances when a Service or ServiceImport of that name is created or deleted in the namespace, and when the
// namespace is created or deleted while it has an object of that name.
func (ix *Index) NameGeneration(namespace, name string) *Generation {
	h := newHash.addText(namespace).add('/').addText(name)
	return &ix.nameGenerations[h.slot(nameGenerations)]
}

// NamespaceGeneration advances when the namespace is created or deleted.
func (ix *Index) NamespaceGeneration(name string) *Generation {
	return &ix.namespaceGenerations[newHash.addText(name).slot(namespaceGenerations)]
}

// AddressGeneration advances with every change of the Services, endpoints and pods that have the address, and when the
// namespace of such a Service is created or deleted.
func (ix *Index) AddressGeneration(a netip.Addr) *Generation {
	h := newHash
	for _, b := range a.As16() {
		h = h.add(b)
	}
	return &ix.addressGenerations[h.slot(addressGenerations)]
}
