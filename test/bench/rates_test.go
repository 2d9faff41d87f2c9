package main

import (
	"errors"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

func TestJudgeRate(t *testing.T) {
	for _, c := range []struct {
		name    string
		want    int
		reached float64
		lost    int
		slow    bool
	}{
		{"no rate", 0, 1, 0, false},
		{"reached", 200, 199.8, 0, false},
		{"nearly", 1000, 951, 0, false},
		{"not reached", 1000, 949, 0, true},
		{"unknown after a loss", 1000, 400, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dnsperf.Statistics{Rate: c.reached, Lost: c.lost}
			if err := s.JudgeRate(c.want); errors.Is(err, dnsperf.ErrRate) != c.slow {
				t.Errorf("error %v, want one: %v", err, c.slow)
			}
		})
	}
}

func TestLonger(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{
		{8 * time.Second, 10 * time.Second},
		{16 * time.Second, 20 * time.Second},
		{40 * time.Second, maxEnough},
	} {
		t.Run(c.took.String(), func(t *testing.T) {
			if got := longer(c.took); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestReached: the report notes the last attempt.
func TestReached(t *testing.T) {
	var b bench
	slow := dnsperf.Statistics{Rate: 900}
	for try := range rateTries {
		last := try == rateTries-1
		err := b.reached(slow, 1000, try, "hits of a server")
		if errors.Is(err, dnsperf.ErrRate) == last || (len(b.lost) == 1) != last {
			t.Errorf("attempt %d: error %v, notes %q", try, err, b.lost)
		}
	}
	if err := b.reached(dnsperf.Statistics{Rate: 1000}, 1000, 0, "hits of a server"); err != nil || len(b.lost) != 1 {
		t.Errorf("error %v, notes %q", err, b.lost)
	}
}
