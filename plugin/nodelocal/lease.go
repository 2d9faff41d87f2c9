package nodelocal

import (
	"errors"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

const (
	// renewInterval is the interval of self-queries. The answer to each renews the lease of an address.
	renewInterval = 300 * time.Millisecond
	// selfQueryWait is the max. time for the answer to a self-query.
	selfQueryWait = 400 * time.Millisecond
	// minAnswers is the number of consecutive answers, acquireInterval apart, before the lease is acquired, or renewed
	// after a self-query without an answer. If another instance on the same address hangs, about every second query is
	// lost.
	minAnswers      = 5
	acquireInterval = 25 * time.Millisecond
	// expiryTolerance is the max. time by which the lease expires earlier in the kernel, which counts jiffies (up to
	// 10 ms). If the kernel refuses a renewal before that, the lease was removed.
	expiryTolerance = 50 * time.Millisecond
)

const (
	// firstPause is the time for which the server must answer before it acquires an expired lease again. The pause
	// doubles with each expiry up to maxPause, until a lease was held for stablePeriod: a server that is starved
	// repeatedly would otherwise cost pods a second each time.
	firstPause   = time.Second
	maxPause     = 30 * time.Second
	stablePeriod = time.Minute
)

// errIgnored is the reason why an address has no lease although the server answers.
var errIgnored = errors.New("renewals of its lease do not reach the rules; another table of nftables may drop them or change their mark before priority raw - 10")

// errLate is the reason why a lease expired although the server answers.
var errLate = errors.New("the server was stopped or starved, and answered too late")

// lease is the state of the lease of one address, as far as this process knows. Its times are monotonic, as those
// of the elements in the kernel.
type lease struct {
	held     bool
	renewed  time.Time // before the datagram was sent, so that the lease expires here no later than in the kernel
	acquired time.Time
	ignored  bool          // the rules did not process the last datagram
	pause    time.Duration // for which the server must answer before it acquires the lease again
	refused  time.Time     // until then it is not acquired again, since packets of pods did not arrive

	answers     int // consecutive ones, each less than rules.Lease after the previous one
	first, last time.Time
}

// event is the effect of a self-query on the lease.
type event int

const (
	eventNone event = iota
	eventAcquired
	eventExpired
	eventIgnored // the rules have ignored the datagram that acquires the lease
)

// answering returns whether the consecutive answers suffice for the lease.
func (l *lease) answering() bool { return l.answers >= minAnswers }

// interval returns the time between two self-queries.
func (l *lease) interval() time.Duration {
	if l.answering() {
		return renewInterval
	}
	return acquireInterval // the lease is not acquired, or is about to expire
}

// cause returns why the lease expired, if err is the result of the last self-query.
func (l *lease) cause(err error) error {
	switch {
	case err != nil:
		return err
	case l.ignored:
		return errIgnored
	}
	return errLate
}

// update processes the result of a self-query: an answer renews the lease, or acquires it if enough answers preceded.
// A lease that expired before the answer is not renewed. The function send sends a datagram with a mark, and
// returns whether the rules have renewed or acquired the lease.
func (l *lease) update(err error, now func() time.Time, send func(mark int) bool) event {
	at := now()
	expired := l.expired(at)
	if expired {
		l.expire(at)
	}
	l.count(err, at)
	switch {
	case expired:
		return eventExpired
	case err != nil, !l.answering(), !l.held && (at.Sub(l.first) < l.pause || at.Before(l.refused)):
		return eventNone
	}
	if l.held && send(rules.RenewalMark) {
		l.renewed = at
		return eventNone
	}
	// A lease that is missing in the kernel before its time was removed with the table or by a flush: the answers
	// prove that the server may acquire it again.
	if at = now(); l.expired(at) {
		l.expire(at)
		return eventExpired
	}
	if l.ignored = !send(rules.AcquireMark); l.ignored {
		return eventIgnored
	}
	l.renewed = at
	if l.held {
		return eventNone
	}
	l.held, l.acquired = true, at
	return eventAcquired
}

// expired returns whether a held lease may have expired in the kernel.
func (l *lease) expired(now time.Time) bool {
	return l.held && now.Sub(l.renewed) >= rules.Lease-expiryTolerance
}

// count counts the consecutive answers.
func (l *lease) count(err error, now time.Time) {
	switch {
	case err != nil:
		l.answers = 0
		return
	case l.answers == 0 || now.Sub(l.last) >= rules.Lease:
		l.answers, l.first = 0, now
	}
	l.answers++
	l.last = now
}

// expire ends the lease, and sets the pause before the next one.
func (l *lease) expire(now time.Time) {
	if l.pause = min(2*l.pause, maxPause); l.pause == 0 || now.Sub(l.acquired) >= stablePeriod {
		l.pause = firstPause
	}
	l.held, l.answers = false, 0
}

// refuse ends the lease. The server cannot acquire it again before until.
func (l *lease) refuse(until time.Time) { l.held, l.answers, l.refused = false, 0, until }

// silenceWait is the max. time of an address without a lease and without an answer before that is logged.
const silenceWait = 5 * time.Second

// silence is the time since the last answer to a self-query.
type silence struct {
	since  time.Time
	logged bool
}

// update processes the result of a self-query, and returns whether the silence is to be logged now, once.
func (s *silence) update(err error, held bool, now time.Time) bool {
	if err == nil || held {
		*s = silence{since: now, logged: held} // the expiry of a lease has its own log line
		return false
	}
	if s.logged || now.Sub(s.since) < silenceWait {
		return false
	}
	s.logged = true
	return true
}
