package upstream

import (
	"slices"
	"strings"
	"testing"
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

// TestEdits checks that the functions of CoreDNS that the harness replaces exist.
func TestEdits(t *testing.T) { copyModule(t) }

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
