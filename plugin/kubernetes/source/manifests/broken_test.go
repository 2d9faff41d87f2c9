package manifests

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

var update = flag.Bool("update", false, "write testdata/broken.txt anew")

// TestBroken compares the error for each file of testdata/broken, named after what is wrong with it,
// with its line in testdata/broken.txt.
func TestBroken(t *testing.T) {
	const golden = "testdata/broken.txt"
	got := map[string]string{}
	files, err := filepath.Glob("testdata/broken/*")
	kit.Must(t, err)
	var lines strings.Builder
	for _, path := range files {
		got[filepath.Base(path)] = newError(t, path)
		lines.WriteString(got[filepath.Base(path)] + "\n")
	}
	if *update {
		kit.Must(t, os.WriteFile(golden, []byte(lines.String()), 0o644))
	}
	want := goldenLines(t, golden)
	if len(files) < 15 || len(want) != len(files) {
		t.Errorf("%d broken files and %d golden lines", len(files), len(want))
	}
	for name, line := range got {
		t.Run(name, func(t *testing.T) {
			if line != want[name] {
				t.Errorf("got  %s\nwant %s", line, want[name])
			}
		})
	}
}

// TestDocumentLimits has documents that would take minutes, or more memory than there is: the YAML library compares each
// field of an object with all others, and aliases may stand for long text.
func TestDocumentLimits(t *testing.T) {
	fields := func(n int) string {
		text := "---\n"
		for i := range n {
			text += fmt.Sprintf("field%d: 1\n", i)
		}
		return text
	}
	aliases := func(n int) string {
		return "x: &x " + strings.Repeat("x", 1<<20) + "\ny: [" + strings.Repeat("*x,", n) + "]"
	}
	for name, test := range map[string]struct{ text, want string }{
		"the maximum of fields":          {"apiVersion: v1\nkind: Other\n" + fields(maxFields), ":4: kind: missing; want an object with apiVersion, kind and metadata; DNS needs " + kindNames()},
		"one field more":                 {"apiVersion: v1\nkind: Other\n" + fields(maxFields+1), ":4: more than 10000 fields of one object"},
		"long aliases":                   {"apiVersion: v1\nkind: Pod\n" + aliases(100_000), ":1: invalid YAML: aliases stand for more than 32 MiB"},
		"long aliases that are not read": {"apiVersion: v1\nkind: Other\n" + aliases(100_000), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parser{}.parse("a.yaml", []byte(test.text))
			if got := fmt.Sprint(cmp.Or(err, errors.New(""))); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func goldenLines(t *testing.T, path string) map[string]string {
	t.Helper()
	want := map[string]string{}
	for line := range strings.Lines(kit.Read(t, path)) {
		name, _, _ := strings.Cut(line, ":")
		want[filepath.Base(name)] = strings.TrimSuffix(line, "\n")
	}
	return want
}

// newError returns the error of New for a directory with a copy of one file, without the name of the directory.
func newError(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	kit.Write(t, filepath.Join(dir, filepath.Base(path)), kit.Read(t, path))
	_, err := New(dir, everything)
	if err == nil {
		return fmt.Sprintf("%s: no error", filepath.Base(path))
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	return strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "")
}

var everything = source.Options{Endpoints: true, Pods: true, Zones: true}
