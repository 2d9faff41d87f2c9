package cache

import (
	"context"
	"slices"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// fetch answers a query without a usable entry: with the reply of the next plugin, or with the reply to another query for
// the same question that is under way.
func (c *Cache) fetch(ctx context.Context, w dns.ResponseWriter, q *clientQuery) (int, error) {
	if nested(ctx) || !c.shareable(q) {
		return c.fetchAlone(ctx, w, q)
	}
	repeated := false
	for {
		joined := c.now()
		f, leader := c.flights.join(q, joined)
		if leader {
			res := c.lead(ctx, newRecorder(w), q, f, false)
			return c.deliver(ctx, w, q, &res, false)
		}
		explain.From(ctx).Add(pluginName, "waits for the reply to the same query of another client")
		select {
		case <-f.done:
		case <-ctx.Done():
			return dns.RcodeServerFailure, ctx.Err()
		}
		switch {
		case !repeated && f.isLate(joined):
			repeated = true // in one flight with the other late queries
		case f.shares(&q.Query):
			q.counters.coalesced.Inc()
			return c.deliver(ctx, w, q, &f.result, true)
		case !f.result.abandoned && !f.result.ended(): // otherwise, a waiting query becomes the next leader
			return c.fetchAlone(ctx, w, q)
		}
	}
}

// shareable reports whether queries for the same question may share a reply. In zones that are not cached each client gets
// a reply of its own. Plugin loop must see each of its HINFO queries: it detects a loop by the queries that return.
func (c *Cache) shareable(q *clientQuery) bool {
	return q.Type != dns.TypeHINFO && !c.kinds[store.Success].disabled.Contains(q.name())
}

// behindCache marks the context of queries that a cache has passed to the next plugin.
type behindCache struct{}

// nested reports whether a plugin behind a cache has sent the query, for example for the target of an alias. A nested
// query waits for no other query, which may be waiting for it.
func nested(ctx context.Context) bool { return ctx.Value(behindCache{}) != nil }

func (c *Cache) fetchAlone(ctx context.Context, w dns.ResponseWriter, q *clientQuery) (int, error) {
	res := c.queryNext(ctx, newRecorder(w), q, false)
	return c.deliver(ctx, w, q, &res, false)
}

// deliver answers a query with a result. shared is set for the result of another query.
func (c *Cache) deliver(ctx context.Context, w dns.ResponseWriter, q *clientQuery, res *result, shared bool) (int, error) {
	switch {
	case res.reply == nil && (res.entry == nil || res.err != nil):
		return res.code, res.err
	case res.reply == nil || shared && res.entry != nil:
		return c.serve(ctx, w, q.msg, q.packed, q.Query, res.entry, res.entry.Patch(c.now()))
	}
	m := res.reply
	if shared {
		m = m.Copy()
		q.tailor(m)
	}
	if res.entry != nil {
		c.fillProperties(ctx, q.msg, res.entry)
	} else if p := store.PropertiesOf(ctx, q.msg); p != nil && res.properties != nil {
		*p = *res.properties
	}
	q.adapt(m, res.options)
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return res.code, res.err
}

// queryNext queries the next plugin and stores the reply.
func (c *Cache) queryNext(ctx context.Context, w *recorder, q *clientQuery, refresh bool) result {
	r := q.forNext()
	ctx, recorded := store.Record(context.WithValue(ctx, behindCache{}, true), r)
	code, err := plugin.NextOrFailure(c.Name(), c.Next, ctx, w, r)
	if trace := explain.From(ctx); trace != nil {
		explainReply(trace, w.reply, code, err)
	}
	switch {
	case w.reply == nil && ctx.Err() != nil:
		return result{code: code, err: err, abandoned: true}
	case w.reply == nil:
		return c.failure(q, code, err)
	}
	wildcard := ""
	if f := metadata.ValueFunc(ctx, wildcardLabel); f != nil {
		wildcard = f()
	}
	res := c.storedResult(q, w.reply, recorded, code, wildcard, refresh)
	res.err = err
	if !res.forAll {
		store.MarkPrivate(ctx) // so that a cache in front does not store it either
	}
	return res
}

// explainReply adds the reply of the next plugin, nil without one.
func explainReply(t *explain.Trace, reply *dns.Msg, code int, err error) {
	switch {
	case reply != nil:
		t.Add(pluginName, "the plugins after it replied %s", explain.Describe(reply))
	case err != nil:
		t.Add(pluginName, "the plugins after it returned %s: %v", dns.RcodeToString[code], err)
	default:
		t.Add(pluginName, "the plugins after it returned %s", dns.RcodeToString[code])
	}
}

// failure returns the result of a query without a reply, and stores SERVFAIL for an error with this code unless
// the option servfail is 0.
func (c *Cache) failure(q *clientQuery, code int, err error) result {
	res := result{code: code, err: err}
	if err != nil && code == dns.RcodeServerFailure && c.servfail > 0 {
		res.entry = c.storeFailure(q)
	}
	return res
}

// storedResult stores the reply of the plugin chain to a query, and returns the result.
func (c *Cache) storedResult(q *clientQuery, m *dns.Msg, recorded *store.Recorded, code int, wildcard string, refresh bool) result {
	packed := wire.NewReply()
	defer packed.Release()
	scoped := hasScope(m)
	if !q.readMessage(packed, m) { // package dns cannot pack it for clients either
		m.Extra = dropOPT(m.Extra)
		return result{reply: m, code: code, forAll: recorded.ForAll(), properties: &recorded.Properties, private: recorded.ByGeneration() || !recorded.ForAll()}
	}
	r := c.examine(q, packed, &recorded.Properties, recorded.Voucher)
	r.matches, r.forAll = r.matches && len(m.Question) == 1, recorded.ForAll() && !scoped
	r.refresh, r.wildcard = refresh, wildcard
	show(m, packed)
	entry := c.storeReply(&r, m)
	res := c.resultOf(&r, code, entry)
	res.reply = m
	return res
}

// resultOf returns the result of a query, given the entry for the reply, nil if it was not stored.
func (c *Cache) resultOf(r *upstreamReply, code int, entry *store.Entry) result {
	return result{
		entry: entry, code: code, options: r.options, properties: r.properties, forAll: r.forAll, renews: c.renews(r), once: r.isForOnce(),
		private: entry == nil && (r.properties.ByGeneration() || !r.forAll),
	}
}

// readMessage reads a reply of the plugin chain, with the question of the query if it has not exactly one. It returns false for a
// reply that cannot be packed.
func (q *clientQuery) readMessage(m *wire.Reply, message *dns.Msg) bool {
	plain := *message
	plain.Compress, plain.Extra = false, dropOPT(slices.Clone(message.Extra))
	if opt := storedOptions(message); opt != nil {
		plain.Extra = append(plain.Extra, opt)
	}
	if len(plain.Question) != 1 {
		plain.Question = q.message().Question
	}
	b, err := plain.Pack()
	return err == nil && m.ReadPlain(b)
}

// show makes a message the form that clients see: it sets the TTLs of m, which was read from the message, and removes the OPT record.
func show(message *dns.Msg, m *wire.Reply) {
	message.Extra = dropOPT(message.Extra)
	records := m.Plain().Records
	for i, rr := range slices.Concat(message.Answer, message.Ns, message.Extra) {
		rr.Header().Ttl = m.TTL(records[i])
	}
}

func dropOPT(records []dns.RR) []dns.RR {
	return slices.DeleteFunc(records, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
}

// noProperties are the Properties of an upstream's reply. They are never changed.
var noProperties store.Properties

// examine sets the TTLs that clients see in a reply, and returns the reply with the facts that decide whether it is stored.
func (c *Cache) examine(q *clientQuery, m *wire.Reply, properties *store.Properties, v *vouch.Voucher) upstreamReply {
	class, answered := c.classify(m)
	var buf [maxErrors*(wire.OptionLen+2+maxErrorText) + maxSearchOption]byte
	o, valid := readOptions(buf[:0], m.Options(), q.Search)
	if !valid {
		class = response.OtherError
	}
	r := upstreamReply{
		Reply: m, query: q, matches: q.matches(m), cacheable: cacheable(m, class, answered), forAll: true,
		options: o.clone(), nameAlone: q.Search != nil && !o.tried,
		facts: facts{class: class, positive: class == response.NoError && answered, properties: properties, voucher: v},
	}
	if !properties.Waits { // a reply with Waits is for one query, whatever the minimum TTL
		r.lifetime = c.setTTLs(m, class)
	}
	r.forList = r.deniesList(&o)
	return r
}

// storeFailure stores SERVFAIL for a query without a reply, which limits the queries to the next plugin.
func (c *Cache) storeFailure(q *clientQuery) *store.Entry {
	b := slices.Clone(q.packed[:q.QuestionEnd()])
	b[wire.FlagsAt], b[wire.RcodeAt] = wire.QR|b[wire.FlagsAt]&wire.RD, dns.RcodeServerFailure
	clear(b[wire.ANCountAt:wire.HeaderLen])
	m := wire.NewReply()
	defer m.Release()
	if !m.ReadPlain(b) {
		return nil
	}
	return c.storeReply(&upstreamReply{
		Reply: m, query: q, matches: true, cacheable: true, forAll: true, nameAlone: q.Search != nil,
		facts: facts{class: response.ServerError, lifetime: c.servfail, properties: &noProperties},
	}, nil)
}

// renews reports whether a reply replaces a stale answer for the client: a failure does not, RFC 8767 section 4.
func (c *Cache) renews(r *upstreamReply) bool {
	switch {
	case !r.matches:
		return false
	case r.Truncated():
		return !c.preferPositive && c.stale.onFailure // the client retries over TCP
	case c.preferPositive:
		return r.positive
	}
	switch r.Rcode {
	case dns.RcodeSuccess: // with expired signatures the class is OtherError
		return c.stale.onFailure || r.class != response.OtherError
	case dns.RcodeNameError:
		return true
	}
	return false
}

// lead sends the query of a flight to the next plugin, and hands the result to the waiting queries, even after a panic.
func (c *Cache) lead(ctx context.Context, w *recorder, q *clientQuery, f *flight, refresh bool) (res result) {
	res = panicked()
	defer func() {
		var b batch.Batch
		c.finish(&b, f, res)
		b.Flush()
	}()
	if e, state := c.lookup(q.key, q.packed, &q.Query, c.now()); !refresh && state == fresh {
		res = result{entry: e, renews: true} // another flight has finished since the lookup of this query
		return res
	}
	res = c.queryNext(ctx, w, q, refresh)
	return res
}
