package upstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// folders are those of CoreDNS with the tests, and the programs that run them. nodecache has no kubernetes.
var folders = []struct {
	path     string
	programs []string
}{
	{"test", []string{"clusterdns", "nodecache"}},
	{"plugin/kubernetes", []string{"clusterdns"}},
	{"plugin/cache", []string{"clusterdns", "nodecache"}},
	{"plugin/forward", []string{"clusterdns", "nodecache"}},
	{"plugin/autopath", []string{"clusterdns", "nodecache"}},
}

// control is CoreDNS's program.
const control = "coredns"

// kind is the kind of a case.
type kind string

const (
	goTest     kind = "test"       // a Go test or subtest that uses the program
	goOnly     kind = "Go"         // a Go test that does not: it calls functions of CoreDNS
	setup      kind = "setup"      // a Go test that parses stanzas, and uses the program for nothing else
	answer     kind = "answer"     // an answer that a test compares with SortAndCheck
	stanza     kind = "stanza"     // a Corefile that the program should accept or refuse
	refused    kind = "refused"    // a stanza that CoreDNS's parser accepts, and that its program refuses, too
	substitute kind = "substitute" // a Corefile that another program runs
)

// Kinds of other events: they make no case.
const (
	corefile    kind = "Corefile"    // a program started with one
	exchange    kind = "exchange"    // the test uses a program
	unsupported kind = "unsupported" // why the test cannot use the program
)

// result is the result of a case.
type result struct {
	folder, program string
	test            string // name of the Go test or subtest
	part            string // name of the answer or stanza
	kind            kind
	text            string // the stanza
	err             string // empty: passed
}

// name returns the folder, the test and the part.
func (r result) name() string {
	return strings.TrimSpace(r.folder + " " + r.test + " " + r.part)
}

// suite is a compiled package of tests.
type suite struct {
	folder, path string // in CoreDNS, in the copy
	binary       string
	tests        []string
}

func compile(t *testing.T, root, folder string) suite {
	t.Helper()
	s := suite{folder: folder, path: filepath.Join(root, folder)}
	s.binary = filepath.Join(s.path, "upstream.test")
	c := exec.Command("go", "test", "-c", "-vet=off", "-trimpath", "-o", s.binary, "./"+folder)
	c.Dir, c.Env = root, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	kit.Output(t, c)
	c = exec.Command(s.binary, "-test.list", ".")
	c.Dir = s.path
	out, err := c.Output()
	kit.Must(t, err)
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "Test") {
			s.tests = append(s.tests, name)
		}
	}
	return s
}

// run runs one test in a process of its own.
func (s suite) run(t *testing.T, test, programs, program string) []result {
	t.Helper()
	temporary := t.TempDir()
	events := filepath.Join(temporary, "events")
	c := exec.Command(s.binary, "-test.run=^"+test+"$", "-test.v", "-test.timeout=45s")
	c.Dir = s.path
	c.Env = append(os.Environ(), "TMPDIR="+temporary, "NEARSIDE_UPSTREAM_PROGRAMS="+programs, "NEARSIDE_UPSTREAM_PROGRAM="+program,
		"NEARSIDE_UPSTREAM_EVENTS="+events)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := c.CombinedOutput()
	exit := new(exec.ExitError)
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	all := s.results(test, program, string(out), readEvents(t, events))
	if slices.ContainsFunc(all, func(r result) bool { return r.err != "" && r.kind == goTest }) {
		t.Logf("output of %s in %s:\n%s", test, s.folder, out)
	}
	return all
}

// event is a line of the harness.
type event struct {
	Kind                     kind
	Program, Name, Text, Err string
}

func readEvents(t *testing.T, path string) (all []event) {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	kit.Must(t, err)
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var e event
		kit.Must(t, json.Unmarshal(s.Bytes(), &e))
		all = append(all, e)
	}
	return all
}

var (
	status  = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
	message = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: .*|^panic: .*`)
)

// results returns those of a test: of its leaves, and of the answers and stanzas. Events of another program count as Corefiles
// that it runs: nodecache lacks a directive of theirs.
func (s suite) results(test, program, out string, events []event) (all []result) {
	one := result{folder: s.folder, program: program, test: test, kind: goOnly}
	note := ""
	for _, e := range events {
		checked := e.Kind == stanza || e.Kind == refused
		switch {
		case e.Kind == unsupported:
			one.kind = goTest
			if note == "" {
				note = "unsupported: " + e.Text
			}
		case e.Program != program && (checked || e.Kind == corefile):
			all = append(all, result{folder: s.folder, program: program, test: test, kind: substitute})
		case e.Program != program:
		case e.Kind == exchange:
			one.kind = goTest
		case checked || e.Kind == answer:
			all = append(all, result{s.folder, program, test, e.Name, e.Kind, e.Text, e.Err})
		}
		if checked && one.kind == goOnly {
			one.kind = setup
		}
	}
	if one.kind == goOnly && program == "nodecache" {
		return all // reported for clusterdns
	}
	for _, r := range leaves(one, out, note) {
		if r.err != "" {
			r.kind = goTest
		}
		all = append(all, r)
	}
	return all
}

// messages returns the messages of each test in the output of a verbose run.
func messages(out string) map[string]string {
	all := map[string]string{}
	name := ""
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "===" {
			name = f[2]
		}
		if message.MatchString(line) && len(all[name]) < maxMessages {
			all[name] = strings.TrimSpace(all[name] + " " + strings.Join(strings.Fields(line), " "))
		}
	}
	return all
}

// maxMessages limits the messages of a test, in bytes.
const maxMessages = 1000

// leaves returns the results of the Go tests without subtests. A note is why the test cannot use the program.
func leaves(one result, out, note string) (all []result) {
	found := status.FindAllStringSubmatch(out, -1)
	texts := messages(out)
	failure := func(name string) string { return "failed: " + strings.TrimSpace(note+" "+texts[name]) }
	for _, f := range found {
		inner := func(o []string) bool { return strings.HasPrefix(o[2], f[2]+"/") }
		if slices.ContainsFunc(found, func(o []string) bool { return inner(o) && (f[1] == "PASS" || o[1] != "PASS") }) {
			continue // the subtest is reported
		}
		r := one
		r.test = f[2]
		switch f[1] {
		case "FAIL":
			r.err = failure(r.test)
		case "SKIP":
			r.err = "skipped: " + texts[r.test]
		}
		all = append(all, r)
	}
	if len(found) == 0 {
		one.err = failure(one.test)
		all = append(all, one)
	}
	return all
}
