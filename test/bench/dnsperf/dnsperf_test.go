package dnsperf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStatistics(t *testing.T) {
	const queries = 1000
	for _, c := range []struct {
		file string // in testdata
		// want is a part of the error, "" for a valid measurement.
		want string
	}{
		{"all-answered", ""},
		{"one-lost", ""},
		{"many-lost", "988 were answered and 12 lost: too many"},
		{"another-code", "want NOERROR alone"},
		{"nothing-answered", "0 were answered"},
		{"cut-short", "400 queries sent, want 1000"},
		{"no-statistics", "no statistics"},
		{"no-number", "Queries lost"},
	} {
		t.Run(c.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", c.file))
			if err != nil {
				t.Fatal(err)
			}
			s, err := parseStatistics(string(text))
			if err == nil {
				err = s.Judge("NOERROR", queries)
			}
			if c.want == "" && err != nil {
				t.Errorf("error %v, want none", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}
