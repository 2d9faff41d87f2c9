package main

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		sizes int
		bad   bool
	}{
		{"default", nil, 2, false},
		{"one size", []string{"-size", "large"}, 1, false},
		{"all sizes", []string{"-size", "small,medium,large,headless", "-states"}, 4, false},
		{"unknown size", []string{"-size", "medium,huge"}, 0, true},
		{"no size", []string{"-size", ""}, 0, true},
		{"storm", []string{"-storm", "300"}, 2, false},
		{"unknown argument", []string{"medium"}, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			wanted, err := parse(c.args)
			if (err != nil) != c.bad || !c.bad && len(wanted.sizes) != c.sizes {
				t.Errorf("%d sizes, error %v; want %d, error: %v", len(wanted.sizes), err, c.sizes, c.bad)
			}
		})
	}
}

// TestSizes: every cluster is valid, and each endpoint has another address after a rolling update.
func TestSizes(t *testing.T) {
	for _, s := range sizes {
		t.Run(s.name, func(t *testing.T) {
			if err := s.cluster.Validate(); err != nil {
				t.Fatal(err)
			}
			w := &world{size: s}
			last := s.cluster.Endpoints - 1
			if a, b, c := w.podIP(last, 0), w.podIP(last, 1), w.podIP(last, 2); a == b || a != c || a != s.cluster.PodIP(last) {
				t.Errorf("addresses %s, %s and %s", a, b, c)
			}
		})
	}
}

// TestRolled: each step changes a part of the endpoints, and the last one all.
func TestRolled(t *testing.T) {
	w := &world{size: sizes[0]}
	w.steps = 3
	s, n := w.timed()
	for steps, want := range []int{0, 4, 7, 10} {
		changed := 0
		for i, e := range w.rolled(n, steps)[0].Endpoints {
			if e.Addresses[0] == w.podIP(s.FirstPod+i, 1) {
				changed++
			} else if e.Addresses[0] != w.podIP(s.FirstPod+i, 0) {
				t.Errorf("endpoint %d is %s", i, e.Addresses[0])
			}
		}
		if s.Endpoints != 10 || changed != want {
			t.Errorf("%d of %d endpoints changed after %d steps, want %d", changed, s.Endpoints, steps, want)
		}
	}
}

func TestHighest(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(0, int64(seconds*1e9)) }
	f := &flows{all: []flow{
		{at: at(0), dispatched: 10},
		{at: at(1), dispatched: 20, rejected: 5, inQueue: 3},
		{at: at(3), dispatched: 70, rejected: 5, inQueue: 2},
	}}
	if rate, inQueue := f.highest(); rate != 25 || inQueue != 3 {
		t.Errorf("%v requests/s and %v in queues, want 25 and 3", rate, inQueue)
	}
	f.restarted(at(2))
	if rate, inQueue := f.highest(); rate != 75 || inQueue != 2 {
		t.Errorf("%v requests/s and %v in queues after a restart, want 75 and 2", rate, inQueue)
	}
}
