package forward

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

const (
	// checkTime bounds the wait for the answer to a check.
	checkTime = time.Second
	// minCheckEvery is between two checks at least, whatever the Corefile says.
	minCheckEvery = 20 * time.Millisecond
	// maxTrials bounds the clients' queries that an upstream has at a time which is down like all others.
	maxTrials = 16
	// tcpPause is after what time an upstream whose TCP does not work is asked over it again.
	tcpPause = 30 * time.Second
)

// health is what is known of an upstream's.
type health struct {
	fails    atomic.Uint32 // checks that failed, one after the other
	doubtful atomic.Bool   // a query has failed since the last answer
	checking atomic.Bool
	trials   atomic.Int32
	tcpBad   atomic.Bool     // TCP does not work, while UDP does
	tcpCheck atomic.Bool     // it is being looked at
	tcpAgain time.Duration   // tcpPause; tests have less
	life     context.Context // ends when the upstream is not used any more
	die      context.CancelFunc
	stopOnce sync.Once

	unnamedUntil atomic.Int64 // until when it is not told who is calling, in nanoseconds of Unix time; 0 is never yet
}

// down reports whether an upstream counts as down.
func (u *upstream) down() bool {
	return u.c.maxFails > 0 && u.fails.Load() > u.c.maxFails
}

// works notes an answer. Whatever the checks say, it is not down.
func (u *upstream) works() {
	if u.doubtful.Load() {
		u.doubtful.Store(false)
	}
	if u.fails.Load() > 0 && u.fails.Swap(0) > u.c.maxFails {
		log.Infof("Upstream %s answers again", u.address)
		up.WithLabelValues(u.address).Set(1)
	}
}

// failed notes that a query got no answer, and has the upstream checked until it gives one.
func (u *upstream) failed() {
	if u.c.maxFails == 0 {
		return
	}
	u.doubtful.Store(true)
	if u.checking.CompareAndSwap(false, true) {
		go u.check()
	}
}

// check asks until there is an answer, or the upstream is not used any more.
func (u *upstream) check() {
	for u.checkUntilAnswer() && !u.rest() {
	}
}

// rest ends the checking, unless a query has failed since the answer, and left it to this check.
func (u *upstream) rest() bool {
	u.checking.Store(false)
	return !u.doubtful.Load() || !u.checking.CompareAndSwap(false, true)
}

// checkUntilAnswer returns false if the upstream is not used any more.
func (u *upstream) checkUntilAnswer() bool {
	for n := 0; ; n++ {
		err := u.ask(u.first())
		if err != nil && u.c.fallbackUDP && u.udp != nil {
			err = u.ask(u.udp)
		}
		if err == nil {
			u.works()
			return true
		}
		if !errors.Is(err, transport.ErrBusy) { // which is no fault of the upstream: the check was not sent
			u.checkFailed(err)
		}
		// A server that stays away is asked more rarely, up to four times.
		every := max(u.c.checkEvery, minCheckEvery) << min(n/4, 2)
		if !sleep(u.life, every+rand.N(every/8+1)) {
			return false
		}
	}
}

// checkFailed counts a check without an answer.
func (u *upstream) checkFailed(err error) {
	healthcheckFailures.WithLabelValues(pluginName, u.address).Inc() // before anyone sees that it is down
	if u.fails.Add(1) == u.c.maxFails+1 {
		log.Warningf("Upstream %s is down: %v", u.address, err)
		up.WithLabelValues(u.address).Set(0)
	}
}

// first returns the way by which checks go: that of the configuration, and UDP if it leaves the choice to
// the client.
func (u *upstream) first() transport.Carrier {
	if u.udp != nil && !u.c.forceTCP {
		return u.udp
	}
	return u.stream
}

var errNoAnswer = errors.New("no answer in time")

// ask asks for the name servers of the root, or of the name that the Corefile says. Whatever is answered,
// it is an answer.
func (u *upstream) ask(way transport.Carrier) error {
	m := new(dns.Msg)
	m.SetQuestion(u.c.checkName, dns.TypeNS)
	m.RecursionDesired = u.c.checkRecursion
	query, err := m.Pack()
	if err != nil {
		return err
	}
	done := make(chan *transport.Call, 1)
	// On a connection that has answers outstanding it would wait for them.
	call := &transport.Call{Query: query, Deadline: time.Now().Add(checkTime), Done: done, Alone: true}
	way.Send(call)
	late := time.NewTimer(checkTime)
	defer late.Stop()
	select {
	case <-done:
		if errors.Is(call.Err, transport.ErrWrongAnswer) {
			return nil
		}
		return call.Err
	case <-late.C:
		way.Cancel(call)
		return errNoAnswer
	}
}

// doubtTCP looks whether TCP works, after UDP has worked where it did not. As long as it does not, UDP is
// used.
func (u *upstream) doubtTCP(why string) {
	if u.tcpBad.Load() || !u.tcpCheck.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer u.tcpCheck.Store(false)
		for {
			err := u.ask(u.stream)
			if err == nil {
				if u.tcpBad.Swap(false) {
					log.Infof("Upstream %s answers over TCP again", u.address)
				}
				return
			}
			if u.ask(u.udp) == nil && !u.tcpBad.Swap(true) {
				if reason := err.Error(); !strings.Contains(why, reason) {
					why += "; " + reason
				}
				log.Warningf("Upstream %s does not answer over TCP (%s): it is asked over UDP, and over TCP again every %v", u.address, why, u.tcpAgain)
			}
			if !u.tcpBad.Load() { // it answers neither way, which says nothing of TCP
				return
			}
			if !sleep(u.life, u.tcpAgain) {
				return
			}
		}
	}()
}
