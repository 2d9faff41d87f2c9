package forward

import (
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// listOf returns the search list of a client's query, which may be empty, if an upstream may try all of its candidates:
// none of them matches another stanza or plugin of the server block.
func (f *Forward) listOf(clients *dns.Msg) (list []byte, ok bool) {
	if list, ok = searchlist.OptionOf(clients); !ok || f.shared {
		return nil, false
	}
	suffixes, ok := searchlist.ParseSuffixes(list)
	if !ok || len(suffixes) == 0 {
		return list, ok
	}
	base := searchlist.Base(strings.ToLower(clients.Question[0].Name), suffixes[0])
	if base == "" {
		return nil, false
	}
	for _, suffix := range suffixes { // a candidate that is too long for a name is not queried, and does no harm here
		if candidate := base + suffix; !f.matches(candidate) ||
			slices.ContainsFunc(f.before, func(other *Forward) bool { return other.matches(candidate) }) {
			return nil, false
		}
	}
	return list, true
}
