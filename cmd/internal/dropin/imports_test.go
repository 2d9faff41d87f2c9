package dropin

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestImports changes the imported files: each change is a change of the configuration, and all files and searched
// directories are watched.
func TestImports(t *testing.T) {
	directory := t.TempDir()
	at := func(name string) string { return filepath.Join(directory, name) }
	kit.Must(t, os.MkdirAll(at("custom"), 0o700))
	t.Setenv("NEARSIDE_TEST_IMPORT", "env")
	kit.Write(t, at("Corefile"), "(snippet) {\n  log\n}\n. {\n  import one\n  import snippet\n  import {$NEARSIDE_TEST_IMPORT}\n}\nimport custom/*.server\n")
	kit.Write(t, at("one"), "import two\n")
	kit.Write(t, at("two"), "# nothing\n")
	kit.Write(t, at("env"), "log\n")
	kit.Write(t, at("snippet"), "__PILLAR__LOCAL__DNS__ is ignored, since a snippet has this name\n")
	n := node(t, nil)
	digests := []string{""}
	step := func(name string, same bool) {
		t.Helper()
		got, err := n.Source(at("Corefile"), reader)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if last := digests[len(digests)-1]; (got.Imported == last) != same || !same && slices.Contains(digests, got.Imported) {
			t.Errorf("%s: %q after %q", name, got.Imported, digests)
		}
		digests = append(digests, got.Imported)
	}
	step("at the start", false)
	step("the same", true)
	for _, path := range []string{at("one"), at("two"), at("env"), at("custom")} {
		if !slices.Contains(n.watched(), path) {
			t.Errorf("%s is not among %q", path, n.watched())
		}
	}
	kit.Write(t, at("two"), "errors\n")
	step("a file that a file imports", false)
	kit.Write(t, at("env"), "errors\n")
	step("a file that a variable names", false)
	kit.Write(t, at("custom/a.server"), "# nothing\n")
	step("a new file", false)
	kit.Write(t, at("custom/a.server"), "a.example {\n  log\n}\n")
	step("a changed file", false)
	kit.Write(t, at("custom/b.other"), "a.example {\n  log\n}\n")
	step("another file", true)

	kit.Write(t, at("custom/a.server"), "a.example {\n  bind __PILLAR__LOCAL__DNS__\n}\n")
	if _, err := n.Source(at("Corefile"), reader); err == nil || !strings.HasPrefix(err.Error(), at("custom/a.server")+":2 - __PILLAR__LOCAL__DNS__ is in an imported file") {
		t.Errorf("variable in an imported file: %v", err)
	}
	kit.Write(t, at("custom/a.server"), "a.example {\n  forward . /etc/resolv.conf {\n    tls /etc/ca.pem\n  }\n}\n")
	step("forward", false)
	if !strings.Contains(n.logged[0].text, at("custom/a.server")+":2 - forward stands in an imported file") || len(n.logged) != 1 {
		t.Errorf("messages %v", n.logged)
	}
	kit.Must(t, os.Remove(at("one")))
	if _, err := n.Source(at("Corefile"), reader); err == nil || !slices.Contains(n.watched(), at("one")) {
		t.Errorf("error %v of a missing file, watched are %q", err, n.watched())
	}
}

// TestUnchanged reads a Corefile with warnings of the parser repeatedly.
func TestUnchanged(t *testing.T) {
	output := kit.Logged(t)
	conf := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, conf, ". {\n  import none*\n}\n")
	n := node(t, nil)
	var warnings []int
	for range 4 {
		if _, err := n.Source(conf, reader); err != nil {
			t.Fatal(err)
		}
		warnings = append(warnings, output.Count("No files matching"))
	}
	if warnings[0] == 0 || warnings[1] != warnings[3] {
		t.Errorf("warnings after each reading: %d", warnings)
	}
}
