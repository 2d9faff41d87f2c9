package cache

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// upstreamReply is a reply of the next plugin, with the facts that decide whether and how it is stored.
type upstreamReply struct {
	facts
	*wire.Reply              // with the TTLs that clients see
	query       *clientQuery // that it answers
	matches     bool         // its question is that of the query
	cacheable   bool         // its class may be cached
	forAll      bool         // all callers get the same reply
	options     []byte       // the stored options, in wire form
	nameAlone   bool         // the upstream has not tried the search list of the query: the reply is for the query without it
	forList     bool         // it denies each candidate of the query's search list
	refresh     bool         // fetched to replace an entry that is still served
}

// facts are the facts about a reply that its entry is made from.
type facts struct {
	class      response.Type
	positive   bool // the reply has the data of the question
	lifetime   time.Duration
	properties *store.Properties // never changed
	voucher    *vouch.Voucher    // of the session over which the reply was received, or nil
	wildcard   string            // record that the reply was made from
}

// entryState is the State of an entry of the cache.
type entryState struct {
	wildcard string // record that the answer was made from, from the metadata
	positive bool   // the answer has the data of the question
	failure  bool   // the answer is a failure such as SERVFAIL

	refreshing atomic.Bool  // a refresh is running
	retryAt    atomic.Int64 // no refresh before this time, by the store's clock
}

// storeReply stores a reply if that is permitted, and returns its entry, or nil. message is the reply of the plugin chain, nil
// without one.
func (c *Cache) storeReply(r *upstreamReply, message *dns.Msg) *store.Entry {
	var buf [store.MaxKey]byte
	key := r.query.key
	if r.nameAlone {
		alone := r.query.Query
		alone.Search = nil
		key = c.space.Key(buf[:0], r.query.packed, &alone)
	}
	e := c.entryFor(r, key, message)
	if e == nil || !c.put(key, e, r.refresh) {
		return nil
	}
	if r.forList && !r.properties.ByGeneration() { // the generations of the single names are not known
		c.storeDenials(r, e)
	}
	return e
}

// entryFor returns the entry for a reply, nil if the reply may not be stored under a key as the answer for all callers. It counts a
// reply to another question, and stores a message that is valid by generations alone.
func (c *Cache) entryFor(r *upstreamReply, key []byte, message *dns.Msg) *store.Entry {
	storable := r.cacheable && r.lifetime > 0
	if storable && !r.matches {
		r.query.counters.drops.Inc()
		return nil
	}
	byGeneration := r.properties.ByGeneration()
	if !r.query.RD && !byGeneration {
		return nil // without RD a server may answer with a referral or a refusal, which is no reply to a query with RD
	}
	if !r.forAll {
		c.removeShared(key)
	}
	if r.matches && r.isForOnce() {
		c.removeReplaced(key)
	}
	if !r.forAll || !storable || c.isDisabled(r.class, r.Name()) {
		if byGeneration && r.matches && (r.forAll || r.properties.Views != nil) {
			c.space.PutReply(r.query.message(), message, r.properties) // valid by its generations, whatever its TTL
		}
		return nil
	}
	e := c.newEntry(&r.facts, r.options)
	if !fill(e, r.Reply) {
		return nil
	}
	return e
}

// fill sets the answer of an entry. It returns false for a reply that cannot be stored.
func fill(e *store.Entry, m *wire.Reply) bool {
	anyCase := e.AnyCase && m.AnyCase
	if m.Rcode > wire.MaxRcode || e.FillReply(m) != nil {
		return false
	}
	e.AnyCase = anyCase
	return true
}

// isForOnce reports whether a reply is a denial with the TTL 0: it ends the answer that was stored before, and is only for the
// queries that are under way (RFC 1035 section 3.2.1).
func (r *upstreamReply) isForOnce() bool {
	return r.lifetime == 0 && r.class != response.ServerError && kindOf(r.class) == store.Denial && r.cacheable
}

