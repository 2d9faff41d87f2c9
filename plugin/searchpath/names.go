package searchpath

import (
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// labelSearch is the label between the looked-up name and the namespace.
const labelSearch = "search"

// maxLabel is the max length of a label in bytes, RFC 1035 section 2.3.4.
const maxLabel = 63

// nameKind is the kind of a name under the suffix.
type nameKind int

const (
	// invalid names are not of the grammar: neither they nor names below them exist.
	invalid nameKind = iota
	// empty names have no records, and search names are below them: empty non-terminals, RFC 8020 section 2.
	empty
	// apex is the suffix itself.
	apex
	// unknownSchema names have an unknown version of the search path.
	unknownSchema
	// search names are of the grammar, with all of its parts.
	search
)

// searchName has the parts of a search name, in lower case.
type searchName struct {
	base      string // the name that the client looks up, fully qualified
	schema    string // the version; empty for a name without one
	namespace string
	zone      string // of the cluster, fully qualified
}

// grammar is that of the names under one suffix:
//
//	<base> . [<schema> .] search . <namespace> . <zone> . <suffix>
//
// A name is parsed from the right: the suffix, a zone, one label that is the namespace, the label search. If zones are
// suffixes of each other, the longest one matches. The label before search is a schema if it is v and digits. The base
// may have any labels, also search and those of a schema.
type grammar struct {
	suffix  string       // fully qualified, in lower case
	zones   plugin.Zones // likewise
	schemas []schema     // the known versions
}

// contains reports whether a fully qualified name, in any case, is the suffix or under it.
func (g *grammar) contains(name string) bool { return dns.IsSubDomain(g.suffix, name) }

// parse parses a fully qualified name under the suffix. For an unknown schema, the schema is set.
func (g *grammar) parse(name string) (searchName, nameKind) {
	rest := strings.ToLower(name[:len(name)-len(g.suffix)])
	if rest == "" {
		return searchName{}, apex
	}
	zone := g.zones.Matches(rest)
	if zone == "" {
		return searchName{}, g.aboveZone(rest)
	}
	labels := dns.SplitDomainName(rest[:len(rest)-len(zone)]) // dots inside of a label stay escaped
	if len(labels) > 0 && !isNamespace(labels[len(labels)-1]) {
		return searchName{}, invalid
	}
	if len(labels) < 2 {
		return searchName{}, empty
	}
	n := searchName{zone: zone, namespace: labels[len(labels)-1]}
	if labels[len(labels)-2] != labelSearch {
		return searchName{}, invalid
	}
	return g.parseBase(n, labels[:len(labels)-2])
}

// parseBase parses the labels before the label search.
func (g *grammar) parseBase(n searchName, labels []string) (searchName, nameKind) {
	if len(labels) > 0 && isSchema(labels[len(labels)-1]) {
		n.schema, labels = labels[len(labels)-1], labels[:len(labels)-1]
	}
	if g.schema(n.schema) == nil {
		return n, unknownSchema
	}
	if len(labels) == 0 {
		return n, empty
	}
	if n.base = strings.Join(labels, ".") + "."; g.contains(n.base) {
		return searchName{}, invalid // the resolver has appended the suffix to a search name, whose answer it has received before
	}
	return n, search
}

// aboveZone returns the kind of a name that is in no zone.
func (g *grammar) aboveZone(name string) nameKind {
	for _, zone := range g.zones {
		if dns.IsSubDomain(name, zone) {
			return empty
		}
	}
	return invalid
}

// schema returns the schema with a label, which is empty for names without one, or nil.
func (g *grammar) schema(label string) *schema {
	for i := range g.schemas {
		if s := &g.schemas[i]; label == s.label || label == "" && s.unversioned {
			return s
		}
	}
	return nil
}

// isSchema reports whether a label in lower case is a version of the search path: v and digits.
func isSchema(label string) bool {
	digits, ok := strings.CutPrefix(label, "v")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// isNamespace reports whether a label in lower case can be the name of a namespace: letters, digits and, not at its
// ends, hyphens (RFC 1123 section 2.1).
func isNamespace(label string) bool {
	for i := range len(label) {
		c := label[i]
		if !isLetterOrDigit(c) && (c != '-' || i == 0 || i == len(label)-1) {
			return false
		}
	}
	return label != "" && len(label) <= maxLabel
}

func isLetterOrDigit(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
