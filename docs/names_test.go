package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// configuration is the page that has all metrics.
const configuration = "docs/configuration.md"

// metric is the name of one that is ours or CoreDNS's.
var metric = regexp.MustCompile(`\b(?:coredns|nearside)_[a-z0-9]+(?:_[a-z0-9]+)+\b`)

// suffixes are what Prometheus adds to the name of a histogram.
var suffixes = regexp.MustCompile(`_(?:bucket|sum|count)$`)

// unlisted returns the metrics of a text that are not among the listed ones.
func unlisted(text string, listed []string) (all []string) {
	for _, name := range metric.FindAllString(text, -1) {
		if !slices.Contains(listed, name) && !slices.Contains(listed, suffixes.ReplaceAllString(name, "")) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// listedMetrics are those of the page that has all.
func listedMetrics(t *testing.T, all map[string]string) []string {
	t.Helper()
	listed := metric.FindAllString(all[configuration], -1)
	if len(listed) < 50 {
		t.Fatalf("%s has %d metrics", configuration, len(listed))
	}
	return listed
}

// isForOperators tells of the documents that name metrics to look at.
func isForOperators(name string) bool {
	return name == "README.md" || strings.HasPrefix(name, "docs/")
}

// TestMetricsOfDocuments sees that metrics which a document names are those that there are.
func TestMetricsOfDocuments(t *testing.T) {
	all := documents(t)
	listed := listedMetrics(t, all)
	for name, text := range all {
		if isForOperators(name) {
			for _, m := range unlisted(text, listed) {
				t.Errorf("%s: there is no metric %s", name, m)
			}
		}
	}
	t.Run("can fail", func(t *testing.T) {
		got := unlisted("`nearside_a_total` nearside_b_total{x} nearside_c_seconds_bucket, coredns_gone_total nearside_*", []string{"nearside_a_total", "nearside_c_seconds"})
		if want := []string{"coredns_gone_total", "nearside_b_total"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// cited is a test that a document names, with a link to its file. The text may go on to parts of it.
var cited = regexp.MustCompile(`\[(Test[A-Za-z0-9]+)[^\]]*\]\(([^()\s]+_test\.go)\)`)

// missingTests returns the tests that a document names and that its links do not lead to. read returns a file's text.
func missingTests(name, text string, read func(path string) string) (all []string) {
	for _, found := range cited.FindAllStringSubmatch(text, -1) {
		path := filepath.ToSlash(filepath.Join(filepath.Dir(name), found[2]))
		if !strings.Contains(read(path), "\nfunc "+found[1]+"(t *testing.T)") {
			all = append(all, name+": "+found[1]+" is not in "+path)
		}
	}
	return all
}

// TestCitedTests sees that the tests which a document names as its proof are there.
func TestCitedTests(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return "" // TestLinks says so
		}
		return string(text)
	}
	count := 0
	for name, text := range documents(t) {
		count += len(cited.FindAllString(text, -1))
		for _, problem := range missingTests(name, text, read) {
			t.Error(problem)
		}
	}
	if count < 20 {
		t.Errorf("%d tests are named", count)
	}
	t.Run("can fail", func(t *testing.T) {
		got := missingTests("docs/a.md", "[TestOne](../x/one_test.go), [TestTwo/part](../x/one_test.go), [TestThree: a part](../x/three_test.go)", func(path string) string {
			return map[string]string{"x/one_test.go": "package x\nfunc TestOne(t *testing.T) {\n}\nfunc TestTwoParts(t *testing.T) {}\n"}[path]
		})
		if want := []string{"docs/a.md: TestTwo is not in x/one_test.go", "docs/a.md: TestThree is not in x/three_test.go"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// gone returns the folders of CONTRIBUTING.md's table that are not there. After a folder with another one above it,
// names stand for those beside it.
func gone(text string, exists func(path string) bool) (all []string) {
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "/`") {
			continue
		}
		beside := ""
		for _, found := range regexp.MustCompile("`([^`]+)/`").FindAllStringSubmatch(cells[1], -1) {
			path := found[1]
			if !exists(path) {
				path = beside + "/" + path
			}
			if !exists(path) {
				all = append(all, found[1])
			}
			beside = filepath.ToSlash(filepath.Dir(path))
		}
	}
	return all
}

// TestFoldersOfContributing sees that the folders which CONTRIBUTING.md explains are there.
func TestFoldersOfContributing(t *testing.T) {
	exists := func(path string) bool {
		info, err := os.Stat(filepath.Join(root, path))
		return err == nil && info.IsDir()
	}
	for _, folder := range gone(documents(t)["CONTRIBUTING.md"], exists) {
		t.Errorf("CONTRIBUTING.md: there is no folder %s", folder)
	}
	t.Run("can fail", func(t *testing.T) {
		there := []string{"a", "a/b", "a/c", "d"}
		got := gone("| folder | |\n|---|---|\n| `a/b/`, `c/`, `e/` | x |\n| `d/` | `f/` |\n| `g/` | x |\n`h/`\n", func(path string) bool { return slices.Contains(there, path) })
		if want := []string{"e", "g"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// saidInLog finds what a document says that a log says: log: "this" or "that". Three dots stand for what differs.
var saidInLog = regexp.MustCompile(`\blog[a-z ]*: ("[^"|]+"(?:(?:,? or|,) "[^"|]+")*)`)

// unsaid returns the parts of such texts that are in no source.
func unsaid(text string, sources []string) (all []string) {
	for _, found := range saidInLog.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
		for _, quote := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(found[1], -1) {
			for part := range strings.SplitSeq(quote[1], " ... ") {
				part = strings.TrimSpace(part)
				if !slices.ContainsFunc(sources, func(s string) bool { return strings.Contains(s, part) }) {
					all = append(all, part)
				}
			}
		}
	}
	return all
}

// TestLogsOfDocuments sees that the programs can say what documents say that they log. Some of it is the API server's,
// and stands in a test.
func TestLogsOfDocuments(t *testing.T) {
	var sources []string
	for _, folder := range []string{"cmd", "plugin", "test/topology"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			sources = append(sources, string(text))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	count := 0
	for name, text := range documents(t) {
		if !isForOperators(name) {
			continue
		}
		count += len(saidInLog.FindAllString(text, -1))
		for _, part := range unsaid(text, sources) {
			t.Errorf("%s: no program logs %q", name, part)
		}
	}
	if count < 20 {
		t.Errorf("%d lines of logs are quoted", count)
	}
	t.Run("can fail", func(t *testing.T) {
		got := unsaid("log: \"one\nis ... gone\", \"two\" or \"three\"; log of it: \"four\", and no log \"five\"", []string{`"one is %s here"`, "three"})
		if want := []string{"gone", "two", "four"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
