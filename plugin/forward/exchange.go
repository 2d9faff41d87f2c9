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
	// pause is how long upstreams that have all failed at once are left alone, doubled each time up to maxPause:
	// a server that restarts is back soon.
	pause    = 100 * time.Millisecond
	maxPause = 400 * time.Millisecond
	// downPart is the part of its time for which a query waits while all upstreams are known to be down.
	downPart = 0.1
	// connectTime is how long the making of a connection may take before UDP is asked as well, and
	// answerTime how long an answer on one that is made; but half of what the upstream has at most.
	connectTime = 250 * time.Millisecond
	answerTime  = time.Second
	// maxAttempts bounds what is sent for one query, for each upstream.
	maxAttempts = 16
)

// exchange is what is done for one query: attempts, of which the first good answer wins. An attempt that is
// late goes on while the next upstream is asked.
type exchange struct {
	f        *Forward
	query    []byte
	buf      []byte   // for the query
	plain    *dns.Msg // the query but for the options that are for cluster DNS; nil if it has none
	unnamed  []byte   // plain, packed; nil until it is needed
	addedOPT bool     // to the query, which has none from the client
	searches bool     // the query has the client's search list, plain has not
	clientID uint16
	overTCP  bool // from the client
	alone    bool // the answer has many messages

	results  chan *transport.Call
	timer    *time.Timer
	started  time.Time
	deadline time.Time

	all      []*upstream // that there are
	order    []*upstream // in which they are asked
	next     int         // of the order
	tried    int         // of the order, the first time
	pass     int         // how often the order was gone through
	passFrom time.Time
	attempts []*attempt
	first    attempt // most queries have one
	call     transport.Call
	failures int       // attempts that count against max_connect_attempts
	failover int       // answers that were not good enough for failover
	hedged   bool      // another was asked because one is late
	last     bool      // no other attempt is made
	broken   bool      // all upstreams were found down
	ended    bool      // the time is over, or the client is gone
	nextAt   time.Time // when another upstream is asked; zero is when an attempt ends

	held     *dns.Msg // an answer that another may be better than
	heldFrom *upstream
	err      error // of the last attempt
}

// attempt is an upstream being asked.
type attempt struct {
	to      *upstream
	stream  *transport.Call // nil if it is not on its way
	udp     *transport.Call // the same
	started time.Time
	share   time.Duration // of the time for the query, after which it counts as failed
	udpAt   time.Time     // when UDP is asked too; zero is never
	tcpErr  error         // why TCP brought nothing
	open    bool          // an answer may come in time
	refusal int           // of the query that says who is calling; 0 if it was not refused
	trial   bool
}

// exchanges are used again.
var exchanges = sync.Pool{New: func() any {
	return &exchange{buf: make([]byte, 512), timer: time.NewTimer(time.Hour), attempts: make([]*attempt, 0, 2)}
}}

var errQuestions = errors.New("a query has one question")

