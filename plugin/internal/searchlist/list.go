package searchlist

import (
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// List is a search list. IDs are not reused, so that answers can be stored by ID.
type List struct {
	ID uint32 // from 1
	// Suffixes are fully qualified, in lower case and in order.
	Suffixes []string
	// Namespace is the namespace of the pods that have the list, nil for a list that is not a pod's.
	Namespace *Namespace

	first []byte // the first suffix in wire form
}

// First returns the first suffix.
func (p *List) First() string { return p.Suffixes[0] }

// Expands reports whether a name, in wire form and lower case, is below the first suffix, that is, whether the
// client's resolver has appended the suffix. Bytes after the name's root label are ignored.
func (p *List) Expands(name []byte) bool {
	for at := 0; name[at] != 0; {
		at += 1 + int(name[at])
		if rest := name[at:]; len(rest) >= len(p.first) && string(rest[:len(p.first)]) == string(p.first) {
			return true
		}
	}
	return false
}

// Base returns the part of a name before the first suffix; see the function Base.
func (p *List) Base(name string) string { return Base(name, p.First()) }

// maxLists bounds the registry. A cluster has about one list per namespace, and some more for pods with a dnsConfig.
const maxLists = 1 << 16

// registry has the lists of the process.
var registry = struct {
	mu     sync.Mutex
	byText map[string]*List
	last   uint32
}{byText: map[string]*List{}}

// New returns the List with these suffixes, fully qualified and in lower case. It returns nil without suffixes, if the
// first suffix is not a name, and if it is the root: then resolvers query the bare name first.
func New(suffixes []string) *List { return newList(nil, suffixes) }

// NewForPods is New for the pods of a namespace. Lists of two namespaces have different IDs.
func NewForPods(namespace string, suffixes []string) *List {
	return newList(namespaceOf(namespace), suffixes)
}

func newList(namespace *Namespace, suffixes []string) *List {
	if len(suffixes) == 0 || suffixes[0] == "." {
		return nil
	}
	text := strings.Join(suffixes, " ")
	if namespace != nil {
		text += "\x00" + namespace.Name
	}
	registry.mu.Lock()
	defer registry.mu.Unlock()
	if p, ok := registry.byText[text]; ok {
		return p
	}
	buf := make([]byte, 255)
	n, err := dns.PackDomainName(suffixes[0], buf, 0, nil, false)
	if err != nil {
		return nil
	}
	if len(registry.byText) >= maxLists {
		clear(registry.byText) // lists in use keep their IDs; the same suffixes may get another ID
	}
	registry.last++
	p := &List{ID: registry.last, Suffixes: slices.Clone(suffixes), Namespace: namespace, first: slices.Clone(buf[:n])}
	registry.byText[text] = p
	return p
}
