package main

import (
	"strings"
	"testing"
)

func TestBudgets(t *testing.T) {
	hit := budget{what: "A", own: "nodecache", peer: "Unbound", share: 1}
	tenth := budget{what: "A", own: "nodecache", peer: "Unbound", share: 0.1}
	memory := budget{what: "A", own: "nodecache", limit: 25}
	for _, c := range []struct {
		name      string
		budget    budget
		own, peer []float64
		measured  string
		met       string
	}{
		{"cheaper", hit, []float64{9, 3, 2}, []float64{4, 4, 4}, "3.00 us, 1/1.3 of 4.00 us", "yes"},
		{"as cheap", hit, []float64{4}, []float64{4}, "4.00 us, 1.0 times 4.00 us", "**no**"},
		{"a tenth", tenth, []float64{4}, []float64{40}, "4.00 us, 1/10.0 of 40.00 us", "yes"},
		{"an eighth", tenth, []float64{5}, []float64{40}, "5.00 us, 1/8.0 of 40.00 us", "**no**"},
		{"no peer", hit, []float64{4}, nil, "4.00 us", "unknown: Unbound is missing"},
		{"nothing", hit, nil, []float64{4}, "", "not measured"},
		{"little memory", memory, []float64{23}, nil, "24.1 MB", "yes"},
		{"a mebibyte is more than a megabyte", memory, []float64{24}, nil, "25.2 MB", "**no**"},
	} {
		t.Run(c.name, func(t *testing.T) {
			measured, met := c.budget.judge(results{"A": {"nodecache": c.own, "Unbound": c.peer}})
			if measured != c.measured || met != c.met {
				t.Errorf("%q, %q; want %q, %q", measured, met, c.measured, c.met)
			}
		})
	}
}

func TestReportNamesMissing(t *testing.T) {
	b := bench{settings: settings{parts: []string{partHits}}, results: results{}, missing: []string{"Unbound is missing: no such program"}}
	b.results.add(kindHit, nameNodeCache, 3)
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Unbound is missing: no such program.", "| Unbound | missing |", "unknown: Unbound is missing"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, &text)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string // in the error
	}{
		{"defaults", nil, ""},
		{"parts", []string{"-only", "hits,memory"}, ""},
		{"unknown part", []string{"-only", "misses"}, `"misses" is none of hits, cluster, memory`},
		{"no rounds", []string{"-rounds", "0"}, "at least 1"},
		{"argument", []string{"hits"}, `unknown argument "hits"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.args)
			if c.want == "" && err != nil {
				t.Errorf("error %v, want none", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}
