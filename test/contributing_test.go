package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// maxContributingLines is the length of CONTRIBUTING in lines: two screens.
const maxContributingLines = 100

var (
	repositoryPath = regexp.MustCompile("`((?:cmd|deploy|docs|internal|plugin|test)/[\\w./-]*)`")
	singleTest     = regexp.MustCompile("-run (Test\\w+) (\\S+)`")
	behaviourRow   = regexp.MustCompile("(?m)^\\| ([^|`]+) \\| `([^`]+\\.go)` \\|$")
)

// behaviours are those whose file CONTRIBUTING names.
var behaviours = []string{
	"state of the lease", "serve-stale", "prefetch", "fallback to UDP", "which sessions get an invalidation", "sessions of clusterdns",
	"sessions of nodecache", "PTR", "overload", "AXFR",
	"fields of the API server's objects that are decoded", "a pod's search list",
	"pods of this node", "silencing CoreDNS's socket", "selection of endpoints", "plugins that prevent the fast path",
}

// problemsOfContributing returns the problems of the text of CONTRIBUTING in a repository.
func problemsOfContributing(root, text string) (problems []string) {
	if lines := strings.Count(text, "\n"); lines > maxContributingLines {
		problems = append(problems, fmt.Sprintf("%d lines, more than two screens", lines))
	}
	for _, found := range repositoryPath.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, found[1])); err != nil {
			problems = append(problems, found[1]+" does not exist")
		}
	}
	for _, found := range singleTest.FindAllStringSubmatch(text, -1) {
		if !hasTest(filepath.Join(root, found[2]), found[1]) {
			problems = append(problems, fmt.Sprintf("%s has no test %s", found[2], found[1]))
		}
	}
	var named []string
	for _, row := range behaviourRow.FindAllStringSubmatch(text, -1) {
		named = append(named, row[1])
	}
	if !slices.Equal(named, behaviours) {
		problems = append(problems, fmt.Sprintf("files are named for %q", named))
	}
	return problems
}

// hasTest reports whether a directory has a test with a name.
func hasTest(dir, name string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go")) // the pattern is valid
	return slices.ContainsFunc(files, func(file string) bool {
		content, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(content), "func "+name+"(")
	})
}

func TestContributing(t *testing.T) {
	text := kit.Read(t, filepath.Join(root, "CONTRIBUTING.md"))
	for _, problem := range problemsOfContributing(root, text) {
		t.Error(problem)
	}
	t.Run("can fail", func(t *testing.T) {
		wrong := strings.Replace(text, "| PTR | `plugin/kubernetes/ptr.go` |", "| PTR | `plugin/kubernetes/pointer.go` |", 1)
		wrong = strings.Replace(wrong, "| AXFR |", "| transfers |", 1) + strings.Repeat("\n", maxContributingLines)
		wrong = strings.Replace(wrong, "-run Test", "-run TestNo", 1)
		if problems := problemsOfContributing(root, wrong); len(problems) != 4 {
			t.Errorf("found %q, want 4 problems", problems)
		}
	})
}
