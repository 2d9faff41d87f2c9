// Package cache stores the replies of the plugins behind it until their TTLs expire, and answers later queries for the
// same question with them. Input is queries and replies; output is packed answers in the store that the fast path also
// reads, so that both send the same bytes. It replaces CoreDNS's plugin of the same name, and imports no other plugin.
package cache

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Cache is the plugin's handler for one server block.
type Cache struct {
	Next plugin.Handler

	// Zones are the normalized zones whose replies are cached.
	Zones []string

	options
	budgetAt corefile.Position // of the option budget

	zonesLabel, view string
	zoneSet          map[string]bool
	bypass           plugin.Zones // zones of plugins in the block that must not be cached
	owned            plugin.Zones // zones of plugins in the block that have data of their own
	isDispatched     func(name string) bool

	store   *store.Store
	space   *store.Keyspace
	putting sync.Mutex // held from reading the present entry of a key until it is replaced
	flights flights
	metrics byServer

	forward wireNext     // for queries in wire form
	wheel   *wheel.Wheel // for the client response timers of queries in wire form

	loggedOption atomic.Bool  // an EDNS option that prevents caching has been logged
	loggedStale  atomic.Int64 // time of the last log line about stale answers, by the store's clock

	now  func() time.Duration // the store's clock, for TTLs
	wall func() time.Time     // for the validity of signatures, RFC 4035 section 5.3.1
}

// Name implements plugin.Handler.
func (c *Cache) Name() string { return pluginName }

// Borders implements block.Cache.
func (c *Cache) Borders() []string { return slices.Concat(c.Zones, c.bypass) }

// Covers implements block.Cache.
func (c *Cache) Covers(name string) bool {
	return block.ZoneOf(c.zoneSet, name) != "" && !c.bypass.Contains(name)
}

// covers reports whether the cache handles a query.
func (c *Cache) covers(r *dns.Msg) bool {
	if r.Opcode != dns.OpcodeQuery || len(r.Question) != 1 {
		return false
	}
	return c.Covers(r.Question[0].Name)
}

// ServeDNS implements plugin.Handler.
func (c *Cache) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	trace := explain.From(ctx)
	if !c.covers(r) {
		trace.Add(pluginName, "does not cover the name")
		return plugin.NextOrFailure(c.Name(), c.Next, ctx, w, r)
	}
	var packedBuf [wire.MaxQuery]byte
	var keyBuf [store.MaxKey]byte
	var parsed wire.Query
	packed, ok := store.QueryFromMsg(&parsed, packedBuf[:0], r)
	n := c.counters(metrics.WithServer(ctx))
	if ok && hasWireResult(ctx, r) {
		key := c.space.Key(keyBuf[:0], packed, &parsed)
		return c.serveWireResult(ctx, w, newClientQuery(r, packed, key, parsed, n, w))
	}
	n.requests.Inc()
	// The reply to a query that QueryFromMsg refuses is for its client alone: the query may have a signature or a client subnet.
	// A transfer has many messages.
	if !ok || parsed.Type == dns.TypeAXFR || parsed.Type == dns.TypeIXFR {
		n.misses.Inc()
		trace.Add(pluginName, "miss: no reply to such a query is cached")
		c.logUnkeyedOption(r)
		return plugin.NextOrFailure(c.Name(), c.Next, ctx, w, r)
	}
	key, now := c.space.Key(keyBuf[:0], packed, &parsed), c.now()
	e, state := c.lookup(key, packed, &parsed, now)
	if trace != nil {
		c.explain(trace, e, state, now)
	}
	if state == fresh {
		n.hit(e, now)
		if prefetchDue(e, now) {
			c.refresh(ctx, newClientQuery(r, packed, key, parsed, n, w), e)
		}
		return c.serve(ctx, w, r, packed, parsed, e, e.Patch(now))
	}
	q := newClientQuery(r, packed, key, parsed, n, w)
	// The upstream's reply to a query without RD does not show whether the answer to a query with RD is still valid.
	if state == stale && (q.RD || !c.stale.verify) {
		return c.handleStale(ctx, w, q, e)
	}
	n.misses.Inc()
	if e != nil && e.Views != nil { // the reply depends on the caller
		return c.fetchAlone(ctx, w, q)
	}
	return c.fetch(ctx, w, q)
}

