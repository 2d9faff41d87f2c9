package forward

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

const (
	// checkTime bounds the wait for the answer to a check.
	checkTime = time.Second
	// minCheckEvery is the minimum time between two checks.
	minCheckEvery = 20 * time.Millisecond
	// maxTrials bounds the clients' queries in flight to an upstream while all are down.
	maxTrials = 16
)

// health is the state of an upstream.
type health struct {
	fails    atomic.Uint32 // successive failed checks
	doubtful atomic.Bool   // a query has failed since the last answer
	checking atomic.Bool
	trials   atomic.Int32
	tcpBad   atomic.Bool     // TCP does not work, but UDP does
	tcpCheck atomic.Bool     // TCP is being checked
	tcpAgain time.Duration   // tcpPause; tests shorten it
	ctx      context.Context // ends when the upstream is stopped
	cancel   context.CancelFunc
	stopOnce sync.Once

	caseChecked atomic.Int64 // time of the last check of the case of replies, on the clock of validity.Now; 0 without one
	caseUntil   atomic.Int64 // end of queries in lower case, on the same clock; 0 without one

	unnamed      atomic.Bool   // queries have no options for cluster DNS, see checkOptions
	optionCheck  atomic.Bool   // the options are being checked, or were lately
	optionsAgain time.Duration // unnamedFor; tests shorten it
}

// down reports whether an upstream counts as down.
func (u *upstream) down() bool {
	return u.c.maxFails > 0 && u.fails.Load() > u.c.maxFails
}

// doubted reports whether a query has failed since the last answer.
func (u *upstream) doubted() bool { return u.doubtful.Load() }

// works records an answer: the upstream is not down, even if its checks fail.
func (u *upstream) works() {
	if u.doubtful.Load() {
		u.doubtful.Store(false)
	}
	if u.fails.Load() > 0 && u.fails.Swap(0) > u.c.maxFails {
		log.Infof("Upstream %s answers again", u.address)
		up.WithLabelValues(u.address).Set(1)
	}
}

// failed records a query without an answer, and checks the upstream until it answers.
func (u *upstream) failed() {
	u.doubtOptions()
	if u.c.maxFails == 0 {
		return
	}
	u.doubtful.Store(true)
	if u.checking.CompareAndSwap(false, true) {
		go u.check()
	}
}

// check checks the upstream until it answers, or is stopped.
func (u *upstream) check() {
	for u.checkUntilAnswer() && !u.endCheck() {
	}
}

// endCheck ends the checks and returns true, unless a query has failed since the last answer.
func (u *upstream) endCheck() bool {
	u.checking.Store(false)
	return !u.doubted() || !u.checking.CompareAndSwap(false, true)
}

// checkUntilAnswer returns false if the upstream is stopped.
func (u *upstream) checkUntilAnswer() bool {
	for n := 0; ; n++ {
		err := u.probe(u.checkCarrier())
		if err != nil && u.c.fallbackUDP && u.udp != nil {
			err = u.probe(u.udp)
		}
		if err == nil {
			u.works()
			return true
		}
		if !errors.Is(err, transport.ErrBusy) { // the check was not sent
			u.checkFailed(err)
		}
		// The longer an upstream is down, the more rarely it is checked: up to a quarter as often.
		every := max(u.c.checkEvery, minCheckEvery) << min(n/4, 2)
		if !sleep(u.ctx, every+rand.N(every/8+1)) {
			return false
		}
	}
}

// checkFailed counts a check without an answer.
func (u *upstream) checkFailed(err error) {
	healthcheckFailures.WithLabelValues(pluginName, u.address).Inc() // before the upstream counts as down
	if u.fails.Add(1) == u.c.maxFails+1 {
		log.Warningf("Upstream %s is down: %v", u.address, err)
		up.WithLabelValues(u.address).Set(0)
	}
}

// checkCarrier returns the carrier of checks: UDP unless force_tcp is set.
func (u *upstream) checkCarrier() transport.Carrier {
	if u.udp != nil && !u.c.forceTCP {
		return u.udp
	}
	return u.stream
}

var errNoAnswer = errors.New("no answer in time")

// probe queries the NS records of the root, or of the domain of health_check. Any answer is good.
func (u *upstream) probe(carrier transport.Carrier) error {
	if r := u.query(carrier, u.c.checkQuery(u.c.checkName)); !errors.Is(r.err, transport.ErrWrongAnswer) {
		return r.err
	}
	return nil
}

// checkQuery returns the query of a check for a name.
func (c *config) checkQuery(name string) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, dns.TypeNS)
	m.RecursionDesired = c.checkRecursion
	return m
}

// query sends a query of this program, and waits for the reply.
func (u *upstream) query(carrier transport.Carrier, m *dns.Msg) result {
	query, err := m.Pack()
	if err != nil {
		return result{err: err}
	}
	done := make(ended, 1)
	// On a shared connection it might wait for other answers.
	call := &transport.Call{Query: query, Deadline: time.Now().Add(checkTime), Owner: done, Alone: true}
	var b batch.Batch
	if err := carrier.Send(&b, call); err != nil {
		return result{err: err}
	}
	b.Flush()
	late := time.NewTimer(checkTime)
	defer late.Stop()
	select {
	case r := <-done:
		return r
	case <-late.C:
		carrier.Cancel(call)
		return result{err: errNoAnswer}
	}
}

// result has the properties of the reply to a query of this program, or an error.
type result struct {
	rcode       int
	caseChanged bool // see transport.Call
	err         error
}

// ended receives the result of a call.
type ended chan result

// Ended implements transport.Owner.
func (e ended) Ended(_ *batch.Batch, call *transport.Call) {
	var m message
	defer m.release()
	r := result{caseChanged: call.CaseChanged, err: call.Err}
	if call.Err == nil {
		m.read(call.Reply) // read sets the response code of a malformed reply, too
		r.rcode = m.Rcode
	}
	e <- r
}
