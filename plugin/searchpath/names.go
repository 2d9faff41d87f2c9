package searchpath

import (
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// labelSearch stands between what a client has looked up and its namespace.
const labelSearch = "search"

// maxLabel is the greatest length of a label in bytes, RFC 1035 section 2.3.4.
const maxLabel = 63

// meaning is what a name under the suffix stands for.
type meaning int

const (
	// foreign is outside of the grammar: no such name exists, and none below it.
	foreign meaning = iota
	// above has no records, and search names are below it: an empty non-terminal, RFC 8020 section 2.
	above
	// apex is the suffix itself.
	apex
	// unknownSchema asks for a version of the search path that is not known.
	unknownSchema
	// lookup is a search name.
	lookup
)

// searchName is a search name, taken apart. All is in lower case.
type searchName struct {
	base      string // what the client has looked up, fully qualified
	schema    string // the version; empty where the name has none
	namespace string
	zone      string // of the cluster, fully qualified
}

// grammar knows the names under one suffix:
//
//	<base> . [<schema> .] search . <namespace> . <zone> . <suffix>
//
// A name is read from the right, where all is known: the suffix, a zone, one label that is the namespace, the label
// search. Of zones that are suffixes of each other the longest counts. A label v and digits next to search is a
// schema, whatever is left of it. So the base may have any labels, these among them.
type grammar struct {
	suffix  string       // fully qualified, in lower case
	zones   plugin.Zones // likewise
	schemas []schema     // those that are known; the first is that of names without one
}

// contains reports whether a fully qualified name, in any case, is the suffix or under it.
func (g *grammar) contains(name string) bool { return dns.IsSubDomain(g.suffix, name) }

// parse takes a fully qualified name under the suffix apart. Of a name with an unknown schema, the schema is set.
func (g *grammar) parse(name string) (searchName, meaning) {
	rest := strings.ToLower(name[:len(name)-len(g.suffix)])
	if rest == "" {
		return searchName{}, apex
	}
	zone := g.zones.Matches(rest)
	if zone == "" {
		return searchName{}, g.aboveZone(rest)
	}
	labels := labelsOf(rest[:len(rest)-len(zone)])
	if len(labels) > 0 && !isNamespace(labels[len(labels)-1]) {
		return searchName{}, foreign
	}
	if len(labels) < 2 {
		return searchName{}, above
	}
	n := searchName{zone: zone, namespace: labels[len(labels)-1]}
	if labels[len(labels)-2] != labelSearch {
		return searchName{}, foreign
	}
	return g.parseBase(n, labels[:len(labels)-2])
}

// parseBase takes in what is left of the label search.
func (g *grammar) parseBase(n searchName, labels []string) (searchName, meaning) {
	if len(labels) > 0 && isSchema(labels[len(labels)-1]) {
		n.schema, labels = labels[len(labels)-1], labels[:len(labels)-1]
	}
	if g.schema(n.schema) == nil {
		return n, unknownSchema
	}
	if len(labels) == 0 {
		return n, above
	}
	if n.base = strings.Join(labels, ".") + "."; g.contains(n.base) {
		return searchName{}, foreign // a search name's own search name: the base has had its answer
	}
	return n, lookup
}

// aboveZone returns what a name outside of all zones is.
func (g *grammar) aboveZone(name string) meaning {
	for _, zone := range g.zones {
		if dns.IsSubDomain(name, zone) {
			return above
		}
	}
	return foreign
}

// schema returns the schema with a label, that of names without one if it is empty, or nil.
func (g *grammar) schema(label string) *schema {
	for i := range g.schemas {
		if s := &g.schemas[i]; label == s.label || label == "" && s.unversioned {
			return s
		}
	}
	return nil
}

// labelsOf returns the labels of a name. Dots that are part of a label are escaped.
func labelsOf(name string) []string {
	if name == "" {
		return nil
	}
	return dns.SplitDomainName(name)
}

// isSchema reports whether a label in lower case is the version of a search path: v and digits.
func isSchema(label string) bool {
	digits, ok := strings.CutPrefix(label, "v")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// isNamespace reports whether a label in lower case is the name of a namespace: letters, digits and hyphens, the
// latter neither first nor last (RFC 1123 section 2.1).
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
