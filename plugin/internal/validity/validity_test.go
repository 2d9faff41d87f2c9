package validity

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/property"
)

func TestValidity(t *testing.T) {
	g, other := new(generation), new(generation)
	g.Store(5)
	for name, tt := range map[string]struct {
		change       func(v *Validity)
		ended        bool
		byGeneration bool
		fresh        bool // at 10
	}{
		"zero":                     {func(*Validity) {}, false, false, true},
		"ended":                    {func(v *Validity) { v.End() }, true, true, false},
		"ended, with a time":       {func(v *Validity) { v.End(); v.Until(20) }, true, true, false},
		"until later":              {func(v *Validity) { v.Until(11) }, false, false, true},
		"until now":                {func(v *Validity) { v.Until(10) }, false, false, false},
		"until earlier, and later": {func(v *Validity) { v.Until(9); v.Until(20) }, false, false, false},
		"a generation":             {func(v *Validity) { v.DependOn(g) }, false, true, true},
		"no generation":            {func(v *Validity) { v.DependOn(nil) }, true, true, false},
		"twice the same":           {func(v *Validity) { v.DependOn(g); v.DependOn(g); v.DependOn(other) }, false, true, true},
		"advanced between":         {func(v *Validity) { v.DependOn(g); g.Add(1); v.DependOn(g) }, false, true, false},
		"after the end":            {func(v *Validity) { v.End(); v.DependOn(g) }, true, true, false},
		"as many as possible": {func(v *Validity) {
			for range MaxBounds {
				v.DependOn(new(generation))
			}
		}, false, true, true},
		"too many": {func(v *Validity) {
			for range MaxBounds + 1 {
				v.DependOn(new(generation))
			}
		}, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var v Validity
			tt.change(&v)
			if v.Ended() != tt.ended || v.ByGeneration() != tt.byGeneration || v.Fresh(10) != tt.fresh {
				t.Errorf("ended %t, by generation %t, fresh %t; want %t, %t, %t", v.Ended(), v.ByGeneration(), v.Fresh(10), tt.ended, tt.byGeneration, tt.fresh)
			}
		})
	}
}

// TestJoin joins random validities and compares with a naive model: a list of every time and of every generation with
// its number.
func TestJoin(t *testing.T) {
	property.Seeds(t, 0, 3000, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		generations := []*generation{new(generation), new(generation), new(generation), new(generation), new(generation), new(generation)}
		var joined Validity
		var times []time.Duration
		var bounds []Bound
		ended := false
		for range 1 + r.IntN(4) {
			var v Validity
			if r.IntN(2) == 0 {
				times = append(times, time.Duration(1+r.IntN(20)))
				v.Until(times[len(times)-1])
			}
			for range r.IntN(3) {
				b := Bound{generations[r.IntN(len(generations))], 0}
				b.Number = b.Generation.Load()
				bounds = append(bounds, b)
				v.DependOn(b.Generation)
			}
			if r.IntN(20) == 0 {
				ended = true
				v.End()
			}
			joined.Join(&v)
			if r.IntN(4) == 0 {
				generations[r.IntN(len(generations))].Add(1)
			}
		}
		different := map[Generation]bool{}
		current := true
		for _, b := range bounds {
			different[b.Generation] = true
			current = current && b.Generation.Load() == b.Number
		}
		current = current && !ended && len(different) <= MaxBounds
		for _, now := range []time.Duration{0, 5, 10, 19, 20} {
			want := current && !slices.ContainsFunc(times, func(until time.Duration) bool { return now >= until })
			if got := joined.Fresh(now); got != want {
				t.Fatalf("fresh at %d: %t, want %t; times %v, bounds %v, joined %+v", now, got, want, times, bounds, joined)
			}
		}
	})
}
