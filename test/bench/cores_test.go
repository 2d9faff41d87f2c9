package main

import (
	"slices"
	"testing"
)

func TestGains(t *testing.T) {
	b := bench{results: results{}}
	for _, v := range []struct{ one, two float64 }{{4, 4}, {4, 5}, {3, 2.5}} {
		b.results.add(coresRow(coresHits, 1), nameNodeCache, v.one)
		b.results.add(coresRow(coresHits, 2), nameNodeCache, v.two)
	}
	b.addGains()
	if got, want := b.results[coresGain(coresHits)][nameNodeCache], []float64{2, 1.6, 2.4}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := b.results[coresGain(coresMisses)]; got != nil {
		t.Errorf("%v for figures that are missing", got)
	}
}
