package path

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Namespace counts the queries of the pods of a namespace. A nil one counts nothing.
type Namespace struct {
	Name    string
	queries atomic.Uint64
}

// Inc counts one. It implements store.Counter.
func (n *Namespace) Inc() {
	if n != nil {
		n.queries.Add(1)
	}
}

// Queries returns how many were counted.
func (n *Namespace) Queries() uint64 { return n.queries.Load() }

// maxNamespaces bounds the namespaces that are counted apart, since the process started: each is a series of the
// metrics. On a node there are as many at a time as pods at most.
const maxNamespaces = 1 << 10

// Other is the Name of what counts for all namespaces beyond the bound. No namespace can have it.
const Other = "(other)"

// namespaces are those of the process.
var namespaces = struct {
	mu     sync.Mutex
	byName map[string]*Namespace
}{byName: map[string]*Namespace{}}

// namespaceOf returns what counts for a namespace.
func namespaceOf(name string) *Namespace {
	namespaces.mu.Lock()
	defer namespaces.mu.Unlock()
	n := namespaces.byName[name]
	if n == nil && len(namespaces.byName) >= maxNamespaces {
		name = Other
		n = namespaces.byName[name]
	}
	if n == nil {
		n = &Namespace{Name: name}
		namespaces.byName[name] = n
	}
	return n
}

// Namespaces returns what has been counted, by name.
func Namespaces() []*Namespace {
	namespaces.mu.Lock()
	defer namespaces.mu.Unlock()
	return slices.SortedFunc(maps.Values(namespaces.byName), func(a, b *Namespace) int { return strings.Compare(a.Name, b.Name) })
}
