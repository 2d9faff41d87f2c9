package cache

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/metrics/vars"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// prefetchOptions select the popular answers that are fetched again before they expire.
type prefetchOptions struct {
	amount  int64         // number of hits that makes an answer popular, 0 for never
	gap     time.Duration // maximum time between these hits
	percent int           // remaining part of the lifetime at which the answer is fetched
}

// prefetchRetry is the time between two attempts to prefetch an answer: popular names get thousands of hits a second.
const prefetchRetry = time.Second

// popularity returns the hit counter of a new entry, nil without prefetch.
func (o *prefetchOptions) popularity(now, lifetime time.Duration) *store.Popularity {
	if o.amount == 0 {
		return nil
	}
	seconds := int64(lifetime / time.Second)
	left := (seconds*int64(o.percent) + 99) / 100
	return &store.Popularity{Amount: o.amount, Gap: o.gap, From: now + time.Duration(seconds-left)*time.Second}
}

// prefetchDue counts a hit, and reports whether the entry is to be fetched again: not while a session vouches for it.
func prefetchDue(e *store.Entry, now time.Duration) bool {
	p := e.Popularity
	return p != nil && p.Count(now) && !p.Refreshing.Load() && !e.Vouched(now)
}

// refresh queries the next plugin for an entry again, without a client that waits for the reply: for prefetch, and for
// stale answers that are served immediately.
func (c *Cache) refresh(ctx context.Context, q *clientQuery, e *store.Entry) {
	if !c.startRefresh(e) {
		return
	}
	if e.Popularity != nil {
		e.Popularity.Refreshing.Store(true)
	}
	retry := prefetchRetry
	switch {
	case freshnessOf(e, c.now()) != fresh:
		retry = c.stale.recheck
	case e.Restored:
		retry = defaultStale.recheck
	}
	q.msg, q.udp = q.msg.Copy(), false        // the server reuses the client's message
	q.msg.RecursionDesired, q.RD = true, true // the reply is for clients with RD as well
	ctx = metadata.ContextWithMetadata(explain.Background(context.WithoutCancel(ctx)))
	started := c.inBackground(q, func() {
		renewed := false
		defer func() { c.endRefresh(e, renewed, retry) }()
		f, leader := c.flights.join(q, c.now())
		if !leader {
			renewed = true // by the query that is under way
			return
		}
		q.counters.prefetches.Inc()
		renewed = c.lead(ctx, backgroundRecorder(), q, f, true).renews
	})
	if !started {
		c.endRefresh(e, false, 0)
	}
}

// startRefresh reports whether the caller may refresh an entry: no refresh is running, and none has just failed.
func (c *Cache) startRefresh(e *store.Entry) bool {
	state := e.State.(*entryState)
	return c.now() >= time.Duration(state.retryAt.Load()) && state.refreshing.CompareAndSwap(false, true)
}

// endRefresh ends a refresh. After a failed one, the next may start when the time retry has passed.
func (c *Cache) endRefresh(e *store.Entry, renewed bool, retry time.Duration) {
	state := e.State.(*entryState)
	failed := !renewed && retry > 0
	if failed {
		state.retryAt.Store(int64(c.now() + retry))
	}
	if p := e.Popularity; p != nil && p.Refreshing.Load() {
		if failed { // until then, the fast path does not pass hits to the cache for a prefetch
			time.AfterFunc(retry, func() { p.Refreshing.Store(false) })
		} else {
			p.Refreshing.Store(false)
		}
	}
	state.refreshing.Store(false)
}

// inBackground calls f in a new goroutine, unless too many are running in the process or for the query's client.
func (c *Cache) inBackground(q *clientQuery, f func()) bool {
	end, ok := block.StartBackground(q.client)
	if !ok {
		q.counters.skipped.Inc()
		return false
	}
	go func() {
		defer func() {
			if r := recover(); r != nil {
				vars.Panic.Inc()
				log.Errorf("Background query for %s panicked: %v\n%s", q.msg.Question[0].Name, r, debug.Stack())
			}
			end()
		}()
		f()
	}()
	return true
}
