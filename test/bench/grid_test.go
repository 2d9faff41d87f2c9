package main

import (
	"strings"
	"testing"
)

func TestGrid(t *testing.T) {
	b := bench{results: results{}}
	for _, v := range []float64{2, 4, 3} {
		b.results.add("cost", "one", v)
		b.results.add("cost", "two", 2*v)
	}
	b.results.add("peak", "one", 7)
	var text strings.Builder
	b.grid(&text, "table", []string{"one", "two", "three"}, []column{
		{title: "us", what: "cost", format: "%.1f"},
		{title: "to one", what: "cost", own: "one"},
		{title: "MiB", what: "peak", format: "%.0f", in: func(row string) bool { return row != "two" }},
	})
	const want = "\n| table | us | to one | MiB |\n|---|---|---|---|\n" +
		"| one | 3.0 (2.0 to 4.0) | 1.00 | 7 |\n" +
		"| two | 6.0 (4.0 to 8.0) | 2.00 | |\n" +
		"| three | missing |  | missing |\n"
	if text.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", &text, want)
	}
}
