package test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
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

// undirected returns the folders of modules that a configuration of dependabot does not list, and those that it lists in vain.
func undirected(configuration string, modules []string) (problems []string) {
	_, list, _ := strings.Cut(configuration, "  directories:\n")
	var listed []string
	for line := range strings.Lines(list) {
		folder, is := strings.CutPrefix(line, "  - /")
		if !is {
			break
		}
		listed = append(listed, strings.TrimSpace(folder))
	}
	for _, folder := range modules {
		if !slices.Contains(listed, folder) {
			problems = append(problems, "no directory /"+folder)
		}
	}
	for _, folder := range listed {
		if !slices.Contains(modules, folder) {
			problems = append(problems, "no module in /"+folder)
		}
	}
	return problems
}

// TestDependabot checks that dependabot updates every module of the repository.
func TestDependabot(t *testing.T) {
	configuration := kit.Read(t, filepath.Join(root, ".github/dependabot.yml"))
	var modules []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist): // a test that runs at the same time may remove a folder
			return err
		case path == "bin":
			return fs.SkipDir
		case filepath.Base(path) == "go.mod":
			modules = append(modules, strings.TrimPrefix(filepath.Dir(path), "."))
		}
		return nil
	})
	kit.Must(t, err)
	for _, problem := range undirected(configuration, modules) {
		t.Error(problem)
	}
	t.Run("can fail", func(t *testing.T) {
		got := undirected("updates:\n- package-ecosystem: gomod\n  directories:\n  - /\n  - /gone\n  schedule:\n", []string{"", "new"})
		if want := []string{"no directory /new", "no module in /gone"}; !slices.Equal(got, want) {
			t.Errorf("problems %q, want %q", got, want)
		}
	})
}

func TestWorkflows(t *testing.T) {
	makefile := kit.Read(t, filepath.Join(root, "Makefile"))
	paths, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(paths) != 3 {
		t.Fatalf("workflows %q, error %v, want test, release and scorecard", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text := kit.Read(t, path)
			for _, problem := range workflowProblems(t, text, makefile) {
				t.Error(problem)
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		wrong := "name: wrong\non: push\njobs:\n  wrong:\n    runs-on: nowhere\n    steps:\n    - uses: actions/checkout@v6\n    - run: make nothing\n"
		if problems := workflowProblems(t, wrong, makefile); len(problems) != 3 {
			t.Errorf("found %q, want 3 problems", problems)
		}
	})
}
