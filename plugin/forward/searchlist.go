package forward

import (
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// mayTry reports whether an upstream may try all candidates of a client's search list: none of them matches another stanza
// or plugin of the server block. The list may be empty; nil is none.
func (f *Forward) mayTry(name string, list []byte) bool {
	if list == nil || f.shared {
		return false
	}
	suffixes, ok := searchlist.ParseSuffixes(list)
	if !ok || len(suffixes) == 0 {
		return ok
	}
	base := searchlist.Base(strings.ToLower(name), suffixes[0])
	if base == "" {
		return false
	}
	for _, suffix := range suffixes { // a candidate that is too long for a name is not queried, and does no harm here
		if candidate := base + suffix; !f.matches(candidate) ||
			slices.ContainsFunc(f.before, func(other *Forward) bool { return other.matches(candidate) }) {
			return false
		}
	}
	return true
}
