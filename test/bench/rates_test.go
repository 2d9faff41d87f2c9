package main

import (
	"errors"
	"testing"
)

func TestJudgeRate(t *testing.T) {
	for _, c := range []struct {
		name    string
		want    int
		reached float64
		slow    bool
	}{
		{"no rate", 0, 1, false},
		{"reached", 200, 199.8, false},
		{"nearly", 1000, 951, false},
		{"not reached", 1000, 949, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := statistics{rate: c.reached}
			if err := s.judgeRate(c.want); errors.Is(err, errRate) != c.slow {
				t.Errorf("error %v, want one: %v", err, c.slow)
			}
		})
	}
}
