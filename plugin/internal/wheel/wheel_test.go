package wheel

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// expiry records the time of the last call.
type expiry struct {
	Deadline
	at    time.Time
	calls int
}

func (e *expiry) Expired(now time.Time) { e.at, e.calls = now, e.calls+1 }

func newExpiry() *expiry {
	e := new(expiry)
	e.Owner = e
	return e
}

// stopped returns a Wheel whose timer does not run.
func stopped() *Wheel {
	w := New()
	w.timer = time.NewTimer(time.Hour)
	return w
}

// pass makes ticks pass, and calls the owners.
func (w *Wheel) pass(to int64) {
	w.mu.Lock()
	due := w.advance(to, nil)
	w.mu.Unlock()
	for _, owner := range due {
		owner.Expired(w.start.Add(time.Duration(to) * tick))
	}
}

// Deadlines expire in their ticks, whatever happens to others, as a list of all would tell.
func TestRandom(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2)) // #nosec G404 -- reproducible
	w := stopped()
	all := make([]*expiry, 500)
	want := map[*expiry]int64{}
	for i := range all {
		all[i] = newExpiry()
	}
	limits := []int64{3, 300, 5000, 100_000, 20_000_000}
	for now := int64(0); now < 60_000_000; {
		for range dice.IntN(20) {
			e := all[dice.IntN(len(all))]
			_, set := want[e]
			if dice.IntN(3) == 0 {
				if w.Stop(&e.Deadline) != set {
					t.Fatalf("Stop of a set deadline: %t", !set)
				}
				delete(want, e)
				continue
			}
			at := now + dice.Int64N(limits[dice.IntN(len(limits))])
			if w.Set(&e.Deadline, w.start.Add(time.Duration(at)*tick)) == set {
				t.Fatalf("Set of a set deadline added: %t", set)
			}
			want[e] = max(at, now+1)
		}
		if next := w.next(); len(want) > 0 && next == 0 {
			t.Fatalf("%d deadlines, and none is next", len(want))
		}
		for e, at := range want {
			if next := w.next(); next > at {
				t.Fatalf("the next tick is %d, but %p expires at %d", next, e, at)
			}
		}
		now += 1 + dice.Int64N(limits[dice.IntN(len(limits))])
		for _, e := range all {
			e.calls = 0
		}
		w.pass(now)
		for _, e := range all {
			at, set := want[e]
			if due := set && at <= now; due != (e.calls == 1) || e.calls > 1 {
				t.Fatalf("tick %d: %d calls of a deadline at %d (set: %t)", now, e.calls, at, set)
			}
			if set && at <= now {
				delete(want, e)
			}
		}
	}
}

// bell closes a channel.
type bell struct {
	Deadline
	rang chan time.Time
}

func (b *bell) Expired(now time.Time) { b.rang <- now }

func newBell() *bell {
	b := &bell{rang: make(chan time.Time, 1)}
	b.Owner = b
	return b
}

// A deadline is never early, also if others are set before and after it, and the timer stops without deadlines.
func TestTimer(t *testing.T) {
	t.Parallel()
	w := New()
	var all []*bell
	var ats []time.Time
	for i := range 50 {
		b, at := newBell(), time.Now().Add(time.Duration((i*37)%100)*5*time.Millisecond)
		w.Set(&b.Deadline, at)
		all, ats = append(all, b), append(ats, at)
	}
	for i, b := range all {
		if i%5 == 0 && w.Stop(&b.Deadline) {
			continue
		}
		select {
		case now := <-b.rang:
			if now.Before(ats[i]) {
				t.Errorf("%v early", ats[i].Sub(now))
			}
		case <-time.After(10 * time.Second):
			t.Fatal("not expired")
		}
	}
	kit.Eventually(t, "the timer stops without deadlines", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.armed == 0
	})
}

func TestAllocations(t *testing.T) {
	w := New()
	e := newExpiry()
	at := time.Now().Add(time.Hour)
	if n := testing.AllocsPerRun(1000, func() {
		w.Set(&e.Deadline, at)
		w.Stop(&e.Deadline)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// counter counts its calls.
type counter struct {
	Deadline
	n atomic.Int64
}

func (c *counter) Expired(time.Time) { c.n.Add(1) }

// Concurrent use: each deadline that Set added expires once, unless Stop removed it.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	w := New()
	end := make(chan struct{})
	for g := range 4 {
		go func() {
			defer func() { end <- struct{}{} }()
			dice := rand.New(rand.NewPCG(uint64(g), 1)) // #nosec G404 -- reproducible
			c := new(counter)
			c.Owner = c
			want := int64(0)
			for range 5000 {
				if w.Set(&c.Deadline, time.Now().Add(time.Duration(dice.IntN(3000))*time.Microsecond)) {
					want++
				}
				if dice.IntN(2) == 0 && w.Stop(&c.Deadline) {
					want--
				}
			}
			for until := time.Now().Add(10 * time.Second); c.n.Load() != want && time.Now().Before(until); {
				time.Sleep(time.Millisecond)
			}
			if got := c.n.Load(); got != want {
				t.Errorf("%d calls, want %d", got, want)
			}
		}()
	}
	for range 4 {
		<-end
	}
}

func BenchmarkSetStop(b *testing.B) {
	w := New()
	b.RunParallel(func(pb *testing.PB) {
		e := newExpiry()
		for pb.Next() {
			w.Set(&e.Deadline, time.Now().Add(2*time.Second))
			w.Stop(&e.Deadline)
		}
	})
}
