package upstream

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// key is the key of a failure's reason.
func key(r result) string { return r.program + " " + r.name() }

// judge returns the reasons of failures, and the failures without a reason; if the results are those of all tests, also the
// reasons without a failure.
func judge(all []result, table []reason, complete bool) (explained map[string]string, problems []string) {
	explained = map[string]string{}
	applied := make([]bool, len(table))
	for _, r := range all {
		if r.err == "" {
			continue
		}
		i := slices.IndexFunc(table, func(reason reason) bool { return reason.matches(r) })
		if i < 0 {
			problems = append(problems, r.program+": "+r.name()+": "+r.err+" "+strings.Join(strings.Fields(r.text), " "))
			continue
		}
		applied[i], explained[key(r)] = true, table[i].text
	}
	for i, reason := range table {
		if complete && !applied[i] {
			problems = append(problems, "the reason for "+reason.cases+" applies to no failure: delete it")
		}
	}
	return explained, problems
}

// passing returns the failures that are no failure of the control. If a case is not among the control's results, such as after a
// panic, the control fails if it fails the test at all.
func passing(failures, control []result) (names []string) {
	for _, f := range failures {
		failed := false
		for _, r := range control {
			if r.folder != f.folder || topName(r.test) != topName(f.test) {
				continue
			}
			if r.name() == f.name() {
				failed = r.err != ""
				break
			}
			failed = failed || r.err != ""
		}
		if !failed {
			names = append(names, f.name())
		}
	}
	return names
}

