package searchlist

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Namespace counts the queries of the pods of a namespace. A nil Namespace counts nothing.
type Namespace struct {
	Name    string
	queries atomic.Uint64
}

// Inc counts a query. It implements store.Counter.
func (n *Namespace) Inc() {
	if n != nil {
		n.queries.Add(1)
	}
}

// Queries returns the number of queries counted.
func (n *Namespace) Queries() uint64 { return n.queries.Load() }

// maxNamespaces bounds the namespaces that have a counter of their own since the process started: each is a series of
// the metrics. A node runs pods of fewer namespaces at a time.
const maxNamespaces = 1 << 10

// otherNamespace is the Name of the counter of all namespaces beyond maxNamespaces. It is not a valid namespace.
const otherNamespace = "(other)"

// namespaces has the counters of the process.
var namespaces = struct {
	mu     sync.Mutex
	byName map[string]*Namespace
}{byName: map[string]*Namespace{}}

// namespaceOf returns the counter of a namespace.
func namespaceOf(name string) *Namespace {
	namespaces.mu.Lock()
	defer namespaces.mu.Unlock()
	n := namespaces.byName[name]
	if n == nil && len(namespaces.byName) >= maxNamespaces {
		name = otherNamespace
		n = namespaces.byName[name]
	}
	if n == nil {
		n = &Namespace{Name: name}
		namespaces.byName[name] = n
	}
	return n
}

// Namespaces returns the counters, sorted by name.
func Namespaces() []*Namespace {
	namespaces.mu.Lock()
	defer namespaces.mu.Unlock()
	return slices.SortedFunc(maps.Values(namespaces.byName), func(a, b *Namespace) int { return strings.Compare(a.Name, b.Name) })
}
