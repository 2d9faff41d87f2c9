package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

const (
	// pause is the time for which a query waits after all upstreams have failed at once, doubled each time up to
	// maxPause: a server that restarts is back soon.
	pause    = 100 * time.Millisecond
	maxPause = 400 * time.Millisecond
	// downPart is the part of its time for which a query waits while all upstreams are down.
	downPart = 0.1
	// maxAttempts bounds the attempts of one query, for each upstream.
	maxAttempts = 16
)

// exchange forwards one query: it makes attempts at the upstreams in turn, and returns the first good answer. A late
// attempt continues while the next upstream is tried.
type exchange struct {
	f        *Forward
	query    []byte
	buf      []byte   // of the query
	plain    *dns.Msg // the query without the options for cluster DNS; nil if it has none
	unnamed  []byte   // plain, packed; nil until it is needed
	addedOPT bool     // to the query; the client's has none
	searches bool     // the query has the client's search list, plain has not
	clientID uint16
	overTCP  bool // from the client
	alone    bool // a zone transfer, which needs its own connection

	results  chan *transport.Call
	timer    *time.Timer
	started  time.Time
	deadline time.Time

	all      []*upstream
	order    []*upstream // of the attempts
	next     int         // index in order
	tried    int         // upstreams in order that were tried
	pass     int         // number of passes through order
	passFrom time.Time
	attempts []*attempt
	first    attempt // avoids an allocation, as call does
	call     transport.Call
	failures int       // that count against max_connect_attempts
	failover int       // answers with a response code of failover
	hedged   bool      // another upstream was tried because of a late answer
	last     bool      // no further attempt is made
	broken   bool      // all upstreams were down
	ended    bool      // the time is over, or the client is gone
	nextAt   time.Time // of the next attempt; zero is when an attempt ends

	reserved     *dns.Msg // the client's answer if no better one arrives
	reservedFrom *upstream
	err          error // of the last attempt
}

// exchanges are reused.
var exchanges = sync.Pool{New: func() any {
	return &exchange{buf: make([]byte, 512), timer: time.NewTimer(time.Hour), attempts: make([]*attempt, 0, 2)}
}}

var errQuestions = errors.New("query without exactly one question")

// newExchange packs a query. With the option caller it names the calling node, unless it is signed.
func (f *Forward) newExchange(state *request.Request) (*exchange, error) {
	r := state.Req
	if len(r.Question) != 1 { // RFC 9619
		return nil, errQuestions
	}
	var plain *dns.Msg
	searches := false
	r = withoutHops(r)
	if f.caller != nil && r.IsTsig() == nil {
		plain = r
		r, searches = f.forCluster(plain, state.Req)
	}
	x, _ := exchanges.Get().(*exchange)
	query, err := r.PackBuffer(x.buf)
	if err != nil {
		exchanges.Put(x)
		return nil, fmt.Errorf("pack the query: %w", err)
	}
	now := time.Now()
	q := r.Question[0].Qtype
	*x = exchange{
		buf: x.buf, timer: x.timer, results: x.results, attempts: x.attempts[:0],
		f: f, query: query, plain: plain, addedOPT: plain != nil && plain.IsEdns0() == nil, searches: searches,
		clientID: r.Id, overTCP: state.Proto() == protoTCP,
		alone:   q == dns.TypeAXFR || q == dns.TypeIXFR,
		started: now, passFrom: now, deadline: now.Add(f.timeout),
		all: *f.upstreams.Load(),
	}
	if room := 2 * maxAttempts * max(len(x.all), 1); cap(x.results) < room {
		x.results = make(chan *transport.Call, room)
	}
	return x, nil
}

// release cancels the calls, and makes the exchange available for reuse, unless a call in flight still uses it.
func (x *exchange) release() {
	busy := false
	for _, a := range x.attempts {
		busy = busy || a.stream != nil || a.udp != nil
		a.cancel()
	}
	x.timer.Stop()
	if !busy {
		clear(x.attempts)
		*x = exchange{buf: x.buf, timer: x.timer, results: x.results, attempts: x.attempts[:0]}
		exchanges.Put(x)
	}
}

// run returns the answer and its upstream.
func (x *exchange) run(ctx context.Context) (*dns.Msg, *upstream, error) {
	if d, ok := ctx.Deadline(); ok && d.Before(x.deadline) {
		x.deadline = d
	}
	if len(x.all) == 0 {
		return nil, nil, errNone
	}
	x.order = doubtedLast(x.f.policy.order(x.all))
	x.try(x.started)
	for !x.done() {
		x.timer.Reset(time.Until(x.wakeAt()))
		select {
		case call := <-x.results:
			if reply, from := x.receive(call); reply != nil {
				return reply, from, nil
			}
		case now := <-x.timer.C:
			if now.Before(x.deadline) {
				x.elapsed(now)
			} else {
				x.end(true)
			}
		case <-ctx.Done():
			x.err = ctx.Err()
			x.end(false)
		}
	}
	if x.reserved != nil {
		return x.reserved, x.reservedFrom, nil
	}
	if x.err == nil {
		x.err = errNoAnswer
	}
	if len(x.attempts) == 0 {
		return nil, nil, x.err
	}
	return nil, x.attempts[len(x.attempts)-1].to, x.err
}

// doubtedLast returns the order with the upstreams at the end that have failed lately. It does not change its argument.
func doubtedLast(order []*upstream) []*upstream {
	if len(order) < 2 || !slices.ContainsFunc(order, (*upstream).doubted) {
		return order
	}
	sorted := make([]*upstream, 0, len(order))
	var doubted []*upstream
	for _, u := range order {
		if u.doubted() {
			doubted = append(doubted, u)
		} else {
			sorted = append(sorted, u)
		}
	}
	return append(sorted, doubted...)
}

