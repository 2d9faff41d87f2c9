package cache

import (
	"context"
	"slices"
	"time"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// staleOptions determine how answers are served after their TTL has expired.
type staleOptions struct {
	maxAge    time.Duration // after the end of the TTL, 0 for no stale answers
	verify    bool          // query the upstream first
	timeout   time.Duration // of that query for the client, 0 for none
	ttl       uint32        // of stale answers, in seconds
	recheck   time.Duration // no query to the upstream for this time after a failure
	onFailure bool          // the default without serve_stale: only failures are replaced by stale answers
}

// defaultStale has the times of RFC 8767 section 5.
var defaultStale = staleOptions{
	maxAge: time.Hour, verify: true, timeout: 1800 * time.Millisecond, ttl: 30, recheck: 30 * time.Second, onFailure: true,
}

// handleStale answers a query that has a stale entry, with the entry or with its successor.
func (c *Cache) handleStale(ctx context.Context, w dns.ResponseWriter, q *clientQuery, e *store.Entry) (int, error) {
	switch {
	case !c.stale.verify:
		q.counters.hits[e.Kind].Inc()
		c.refresh(ctx, newClientQuery(q.msg, q.packed, q.key, q.Query, q.counters, w), e)
		return c.serveStale(ctx, w, q, e)
	case !c.stale.onFailure:
		q.counters.hits[e.Kind].Inc()
		if (c.stale.recheck > 0 || c.stale.timeout > 0) && !c.startRefresh(e) {
			return c.serveStale(ctx, w, q, e)
		}
	case !mayRefresh(e, c.now()):
		q.counters.hits[e.Kind].Inc()
		return c.serveStale(ctx, w, q, e)
	default:
		q.counters.misses.Inc()
	}
	return c.verify(ctx, w, q, e)
}

// mayServe reports whether an entry that was stale may still be served.
func (c *Cache) mayServe(e *store.Entry) bool { return freshnessOf(e, c.now()) != unusable }

// mayRefresh reports whether no query for a stale entry has failed lately.
func mayRefresh(e *store.Entry, now time.Duration) bool {
	return now >= time.Duration(e.State.(*entryState).retryAt.Load())
}

// verify queries the next plugin for a stale entry, and serves the entry if the query fails or exceeds the timeout, unless a
// session has invalidated the entry.
func (c *Cache) verify(ctx context.Context, w dns.ResponseWriter, q *clientQuery, e *store.Entry) (int, error) {
	var f *flight
	leader, joined := true, c.now()
	if c.stale.timeout > 0 || !nested(ctx) {
		f, leader = c.flights.join(q, joined)
	}
	if leader && c.stale.timeout == 0 {
		res := c.queryForStale(ctx, newRecorder(w), q, e, f)
		if !res.renews && c.mayServe(e) {
			return c.serveStale(ctx, w, q, e)
		}
		return c.deliver(ctx, w, q, &res, false)
	}
	if leader {
		if !c.verifyInBackground(ctx, w, q, e, f) {
			return c.serveStale(ctx, w, q, e)
		}
	} else if !c.stale.onFailure {
		c.endRefresh(e, false, 0) // this query refreshes nothing: it waits for another one
	}
	ended := c.wait(ctx, f)
	switch {
	case c.mayServe(e) && (!ended || !f.result.renews):
		return c.serveStale(ctx, w, q, e)
	case !ended: // a session has invalidated the stale answer, or its time has ended
		return c.fetch(ctx, w, q)
	case !leader && f.isLate(joined):
		return c.fetch(ctx, w, q)
	}
	if !f.shares(&q.Query) {
		if f.result.ended() {
			return c.fetch(ctx, w, q)
		}
		return c.fetchAlone(ctx, w, q)
	}
	if !leader {
		q.counters.coalesced.Inc()
	}
	return c.deliver(ctx, w, q, &f.result, true)
}

// queryForStale queries the next plugin for a stale entry, for a flight if there is one.
func (c *Cache) queryForStale(ctx context.Context, w *recorder, q *clientQuery, e *store.Entry, f *flight) (res result) {
	defer func() { c.endRefresh(e, res.renews, c.stale.recheck) }()
	if f == nil {
		return c.queryNext(ctx, w, q, false)
	}
	return c.lead(ctx, w, q, f, false)
}

// verifyInBackground sends the query of a flight in a goroutine, and reports whether it was started. The client that leads
// the flight waits for it like the others.
func (c *Cache) verifyInBackground(ctx context.Context, w dns.ResponseWriter, q *clientQuery, e *store.Entry, f *flight) bool {
	c.flights.addWaiter(f)
	background := *q
	background.msg = q.msg.Copy()
	r, ctx := detachedRecorder(w), detachedContext(ctx)
	if c.inBackground(q, func() { c.queryForStale(ctx, r, &background, e, f) }) {
		return true
	}
	c.endRefresh(e, false, 0)
	var b batch.Batch
	c.finish(&b, f, result{abandoned: true})
	b.Flush()
	return false
}

// wait waits for the end of a flight until the client response timer of RFC 8767 section 5 expires, and reports whether
// the flight has ended.
func (c *Cache) wait(ctx context.Context, f *flight) bool {
	var timeout <-chan time.Time
	if c.stale.timeout > 0 {
		timer := time.NewTimer(f.started + c.stale.timeout - c.now())
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-f.done:
		return true
	case <-timeout:
	case <-ctx.Done():
	}
	return false
}

// detachedContext returns a context that outlives the client's, with a copy of its metadata.
func detachedContext(ctx context.Context) context.Context {
	detached := metadata.ContextWithMetadata(context.WithoutCancel(ctx))
	for label, f := range metadata.ValueFuncs(ctx) {
		metadata.SetValueFunc(detached, label, f)
	}
	return detached
}

// Extended errors of stale answers in wire form, RFC 8914 sections 4.4 and 4.20.
var (
	staleAnswer   = appendError(nil, []byte{0, byte(dns.ExtendedErrorCodeStaleAnswer)})
	staleNXDOMAIN = appendError(nil, []byte{0, byte(dns.ExtendedErrorCodeStaleNXDOMAINAnswer)})
)

// serveStale answers a query with a stale entry.
func (c *Cache) serveStale(ctx context.Context, w dns.ResponseWriter, q *clientQuery, e *store.Entry) (int, error) {
	return c.serve(ctx, w, q.msg, q.packed, q.Query, e, c.stalePatch(q.counters, e, q.name))
}

// stalePatch counts and logs a stale answer, and returns the changes to it. An entry that has only lapsed is no stale answer: its TTL
// has not expired or, where no stale answers are served, has ended since the entry was looked up.
func (c *Cache) stalePatch(n *counters, e *store.Entry, name func() string) store.Patch {
	if e.Restored {
		n.restored.Inc()
	}
	if now := c.now(); now < e.Expires || e.Gone <= e.Expires {
		return e.Patch(now)
	}
	n.stale.Inc()
	c.logStale(name)
	p := store.Patch{Options: e.Options, FixedTTL: true, TTL: c.stale.ttl}
	if c.keepTTL && p.TTL == 0 {
		p.FixedTTL = false
	}
	if c.stale.onFailure && !e.Restored { // a restored entry has the extended error already
		p.Options = slices.Concat(p.Options, staleError(e))
	}
	return p
}

// staleError returns the extended error of an entry that is served stale, in wire form.
func staleError(e *store.Entry) []byte {
	if e.Plain.Rcode() == dns.RcodeNameError {
		return staleNXDOMAIN
	}
	return staleAnswer
}

// staleLogPause is the minimum time between log lines about stale answers; a metric counts the answers.
const staleLogPause = time.Minute

// logStale logs that stale answers are served because the upstream fails. With serve_stale they are intended.
func (c *Cache) logStale(name func() string) {
	if !c.stale.onFailure {
		return
	}
	now, last := int64(c.now()), c.loggedStale.Load()
	if (last == 0 || now-last >= int64(staleLogPause)) && c.loggedStale.CompareAndSwap(last, max(now, 1)) {
		log.Warningf("Upstream fails or is slow for %s: serving stale answers, for up to %v after they expire (logged once a minute)",
			name(), c.stale.maxAge)
	}
}
