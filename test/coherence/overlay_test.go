//go:build linux

package coherence

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// root is the folder of the module.
const root = "../.."

// edit is a change of a source file for one build of a program; the file itself stays as it is.
type edit struct {
	file string // from the root of the module, or absolute
	// apply returns the changed text, or an error if the text is not the one that the edit was written for.
	apply func(text string) (string, error)
}

// replacement is an edit that replaces a text that the file has once.
func replacement(file, old, replaced string) edit {
	return edit{file, func(text string) (string, error) {
		if n := strings.Count(text, old); n != 1 {
			return "", fmt.Errorf("%s has %q %d times, want once", file, old, n)
		}
		return strings.Replace(text, old, replaced, 1), nil
	}}
}

// changeOfIndex is the header of a function by which a record enters or leaves the index.
var changeOfIndex = regexp.MustCompile(`(?m)^func \(ix \*Index\) (put|add|delete|remove)(Service|Import|Slice|Pod|Namespace|Node)\((\w+) [^()]+\)( bool)? \{$`)

// changesOfIndex is the number of these functions.
const changesOfIndex = 12

// recording returns the edits with which clusterdns writes each change of its index to the file that the environment names.
func recording(t testing.TB) []edit {
	t.Helper()
	const folder = "plugin/kubernetes/index"
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	kit.Must(t, err)
	edits := []edit{
		replacement(folder+"/write.go", "\tf()\n}", "\tf()\n\trecordEnd()\n}"),
		addition(folder+"/record.go", "testdata/overlay/record.go"),
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		kit.Must(t, err)
		if n := len(changeOfIndex.FindAll(text, -1)); n > 0 {
			found += n
			edits = append(edits, edit{folder + "/" + filepath.Base(file), insertRecord})
		}
	}
	if found != changesOfIndex {
		t.Fatalf("%s has %d functions that change records, want %d", folder, found, changesOfIndex)
	}
	return edits
}

func insertRecord(text string) (string, error) {
	return changeOfIndex.ReplaceAllString(text, "$0\n\trecord(\"$1\", \"$2\", $3)"), nil
}

// addition is an edit that adds a file.
func addition(file, from string) edit {
	return edit{file, func(string) (string, error) {
		text, err := os.ReadFile(from)
		return string(text), err
	}}
}

// The limits of the watchdog in a history, in which something of each resource changes several times per second.
func shortWatchdog() []edit {
	const file = "plugin/kubernetes/source/apiserver/watchdog.go"
	return []edit{
		replacement(file, "quietAfter = 90 * time.Second", "quietAfter = 2 * time.Second"),
		replacement(file, "frozenAfter = 90 * time.Second", "frozenAfter = time.Second"),
		replacement(file, "lostAfter = 10 * time.Second", "lostAfter = 2 * time.Second"),
		replacement(file, "checkEvery = 5 * time.Second", "checkEvery = 200 * time.Millisecond"),
		replacement(file, "probeTimeout = 10 * time.Second", "probeTimeout = time.Second"),
	}
}

// jumpingClock returns the edit with which the wall clock of a program jumps by an hour, forward and back, every 0.7 s.
// CLOCK_MONOTONIC does not. Linux has no namespace for the wall clock, and that of the machine is not the test's.
func jumpingClock(t testing.TB) edit {
	t.Helper()
	folder, err := exec.Command("go", "env", "GOROOT").Output()
	kit.Must(t, err)
	const begin = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	return replacement(filepath.Join(strings.TrimSpace(string(folder)), "src/time/time.go"), begin,
		begin+"\tif mono/700_000_000%2 == 1 {\n\t\tsec += 3600\n\t}\n")
}

// path returns the path of the file.
func (e *edit) path() string {
	if filepath.IsAbs(e.file) {
		return e.file
	}
	return filepath.Join(root, e.file)
}

// compile builds a program of cmd with edits and returns its path.
func compile(t testing.TB, program string, edits ...edit) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), program)
	build(t, edits, "build", "-o", path, "github.com/nearside-dns/nearside/cmd/"+program)
	return path
}

// compileTest builds the tests of a package with edits and returns their path.
func compileTest(t testing.TB, folder string, edits ...edit) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tests")
	build(t, edits, "test", "-c", "-o", path, "github.com/nearside-dns/nearside/"+folder)
	return path
}

// build runs a command of go with edits.
func build(t testing.TB, edits []edit, command string, args ...string) {
	t.Helper()
	args = append([]string{command, "-overlay", overlay(t, edits)}, args...)
	kit.Output(t, kit.Go(args...))
}

// overlay writes the changed files, and returns the path of their list for -overlay.
func overlay(t testing.TB, edits []edit) string {
	t.Helper()
	folder := t.TempDir()
	texts := map[string]string{}
	for _, e := range edits {
		text, known := texts[e.file]
		if !known {
			original, err := os.ReadFile(e.path())
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			text = string(original)
		}
		text, err := e.apply(text)
		kit.Must(t, err)
		texts[e.file] = text
	}
	replaced := map[string]string{}
	for file, text := range texts {
		original, err := filepath.Abs((&edit{file: file}).path())
		kit.Must(t, err)
		replaced[original] = filepath.Join(folder, strings.ReplaceAll(file, "/", "_"))
		kit.Write(t, replaced[original], text)
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	kit.Must(t, err)
	path := filepath.Join(folder, "overlay.json")
	kit.Write(t, path, string(list))
	return path
}
