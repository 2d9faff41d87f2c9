package dnsperf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLatencies(t *testing.T) {
	for _, c := range []struct {
		file string // in testdata
		want []time.Duration
		err  string // a part of the error
	}{
		{"each-answer", []time.Duration{20058 * time.Microsecond, 20084 * time.Microsecond, 23391 * time.Microsecond, 1000020 * time.Microsecond}, ""},
		{"all-answered", nil, ""},
		{"answer-line-cut", nil, "no line about an answer"},
		{"latency-no-number", nil, "no latency"},
	} {
		t.Run(c.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", c.file))
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseLatencies(string(text))
			if c.err == "" && err != nil {
				t.Fatalf("error %v, want none", err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("error %v, want %q in it", err, c.err)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestPercentile(t *testing.T) {
	upTo := func(n int) (all []time.Duration) {
		for i := range n {
			all = append(all, time.Duration(i+1)*time.Millisecond)
		}
		return all
	}
	for _, c := range []struct {
		name    string
		sorted  []time.Duration
		perCent int
		want    float64
	}{
		{"one", upTo(1), 99, 1},
		{"one, lowest", upTo(1), 0, 1},
		{"middle of three", upTo(3), 50, 2},
		{"middle of four", upTo(4), 50, 2},
		{"99 of 100", upTo(100), 99, 99},
		{"99 of 101", upTo(101), 99, 100},
		{"highest", upTo(7), 100, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Percentile(c.sorted, c.perCent); got != c.want {
				t.Errorf("%v ms, want %v", got, c.want)
			}
		})
	}
}
