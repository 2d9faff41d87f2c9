// Package path is about the search lists of pods: which one the kubelet gives a pod, and which one the client
// with an address has. In go records of pods; out come lists of suffixes, or why there is none. It does not ask
// anything, nor does it know what an answer is.
package path

import (
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// Path is a search list. An ID never means another list, so that answers may be kept by it.
type Path struct {
	ID uint32 // from 1
	// Suffixes are fully qualified, in lower case and in order.
	Suffixes []string
	// Namespace is that of the pods which have the list, nil if it is not the list of pods.
	Namespace *Namespace

	first []byte // the first of them in wire form
}

// First returns the first suffix.
func (p *Path) First() string { return p.Suffixes[0] }

// Expands reports whether a name, in wire form and lower case, is one that the resolver of a client has made with
// the first suffix: it is below that. What comes after the name's root label does not count.
func (p *Path) Expands(name []byte) bool {
	for at := 0; name[at] != 0; {
		at += 1 + int(name[at])
		if rest := name[at:]; len(rest) >= len(p.first) && string(rest[:len(p.first)]) == string(p.first) {
			return true
		}
	}
	return false
}

// Base returns what the client has looked up, given a fully qualified name that is below the first suffix; "" if
// it is not. The case of the name stays.
func (p *Path) Base(name string) string {
	first := p.First()
	cut := len(name) - len(first)
	if cut < 2 || !strings.EqualFold(name[cut:], first) || name[cut-1] != '.' || escaped(name, cut-1) {
		return ""
	}
	return name[:cut]
}

// escaped reports whether the byte at a place is not what it stands for, since backslashes are before it.
func escaped(name string, at int) bool {
	n := 0
	for at--; at >= 0 && name[at] == '\\'; at-- {
		n++
	}
	return n%2 == 1
}

// maxPaths is how many lists are told apart at one time. A cluster has as many as namespaces, and some of pods
// with their own.
const maxPaths = 1 << 16

// paths are the lists of the process.
var paths = struct {
	mu     sync.Mutex
	byText map[string]*Path
	last   uint32
}{byText: map[string]*Path{}}

// New returns the Path of a list of fully qualified names in lower case, nil if it is empty or the first of them is
// no name, or the root: then a client asks for the bare name first.
func New(suffixes []string) *Path { return newPath(nil, suffixes) }

func newPath(namespace *Namespace, suffixes []string) *Path {
	if len(suffixes) == 0 || suffixes[0] == "." {
		return nil
	}
	text := strings.Join(suffixes, " ")
	if namespace != nil {
		text += "\x00" + namespace.Name
	}
	paths.mu.Lock()
	defer paths.mu.Unlock()
	if p, ok := paths.byText[text]; ok {
		return p
	}
	buf := make([]byte, 255)
	n, err := dns.PackDomainName(suffixes[0], buf, 0, nil, false)
	if err != nil {
		return nil
	}
	if len(paths.byText) >= maxPaths {
		clear(paths.byText) // those in use keep their IDs, and may get further ones
	}
	paths.last++
	p := &Path{ID: paths.last, Suffixes: slices.Clone(suffixes), Namespace: namespace, first: slices.Clone(buf[:n])}
	paths.byText[text] = p
	return p
}
