package nodelocal

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// leaseBed is the lease of a process with a fake clock, and the element in the kernel.
type leaseBed struct {
	lease
	clock   time.Time
	expires time.Time // of the element
	ignores bool      // the rules are missing
	marks   []int     // of the datagrams that were sent
}

func (b *leaseBed) inKernel() bool { return b.clock.Before(b.expires) }

func (b *leaseBed) send(mark int) bool {
	b.marks = append(b.marks, mark)
	if b.ignores || mark == rules.RenewalMark && !b.inKernel() {
		return false
	}
	b.expires = b.clock.Add(rules.Lease)
	return true
}

// query processes the result of a self-query of some duration, and waits until the next one.
func (b *leaseBed) query(took time.Duration, err error) event {
	sent := b.clock
	b.clock = sent.Add(took)
	e := b.update(err, func() time.Time { return b.clock }, b.send)
	if next := sent.Add(b.interval()); next.After(b.clock) {
		b.clock = next
	}
	return e
}

// acquire has the server answer until the lease is acquired.
func (b *leaseBed) acquire(t *testing.T) {
	t.Helper()
	for range 200 {
		if b.query(time.Millisecond, nil) == eventAcquired {
			return
		}
	}
	t.Fatal("the lease is not acquired")
}

func newLeaseBed() *leaseBed { return &leaseBed{clock: time.Unix(1000, 0)} }

var errSilent = errors.New("no answer")

// TestHungServerLosesPodsWithinASecond has the server cease to answer at any time between two self-queries, while the
// process lives. The lease in the kernel expires max. a second after the last answer.
func TestHungServerLosesPodsWithinASecond(t *testing.T) {
	for hangs := 5 * time.Second; hangs < 6*time.Second; hangs += 7 * time.Millisecond {
		b := newLeaseBed()
		start := b.clock
		var answered time.Time
		expiries := 0
		for b.clock.Sub(start) < 20*time.Second {
			took, err := time.Millisecond, error(nil)
			if b.clock.Sub(start) >= hangs {
				took, err = selfQueryWait, errSilent
			} else {
				answered = b.clock.Add(took)
			}
			if b.query(took, err) == eventExpired {
				expiries++
			}
		}
		if without := b.expires.Sub(start.Add(hangs)); without <= 0 || without > rules.Lease {
			t.Errorf("the server hangs after %s: the lease ends %s later", hangs, without)
		}
		if after := b.expires.Sub(answered); after > rules.Lease {
			t.Errorf("the server hangs after %s: the lease ends %s after the last answer", hangs, after)
		}
		if expiries != 1 {
			t.Errorf("the server hangs after %s: the lease expired %d times", hangs, expiries)
		}
	}
}

// TestLease checks the event after each self-query.
func TestLease(t *testing.T) {
	const quick = time.Millisecond
	type step struct {
		took time.Duration
		err  error
		want event
	}
	answers := func(n int, last event) (all []step) {
		for range n - 1 {
			all = append(all, step{quick, nil, eventNone})
		}
		return append(all, step{quick, nil, last})
	}
	held := answers(minAnswers, eventAcquired)
	for _, tc := range []struct {
		name   string
		steps  []step
		leased bool // in the kernel at the end
	}{
		{"acquired after five answers", held, true},
		{"renewed", append(held, answers(10, eventNone)...), true},
		{"not acquired without an answer", []step{{selfQueryWait, errSilent, eventNone}, {selfQueryWait, errSilent, eventNone}}, false},
		{"not acquired where every second query is lost", slices.Repeat([]step{{quick, nil, eventNone}, {selfQueryWait, errSilent, eventNone}}, 10), false},
		{"renewed despite one lost query", slices.Concat(held, []step{{selfQueryWait, errSilent, eventNone}}, answers(minAnswers, eventNone)), true},
		{"expired where every second query is lost", slices.Concat(held, []step{
			{selfQueryWait, errSilent, eventNone}, {quick, nil, eventNone}, {selfQueryWait, errSilent, eventExpired}, {quick, nil, eventNone}, {selfQueryWait, errSilent, eventNone},
		}), false},
		{"an answer after the lease has expired renews nothing", append(held, step{rules.Lease, nil, eventExpired}), false},
		{"not acquired at once after it expired", slices.Concat(held, []step{{rules.Lease, nil, eventExpired}}, answers(minAnswers, eventNone)), false},
		{"not acquired while the server is stopped repeatedly", slices.Concat(held, []step{{rules.Lease, nil, eventExpired}}, slices.Repeat([]step{{2 * rules.Lease, nil, eventNone}, {quick, nil, eventNone}}, 10)), false},
		{"acquired again after a second", slices.Concat(held, []step{{rules.Lease, nil, eventExpired}}, answers(minAnswers-1, eventNone), answers(4, eventAcquired)), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newLeaseBed()
			for i, s := range tc.steps {
				if got := b.query(s.took, s.err); got != s.want {
					t.Errorf("step %d: event %d, want %d", i, got, s.want)
				}
			}
			b.clock = b.clock.Add(-b.interval()) // the end of the last query
			if b.inKernel() != tc.leased || b.held != tc.leased {
				t.Errorf("at the end: in the kernel %t, here %t; want %t", b.inKernel(), b.held, tc.leased)
			}
		})
	}
	if renewInterval+selfQueryWait+(minAnswers-1)*acquireInterval >= rules.Lease-expiryTolerance {
		t.Error("one lost query loses the lease")
	}
}