// newExchange packs a query, which says who is calling if the stanza wants that. What is signed can't.
func (f *Forward) newExchange(state *request.Request) (*exchange, error) {
	r := state.Req
	if len(r.Question) != 1 { // which no answer could be compared with, RFC 9619
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

// release gives back what is used again. A call that has not come back keeps what it needs.
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

// run returns the answer and whom it is from.
func (x *exchange) run(ctx context.Context) (*dns.Msg, *upstream, error) {
	if d, ok := ctx.Deadline(); ok && d.Before(x.deadline) {
		x.deadline = d
	}
	if len(x.all) == 0 {
		return nil, nil, errNone
	}
	x.order = inOrder(x.f.policy.order(x.all))
	x.ask(x.started)
	for !x.over() {
		x.timer.Reset(time.Until(x.wakeAt()))
		select {
		case call := <-x.results:
			if reply, from := x.take(call); reply != nil {
				return reply, from, nil
			}
		case now := <-x.timer.C:
			if !now.Before(x.deadline) {
				x.last, x.ended = true, true
				x.close()
				break
			}
			x.elapsed(now)
		case <-ctx.Done():
			x.last, x.ended, x.err = true, true, ctx.Err()
			x.leave()
		}
	}
	if x.held != nil {
		return x.held, x.heldFrom, nil
	}
	if x.err == nil {
		x.err = errNoAnswer
	}
	return nil, x.asked(), x.err
}

// asked returns the upstream that was asked last.
func (x *exchange) asked() *upstream {
	if len(x.attempts) == 0 {
		return nil
	}
	return x.attempts[len(x.attempts)-1].to
}

// inOrder returns the order with those in the end that have failed lately. It leaves the argument alone.
func inOrder(order []*upstream) []*upstream {
	if len(order) < 2 || !slices.ContainsFunc(order, (*upstream).doubted) {
		return order
	}
	sure := make([]*upstream, 0, len(order))
	var doubted []*upstream
	for _, u := range order {
		if u.doubted() {
			doubted = append(doubted, u)
		} else {
			sure = append(sure, u)
		}
	}
	return append(sure, doubted...)
}

func (u *upstream) doubted() bool { return u.doubtful.Load() }

// over reports whether nothing is to be waited for. Where the Corefile does not say how many attempts there
// may be, those that are late may answer until the end, unless all upstreams are known to be down.
func (x *exchange) over() bool {
	return x.last && !x.waits() && (x.ended || x.broken || x.held != nil || x.f.attempts != unset || !x.outstanding())
}

// outstanding reports whether anything may come, be it late.
func (x *exchange) outstanding() bool {
	return slices.ContainsFunc(x.attempts, func(a *attempt) bool { return a.stream != nil || a.udp != nil })
}

// waits reports whether an upstream that was asked may answer in time.
func (x *exchange) waits() bool {
	return slices.ContainsFunc(x.attempts, func(a *attempt) bool { return a.open })
}

// wakeAt returns when there is something to do if nothing comes before.
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

// elapsed does what is due.
func (x *exchange) elapsed(now time.Time) {
	for _, a := range x.attempts {
		if !a.open {
			continue
		}
		if !a.udpAt.IsZero() && !now.Before(a.udpAt) {
			x.askUDPToo(a, now)
		}
		if now.Sub(a.started) >= a.share {
			x.tooLate(a, now)
		}
	}
	if !x.last && !x.nextAt.IsZero() && !now.Before(x.nextAt) {
		x.hedged = x.hedged || x.waits()
		x.ask(now)
	}
}

// tooLate counts an attempt as failed. Its answer is still good if it comes before that of another.
func (x *exchange) tooLate(a *attempt, now time.Time) {
	a.open = false
	a.endTrial()
	if a.stream != nil {
		a.to.stream.Late(a.stream)
	}
	if x.err == nil {
		x.err = fmt.Errorf("%s: %w", a.to.address, errNoAnswer)
	}
	a.to.failed()
	x.failed(now, true)
}

// failed sees that another attempt is made, unless there were enough. Attempts that fail at once are too
// many only if the Corefile says how many there may be: they cost nothing, and are made ever more rarely.
func (x *exchange) failed(now time.Time, late bool) {
	if x.last {
		return
	}
	if !now.Before(x.deadline) || x.held != nil && x.failover == 0 { // nothing can come, or there is an answer, if not a good one
		x.last = true
		return
	}
	if late || x.f.attempts > 0 {
		x.failures++
	}
	most := x.f.attempts
	if most == unset {
		most = 2 * len(x.all)
	}
	switch {
	case most > 0 && x.failures >= most, len(x.attempts) >= maxAttempts*len(x.all):
		x.last = true
	case x.waits() && x.tried >= len(x.order):
		// All others were asked as well, and one of them may answer.
	default:
		x.ask(now)
	}
}

// leave ends the wait without a word against those who are asked.
func (x *exchange) leave() {
	for _, a := range x.attempts {
		a.open = false
	}
}

// close ends the wait for everyone.
func (x *exchange) close() {
	for _, a := range x.attempts {
		if a.open {
			a.open = false
			a.endTrial()
			a.to.failed()
		}
	}
}

// ask asks the next upstream.
func (x *exchange) ask(now time.Time) {
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

// pick returns the upstream to ask, and whether it is one that is down. It is nil because it is later that
// one is to be asked, or because no other is asked at all.
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

// pickDown is for when all upstreams are down. It may be the checks that fail, so one is asked, if not too
// many others are asking it; and one may be up again soon, for which a query waits a part of its time.
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

func (a *attempt) endTrial() {
	if a.trial {
		a.trial = false
		a.to.trials.Add(-1)
	}
}
