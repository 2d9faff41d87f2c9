package nodelocal

import (
	"slices"
	"testing"
	"time"
)

// TestArrivals checks when packets that do not arrive end the lease.
func TestArrivals(t *testing.T) {
	type reading struct{ letIn, arrived uint64 }
	repeat := func(n int, r reading) []reading { return slices.Repeat([]reading{r}, n) }
	var busy, every []reading
	for i := range uint64(100) {
		busy = append(busy, reading{100 * i, 99 * i})
		every = append(every, reading{i, 0})
	}
	for _, c := range []struct {
		name     string
		readings []reading
		want     int // the number of the reading that ends the lease; -1 is none
	}{
		{"no query", repeat(20, reading{}), -1},
		{"all arrive, some late", busy, -1},
		{"four do not arrive", append(repeat(1, reading{}), repeat(20, reading{4, 0})...), -1},
		{"five do not arrive", append(repeat(1, reading{}), repeat(20, reading{5, 0})...), 4},
		{"one in each reading does not arrive", every, 5},
		{"one arrives in between", slices.Concat(repeat(1, reading{}), repeat(3, reading{50, 0}), repeat(3, reading{90, 1}), repeat(2, reading{91, 2})), -1},
		{"counters of before the start", repeat(20, reading{1000, 0}), -1},
		{"new counters", slices.Concat(repeat(1, reading{100, 100}), repeat(2, reading{110, 100}), repeat(10, reading{4, 0})), -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a arrivals
			now, got := time.Unix(1000, 0), -1
			for i, r := range c.readings {
				if a.update(now, r.letIn, r.arrived) > 0 {
					got = i
					break
				}
				now = now.Add(trafficInterval)
			}
			if got != c.want {
				t.Errorf("reading %d ends the lease, want %d", got, c.want)
			}
		})
	}
}

// TestArrivalsPause ends the lease repeatedly: the time without a lease grows, until packets have arrived for a while.
func TestArrivalsPause(t *testing.T) {
	var a arrivals
	now, letIn, arrived := time.Unix(1000, 0), uint64(0), uint64(0)
	end := func() (bar time.Duration) {
		for range 100 {
			letIn++
			if bar = a.update(now, letIn, arrived); bar > 0 {
				break
			}
			now = now.Add(trafficInterval)
		}
		now = now.Add(bar)
		return bar
	}
	arrive := func(d time.Duration) {
		for until := now.Add(d); now.Before(until); now = now.Add(trafficInterval) {
			letIn, arrived = letIn+1, arrived+1
			a.update(now, letIn, arrived)
		}
	}
	var got []time.Duration
	for range 8 {
		got = append(got, end()/time.Second)
		arrive(provenAfter / 2)
	}
	if want := []time.Duration{30, 60, 120, 240, 480, 960, 1800, 1800}; !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v seconds", got, want)
	}
	if arrive(2 * provenAfter); end() != firstBar {
		t.Errorf("pause %v after arrivals, want %v", a.bar, firstBar)
	}
}

// TestLeaseThatPodsDoNotReach ends the lease: the server acquires it again after the pause, and not before.
func TestLeaseThatPodsDoNotReach(t *testing.T) {
	b := newLeaseBed()
	b.acquire(t)
	until := b.clock.Add(firstBar)
	b.refuse(until)
	for b.clock.Before(until) {
		if e := b.query(time.Millisecond, nil); e != eventNone && b.clock.Before(until) {
			t.Fatalf("event %d before the pause is over", e)
		}
	}
	b.acquire(t)
	if late := b.clock.Sub(until); late > time.Second {
		t.Errorf("acquired %v after the pause", late)
	}
}
