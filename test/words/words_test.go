package main

import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"
)

// TestCheck has files with forbidden wording in each place where it counts, and in places where it does not.
func TestCheck(t *testing.T) {
	root := fstest.MapFS{
		"plugin/a/a.go": {Data: []byte(`// Package a answers whoever asks.
package a

/* The answer
hangs on a generation. */
var somebody = "it is said once"

func whatIsKept() {} // nothing else
`)},
		"README.md":               {Data: []byte("# A\n\nWhat came of the query\nis logged.\n")},
		"plugin/a/testdata/b.md":  {Data: []byte("nobody\n")},
		"test/words/words.go":     {Data: []byte("// nobody\npackage words\n")},
		".git/description.md":     {Data: []byte("nobody\n")},
		"CHANGELOG.md":            {Data: []byte("nobody\n")},
		"plugin/a/other/file.txt": {Data: []byte("nobody\n")},
	}
	found, err := check(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, fmt.Sprintf("%s:%d %s", f.file, f.line, f.text))
	}
	want := []string{
		"README.md:3 What came of", "plugin/a/a.go:1 whoever", "plugin/a/a.go:5 hangs on", "plugin/a/a.go:6 it is said",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	if len(found) > 0 && found[0].String() != `README.md:3: "What came of": write the result, the reply` {
		t.Errorf("the first is printed as %s", found[0])
	}
	if _, err := check(fstest.MapFS{"a.go": {Data: []byte("package")}}); err == nil {
		t.Error("a file that is not Go is accepted")
	}
}

// TestPatterns has an example of each pattern, and plain wording that none matches.
func TestPatterns(t *testing.T) {
	examples := []string{
		"Somebody waits", "who asks for it", "what came of it", "what is kept", "hangs on its TTL", "has a say in it",
		"it is told that", "is told of them", "a log line says so", "is there if", "each so many queries",
	}
	if len(examples) != len(patterns) {
		t.Fatalf("%d examples of %d patterns", len(examples), len(patterns))
	}
	for i, example := range examples {
		if !patterns[i].text.MatchString(example) {
			t.Errorf("pattern %d does not match %q", i, example)
		}
	}
	for _, plain := range []string{
		"The client retries.", "validity bounds how long the result may be cached", "who owns the socket", "sends many queries",
	} {
		if found := checkText("a.md", 1, plain); len(found) > 0 {
			t.Errorf("plain wording is found: %v", found)
		}
	}
}
