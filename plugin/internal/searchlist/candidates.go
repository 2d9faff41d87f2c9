package searchlist

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Base returns the part of a name before a suffix, both fully qualified, in the case of the name: the name that a client
// looks up if its resolver appends the suffix. It returns "" for a name that is not below the suffix.
func Base(name, suffix string) string {
	cut := len(name) - len(suffix)
	if cut < 2 || !strings.EqualFold(name[cut:], suffix) || name[cut-1] != '.' || escaped(name, cut-1) {
		return ""
	}
	return name[:cut]
}

// InZone reports whether a name is a zone or below it, in any case, both fully qualified. It is dns.IsSubDomain without
// allocations.
func InZone(name, zone string) bool {
	return zone == "." || Base(name, zone) != "" || strings.EqualFold(name, zone)
}

// Candidates returns the names that a base makes with each of the suffixes, all fully qualified, in their order. A
// candidate too long for a domain name is "": no resolver queries it.
func Candidates(base string, suffixes []string) []string {
	all := make([]string, len(suffixes), len(suffixes)+1) // expand adds the bare name
	for i, suffix := range suffixes {
		name := base
		if suffix != "." {
			name += suffix
		}
		var packed [wire.MaxName]byte
		if _, err := dns.PackDomainName(name, packed[:], 0, nil, false); err == nil {
			all[i] = name
		}
	}
	return all
}

// RelatedTypes has, for a type of query, the other types whose records also end a search: addresses of the other
// family, and addresses for the types with connection parameters (RFC 9460). Resolvers that query both families end their
// search at such a name; otherwise the records of one service could come from two names.
var RelatedTypes = map[uint16][]uint16{
	dns.TypeA:     {dns.TypeAAAA},
	dns.TypeAAAA:  {dns.TypeA},
	dns.TypeHTTPS: {dns.TypeA, dns.TypeAAAA},
	dns.TypeSVCB:  {dns.TypeA, dns.TypeAAAA},
}

// escaped reports whether the byte at an index of a name in presentation form is escaped by a backslash.
func escaped(name string, at int) bool {
	n := 0
	for at--; at >= 0 && name[at] == '\\'; at-- {
		n++
	}
	return n%2 == 1
}
