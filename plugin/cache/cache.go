// Package cache keeps the replies of the plugins behind it for as long as their TTLs say, and gives them
// to whoever asks the same. In go queries and replies; what is kept is packed, in the store that the
// fast path answers from, so that both give the same bytes. It is a drop-in for CoreDNS's plugin of the
// same name.
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

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// Cache is the plugin's handler for one server block.
type Cache struct {
	Next plugin.Handler

	// Zones are the zones of which replies are kept, normalized.
	Zones []string

	options

	zonesLabel, view string
	bypass           plugin.Zones // of plugins in the block, of which nothing is kept

	store   *answers.Store
	space   *answers.Keyspace
	keeping sync.Mutex // between looking at what is kept and putting something in its place
	flights flights
	metrics byServer

	loggedOption atomic.Bool  // a query with an EDNS option was passed on, and the log has it
	saidStale    atomic.Int64 // when a line was last written about expired answers, since store's epoch

	now  func() time.Duration // since store's epoch; TTLs go by it
	wall func() time.Time     // signatures go by it, RFC 4035 section 5.3.1
}

// Name implements plugin.Handler.
func (c *Cache) Name() string { return pluginName }

// Borders implements fastpath.Cache.
func (c *Cache) Borders() []string { return slices.Concat(c.Zones, c.bypass) }

// Covers implements fastpath.Cache.
func (c *Cache) Covers(name string) bool {
	return plugin.Zones(c.Zones).Contains(name) && !c.bypass.Contains(name)
}

// covers reports whether a query is one that the cache is for.
func (c *Cache) covers(r *dns.Msg) bool {
	if r.Opcode != dns.OpcodeQuery || len(r.Question) != 1 {
		return false
	}
	return c.Covers(r.Question[0].Name)
}

// ServeDNS implements plugin.Handler.
func (c *Cache) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if !c.covers(r) {
		return plugin.NextOrFailure(c.Name(), c.Next, ctx, w, r)
	}
	var query [answers.MaxQuery]byte
	var key [answers.MaxKey]byte
	var q answers.Query
	packed, ok := q.FromMsg(query[:0], r)
	n := c.counters(metrics.WithServer(ctx))
	n.requests.Inc()
	// A query that is not ok may have a client subnet, on which the reply depends; a transfer has many messages.
	if !ok || q.Type == dns.TypeAXFR || q.Type == dns.TypeIXFR {
		n.misses.Inc()
		c.logUnkeyedOption(r)
		return plugin.NextOrFailure(c.Name(), c.Next, ctx, w, r)
	}
	k, now := c.space.Key(key[:0], packed, &q), c.now()
	e, state := c.find(k, packed, &q, now)
	if state == fresh {
		n.hits[e.Kind].Inc()
		if p := e.Popularity; p != nil && p.Count(now) && !p.Refreshing.Load() {
			c.refresh(ctx, newAsked(r, packed, k, q, n, w), e)
		}
		return c.give(ctx, w, r, packed, q, e, e.Patch(now))
	}
	a := newAsked(r, packed, k, q, n, w)
	// The reply of the upstream to a query without RD does not tell whether an answer to a query with RD still holds.
	if state == expired && (q.RD || !c.stale.verify) {
		return c.serveExpired(ctx, w, a, e)
	}
	n.misses.Inc()
	if e != nil && e.Views != nil { // nobody can wait for the reply to another
		return c.fetchAlone(ctx, w, a)
	}
	return c.fetch(ctx, w, a)
}

// logUnkeyedOption logs once that queries with an EDNS option are not cached: a plugin or a forwarder in front of the cache
// may add one to all queries.
func (c *Cache) logUnkeyedOption(r *dns.Msg) {
	if c.loggedOption.Load() {
		return
	}
	if code, has := answers.UnkeyedOption(r); has && c.loggedOption.CompareAndSwap(false, true) {
		log.Warningf("Queries with EDNS option %d are not answered from the cache, and their replies are not cached, since the answer may depend on the option: first query for %s (logged once)",
			code, r.Question[0].Name)
	}
}

// freshness is of what use an entry is.
type freshness int

const (
	useless freshness = iota
	expired           // but it may be given if there is nothing better
	fresh
)

// stateOf returns of what use an entry is now. Entries that others keep are not looked at.
func stateOf(e *answers.Entry, now time.Duration) freshness {
	switch {
	case e == nil || !e.Cached || !e.Current():
		return useless
	case now < e.Expires:
		return fresh
	case now < e.Gone:
		return expired
	}
	return useless
}

// asked is a query that the cache has no fresh answer to.
type asked struct {
	msg   *dns.Msg
	query []byte // as q reads it
	key   []byte
	q     answers.Query
	n     *counters
	udp   bool

	client net.Addr
}

func newAsked(r *dns.Msg, query, key []byte, q answers.Query, n *counters, w dns.ResponseWriter) *asked {
	client := w.RemoteAddr()
	return &asked{msg: r, query: slices.Clone(query), key: slices.Clone(key), q: q, n: n, udp: overUDP(client), client: client}
}

// forNext returns the query as the next plugin gets it. It may change it. The AD flag asks a validating
// resolver for its verdict (RFC 6840 section 5.7), which is kept for those who want it.
func (a *asked) forNext() *dns.Msg {
	r := a.msg.Copy()
	r.AuthenticatedData = true
	return r
}

// matches reports whether a reply is one to the question.
func (a *asked) matches(m *dns.Msg) bool {
	if len(m.Question) != 1 || !m.Response {
		return false
	}
	is, want := m.Question[0], a.msg.Question[0]
	return is.Qtype == want.Qtype && is.Qclass == want.Qclass && equalNames(is.Name, want.Name)
}
