package cache

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// prefetchPause is for how long a prefetch that has failed is not tried again: the queries that it is
// for come thousands a second.
const prefetchPause = time.Second

// inBackground calls f in a goroutine of its own, unless there are too many, or too many of the query's client.
func (c *Cache) inBackground(a *asked, f func()) bool {
	end, ok := block.StartBackground(a.client)
	if !ok {
		a.n.skipped.Inc()
		return false
	}
	go func() {
		defer func() {
			if r := recover(); r != nil {
				vars.Panic.Inc()
				log.Errorf("asking again for %s: panic: %v\n%s", a.msg.Question[0].Name, r, debug.Stack())
			}
			end()
		}()
		f()
	}()
	return true
}

// begin reports whether an entry is to be asked for again, and by the caller.
func (k *kept) begin(now time.Duration) bool {
	return now >= time.Duration(k.retry.Load()) && k.refreshing.CompareAndSwap(false, true)
}

// end is the end of what begin has begun. After a failure nothing is asked for a while.
func (k *kept) end(e *answers.Entry, now, pause time.Duration, renewed bool) {
	failed := !renewed && pause > 0
	if failed {
		k.retry.Store(int64(now + pause))
	}
	if p := e.Popularity; p != nil && p.Refreshing.Load() {
		if failed { // the fast path need not hand over what would not be asked
			time.AfterFunc(pause, func() { p.Refreshing.Store(false) })
		} else {
			p.Refreshing.Store(false)
		}
	}
	k.refreshing.Store(false)
}

// refresh asks for an entry again, without a client waiting for it.
func (c *Cache) refresh(ctx context.Context, a *asked, e *answers.Entry) {
	state := e.State.(*kept)
	if !state.begin(c.now()) {
		return
	}
	if e.Popularity != nil {
		e.Popularity.Refreshing.Store(true)
	}
	pause := prefetchPause
	if stateOf(e, c.now()) != fresh {
		pause = c.stale.recheck
	}
	a.msg, a.udp = a.msg.Copy(), false          // the client's is gone when it has its answer
	a.msg.RecursionDesired, a.q.RD = true, true // the reply is for clients with RD as well
	ctx = metadata.ContextWithMetadata(context.WithoutCancel(ctx))
	started := c.inBackground(a, func() {
		renewed := false
		defer func() { state.end(e, c.now(), pause, renewed) }()
		flying, leader := c.flights.join(a, c.now())
		if !leader {
			renewed = true // it is under way already
			return
		}
		a.n.prefetches.Inc()
		renewed = c.fly(ctx, ownQuery(), a, flying, true).renews
	})
	if !started {
		state.end(e, c.now(), 0, false)
	}
}

// serveExpired answers with an entry that has expired, or with what takes its place.
func (c *Cache) serveExpired(ctx context.Context, w dns.ResponseWriter, a *asked, e *answers.Entry) (int, error) {
	state := e.State.(*kept)
	switch {
	case !c.stale.verify:
		a.n.hits[e.Kind].Inc()
		c.refresh(ctx, newAsked(a.msg, a.query, a.key, a.q, a.n, w), e)
		return c.giveStale(ctx, w, a, e)
	case !c.stale.failure:
		a.n.hits[e.Kind].Inc()
		if (c.stale.recheck > 0 || c.stale.timeout > 0) && !state.begin(c.now()) {
			return c.giveStale(ctx, w, a, e)
		}
	case c.now() < time.Duration(state.retry.Load()):
		a.n.hits[e.Kind].Inc()
		return c.giveStale(ctx, w, a, e)
	default:
		a.n.misses.Inc()
	}
	return c.verify(ctx, w, a, e)
}

// verify asks for an entry again, and waits for the reply as long as it may.
func (c *Cache) verify(ctx context.Context, w dns.ResponseWriter, a *asked, e *answers.Entry) (int, error) {
	state := e.State.(*kept)
	if nested(ctx) && c.stale.timeout == 0 {
		return c.verifyAlone(ctx, w, a, e)
	}
	flying, leader := c.flights.join(a, c.now())
	if leader {
		c.flights.attend(flying)
		if !c.depart(ctx, w, a, e, flying) {
			return c.giveStale(ctx, w, a, e)
		}
	} else if !c.stale.failure {
		state.end(e, c.now(), 0, false) // another query is on its way, and it has not begun this
	}
	if !c.wait(ctx, flying) || !flying.out.renews {
		return c.giveStale(ctx, w, a, e)
	}
	if !a.shares(flying) {
		return c.fetchAlone(ctx, w, a)
	}
	if !leader {
		a.n.coalesced.Inc()
	}
	return c.share(ctx, w, a, flying)
}

