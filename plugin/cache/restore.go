package cache

import (
	"iter"
	"math/bits"
	"time"
	"unsafe"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/cache/internal/snapshot"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// isRestorable reports whether an entry may be restored by another process: it ends by its TTL alone, and is an answer or a denial.
// Entries for one view or with a search list depend on the cluster and the caller.
func isRestorable(e *store.Entry, now time.Duration) bool {
	state, ok := e.State.(*entryState)
	return ok && e.Cached && e.Costly && e.Voucher.LastVouched(now) == 0 && !e.ByGeneration() && e.Views == nil && e.Serial == nil && !e.Waits &&
		!state.failure && state.wildcard == "" && freshnessOf(e, now) != unusable
}

// Ranks of entries. If not all of them fit, those of the highest ranks are written: fresh ones before stale ones, those with recent
// hits before others, newer ones before older ones.
const (
	rankFresh   = 2 << 4
	rankPopular = 1 << 4
	maxAgeRank  = 1<<4 - 1
	ranks       = 1 << 6
)

func rankOf(e *store.Entry, now time.Duration) int {
	rank := maxAgeRank - min(bits.Len64(uint64(max(0, now-e.Stored)/time.Second)), maxAgeRank) // #nosec G115 -- not negative
	if e.Popular() {
		rank += rankPopular
	}
	if freshnessOf(e, now) == fresh {
		rank += rankFresh
	}
	return rank
}

// restorable yields the entries that may be restored, those of the highest ranks if their replies have more than limit bytes. It
// locks nothing and allocates nothing: the store may have millions of entries.
func (c *Cache) restorable(now time.Duration, limit int64) iter.Seq[*store.Entry] {
	var sizes [ranks]int64
	for e := range c.space.All() {
		if isRestorable(e, now) {
			sizes[rankOf(e, now)] += recordSize(e)
		}
	}
	lowest := ranks
	for total := int64(0); lowest > 0 && total < limit; {
		lowest--
		total += sizes[lowest]
	}
	return func(yield func(*store.Entry) bool) {
		for e := range c.space.All() {
			if isRestorable(e, now) && rankOf(e, now) >= lowest && !yield(e) {
				return
			}
		}
	}
}

// recordSize returns the length of an entry's record in bytes, approximately.
func recordSize(e *store.Entry) int64 {
	return int64(e.Plain.Len() + len(e.Options) + recordOverhead)
}

// recordOverhead is the length of a record's fields, of the OPT record and of an extended error, in bytes.
const recordOverhead = 32

// records yields the records of a file. Each is valid until the next one. Their replies have the extended error of answers that are
// served from a snapshot.
func (c *Cache) records(now time.Duration, limit int64) iter.Seq[snapshot.Record] {
	return func(yield func(snapshot.Record) bool) {
		var w recordWriter
		for e := range c.restorable(now, limit) {
			w.options = w.options[:0]
			if !e.Restored {
				w.options = append(w.options, staleError(e)...)
			}
			w.options = append(w.options, e.Options...)
			if r, ok := w.recordOf(e, now); ok && !yield(r) {
				return
			}
		}
	}
}

// recordWriter has the buffers of a record, and the options of its reply.
type recordWriter struct {
	query   [keyQuery]byte
	parsed  wire.Query
	options []byte
	reply   []byte
}

// recordOf returns the record of an entry: the reply to a client with EDNS at the time of its receipt.
func (w *recordWriter) recordOf(e *store.Entry, now time.Duration) (r snapshot.Record, ok bool) {
	q := &w.parsed
	packed, ok := store.QueryFromKey(q, w.query[:0], e.Key())
	if !ok || q.Search != nil {
		return snapshot.Record{}, false
	}
	q.AD, q.EDNS = true, len(w.options) > 0
	w.reply = e.Plain.AppendReply(w.reply[:0], packed, q, &store.Patch{Options: w.options})
	return snapshot.Record{Age: max(0, now-e.Stored), DO: q.DO, CD: q.CD, Reply: w.reply}, len(w.reply) <= dns.MaxMsgSize
}

// keyQuery is the maximum length of a query of store.QueryFromKey in bytes.
const keyQuery = wire.MaxQuery + wire.OPTLen + maxSearchOption

// restore stores a reply that was received before now, and reports whether it was stored. The reply is parsed like that of an
// upstream. restored is set for the reply of an earlier process.
func (c *Cache) restore(r *snapshot.Record, now time.Duration, restored bool) bool {
	var keyBuf [store.MaxKey]byte
	var queryBuf [keyQuery]byte
	var q wire.Query
	key, ok := c.space.AppendReplyKey(keyBuf[:0], r.Reply, r.DO, r.CD)
	if !ok {
		return false
	}
	packed, ok := store.QueryFromKey(&q, queryBuf[:0], key)
	if !ok || !c.mayRestore(&q, key) {
		return false
	}
	e := c.entryOfReply(&q, packed, key, r.Reply)
	if e == nil {
		return false
	}
	setReceived(e, now-r.Age)
	if restored {
		markRestored(e)
	}
	if freshnessOf(e, c.now()) == unusable || c.store.Get(key) != nil { // of two entries of a key, the newer one is restored first
		return false
	}
	return c.put(key, e, false)
}

// mayRestore reports whether the cache stores replies to a query, given its key, and no plugin of this server answers it from data of
// its own.
func (c *Cache) mayRestore(q *wire.Query, key []byte) bool {
	if q.Type == dns.TypeAXFR || q.Type == dns.TypeIXFR {
		return false
	}
	name, _, err := dns.UnpackDomainName(store.KeyName(key), 0)
	return err == nil && c.Covers(name) && !c.owned.Contains(name) && c.isDispatched(name)
}

// entryOfReply returns the entry for a reply as if an upstream had sent it now, nil for a reply that is no answer or denial.
func (c *Cache) entryOfReply(q *wire.Query, packed, key, reply []byte) *store.Entry {
	m, cq := wire.NewReply(), &clientQuery{Query: *q, packed: packed, key: key}
	defer m.Release()
	if !m.Parse(reply) {
		message, err := store.Unpack(reply)
		if err != nil || hasScope(message) || len(message.Question) != 1 || !cq.readMessage(m, message) {
			return nil
		}
	}
	r := c.examine(cq, m, &noProperties, nil)
	if !r.matches || !isAnswer(r.class) || r.lifetime <= 0 {
		return nil
	}
	return c.entryFor(&r, key, nil)
}

func isAnswer(class response.Type) bool {
	return class == response.NoError || class == response.NoData || class == response.NameError
}

// setReceived sets the time at which the reply of an entry was received.
func setReceived(e *store.Entry, received time.Duration) {
	age := e.Stored - received
	e.Stored, e.Expires, e.Gone = received, e.Expires-age, e.Gone-age
	if e.Expires == 0 { // 0 would be no expiry
		e.Expires--
	}
	if e.Popularity != nil {
		e.Popularity.From -= age
	}
}

// markRestored marks the entry of a reply that an earlier process has received: it is fetched again for its first query, and for
// later ones as long as fetching it fails.
func markRestored(e *store.Entry) {
	if e.Popularity == nil {
		e.StateSize += int(unsafe.Sizeof(store.Popularity{}))
	}
	e.Restored, e.Popularity = true, &store.Popularity{Amount: 1}
	e.NeverCopy() // a copy would not report its first query
}
