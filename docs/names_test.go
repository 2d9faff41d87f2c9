package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// configuration is the page with all metrics.
const configuration = "docs/configuration.md"

// metric matches the name of a metric of nearside or CoreDNS.
var metric = regexp.MustCompile(`\b(?:coredns|nearside)_[a-z0-9]+(?:_[a-z0-9]+)+\b`)

// suffixes matches the suffixes that Prometheus adds to the name of a histogram.
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

// listedMetrics returns the metrics of the page with all metrics.
func listedMetrics(t *testing.T, all map[string]string) []string {
	t.Helper()
	listed := metric.FindAllString(all[configuration], -1)
	if len(listed) < 50 {
		t.Fatalf("%s has %d metrics", configuration, len(listed))
	}
	return listed
}

// isForOperators reports whether a document is for operators, who can look up only exported metrics.
func isForOperators(name string) bool {
	return name == "README.md" || strings.HasPrefix(name, "docs/")
}

// TestMetricsOfDocuments checks that metrics named in a document exist.
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

// cited matches a link to a test: its name, an optional list of parts, and the file.
var cited = regexp.MustCompile(`\[(Test[A-Za-z0-9_]+)[^\]]*\]\(([^()\s]+_test\.go)\)`)

// missingTests returns the tests that a document names and that are not in the linked file. read returns a file's text.
func missingTests(name, text string, read func(path string) string) (all []string) {
	for _, found := range cited.FindAllStringSubmatch(text, -1) {
		path := filepath.ToSlash(filepath.Join(filepath.Dir(name), found[2]))
		if !strings.Contains(read(path), "\nfunc "+found[1]+"(t *testing.T)") {
			all = append(all, name+": "+found[1]+" is not in "+path)
		}
	}
	return all
}

// TestCitedTests checks that tests named in a document exist.
func TestCitedTests(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return "" // TestLinks fails for it
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
		got := missingTests("docs/a.md", "[TestOne](../x/one_test.go), [TestTwo/part](../x/one_test.go), [TestThree: a part](../x/three_test.go), [TestOne_Part](../x/one_test.go)", func(path string) string {
			return map[string]string{"x/one_test.go": "package x\nfunc TestOne(t *testing.T) {\n}\nfunc TestTwoParts(t *testing.T) {}\n"}[path]
		})
		if want := []string{"docs/a.md: TestTwo is not in x/one_test.go", "docs/a.md: TestThree is not in x/three_test.go", "docs/a.md: TestOne_Part is not in x/one_test.go"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// rows matches the folders in the first column of a table.
var rows = regexp.MustCompile("(?m)^\\| \\[?`([^` ]+)/`")

// differences compares the folders of a page's table with those that exist and need a row.
func differences(page string, folders []string, exists func(path string) bool) (all []string) {
	var listed []string
	for _, found := range rows.FindAllStringSubmatch(page, -1) {
		listed = append(listed, found[1])
		if !exists(found[1]) {
			all = append(all, "no folder "+found[1])
		}
	}
	for _, folder := range folders {
		if !slices.Contains(listed, folder) {
			all = append(all, "no row for "+folder)
		}
	}
	return all
}

// foldersOf returns the folders below one that have files which need a row: all but those of testdata, and in deploy only
// the folders of the first level.
func foldersOf(t *testing.T, folder string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || folder == "deploy" && strings.Count(name, "/") > 1):
			return filepath.SkipDir
		case d.IsDir() && folder == "deploy" && name != folder:
			all = append(all, name)
		case !d.IsDir() && folder != "deploy":
			all = append(all, filepath.ToSlash(filepath.Dir(name)))
		}
		return nil
	})
	kit.Must(t, err)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestFolders checks that the READMEs of deploy, docs and test have a row for each folder, and no others.
func TestFolders(t *testing.T) {
	exists := func(path string) bool {
		info, err := os.Stat(filepath.Join(root, path))
		return err == nil && info.IsDir()
	}
	for _, folder := range []string{"deploy", "docs", "test"} {
		for _, problem := range differences(documents(t)[folder+"/README.md"], foldersOf(t, folder), exists) {
			t.Errorf("%s/README.md: %s", folder, problem)
		}
	}
	t.Run("can fail", func(t *testing.T) {
		got := differences("| folder | |\n|---|---|\n| `a/b/` | `f/` |\n| [`a/d/`](d/README.md) | x |\n| `a/g/` | x |\n`h/`\n", []string{"a/b", "a/c", "a/d"}, func(path string) bool { return path != "a/g" })
		if want := []string{"no folder a/g", "no row for a/c"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// quotedLog matches quotes of log lines in documents: log: "this" or "that". Three dots stand for any text.
var quotedLog = regexp.MustCompile(`\blog[a-z ]*: ("[^"|]+"(?:(?:,? or|,) "[^"|]+")*)`)

// notLogged returns the parts of quoted log lines that are in no source.
func notLogged(text string, sources []string) (all []string) {
	for _, found := range quotedLog.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
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

// TestLogsOfDocuments checks that log lines quoted in documents are in the source of the programs. Those with a message of
// the API server are in a test.
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
		kit.Must(t, err)
	}
	count := 0
	for name, text := range documents(t) {
		if !isForOperators(name) {
			continue
		}
		count += len(quotedLog.FindAllString(text, -1))
		for _, part := range notLogged(text, sources) {
			t.Errorf("%s: no program logs %q", name, part)
		}
	}
	if count < 20 {
		t.Errorf("%d lines of logs are quoted", count)
	}
	t.Run("can fail", func(t *testing.T) {
		got := notLogged("log: \"one\nis ... gone\", \"two\" or \"three\"; log of it: \"four\", and no log \"five\"", []string{`"one is %s here"`, "three"})
		if want := []string{"gone", "two", "four"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