// TestStarvedServerWaitsLonger starves a server repeatedly: the pause before it acquires the lease again grows, until
// it has held the lease for stablePeriod.
func TestStarvedServerWaitsLonger(t *testing.T) {
	b := newLeaseBed()
	b.acquire(t)
	var pauses []time.Duration
	for range 8 {
		if e := b.query(2*rules.Lease, nil); e != eventExpired {
			t.Fatalf("event %d, want %d", e, eventExpired)
		}
		at := b.clock
		b.acquire(t)
		pauses = append(pauses, b.clock.Sub(at).Truncate(time.Second))
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 30}; !slices.EqualFunc(pauses, want, func(a, b time.Duration) bool { return a == b*time.Second }) {
		t.Errorf("pauses %v, want %v seconds", pauses, want)
	}
	for end := b.clock.Add(stablePeriod); b.clock.Before(end); {
		b.query(time.Millisecond, nil)
	}
	b.query(2*rules.Lease, nil)
	if b.pause != firstPause {
		t.Errorf("after a stable period: pause %s, want %s", b.pause, firstPause)
	}
}

// TestFlushedLease flushes nftables while the server answers: it acquires the lease again without a pause.
func TestFlushedLease(t *testing.T) {
	b := newLeaseBed()
	b.acquire(t)
	b.expires = time.Time{}
	if e := b.query(time.Millisecond, nil); e != eventNone || !b.inKernel() || !b.held {
		t.Errorf("event %d, in the kernel %t, here %t; want the lease in both", e, b.inKernel(), b.held)
	}
	b.expires, b.ignores = time.Time{}, true
	if e := b.query(time.Millisecond, nil); e != eventIgnored || !b.held {
		t.Errorf("without rules: event %d, held %t", e, b.held)
	}
	b.clock = b.clock.Add(rules.Lease)
	if e := b.query(time.Millisecond, nil); e != eventExpired || !errors.Is(b.cause(nil), errIgnored) {
		t.Errorf("without rules for long: event %d, cause %v", e, b.cause(nil))
	}
	// The kernel counts jiffies: the lease expires there some milliseconds earlier.
	b = newLeaseBed()
	b.acquire(t)
	b.clock = b.renewed.Add(rules.Lease - 6*time.Millisecond)
	b.expires = b.clock.Add(-time.Millisecond)
	if e := b.query(time.Millisecond, nil); e != eventExpired || b.inKernel() {
		t.Errorf("a lease that has just expired: event %d, in the kernel %t", e, b.inKernel())
	}
	// A process that is stopped between its decision and the datagram: only the kernel knows that the lease expired.
	b = newLeaseBed()
	b.acquire(t)
	b.marks = nil
	at := b.clock
	times := []time.Time{at, at.Add(2 * rules.Lease)}
	now := func() time.Time { b.clock, times = times[0], times[min(1, len(times)-1):]; return b.clock }
	b.expires = time.Time{}
	if e := b.update(nil, now, b.send); e != eventExpired || b.inKernel() || !slices.Equal(b.marks, []int{rules.RenewalMark}) {
		t.Errorf("stopped before the renewal: event %d, in the kernel %t, marks %#x", e, b.inKernel(), b.marks)
	}
}

func TestSilence(t *testing.T) {
	failure := errors.New("no answer")
	begin := time.Unix(1000, 0)
	for _, tc := range []struct {
		name  string
		after []time.Duration // times of the self-queries, without an answer except those below 0
		held  bool
		want  int // number of log lines
	}{
		{"from the start", []time.Duration{time.Second, 4 * time.Second, 6 * time.Second, 60 * time.Second}, false, 1},
		{"not long enough", []time.Duration{time.Second, 4 * time.Second}, false, 0},
		{"an answer in between", []time.Duration{4 * time.Second, -5 * time.Second, 8 * time.Second}, false, 0},
		{"after an answer", []time.Duration{6 * time.Second, -7 * time.Second, 8 * time.Second, 13 * time.Second}, false, 2},
		{"while the lease is held", []time.Duration{6 * time.Second, 20 * time.Second}, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, logged := silence{since: begin}, 0
			for _, d := range tc.after {
				err := failure
				if d < 0 {
					err, d = nil, -d
				}
				if s.update(err, tc.held, begin.Add(d)) {
					logged++
				}
			}
			if logged != tc.want {
				t.Errorf("logged %d times, want %d", logged, tc.want)
			}
		})
	}
}
