package fastpath

import (
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// Searcher is a plugin that answers some names as the search list of who asks has it.
type Searcher interface {
	// SearchZones returns the zones in which such names are, normalized.
	SearchZones() []string
	// SearchesOn returns what tells the lists of who asks a server, given its address.
	SearchesOn(server string) Searches
}

// Searches tells by which search list a name is answered.
type Searches interface {
	// Search returns the list for a name, in wire form and lower case, and an address that asks for it.
	Search(from netip.Addr, name []byte) Search
}

// Search is by which list a name is answered.
type Search struct {
	// Path is the number of the list that the answer is kept under, 0 if the name is answered as it is. If nothing
	// is kept there, the name itself is the first of the list, and if it has data that is the answer.
	Path uint32
	// Count counts an answer for the name as it is; it may be nil.
	Count answers.Counter
	// Client counts an answer that is given to who asks, whatever it is; it may be nil.
	Client answers.Counter
}
