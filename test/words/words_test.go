package main

import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestCheck has forbidden wording in each kind of file and place that is checked, and in those that are not.
func TestCheck(t *testing.T) {
	root := fstest.MapFS{
		"plugin/a/a.go": {Data: []byte(`// Package a answers whoever asks.
package a

/* The answer
hangs on a generation. */
var text = "it is said once"

func whatIsKept() {} // nothing else

type told struct{ most, on int }

func isTold(of int) (came, limit int) {
	for on, off := range []int{} {
		said := "nobody" // words:permit, the user of the container
		_, _, _ = on, off, said
	}
	return
}
`)},
		"README.md":               {Data: []byte("# A\n\nWhat remains of the query\nis logged.\n")},
		"deploy/a.yaml":           {Data: []byte("nobody: nobody # nobody\nsummary: nobody\n- message: so many lost\nname: somebody\n")},
		"deploy/a.tpl":            {Data: []byte("# nobody\n")},
		"test/a.sh":               {Data: []byte("#!/bin/sh\necho nobody\n# nobody\n")},
		"Makefile":                {Data: []byte("a: ## nobody\n\techo nobody\n")},
		"Corefile.example":        {Data: []byte(". { # nobody\n}\n")},
		"Dockerfile":              {Data: []byte("USER nobody\n# nobody\n")},
		"docs/a.md.tmpl":          {Data: []byte("nobody.invalid, nobody\nnobody <!-- words:permit -->\n")},
		"plugin/a/testdata/b.md":  {Data: []byte("nobody\n")},
		"test/words/words.go":     {Data: []byte("// nobody\npackage words\n")},
		".git/description.md":     {Data: []byte("nobody\n")},
		"CHANGELOG.md":            {Data: []byte("nobody\n")},
		"plugin/a/other/file.txt": {Data: []byte("nobody\n")},
	}
	found, err := check(root)
	kit.Must(t, err)
	var got []string
	for _, f := range found {
		got = append(got, fmt.Sprintf("%s:%d %s", f.file, f.line, f.text))
	}
	want := []string{
		"CHANGELOG.md:1 nobody", "Corefile.example:1 nobody", "Dockerfile:2 nobody", "Makefile:1 nobody", "README.md:3 What remains",
		"deploy/a.tpl:1 nobody", "deploy/a.yaml:1 nobody", "deploy/a.yaml:2 nobody", "deploy/a.yaml:3 so many", "docs/a.md.tmpl:1 nobody",
		"plugin/a/a.go:1 whoever", "plugin/a/a.go:5 hangs on", "plugin/a/a.go:6 it is said",
		"plugin/a/a.go:10 told", "plugin/a/a.go:10 most", "plugin/a/a.go:10 on",
		"plugin/a/a.go:12 isTold", "plugin/a/a.go:12 of", "plugin/a/a.go:12 came",
		"test/a.sh:3 nobody",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	if len(found) > 4 && found[4].String() != `README.md:3: "What remains": write the result, the reply` {
		t.Errorf("the finding is printed as %s", found[3])
	}
	if _, err := check(fstest.MapFS{"a.go": {Data: []byte("package")}}); err == nil {
		t.Error("a file that is not Go is accepted")
	}
}

// TestPatterns has the example of each pattern, and plain wording that none matches.
func TestPatterns(t *testing.T) {
	for _, p := range patterns {
		if !p.text.MatchString(p.example) {
			t.Errorf("%s does not match its example %q", p.text, p.example)
		}
	}
	for _, plain := range []string{
		"The client retries.", "validity bounds how long the result may be cached", "who owns the socket", "sends many queries",
		"logs what is missing", "at most three", "the server says goodbye", "entries are there",
	} {
		if found := checkText("a.md", 1, plain); len(found) > 0 {
			t.Errorf("plain wording is found: %v", found)
		}
	}
}

// TestIdentifiers has identifiers with forbidden words, and plain ones.
func TestIdentifiers(t *testing.T) {
	for name, want := range map[string]bool{
		"came": true, "isSaid": true, "HoldsLease": true, "of": true, "on": true, "most": true, "least": true, "nobodyElse": true,
		"Of": false, "onStartup": false, "entriesOf": false, "threshold": false, "mostRecent": false, "tolds": false,
	} {
		if got := len(checkIdentifier("a.go", 1, name)) > 0; got != want {
			t.Errorf("%s: found %t, want %t", name, got, want)
		}
	}
}
