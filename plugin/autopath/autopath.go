// Package autopath answers the first name that a client's resolver makes from a search list with the answer of the whole
// list, so that the client need not query the other names. Input is queries and the search lists of clients; output is
// replies with a CNAME to the name that was found. It is a drop-in for CoreDNS's plugin of the same name. The search lists
// of pods are from other packages, through SearchLister and NodeFinder: it imports no other plugin.
package autopath

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// Autopath is the plugin's handler for one server block.
type Autopath struct {
	expand.Expander

	zones []string          // queries for names in them may be expanded; normalized
	lists searchlist.Finder // by client
}

// Name implements plugin.Handler.
func (a *Autopath) Name() string { return pluginName }

// ServeDNS implements plugin.Handler.
func (a *Autopath) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if expand.Nested(ctx) || !expand.Expandable(r) || !a.covers(r.Question[0].Name) {
		return a.pass(ctx, w, r)
	}
	if ok, code, err := a.Resume(ctx, w, r); ok {
		return code, err
	}
	list, reason := a.lists.Find(addressOf(w))
	if trace := explain.From(ctx); trace != nil {
		suffixes, origin := describeList(list, reason)
		trace.Add(pluginName, "search list of %s: %s (%s)", addressOf(w), cmp.Or(strings.Join(suffixes, " "), "none"), origin)
	}
	if wirechain.Result(ctx, r) == nil { // otherwise ServeWire has counted the query
		countClient(metrics.WithServer(ctx), list, reason)
	}
	if list == nil {
		return a.pass(ctx, w, r)
	}
	base := list.Base(r.Question[0].Name)
	if base == "" {
		return a.pass(ctx, w, r)
	}
	return a.Expander.ServeDNS(ctx, w, r, &expand.Question{Base: base, Suffixes: list.Suffixes, ListID: list.ID})
}

// SearchListOf implements explain.SearchListProvider.
func (a *Autopath) SearchListOf(client netip.Addr) (suffixes []string, ndots int, origin string) {
	suffixes, origin = describeList(a.lists.Find(client))
	if pods, ok := a.lists.(interface{ NdotsOf(netip.Addr) int }); ok {
		return suffixes, pods.NdotsOf(client), origin
	}
	return suffixes, searchlist.DefaultNdots, origin
}

// describeList returns the suffixes of a list and their origin, or nil and the reason why there is none.
func describeList(list *searchlist.List, reason searchlist.Unknown) (suffixes []string, origin string) {
	switch {
	case list == nil:
		return nil, "unknown: " + reason.String()
	case list.Namespace == nil:
		return list.Suffixes, "resolv.conf"
	}
	return list.Suffixes, "pods of namespace " + list.Namespace.Name
}

// covers reports whether queries for a name may be expanded.
func (a *Autopath) covers(name string) bool {
	return slices.ContainsFunc(a.zones, func(zone string) bool { return searchlist.InZone(name, zone) })
}

// pass sends a query to the next plugin without expanding it. The queries of later plugins, such as for the target of an
// ExternalName, are not from the client's resolver: they are not expanded either, so that their answers are the same for
// all clients.
func (a *Autopath) pass(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	return plugin.NextOrFailure(pluginName, a.Next, expand.Nest(ctx), w, r)
}

// addressOf returns the address of the client, the zero Addr if it has none.
func addressOf(w dns.ResponseWriter) netip.Addr {
	state := request.Request{W: w}
	a, _ := netip.ParseAddr(state.IP())
	return a.WithZone("").Unmap()
}

// SearchZones implements block.Searcher.
func (a *Autopath) SearchZones() []string { return a.zones }

// ServerSearches implements block.Searcher.
func (a *Autopath) ServerSearches(server string) block.Searches {
	s := &searches{lists: a.lists, first: a.Metrics.First(server)}
	for reason := searchlist.Known + 1; reason < searchlist.Reasons; reason++ {
		s.unknown[reason] = unknownClient(server, reason)
	}
	return s
}

// searches implements block.Searches. Search allocates nothing.
type searches struct {
	lists   searchlist.Finder
	first   store.Counter
	unknown [searchlist.Reasons]prometheus.Counter
}

// Search implements block.Searches.
func (s *searches) Search(from netip.Addr, name []byte) block.Search {
	list, reason := s.lists.Find(from)
	switch {
	case list == nil:
		return block.Search{Count: s.unknown[reason]}
	case !list.Expands(name):
		return block.Search{Client: list.Namespace}
	}
	return block.Search{List: list.ID, Count: s.first, Client: list.Namespace}
}

// ListOf implements block.Searches.
func (s *searches) ListOf(client netip.Addr) uint32 {
	if list, _ := s.lists.Find(client); list != nil {
		return list.ID
	}
	return 0
}