// removeReplaced removes the entry that a denial with the TTL 0 replaces.
func (c *Cache) removeReplaced(key []byte) {
	c.putting.Lock()
	defer c.putting.Unlock()
	if old := c.store.Get(key); old != nil && old.Cached && !c.prefersData(old) {
		c.store.Remove(old)
	}
}

// removeShared removes the entry for all callers of a question whose answer now depends on the caller.
func (c *Cache) removeShared(key []byte) {
	if old := c.store.Get(key); old != nil && old.Cached {
		c.store.Remove(old)
	}
}

// validity returns the validity of a reply that was received at a time. No session vouches for a failure.
func (r *facts) validity(now time.Duration) validity.Validity {
	v := validity.Validity{Expires: now + r.lifetime, Bounds: r.properties.Bounds}
	if r.voucher == nil || r.class == response.ServerError {
		return v
	}
	if expires := r.properties.Expires; expires != 0 { // another cache has received the reply: its TTLs are not decremented
		v.Until(expires)
	}
	v.Voucher = r.voucher
	return v
}

// newEntry returns the entry for a reply, without the packed answer. It makes one allocation, without prefetch.
func (c *Cache) newEntry(r *facts, options []byte) *store.Entry {
	now, byGeneration := c.now(), r.properties.ByGeneration()
	validity := r.validity(now)
	cached := &struct {
		entry store.Entry
		state entryState
	}{
		entry: store.Entry{
			Options: options,
			Kind:    kindOf(r.class),
			Stored:  now, Validity: validity, Gone: validity.Expires + c.stale.maxAge,
			Limit: r.properties.Limit, FixedTTL: c.keepTTL, Serial: r.properties.Serial,
			AnyCase:    !byGeneration || r.properties.AnyCase,
			Cached:     true,
			Costly:     !byGeneration,
			Popularity: c.prefetch.popularity(now, r.lifetime),
			StateSize:  int(unsafe.Sizeof(entryState{})) + len(r.wildcard),
		},
		state: entryState{wildcard: r.wildcard, failure: r.class == response.ServerError, positive: r.positive},
	}
	e := &cached.entry
	e.State = &cached.state
	if r.class == response.ServerError || byGeneration {
		e.Gone = e.Expires // never served stale
	}
	if e.Popularity != nil {
		e.StateSize += int(unsafe.Sizeof(*e.Popularity))
	}
	return e
}

// put stores an entry under a key, unless the present one is preferred. refresh is set if the reply was fetched to replace
// an entry that is still served.
func (c *Cache) put(key []byte, e *store.Entry, refresh bool) bool {
	if !c.putDetached(key, e, refresh) {
		return false
	}
	e.Attach() // without the lock: an answer that has ended meanwhile may be fetched again
	return true
}

func (c *Cache) putDetached(key []byte, e *store.Entry, refresh bool) bool {
	c.putting.Lock()
	defer c.putting.Unlock()
	old := c.store.Get(key)
	if now := c.now(); freshnessOf(old, now) != unusable {
		late := !e.Vouched(now) && old.Vouched(now) || !e.Current() && freshnessOf(old, now) == fresh // of another connection: not newer
		if late || c.prefers(old, e) {
			return false
		}
		if refresh && old.Popularity != nil && e.Popularity != nil {
			e.Popularity.Inherit(old.Popularity)
		}
	}
	c.store.PutDetached(c.space, key, e)
	return true
}

// prefers reports whether an entry that may still be served is better than a newer one.
func (c *Cache) prefers(old, e *store.Entry) bool {
	after := e.State.(*entryState)
	if after.failure {
		return !old.State.(*entryState).failure
	}
	return c.prefersData(old) && !after.positive
}

// prefersData reports whether an entry that may still be served is better than a newer one without data.
func (c *Cache) prefersData(old *store.Entry) bool {
	return c.preferPositive && c.stale.maxAge > 0 && old.State.(*entryState).positive
}