// explain adds the state of the entry for a query, nil without one.
func (c *Cache) explain(t *explain.Trace, e *store.Entry, state freshness, now time.Duration) {
	switch {
	case e == nil:
		t.Add(pluginName, "miss: no answer is stored")
	case e.Views != nil:
		t.Add(pluginName, "miss: the answer depends on the caller, and this plugin stores none of it")
	case state == fresh:
		t.Add(pluginName, "hit: %s", e.Describe(now))
	case state == stale && c.stale.verify:
		t.Add(pluginName, "stale: %s; it is served if the upstream fails or is slow (serve_stale)", e.Describe(now))
	case state == stale:
		t.Add(pluginName, "stale: %s; it is served and refreshed (serve_stale)", e.Describe(now))
	default:
		t.Add(pluginName, "miss: %s", e.Describe(now))
	}
}

// logUnkeyedOption logs once that queries with an EDNS option are not cached: a plugin or a forwarder in front of the cache
// may add one to all queries.
func (c *Cache) logUnkeyedOption(r *dns.Msg) {
	if c.loggedOption.Load() {
		return
	}
	if code, has := store.UnkeyedOption(r); has && c.loggedOption.CompareAndSwap(false, true) {
		log.Warningf("Queries with EDNS option %d are not answered from the cache, and their replies are not cached, since the answer may depend on the option: first query for %s (logged once)",
			code, r.Question[0].Name)
	}
}

// freshness classifies an entry by its age. The better class is greater.
type freshness int

const (
	unusable freshness = iota
	stale              // its TTL has expired, or it has lapsed, and no session vouches for it; it may be served if the upstream fails, or by serve_stale
	fresh
)

// freshnessOf classifies an entry. Entries that no cache has stored are unusable, and so are those that a session has
// invalidated.
func freshnessOf(e *store.Entry, now time.Duration) freshness {
	switch {
	case e == nil || !e.Cached || !e.Current():
		return unusable
	case now < e.Expires && !e.Lapsed() || e.Vouched(now):
		return fresh
	case now < e.StaleUntil(now):
		return stale
	}
	return unusable
}

// clientQuery is a query for which the store has no fresh answer.
type clientQuery struct {
	wire.Query
	msg    *dns.Msg // see message
	packed []byte   // the query in wire form, which Query was parsed from
	key    []byte   // of the answer in the store

	client   net.Addr
	udp      bool // the reply may be truncated
	counters *counters
}

func newClientQuery(r *dns.Msg, packed, key []byte, parsed wire.Query, n *counters, w dns.ResponseWriter) *clientQuery {
	client := w.RemoteAddr()
	return &clientQuery{
		Query: parsed, msg: r, packed: slices.Clone(packed), key: slices.Clone(key),
		client: client, udp: client == nil || client.Network() == "udp", counters: n,
	}
}

// message returns the query as a message. A query in wire form is unpacked at the first call.
func (q *clientQuery) message() *dns.Msg {
	if q.msg == nil {
		q.msg = new(dns.Msg)
		_ = q.msg.Unpack(q.packed) // every query that wire.Query.Parse accepts is valid
	}
	return q.msg
}

// name returns the question's name.
func (q *clientQuery) name() string { return q.message().Question[0].Name }

// forNext returns a copy of the query for the next plugin, which may change it, without the parts that concern the client
// alone: the reply is for other clients, too. The AD flag requests the verdict of a validating resolver (RFC 6840 section
// 5.7); the stored answer serves clients with and without the flag.
func (q *clientQuery) forNext() *dns.Msg {
	r := q.msg.Copy()
	r.AuthenticatedData = true
	if opt := r.IsEdns0(); opt != nil {
		store.RemoveHop(opt)
	}
	return r
}

// matches reports whether a message is a reply to the query's question.
func (q *clientQuery) matches(m *wire.Reply) bool {
	return m.Message[wire.FlagsAt]&wire.QR != 0 && m.Type() == q.Type && m.Class() == q.Class &&
		wire.EqualNames(m.Name(), q.Name(q.packed))
}
