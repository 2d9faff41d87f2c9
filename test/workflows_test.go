package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/controlplane"
)

// lintWorkflow returns the problems that actionlint finds in a workflow.
func lintWorkflow(t *testing.T, text string) string {
	t.Helper()
	c := exec.Command(controlplane.RequireBinary(t, "actionlint"), "-no-color", "-shellcheck=", "-pyflakes=", "-")
	c.Dir = root
	c.Stdin = strings.NewReader(text)
	out, err := c.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}

var (
	usedAction   = regexp.MustCompile(`uses: (\S+)(.*)`)
	pinnedAction = regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40}$`)
	actionTag    = regexp.MustCompile(`^ # v\d+\.\d+\.\d+$`)
	makeTarget   = regexp.MustCompile(`run: make (\S+)`)
)

// workflowProblems returns the problems of a workflow: those that actionlint finds, actions that are not pinned to a commit with the
// version beside it, and targets that the Makefile lacks.
func workflowProblems(t *testing.T, text, makefile string) (problems []string) {
	t.Helper()
	if found := lintWorkflow(t, text); found != "" {
		problems = append(problems, found)
	}
	for _, used := range usedAction.FindAllStringSubmatch(text, -1) {
		if !pinnedAction.MatchString(used[1]) || !actionTag.MatchString(used[2]) {
			problems = append(problems, used[0]+" is not pinned to a commit, with its version")
		}
	}
	for _, target := range makeTarget.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(makefile, "\n"+target[1]+": ") {
			problems = append(problems, "the Makefile has no target "+target[1])
		}
	}
	return problems
}

func TestWorkflows(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(paths) != 3 {
		t.Fatalf("workflows %q, error %v, want test, release and scorecard", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, problem := range workflowProblems(t, string(text), string(makefile)) {
				t.Error(problem)
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		wrong := "name: wrong\non: push\njobs:\n  wrong:\n    runs-on: nowhere\n    steps:\n    - uses: actions/checkout@v6\n    - run: make nothing\n"
		if problems := workflowProblems(t, wrong, string(makefile)); len(problems) != 3 {
			t.Errorf("found %q, want 3 problems", problems)
		}
	})
}