// verifyAlone asks for an entry again as if nobody else did.
func (c *Cache) verifyAlone(ctx context.Context, w dns.ResponseWriter, a *asked, e *answers.Entry) (int, error) {
	renewed := false
	defer func() { e.State.(*kept).end(e, c.now(), c.stale.recheck, renewed) }()
	out := c.ask(ctx, recording(w), a, false)
	if renewed = out.renews; !renewed {
		return c.giveStale(ctx, w, a, e)
	}
	return c.deliver(ctx, w, a, &out)
}

// depart flies a flight of verify: in the background if the client need not wait for its end. It fails if
// it can't.
func (c *Cache) depart(ctx context.Context, w dns.ResponseWriter, a *asked, e *answers.Entry, flying *flight) bool {
	state := e.State.(*kept)
	fly := func(ctx context.Context, w *recorder, a *asked) {
		renewed := false
		defer func() { state.end(e, c.now(), c.stale.recheck, renewed) }()
		renewed = c.fly(ctx, w, a, flying, false).renews
	}
	if c.stale.timeout == 0 {
		fly(ctx, recording(w), a)
		return true
	}
	apart := *a
	apart.msg = a.msg.Copy()
	r, ctx := withoutClient(w), detached(ctx)
	if c.inBackground(a, func() { fly(ctx, r, &apart) }) {
		return true
	}
	state.end(e, c.now(), 0, false)
	c.flights.land(flying, outcome{abandoned: true})
	return false
}

// wait waits for a flight until the client is to have an answer, RFC 8767 section 5. It reports whether
// the flight has landed.
func (c *Cache) wait(ctx context.Context, flying *flight) bool {
	var timeout <-chan time.Time
	if c.stale.timeout > 0 {
		timer := time.NewTimer(flying.started + c.stale.timeout - c.now())
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-flying.done:
		return true
	case <-timeout:
	case <-ctx.Done():
	}
	return false
}

// detached returns a context that lasts when the client is gone, with metadata of its own.
func detached(ctx context.Context) context.Context {
	apart := metadata.ContextWithMetadata(context.WithoutCancel(ctx))
	for label, f := range metadata.ValueFuncs(ctx) {
		metadata.SetValueFunc(apart, label, f)
	}
	return apart
}

// Extended errors that tell of an answer that has expired, RFC 8914 sections 4.4 and 4.20, in wire form.
var (
	staleAnswer   = packOptions([]dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeStaleAnswer}})
	staleNXDOMAIN = packOptions([]dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeStaleNXDOMAINAnswer}})
)

// stalePause is how often it is said that expired answers are given, at most.
const stalePause = time.Minute

// tellStale says that expired answers are given since the upstream fails, and not how often: a metric
// tells that.
func (c *Cache) tellStale(a *asked) {
	if !c.stale.failure {
		return // the configuration wants them
	}
	now, last := int64(c.now()), c.saidStale.Load()
	if (last == 0 || now-last >= int64(stalePause)) && c.saidStale.CompareAndSwap(last, max(now, 1)) {
		log.Warningf("The upstream of %s fails or is slow: answers that have expired are given, for %v at most (this is said once a minute)",
			a.msg.Question[0].Name, c.stale.upTo)
	}
}

// giveStale answers with an entry that has expired.
func (c *Cache) giveStale(ctx context.Context, w dns.ResponseWriter, a *asked, e *answers.Entry) (int, error) {
	a.n.stale.Inc()
	c.tellStale(a)
	p := answers.Patch{Options: e.Options, FixedTTL: true, TTL: c.stale.ttl}
	if c.keepTTL && p.TTL == 0 {
		p.FixedTTL = false
	}
	if c.stale.failure {
		said := staleAnswer
		if e.Plain.Rcode() == dns.RcodeNameError {
			said = staleNXDOMAIN
		}
		p.Options = slices.Concat(p.Options, said)
	}
	return c.give(ctx, w, a.msg, a.query, a.q, e, p)
}
