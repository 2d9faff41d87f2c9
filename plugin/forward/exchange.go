package forward

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	ot "github.com/opentracing/opentracing-go"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
)

const (
	// pause is the minimum time from one pass through the upstreams to the next, doubled each time up to maxPause: a server
	// that restarts is back soon.
	pause    = 100 * time.Millisecond
	maxPause = 400 * time.Millisecond
	// downPart is the part of its time for which a query waits while all upstreams are down.
	downPart = 0.1
	// maxAttempts bounds the attempts of one query, for each upstream.
	maxAttempts = 16
)

// exchange forwards one query: it makes attempts at the upstreams in turn, and returns the first good reply. A late
// attempt continues while the next upstream is tried. It has no goroutine: it continues with each event, which is the end of
// a call, a deadline, or the cancellation by the client.
type exchange struct {
	mu sync.Mutex
	progress
}

// progress is the state of an exchange, which its mutex guards.
type progress struct {
	receiver receiver // nil after the end
	users    int      // calls in flight, the deadline, and the goroutine that began it: the last one releases the exchange
	batch    *batch.Batch
	deadlines

	f         *Forward
	wire      wireQuery      // the query of Exchange
	overTCP   bool           // the client's query is over TCP
	span      ot.Span        // of the query of the plugin chain, nil without tracing
	explained *explain.Trace // nil for an ordinary query
	queries

	started  time.Time
	deadline time.Time

	all      []*upstream
	order    []*upstream // of the attempts
	next     int         // index in order
	tried    int         // upstreams in order that were tried
	pass     int         // number of passes through order
	passFrom time.Time
	made     int        // number of attempts
	asked    *upstream  // of the last attempt
	attempts []*attempt // those in flight, and ended ones until they are reused
	first    attempt    // avoids an allocation, as call does
	call     transport.Call
	unsent   []*transport.Call // calls that could not be sent; processed after the event
	failures int               // that count against max_connect_attempts
	failover int               // answers with a response code of failover
	hedged   bool              // another upstream was tried because of a late answer
	last     bool              // no further attempt is made
	broken   bool              // all upstreams were down
	ended    bool              // the time is over, or the client is gone
	nextAt   time.Time         // of the next attempt; zero is when an attempt ends

	message  message   // of the event in progress
	reserved reserved  // the client's reply if no better one arrives, if from is not nil
	from     *upstream // of the reply
	err      error     // of the last attempt
}

// receiver receives the result of an exchange.
type receiver interface {
	// replied is called once, without a lock. The reply is valid until it returns; after an error there is none.
	replied(b *batch.Batch, reply message, from *upstream, err error)
}

// deadlines is the time at which the next event of elapsed is due.
type deadlines struct {
	wheel.Deadline
	setTo time.Time
}

// exchanges are reused.
var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// maxSpare bounds the buffers of an exchange that are reused, in bytes.
const maxSpare = 1 << 10

// reset clears the exchange for the next query; no user is left. Its buffers are kept if they are not above maxSpare.
func (x *exchange) reset() {
	clear(x.attempts)
	clear(x.order)
	x.progress = progress{
		queries: queries{buf: spare(x.buf), named: spare(x.named), notify: spare(x.notify)}, reserved: reserved{b: spare(x.reserved.b)},
		order: x.order[:0], attempts: x.attempts[:0], unsent: x.unsent[:0],
	}
}

// spare returns a buffer for reuse, empty, or nil if it is long.
func spare(b []byte) []byte {
	if cap(b) > maxSpare {
		return nil
	}
	return b[:0]
}

var errQuestions = errors.New("query without exactly one question")

// newExchange returns an exchange without a query. The caller is its first user.
func (f *Forward) newExchange(overTCP bool, r receiver) *exchange {
	x, _ := exchanges.Get().(*exchange)
	now := time.Now()
	if x.buf == nil {
		x.buf = make([]byte, 0, initialQuery)
	}
	x.f, x.receiver, x.users, x.overTCP = f, r, 1, overTCP
	x.started, x.passFrom, x.deadline, x.all = now, now, now.Add(f.timeout), *f.upstreams.Load()
	x.Owner = x
	return x
}

// initialQuery is the capacity of a new buffer for a query: more bytes than an ordinary query has.
const initialQuery = 128

// run begins the exchange. Its query is set.
func (x *exchange) run(b *batch.Batch) {
	x.mu.Lock()
	if len(x.all) == 0 {
		x.err, x.last, x.ended = errNone, true, true
	} else {
		x.countLeak()
		x.order = doubtedLast(x.f.policy.appendOrder(x.order[:0], x.all))
		x.batch = b
		x.try(x.started)
	}
	x.proceed(b, false)
}

// Ended implements transport.Owner.
func (x *exchange) Ended(b *batch.Batch, call *transport.Call) {
	x.mu.Lock()
	x.users--
	x.batch = b
	x.proceed(b, x.receiver != nil && x.receive(call))
}

// Expired implements wheel.Owner.
func (x *exchange) Expired(now time.Time) {
	var b batch.Batch
	x.mu.Lock()
	x.users--
	x.batch = &b
	x.setTo = time.Time{}
	switch {
	case x.receiver == nil:
	case now.Before(x.deadline):
		x.elapsed(now)
	default:
		x.end(true)
	}
	x.proceed(&b, false)
	b.Flush()
}

// cancel ends the exchange: the client does not wait any longer.
func (x *exchange) cancel(err error) {
	var b batch.Batch
	x.mu.Lock()
	x.batch = &b
	if x.receiver != nil {
		x.err = err
		x.end(false)
	}
	x.proceed(&b, false)
	b.Flush()
}

