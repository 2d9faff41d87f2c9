package block

import (
	"net"
	"net/netip"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// FastPath answers UDP queries from the store before CoreDNS does, and limits the queries in progress. Plugin fastpath
// registers itself; without it only CoreDNS answers.
type FastPath interface {
	// Serve is called when a server of a configuration begins to serve UDP.
	Serve(conf *Configuration, server *dnsserver.Server)
	// Stop closes the listeners of all configurations but the next one, which is nil at the exit of the process, and
	// returns when the queries that they received are answered. It waits until the servers of the next configuration have
	// taken over the listeners on their addresses.
	Stop(next *Configuration)
	// StartBackground implements the function StartBackground.
	StartBackground(client netip.Addr) (end func(), ok bool)
}

var fastPath FastPath = none{}

// Register sets the fast path of the process. It is called in init.
func Register(f FastPath) { fastPath = f }

// MaxBackground limits the queries that plugins send to upstreams while no client waits for the answer.
const MaxBackground = 256

// StartBackground admits a query that a plugin sends in the background on behalf of a client, for example to refresh an
// expired answer. It fails at MaxBackground, or at the client's share of it. The caller calls end when the query has
// ended.
func StartBackground(client net.Addr) (end func(), ok bool) {
	return fastPath.StartBackground(clientAddress(client))
}

// clientAddress returns the address of a client without its port, the zero Addr if it has none.
func clientAddress(client net.Addr) netip.Addr {
	switch a := client.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// none implements FastPath in a program without plugin fastpath.
type none struct{}

func (none) Serve(*Configuration, *dnsserver.Server)   {}
func (none) Stop(*Configuration)                       {}
func (none) StartBackground(netip.Addr) (func(), bool) { return Background.Start() }

// Background limits the background queries of a process without a fast path, or with one that has no queue.
var Background = make(semaphore, MaxBackground)

type semaphore chan struct{}

// Start admits a query. The caller calls end when the query has ended.
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

// CacheCounters count the lookups of a cache; Hits by store.Kind. BeyondTTL counts the hits after the TTL of the answer,
// while a session vouches for it, Restored the hits with an answer of an earlier process.
type CacheCounters struct {
	Requests, Misses    prometheus.Counter
	Hits                [2]prometheus.Counter
	BeyondTTL, Restored prometheus.Counter
}

// Searcher is a plugin that expands some names by the search list of the client.
type Searcher interface {
	// SearchZones returns the zones of the names that it expands, normalized.
	SearchZones() []string
	// ServerSearches returns the lookup of search lists for a server, given its address.
	ServerSearches(server string) Searches
}

// Searches looks up the search list of a client.
type Searches interface {
	// Search returns the list for a query from an address for a name in wire form and lower case.
	Search(from netip.Addr, name []byte) Search
	// ListOf returns the ID of the client's list, 0 if it is unknown. It does not block.
	ListOf(client netip.Addr) uint32
}

// Search is the search list that applies to a query.
type Search struct {
	// List is the ID of the search list, a part of the answer's key; 0 if the name is not expanded. If the store has no
	// entry with List, an entry for the name itself is the answer if it has data: the name is the first candidate.
	List uint32
	// Count counts the answers from entries for names themselves; it may be nil.
	Count store.Counter
	// Client counts all answers to the client; it may be nil.
	Client store.Counter
}

// ZoneOwner is a plugin that answers queries for its zones without an upstream. These queries have limits of their own, so
// that they do not wait for queries to upstreams.
type ZoneOwner interface {
	// OwnZones returns the zones, normalized.
	OwnZones() []string
}

// NameAwaiter is a plugin with names for which queries wait until the names exist.
type NameAwaiter interface {
	// AwaitName reports whether queries for the addresses or the services of a name wait at present, and for what. The name is
	// in wire form and lower case; suffixes is the search list of the query, the data of wire.OptionSearchList, or nil. It does
	// not block.
	AwaitName(name, suffixes []byte) (NameWait, bool)
	// WaitCounters returns the counters of the waiting queries.
	WaitCounters() WaitCounters
}

// NameWait is the event that a query waits for.
type NameWait struct {
	// Generation advances when the name may exist. Number was loaded before the lookup that did not find the name.
	Generation push.Generation
	Number     uint64
	// Timeout is the maximum time that a query waits.
	Timeout time.Duration
}

// WaitCounters count queries that wait for names, by the reason for the end of the wait. A refused query was answered at once
// because of a limit.
type WaitCounters struct {
	Waiting                     prometheus.Gauge
	Answered, TimedOut, Refused prometheus.Counter
}
