//go:build linux

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Verdict is what a check thinks of a value.
type Verdict string

// The verdicts. Only Fail makes the exit code 1.
const (
	// OK: nothing to do.
	OK Verdict = "ok"
	// Warn: it works, and something can be better or may break.
	Warn Verdict = "warn"
	// Fail: pods of this node get wrong answers, late ones or none.
	Fail Verdict = "fail"
	// Skip: it could not be looked at, and why.
	Skip Verdict = "skip"
)

// Line is the result of one check.
type Line struct {
	// Check is what was looked at.
	Check string `json:"check"`
	// Value is what was found.
	Value string `json:"value"`
	// Verdict is what that means.
	Verdict Verdict `json:"verdict"`
	// Advice is what to do; empty when there is nothing to do.
	Advice string `json:"advice"`
}

// one is the result of a check that has one line.
func one(check, value string, verdict Verdict, advice string) []Line {
	return []Line{{check, value, verdict, advice}}
}

// skipped is the result of a check that could not be made.
func skipped(check string, why error, advice string) []Line {
	return one(check, strings.Join(strings.Fields(why.Error()), " "), Skip, advice)
}

// writeJSON writes the lines as one JSON array.
func writeJSON(w io.Writer, lines []Line) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(lines)
}

// widestValue is how wide the column of values may get, in characters; a longer value moves the rest
// of its own line only.
const widestValue = 56

// writeText writes the lines as a table, advice last since it is the longest, and a summary.
func writeText(w io.Writer, lines []Line) error {
	check, value := len("CHECK"), len("VALUE")
	count := map[Verdict]int{}
	for _, l := range lines {
		check = max(check, utf8.RuneCountInString(l.Check))
		if n := utf8.RuneCountInString(l.Value); n <= widestValue {
			value = max(value, n)
		}
		count[l.Verdict]++
	}
	var b strings.Builder
	row := func(verdict, what, found, advice string) {
		text := fmt.Sprintf("%-7s  %-*s  %-*s  %s", verdict, check, what, value, found, advice)
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	row("VERDICT", "CHECK", "VALUE", "WHAT TO DO")
	for _, l := range lines {
		row(string(l.Verdict), l.Check, l.Value, l.Advice)
	}
	fmt.Fprintf(&b, "\n%d checks: %d ok, %d warn, %d fail, %d skip\n",
		len(lines), count[OK], count[Warn], count[Fail], count[Skip])
	_, err := io.WriteString(w, b.String())
	return err
}
