//go:build linux

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Verdict is a check's judgement of a value.
type Verdict string

// The verdicts. Only Fail makes the exit code 1.
const (
	OK   Verdict = "ok"   // nothing to do
	Warn Verdict = "warn" // it works, and may break or can be better
	Fail Verdict = "fail" // pods of this node get wrong answers, late ones or none
	Skip Verdict = "skip" // it could not be checked; the value is the reason
)

// Line is the result of one check.
type Line struct {
	Check   string  `json:"check"`
	Value   string  `json:"value"` // the state that the check found
	Verdict Verdict `json:"verdict"`
	Advice  string  `json:"advice"` // how to correct the state; empty if it is right
}

// one is the result of a check that has one line.
func one(check, value string, verdict Verdict, advice string) []Line {
	return []Line{{check, value, verdict, advice}}
}

// skipped is the result of a check that an error prevented.
func skipped(check string, err error) []Line {
	return one(check, oneLine(err), Skip, adviceFor(err))
}

// oneLine returns the text of an error without line breaks.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// writeJSON writes the lines as one JSON array.
func writeJSON(w io.Writer, lines []Line) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(lines)
}

// maxValueWidth limits the width of the column of values, in characters; a longer value moves the rest
// of its own line only.
const maxValueWidth = 56

// writeText writes the lines as a table, advice last since it is the longest, and a summary.
func writeText(w io.Writer, lines []Line) error {
	check, value := len("CHECK"), len("VALUE")
	count := map[Verdict]int{}
	for _, l := range lines {
		check = max(check, utf8.RuneCountInString(l.Check))
		if n := utf8.RuneCountInString(l.Value); n <= maxValueWidth {
			value = max(value, n)
		}
		count[l.Verdict]++
	}
	var b strings.Builder
	for _, l := range append([]Line{{"CHECK", "VALUE", "VERDICT", "WHAT TO DO"}}, lines...) {
		text := fmt.Sprintf("%-7s  %-*s  %-*s  %s", l.Verdict, check, l.Check, value, l.Value, l.Advice)
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	fmt.Fprintf(&b, "\n%d checks: %d ok, %d warn, %d fail, %d skip\n",
		len(lines), count[OK], count[Warn], count[Fail], count[Skip])
	_, err := io.WriteString(w, b.String())
	return err
}