// proceed ends an event: it finishes the exchange if the message is the client's reply or no further reply is awaited, and
// otherwise sets the time of the next event. It unlocks the exchange.
func (x *exchange) proceed(b *batch.Batch, replied bool) {
	if x.receiver == nil {
		x.unlock()
		return
	}
	for len(x.unsent) > 0 && !replied {
		call := x.unsent[0]
		x.unsent = slices.Delete(x.unsent, 0, 1)
		replied = x.receive(call)
	}
	x.batch = nil
	if replied || x.done() {
		x.finish(b, replied)
		return
	}
	if at := x.wakeAt(); !at.Equal(x.setTo) {
		if x.setTo = at; wheel.Process.Set(&x.Deadline, at) {
			x.users++
		}
	}
	x.unlock()
}

// finish cancels the calls, and calls the receiver, with the message if it is the client's reply.
func (x *exchange) finish(b *batch.Batch, replied bool) {
	for _, a := range x.attempts {
		a.endTrial()
		a.endSpan()
		if a.stream != nil && a.to.stream.Cancel(a.stream) {
			x.users--
		}
		if a.udp != nil && a.to.udp.Cancel(a.udp) {
			x.users--
		}
	}
	if wheel.Process.Stop(&x.Deadline) {
		x.users--
	}
	r := x.receiver
	x.receiver = nil
	switch {
	case replied:
		x.err = nil
	case x.from != nil:
		x.useReserved()
		x.err = nil
	default:
		if x.err == nil {
			x.err = errNoAnswer
		}
		x.from = x.asked
	}
	reply, from, err := x.message, x.from, x.err
	x.message = message{}
	x.mu.Unlock()
	r.replied(b, reply, from, err)
	reply.release()
	x.leave()
}

// leave ends the use of the exchange by one user.
func (x *exchange) leave() {
	x.mu.Lock()
	x.users--
	x.unlock()
}

// unlock unlocks the exchange, and releases it without users.
func (x *exchange) unlock() {
	unused := x.users == 0
	x.mu.Unlock()
	if unused {
		x.reset()
		exchanges.Put(x)
	}
}

// doubtedLast returns the order with upstreams that have failed lately at the end. It does not change its argument.
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
	return x.last && !x.waits() && (x.ended || x.broken || x.from != nil || x.f.attempts != unset || !x.inFlight())
}

// inFlight reports whether a call is in flight, even a late one.
func (x *exchange) inFlight() bool {
	return slices.ContainsFunc(x.attempts, (*attempt).inFlight)
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
		if now.Sub(a.started) >= a.share && !x.waitsLonger(a, now) {
			x.attemptLate(a, now)
		}
	}
	if !x.last && !x.nextAt.IsZero() && !now.Before(x.nextAt) {
		x.hedged = x.hedged || x.waits()
		x.try(now)
	}
}

// heldStep is the time between two checks of the session for a query that the upstream may hold.
const heldStep = 200 * time.Millisecond

// waitsLonger extends the share of a late attempt, up to transport.MaxHold, while the session of its connection vouches for answers:
// the upstream works, and may hold the query until it has an answer. The next upstream is tried as well, once.
func (x *exchange) waitsLonger(a *attempt, now time.Time) bool {
	if a.stream == nil || now.Sub(a.started) >= transport.MaxHold || !a.to.vouches(a.stream) {
		return false
	}
	a.share = now.Sub(a.started) + heldStep
	if !a.passed && x.tried < len(x.order) {
		a.passed = true
		x.retry(now, true)
	}
	return true
}

// attemptLate ends an attempt, and counts its upstream as failed unless a session of the upstream vouches for answers. The answer
// is still used if it is the first.
func (x *exchange) attemptLate(a *attempt, now time.Time) {
	a.open = false
	a.endTrial()
	if a.stream != nil {
		a.to.stream.Late(a.stream)
	}
	if !a.udpAt.IsZero() { // the upstream might have held the query until now
		x.sendUDP(a)
	}
	x.explainFailure(a, errNoAnswer)
	if x.err == nil {
		x.err = fmt.Errorf("%s: %w", a.to.address, errNoAnswer)
	}
	if !a.to.vouches(nil) {
		a.to.failed()
	}
	x.retry(now, true)
}

// retry makes another attempt after a failed one, unless max_connect_attempts is reached. By default attempts that fail
// at once do not count: they are cheap, and are made more and more rarely.
func (x *exchange) retry(now time.Time, late bool) {
	if x.last {
		return
	}
	if !now.Before(x.deadline) || x.from != nil && x.failover == 0 {
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
	case limit > 0 && x.failures >= limit, x.made >= maxAttempts*len(x.all):
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
			if timeout && !a.to.vouches(nil) {
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
	x.made, x.asked = x.made+1, u
	a := x.newAttempt()
	*a = attempt{to: u, started: now, open: true, trial: trial}
	others := 0
	for _, o := range x.order[min(x.tried, len(x.order)):] {
		if !o.down() {
			others++
		}
	}
	a.share = min(x.f.readTimeout, x.deadline.Sub(now)/time.Duration(others+1))
	a.trace(x.span)
	x.send(a, now)
	if x.f.hedge > 0 && !x.hedged && others > 0 && !x.last {
		x.nextAt = now.Add(x.f.hedge)
	}
}

// newAttempt returns an attempt of x.attempts, whose fields the caller sets. It reuses an ended one: an upstream that closes its
// connections can cause maxAttempts attempts for each of thousands of queries in progress. One with a span is still in use by receive.
func (x *exchange) newAttempt() *attempt {
	ended := func(a *attempt) bool { return !a.open && !a.inFlight() && a.span == nil }
	if i := slices.IndexFunc(x.attempts, ended); i >= 0 {
		return x.attempts[i]
	}
	a := &x.first
	if len(x.attempts) > 0 {
		a = new(attempt)
	}
	x.attempts = append(x.attempts, a)
	return a
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
