package corefile

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
)

func TestOptions(t *testing.T) {
	errBad := errors.New("no")
	options := Options[*[]string]{
		"any":  {Max: -1, Form: "anything", Parse: add("any")},
		"two":  {Min: 1, Max: 2, Form: "one or two words", Parse: add("two")},
		"once": {Min: 1, Max: 1, Once: true, Form: "a word", Parse: add("once")},
		"line": {Min: 1, Max: 1, Shared: true, Form: "a word", Parse: add("line")},
		"bad":  {Form: "nothing good", Parse: func(*[]string, []string) error { return errBad }},
	}
	for name, tt := range map[string]struct {
		text string
		want string // the parsed options, or the error
		line int    // of the error
	}{
		"no block":           {"", "", 0},
		"empty block":        {"{\n}", "", 0},
		"in order":           {"{\nany\ntwo a b\nany c d e\n}", "any() two(a b) any(c d e)", 0},
		"unknown":            {"{\nany\n\nthree\n}", `unknown option "three": want one of any, bad, line, once, two`, 4},
		"too few":            {"{\ntwo\n}", `invalid two: want one or two words`, 2},
		"too many":           {"{\ntwo a b c\n}", `invalid two "a" "b" "c": want one or two words`, 2},
		"a brace":            {"{\nany a {\n}\n}", `invalid any "a" "{": want anything`, 2},
		"twice":              {"{\nonce a\nany\nonce b\n}", "duplicate option once", 4},
		"error of an option": {"{\nbad\n}", "invalid bad no: want nothing good", 2},
		"on one line":        {"{\nline a line b any c\n}", "line(a) line(b) any(c)", 0},
		"on one line, none":  {"{\nline a b\n}", `invalid line "b": unexpected argument: want a word`, 2},
		"on one line, few":   {"{\nline\n}", "invalid line: want a word", 2},
		"without":            {"{\nwithout\n}", `unknown option "without": want one of any, bad, line, once, two`, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := caddy.NewTestController("dns", "directive "+tt.text)
			c.Next()
			var got []string
			seen, err := options.Parse(c, &got)
			if tt.line == 0 {
				if err != nil || strings.Join(got, " ") != tt.want {
					t.Errorf("parsed %q, %v; want %s", got, err, tt.want)
				}
				for option := range options {
					if _, ok := seen[option]; ok != strings.Contains(tt.want, option+"(") {
						t.Errorf("%s seen: %t", option, ok)
					}
				}
				return
			}
			if want := (Position{"Testfile", tt.line}).Errorf("%s", tt.want); err == nil || err.Error() != want.Error() {
				t.Errorf("error %v, want %v", err, want)
			}
			if tt.want == "invalid bad no: want nothing good" && !errors.Is(err, errBad) {
				t.Error("the cause is lost")
			}
		})
	}
	t.Run("Of and With", func(t *testing.T) {
		type whole struct{ part []string }
		all := Options[*whole]{"own": {Form: "nothing", Parse: func(*whole, []string) error { return nil }}}.
			With(Of(options, func(w *whole) *[]string { return &w.part }))
		if all.names() != "any, bad, line, once, own, two" {
			t.Errorf("options: %s", all.names())
		}
		c := caddy.NewTestController("dns", "directive {\nonce a\nown\n}")
		c.Next()
		var w whole
		if _, err := all.Parse(c, &w); err != nil || !slices.Equal(w.part, []string{"once(a)"}) {
			t.Errorf("parsed %q, %v", w.part, err)
		}
	})
	t.Run("Without", func(t *testing.T) {
		left := options.Without("any", "bad", "absent")
		if left.names() != "line, once, two" || len(options) != 5 {
			t.Errorf("options left: %s; %d in the original", left.names(), len(options))
		}
	})
}

func TestOnce(t *testing.T) {
	word := func(c *caddy.Controller) (string, error) {
		if !c.NextArg() {
			return "partial", errors.New("no argument")
		}
		return c.Val(), nil
	}
	for _, tt := range []struct{ text, want, err string }{
		{"directive a", "a", ""},
		{"directive", "", "no argument"},
		{"directive a\ndirective b", "", "Testfile:2 - Error during parsing: duplicate directive: want one in a server block"},
	} {
		got, err := Once(caddy.NewTestController("dns", tt.text), word)
		if got != tt.want || err == nil && tt.err != "" || err != nil && err.Error() != tt.err {
			t.Errorf("%q: %q, error %v", tt.text, got, err)
		}
	}
}

func TestConflict(t *testing.T) {
	seen := map[string]Position{"a": {"Testfile", 3}, "b": {"Testfile", 2}, "c": {"Testfile", 4}}
	for _, tt := range []struct{ one, other, want string }{
		{"a", "b", "Testfile:3 - Error during parsing: a and b cannot both be set: why"},
		{"a", "c", "Testfile:4 - Error during parsing: a and c cannot both be set: why"},
		{"a", "absent", ""},
		{"absent", "a", ""},
	} {
		if err := Conflict(seen, tt.one, tt.other, "why"); err == nil && tt.want != "" || err != nil && err.Error() != tt.want {
			t.Errorf("%s and %s: error %v, want %q", tt.one, tt.other, err, tt.want)
		}
	}
}

// add returns a Parse function that appends the option with its arguments as text.
func add(name string) func(*[]string, []string) error {
	return func(to *[]string, args []string) error {
		*to = append(*to, name+"("+strings.Join(args, " ")+")")
		return nil
	}
}