// done reports whether no answer is awaited. Without max_connect_attempts late attempts may answer until the end of
// the time, unless all upstreams were down.
func (x *exchange) done() bool {
	return x.last && !x.waits() && (x.ended || x.broken || x.reserved != nil || x.f.attempts != unset || !x.inFlight())
}

// inFlight reports whether a call is in flight, even a late one.
func (x *exchange) inFlight() bool {
	return slices.ContainsFunc(x.attempts, func(a *attempt) bool { return a.stream != nil || a.udp != nil })
}

// waits reports whether an attempt is open.
func (x *exchange) waits() bool {
	return slices.ContainsFunc(x.attempts, func(a *attempt) bool { return a.open })
}

// wakeAt returns the next time at which an event of elapsed is due.
func (x *exchange) wakeAt() time.Time {
	at := x.deadline
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	if !x.last {
		sooner(x.nextAt)
	}
	for _, a := range x.attempts {
		if a.open {
			sooner(a.started.Add(a.share))
			sooner(a.udpAt)
		}
	}
	return at
}

// elapsed processes the fallbacks, late attempts and retries that are due.
func (x *exchange) elapsed(now time.Time) {
	for _, a := range x.attempts {
		if !a.open {
			continue
		}
		if !a.udpAt.IsZero() && !now.Before(a.udpAt) {
			x.fallBack(a, now)
		}
		if now.Sub(a.started) >= a.share {
			x.attemptLate(a, now)
		}
	}
	if !x.last && !x.nextAt.IsZero() && !now.Before(x.nextAt) {
		x.hedged = x.hedged || x.waits()
		x.try(now)
	}
}

// attemptLate counts an attempt as failed. Its answer is still used if it is the first.
func (x *exchange) attemptLate(a *attempt, now time.Time) {
	a.open = false
	a.endTrial()
	if a.stream != nil {
		a.to.stream.Late(a.stream)
	}
	if x.err == nil {
		x.err = fmt.Errorf("%s: %w", a.to.address, errNoAnswer)
	}
	a.to.failed()
	x.retry(now, true)
}

// retry makes another attempt after a failed one, unless max_connect_attempts is reached. By default attempts that fail
// at once do not count: they are cheap, and are made more and more rarely.
func (x *exchange) retry(now time.Time, late bool) {
	if x.last {
		return
	}
	if !now.Before(x.deadline) || x.reserved != nil && x.failover == 0 {
		x.last = true
		return
	}
	if late || x.f.attempts > 0 {
		x.failures++
	}
	limit := x.f.attempts
	if limit == unset {
		limit = 2 * len(x.all)
	}
	switch {
	case limit > 0 && x.failures >= limit, len(x.attempts) >= maxAttempts*len(x.all):
		x.last = true
	case x.waits() && x.tried >= len(x.order): // all were tried, and one may answer
	default:
		x.try(now)
	}
}

// end ends all attempts. If the time is over, upstreams that have not answered count as failed.
func (x *exchange) end(timeout bool) {
	x.last, x.ended = true, true
	for _, a := range x.attempts {
		if a.open {
			a.open = false
			a.endTrial()
			if timeout {
				a.to.failed()
			}
		}
	}
}

// try makes an attempt at the next upstream.
func (x *exchange) try(now time.Time) {
	x.nextAt = time.Time{}
	u, trial := x.pick(now)
	if u == nil {
		return
	}
	a := &x.first
	if len(x.attempts) > 0 {
		a = new(attempt)
	}
	*a = attempt{to: u, started: now, open: true, trial: trial}
	others := 0
	for _, o := range x.order[min(x.tried, len(x.order)):] {
		if !o.down() {
			others++
		}
	}
	a.share = min(x.f.readTimeout, x.deadline.Sub(now)/time.Duration(others+1))
	x.attempts = append(x.attempts, a)
	x.send(a, now)
	if x.f.hedge > 0 && !x.hedged && others > 0 && !x.last {
		x.nextAt = now.Add(x.f.hedge)
	}
}

// pick returns the next upstream, and whether the attempt is a trial of one that is down. It returns nil if the next
// attempt is made later (nextAt) or never (last).
func (x *exchange) pick(now time.Time) (u *upstream, trial bool) {
	for range x.order {
		if x.next == len(x.order) {
			if wait := x.passFrom.Add(min(pause<<min(x.pass, 6), maxPause)); now.Before(wait) {
				x.nextAt = wait
				return nil, false
			}
			x.next, x.passFrom = 0, now
			x.pass++
		}
		u := x.order[x.next]
		x.next++
		x.tried = max(x.tried, x.next)
		if !u.down() {
			return u, false
		}
	}
	u = x.pickDown(now)
	return u, u != nil
}

// pickDown returns an upstream for a trial while all are down, since the checks may be wrong. If there are too many
// trials, the query waits for a part of its time.
func (x *exchange) pickDown(now time.Time) *upstream {
	if x.waits() {
		return nil
	}
	if !x.broken {
		x.broken = true
		healthcheckBroken.Inc()
	}
	if x.err == nil {
		x.err = errNoHealthy
	}
	if x.f.failfast || now.Sub(x.started) >= time.Duration(downPart*float64(x.f.timeout)) {
		x.last = true
		return nil
	}
	u := x.all[rand.IntN(len(x.all))] // #nosec G404 -- it only spreads load
	if u.trials.Add(1) > maxTrials {
		u.trials.Add(-1)
		x.nextAt = now.Add(maxPause / 2)
		return nil
	}
	return u
}
