package nodelocal

import "time"

const (
	// trafficInterval is the interval of readings of the counters of pods' packets.
	trafficInterval = 500 * time.Millisecond
	// minMissing is the number of packets that the rules have let in, and notReachedWait the time for which none has
	// arrived, before the lease ends.
	minMissing     = 5
	notReachedWait = 2 * time.Second
	// firstBar is the time for which the lease is not acquired again. It doubles with each end up to maxBar, until
	// packets have arrived for provenAfter: each attempt costs pods two seconds.
	firstBar    = 30 * time.Second
	maxBar      = 30 * time.Minute
	provenAfter = time.Minute
)

// arrivals has the packets of pods of one flow: whether those that the rules let in reach the end of the host's filters.
type arrivals struct {
	letIn, arrived uint64    // at the last reading
	missing        uint64    // packets let in since the last arrival
	since          time.Time // of the last reading without missing packets
	first, last    time.Time // of the arrivals since the last end
	bar            time.Duration
}

// update processes a reading of the counters. With missing packets for too long it returns the time for which the
// lease must not be held, else 0. A counter that went back began anew.
func (a *arrivals) update(now time.Time, letIn, arrived uint64) (bar time.Duration) {
	anew := a.since.IsZero() || letIn < a.letIn || arrived < a.arrived
	more, arrives := letIn-a.letIn, arrived > a.arrived
	a.letIn, a.arrived = letIn, arrived
	switch {
	case anew:
		a.missing = 0
	case arrives:
		a.missing, a.last = 0, now
		if a.first.IsZero() {
			a.first = now
		}
	default:
		a.missing += more
	}
	if a.missing == 0 {
		a.since = now
	}
	if a.missing < minMissing || now.Sub(a.since) < notReachedWait {
		return 0
	}
	if a.bar = min(2*a.bar, maxBar); a.bar == 0 || a.last.Sub(a.first) >= provenAfter {
		a.bar = firstBar
	}
	a.missing, a.since, a.first, a.last = 0, now, time.Time{}, time.Time{}
	return a.bar
}
