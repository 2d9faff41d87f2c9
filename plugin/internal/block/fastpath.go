package block

import (
	"net"
	"net/netip"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// FastPath answers UDP queries from the store before CoreDNS does, and bounds the queries in progress. The plugin
// fastpath registers itself; without it CoreDNS serves alone.
type FastPath interface {
	// Announce is called when a Corefile is being read; its servers start some time later, if at all.
	Announce(conf *Configuration)
	// Serve is called when a server of a configuration begins to serve UDP.
	Serve(conf *Configuration, server *dnsserver.Server)
	// Retain is called when a configuration stays because the next one could not start.
	Retain(conf *Configuration)
	// Leave ends the listeners of the configurations that end, except those that another configuration takes over,
	// and waits for the queries that they have received. During a reload it waits for the other configuration first.
	Leave(ends func(*Configuration) bool, reloading bool)
	// StartBackground is the function of that name.
	StartBackground(client netip.Addr) (end func(), ok bool)
}

var fastPath FastPath = none{}

// Register sets the fast path of the process. It is called in init.
func Register(f FastPath) { fastPath = f }

// MaxBackground bounds the queries that plugins send to upstreams while no client waits for the answer.
const MaxBackground = 256

// StartBackground reserves a place for a query that a plugin sends in the background on behalf of a client, such as for
// an expired answer. It fails if all places, or the client's share of them, are in use. The caller calls end when the
// query has ended.
func StartBackground(client net.Addr) (end func(), ok bool) {
	return fastPath.StartBackground(hostOf(client))
}

// hostOf returns the address of a client without its port, the zero Addr if it has none.
func hostOf(client net.Addr) netip.Addr {
	switch a := client.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// none is no fast path.
type none struct{}

func (none) Announce(*Configuration)                 {}
func (none) Serve(*Configuration, *dnsserver.Server) {}
func (none) Retain(*Configuration)                   {}
func (none) Leave(func(*Configuration) bool, bool)   {}
func (none) StartBackground(netip.Addr) (func(), bool) {
	return Background.Start()
}

// Background bounds background queries where they are not a part of the fast path's queue.
var Background = make(semaphore, MaxBackground)

type semaphore chan struct{}

// Start reserves a place. The caller calls end to release it.
func (s semaphore) Start() (end func(), ok bool) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, true
	default:
		return nil, false
	}
}

// Cache is a plugin whose hits and misses the fast path counts.
type Cache interface {
	// Borders returns the zones at which the names covered by the cache begin or end.
	Borders() []string
	// Covers reports whether queries for a name go through the cache.
	Covers(name string) bool
	// Counters returns the cache's counters for a server, given its address.
	Counters(server string) CacheCounters
}

// CacheCounters count the lookups of a cache. Hits has one counter for each answers.Kind.
type CacheCounters struct {
	Requests, Misses prometheus.Counter
	Hits             [2]prometheus.Counter
}

// Searcher is a plugin that expands some names by the search list of the client.
type Searcher interface {
	// SearchZones returns the zones of such names, normalized.
	SearchZones() []string
	// SearchesOn returns the lookup of search lists for a server, given its address.
	SearchesOn(server string) Searches
}

// Searches looks up the search list of a client.
type Searches interface {
	// Search returns the list for a query from an address for a name in wire form and lower case.
	Search(from netip.Addr, name []byte) Search
}

// Search is the search list that applies to a query.
type Search struct {
	// List is the list's ID, which is a part of the answer's key; 0 if the name is not expanded. Without an entry under
	// that key, the name itself is the first candidate, and an entry for it with data is the answer.
	List uint32
	// Count counts an answer to the name itself; it may be nil.
	Count answers.Counter
	// Client counts any answer to the client; it may be nil.
	Client answers.Counter
}

// Own is a plugin that answers the names of its zones without another server. Their queries have a queue of their own, so
// that they do not wait for upstreams.
type Own interface {
	// OwnZones returns the zones, normalized.
	OwnZones() []string
}
