// Package expand answers a query with the first candidate of a search list that has data, so that the client's resolver does
// not query them one by one. Input is a query, a base and suffixes; output is one reply, which is stored until the validity of
// a candidate's reply ends. Candidates are queried through the server, from the first to the bare name. A client's query and
// the queries for its candidates are messages of the plugin chain or in wire form; the chain continues an expansion that the
// wire form cannot handle. The package does not depend on the source of the list, and imports neither plugins nor Kubernetes.
package expand

import (
	"context"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// Expander expands names for one plugin of a server block.
type Expander struct {
	// Plugin is the name of the plugin, Next the next plugin.
	Plugin string
	Next   plugin.Handler
	// Block is the server block, set by Setup. Answers are stored in its keyspace.
	Block *block.Block
	// Zones are zones, fully qualified, in which one server answers for all names: one query with a search list
	// is for several candidates.
	Zones []string
	// Metrics counts the expansions.
	Metrics *Metrics
	// StoresCandidates is set by Setup if no cache of the block stores Next's replies: the Expander stores them under the
	// names of the candidates.
	StoresCandidates bool
}

// Setup sets Block, and StoresCandidates when the servers start. It is called in the plugin's setup.
func (x *Expander) Setup(c *caddy.Controller) {
	x.Block = block.Of(c)
	c.OnStartup(func() error {
		x.StoresCandidates = x.Block.Config().Handler("cache") == nil
		return nil
	})
}

// Question is a name to expand.
type Question struct {
	// Base is the bare name, fully qualified.
	Base string
	// Suffixes are the suffixes of the candidates before the bare name, fully qualified and in order.
	Suffixes []string
	// ListID is the ID of the search list for the key of the answer, 0 if the name determines the list.
	ListID uint32
}

type nestedKey struct{}

// Nested reports whether a query was sent to answer another one, such as for a candidate. It must not be expanded.
func Nested(ctx context.Context) bool { return ctx.Value(nestedKey{}) != nil }

// Nest returns the context for queries that are sent to answer another one.
func Nest(ctx context.Context) context.Context {
	if Nested(ctx) {
		return ctx
	}
	return context.WithValue(ctx, nestedKey{}, true)
}

// Expandable reports whether a query may be expanded: class IN, no zone transfer, not type DS, without TSIG, and without
// a search list in its OPT record.
func Expandable(r *dns.Msg) bool {
	if r.Opcode != dns.OpcodeQuery || len(r.Question) != 1 || r.Question[0].Qclass != dns.ClassINET || r.IsTsig() != nil {
		return false
	}
	switch r.Question[0].Qtype {
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeDS:
		return false
	}
	return !searchlist.HasOption(r)
}