func TestPassing(t *testing.T) {
	failures := []result{{folder: "test", test: "TestA/b", err: "failed: x"}}
	for _, tt := range []struct {
		name    string
		control []result
		want    []string
	}{
		{"the control fails, too", []result{{folder: "test", test: "TestA/b", err: "failed: y"}, {folder: "test", test: "TestA/c"}}, nil},
		{"the control passes", []result{{folder: "test", test: "TestA/b"}, {folder: "test", test: "TestA/c", err: "failed: y"}},
			[]string{"test TestA/b"}},
		{"the control ends before the case", []result{{folder: "test", test: "TestA", err: "failed: panic"}}, nil},
		{"the control does not have the case", []result{{folder: "test", test: "TestA"}}, []string{"test TestA/b"}},
		{"the control has not run", nil, []string{"test TestA/b"}},
		{"the control fails another test", []result{{folder: "test", test: "TestC", err: "failed: y"}}, []string{"test TestA/b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := passing(failures, tt.control); !slices.Equal(got, tt.want) {
				t.Errorf("passing %q, want %q", got, tt.want)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	failed := result{folder: "test", program: "clusterdns", test: "TestA/b", err: "failed: x"}
	passed := result{folder: "test", program: "clusterdns", test: "TestC"}
	table := []reason{{"test TestA/.*", "x$", "because"}, {"test TestC", "", "was broken"}}
	for _, tt := range []struct {
		name     string
		results  []result
		table    []reason
		complete bool
		want     []string
	}{
		{"a failure with a reason", []result{failed, passed}, table[:1], true, nil},
		{"a failure without a reason", []result{failed}, nil, false, []string{"clusterdns: test TestA/b: failed: x "}},
		{"a reason for another failure", []result{failed}, []reason{{"test TestA/.*", "y", "because"}}, false, []string{"clusterdns: test TestA/b: failed: x "}},
		{"a case with a reason passes", []result{failed, passed}, table, true, []string{"the reason for test TestC applies to no failure: delete it"}},
		{"some of the tests", []result{failed, passed}, table, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := judge(tt.results, tt.table, tt.complete); !slices.Equal(got, tt.want) {
				t.Errorf("problems %q, want %q", got, tt.want)
			}
		})
	}
}

// TestNamedCases checks that nearside's tests that reasons name exist: a function, and a part of a string in it.
func TestNamedCases(t *testing.T) {
	sources := map[string]string{}
	for _, r := range reasons {
		if names := missing(t, r.text, sources); len(names) > 0 {
			t.Errorf("%q do not exist: reason for %s", names, r.cases)
		}
	}
	want := []string{"TestServeStale: no such case", "TestX: x", "TestServeStale"}
	list := inPluginCache + "TestServeStale: no such case; TestBypass: update; TestX: x; TestServeStale."
	if got := missing(t, list, sources); !slices.Equal(got, want) {
		t.Errorf("missing %q, want %q", got, want)
	}
}

var namedCases = regexp.MustCompile(`In (plugin/\w+): (.*)\.$`)

// missing returns the tests in the list of a reason that do not exist. The sources are those of the folders read so far.
func missing(t *testing.T, text string, sources map[string]string) (names []string) {
	t.Helper()
	found := namedCases.FindStringSubmatch(text)
	if found == nil {
		return nil
	}
	folder := found[1]
	if sources[folder] == "" {
		paths, err := filepath.Glob(filepath.Join("..", "..", folder, "*_test.go"))
		kit.Must(t, err)
		for _, path := range paths {
			text := kit.Read(t, path)
			sources[folder] += text
		}
	}
	for name := range strings.SplitSeq(found[2], "; ") {
		function, subtest, _ := strings.Cut(name, ": ")
		_, body, ok := strings.Cut(sources[folder], "\nfunc "+function+"(")
		if body, _, _ = strings.Cut(body, "\n}\n"); !ok || subtest == "" || !strings.Contains(body, subtest) {
			names = append(names, name)
		}
	}
	return names
}

// TestPublished checks that the reasons of the results are those of the table.
func TestPublished(t *testing.T) {
	text := kit.Read(t, "RESULTS.md")
	published := regexp.MustCompile(`(?m)^\* (.*) \(\d+\)$`).FindAllStringSubmatch(text, -1)
	if len(published) == 0 {
		t.Error("no reasons in RESULTS.md")
	}
	for _, p := range published {
		if !slices.ContainsFunc(reasons, func(r reason) bool { return r.text == p[1] }) {
			t.Errorf("RESULTS.md has a reason that the table does not have: run make upstream: %s", p[1])
		}
	}
}

// TestEdits checks that the functions of CoreDNS that the harness replaces exist.
func TestEdits(t *testing.T) { copyModule(t) }

// TestResults checks what counts: a Go test that uses the program of the run, and its own stanzas and answers.
func TestResults(t *testing.T) {
	const passed, failed = "--- PASS: TestA (0.00s)\n", "=== RUN   TestA\n--- FAIL: TestA (0.00s)\n"
	use := func(program string) event { return event{Kind: exchange, Program: program} }
	own := event{Kind: stanza, Program: "nodecache", Name: "stanza"}
	for _, tt := range []struct {
		name, program, out string
		events             []event
		want               []kind
	}{
		{"a query", "nodecache", passed, []event{{Kind: corefile, Program: "nodecache"}, use("nodecache")}, []kind{goTest}},
		{"a stanza", "nodecache", passed, []event{own}, []kind{stanza, setup}},
		{"a stanza and a query", "nodecache", passed, []event{own, use("nodecache")}, []kind{stanza, goTest}},
		{"a query to the other program", "nodecache", passed, []event{{Kind: corefile, Program: "clusterdns"}, use("clusterdns"),
			{Kind: answer, Program: "clusterdns"}}, []kind{substitute}},
		{"queries to both programs", "nodecache", passed, []event{{Kind: corefile, Program: "clusterdns"}, use("clusterdns"), use("nodecache"),
			{Kind: answer, Program: "nodecache"}}, []kind{substitute, answer, goTest}},
		{"a stanza of the other program", "nodecache", passed, []event{{Kind: stanza, Program: "clusterdns"}}, []kind{substitute, setup}},
		{"a stanza that both refuse", "clusterdns", passed, []event{{Kind: refused, Program: "clusterdns"}}, []kind{refused, setup}},
		{"nothing", "clusterdns", passed, nil, []kind{goOnly}},
		{"nothing, reported once", "nodecache", passed, nil, nil},
		{"a failure before the program starts", "clusterdns", "--- SKIP: TestA (0.00s)\n", nil, []kind{goTest}},
		{"an unsupported test", "nodecache", failed, []event{{Kind: unsupported, Text: "x"}}, []kind{goTest}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []kind
			for _, r := range (suite{}).results("TestA", tt.program, tt.out, tt.events) {
				got = append(got, r.kind)
				if tt.out == failed && r.err != "failed: unsupported: x" {
					t.Errorf("failure %q", r.err)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("kinds %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLeaves(t *testing.T) {
	out := "=== RUN   TestA\n=== RUN   TestA/x\n    a_test.go:7: wrong\n=== RUN   TestA/y\n--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/x (0.00s)\n    --- PASS: TestA/y (0.00s)\n"
	want := []result{{folder: "test", test: "TestA/x", err: "failed: a_test.go:7: wrong"}, {folder: "test", test: "TestA/y"}}
	if got := leaves(result{folder: "test"}, out, ""); !slices.Equal(got, want) {
		t.Errorf("leaves %+v, want %+v", got, want)
	}
	if got := leaves(result{test: "TestB"}, "=== RUN TestB\npanic: x\n", "unsupported: y"); len(got) != 1 || got[0].err != "failed: unsupported: y panic: x" {
		t.Errorf("after a panic %+v", got)
	}
}
