//go:build linux

package coherence

import (
	"fmt"
	"strings"
)

// legalSearch reports whether an answer to a search name was right: each of its candidates was in a window, but not all of
// them at the same time, since the node's cache may have stored them one by one.
func (o *oracle) legalSearch(asker int, q *question, answer string, w window) (until int64, ok bool) {
	switch answer {
	case nameError:
		return o.everyCandidate(asker, q.candidates, w, func(text string) bool { return text == nameError })
	case noData:
		return o.noDataSearch(asker, q, w)
	}
	for i, c := range q.candidates {
		full := o.all[c.same].name
		rest, found := strings.CutPrefix(withoutLine(answer, fmt.Sprintf("%s CNAME %s", q.name, full)), "\x00")
		if !found {
			continue
		}
		n, known := o.texts.number[rest]
		if !known {
			return 0, false
		}
		before, ok := o.everyCandidate(asker, q.candidates[:i], w, isEmpty)
		if !ok {
			return 0, false
		}
		until, ok := o.rightIn(asker, c.same, w, func(a int32) bool { return a == n })
		return min(before, until), ok
	}
	return 0, false
}

// withoutLine returns the text of an answer without a line, behind a zero byte, and the text as it is if the line is missing.
func withoutLine(answer, line string) string {
	lines := strings.Split(answer, "\n")
	for i, l := range lines {
		if l == line {
			return "\x00" + strings.Join(append(lines[:i:i], lines[i+1:]...), "\n")
		}
	}
	return answer
}

// isEmpty reports whether a candidate with this answer has no data of a family.
func isEmpty(text string) bool { return text == nameError || text == noData }

// noDataSearch reports whether NODATA was right: a candidate had data of the other family only, or one existed without data
// and none had any.
func (o *oracle) noDataSearch(asker int, q *question, w window) (until int64, ok bool) {
	for i, c := range q.candidates {
		before, ok := o.everyCandidate(asker, q.candidates[:i], w, isEmpty)
		if !ok {
			return 0, false
		}
		empty, isEmptyNow := o.rightIn(asker, c.same, w, func(a int32) bool { return o.texts.all[a] == noData })
		if !isEmptyNow {
			continue
		}
		other, hasOther := o.rightIn(asker, c.other, w, func(a int32) bool { return !isEmpty(o.texts.all[a]) })
		if hasOther {
			return min(before, empty, other), true
		}
		after, ok := o.everyCandidate(asker, q.candidates[i+1:], w, isEmpty)
		if ok {
			return min(before, empty, after), true
		}
	}
	return 0, false
}

// everyCandidate reports whether each candidate had answers in a window that are accepted, for both families.
func (o *oracle) everyCandidate(asker int, all []candidate, w window, accepts func(text string) bool) (until int64, ok bool) {
	until = forever
	for _, c := range all {
		for _, n := range []int{c.same, c.other} {
			at, ok := o.rightIn(asker, n, w, func(a int32) bool { return accepts(o.texts.all[a]) })
			if !ok {
				return 0, false
			}
			until = min(until, at)
		}
	}
	return until, true
}
