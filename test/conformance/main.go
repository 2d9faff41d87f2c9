// Command conformance writes the results of Kubernetes' e2e suite as a page. Input is the reports that TestConformance of
// test/cluster wrote to a folder, and the reasons in causes.go; output is RESULTS.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/conformance/report"
)

// column is a column of the table: the reports of one or several clusters.
type column struct {
	title   string
	folders []string
}

// columns are those of the table, the control first. Each suite runs in one of a column's clusters.
var columns = []column{
	{"CoreDNS", []string{"coredns", "traffic-coredns"}},
	{"clusterdns", []string{"clusterdns", "configmap-clusterdns", "traffic-clusterdns"}},
	{"clusterdns and nodecache", []string{"nodecache", "configmap-nodecache", "traffic-nodecache"}},
}

// suites are the names of reports, and the titles of their cases.
var suites = []struct{ name, title string }{
	{"conformance", "conformance"}, {"dns", "DNS"}, {"configmap", "ConfigMap"}, {"scale", "scale of records"}, {"traffic", "traffic distribution"},
}

func main() {
	folder := flag.String("reports", "bin/conformance", "folder of the reports")
	modules := flag.String("modules", "test", "folder of the modules that pin the versions")
	results := flag.String("results", "test/conformance/RESULTS.md", "path of the page")
	flag.Parse()
	page, err := render(*folder, *modules)
	if err == nil {
		err = os.WriteFile(*results, []byte(page), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// results are the cases of one suite, by column and name.
type results struct {
	title string
	names []string // in the order of the reports
	cases []map[string]report.Case
}

// read returns the results of a suite, and the time of its first report.
func read(folder, name, title string) (r results, start time.Time, err error) {
	r.title = title
	known := map[string]bool{}
	for _, c := range columns {
		cases := map[string]report.Case{}
		for _, f := range c.folders {
			suite, err := report.Read(filepath.Join(folder, f, name+".json"))
			if errors.Is(err, fs.ErrNotExist) {
				continue // each suite runs in one of the column's clusters
			}
			if err != nil {
				return r, start, err
			}
			if len(suite.Broken) > 0 {
				return r, start, fmt.Errorf("%s/%s: %s", f, name, strings.Join(suite.Broken, "; "))
			}
			if start.IsZero() || suite.Start.Before(start) {
				start = suite.Start
			}
			for _, tc := range suite.Cases {
				cases[tc.Name] = tc
				if !known[tc.Name] {
					known[tc.Name] = true
					r.names = append(r.names, tc.Name)
				}
			}
		}
		r.cases = append(r.cases, cases)
	}
	return r, start, nil
}

// render returns the page.
func render(folder, modules string) (string, error) {
	kubernetes, err := version(filepath.Join(modules, "conformance/suite/go.mod"), "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	coredns, err := version(filepath.Join(modules, "coredns/go.mod"), "github.com/coredns/coredns")
	if err != nil {
		return "", err
	}
	var start time.Time
	var all []results
	for _, s := range suites {
		r, first, err := read(folder, s.name, s.title)
		if err != nil {
			return "", err
		}
		if start.IsZero() || !first.IsZero() && first.Before(start) {
			start = first
		}
		all = append(all, r)
	}
	var page strings.Builder
	fmt.Fprintf(&page, head, kubernetes, coredns, start.UTC().Format(time.DateOnly))
	writeTotals(&page, all)
	writeTable(&page, all)
	writeReasons(&page, all)
	return page.String(), nil
}

// version returns the version of a module in the requirements of a go.mod.
func version(path, module string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == module {
			return words[1], nil
		}
	}
	return "", fmt.Errorf("%s has no version of %s", path, module)
}

// writeTotals writes the numbers of cases by column.
func writeTotals(page *strings.Builder, all []results) {
	page.WriteString("\n| | passed | failed | skipped | not run |\n|---|---|---|---|---|\n")
	for i, c := range columns {
		var passed, failed, skipped, absent int
		for _, r := range all {
			for _, name := range r.names {
				switch tc, ok := r.cases[i][name]; {
				case !ok:
					absent++
				case tc.State == report.Passed:
					passed++
				case tc.State == report.Skipped:
					skipped++
				default:
					failed++
				}
			}
		}
		fmt.Fprintf(page, "| %s | %d | %d | %d | %d |\n", c.title, passed, failed, skipped, absent)
	}
}

// writeTable writes a row for each case.
func writeTable(page *strings.Builder, all []results) {
	page.WriteString("\n| | case |")
	for _, c := range columns {
		page.WriteString(" " + c.title + " |")
	}
	page.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, r := range all {
		for _, name := range r.names {
			fmt.Fprintf(page, "| %s | %s |", r.title, short(name))
			for i := range columns {
				page.WriteString(" " + cell(r.cases[i], name) + " |")
			}
			page.WriteString("\n")
		}
	}
}

// short returns the name of a case without the parts that all names have.
func short(name string) string {
	name = strings.TrimPrefix(name, "[sig-network] ")
	return strings.ReplaceAll(strings.TrimSuffix(name, " [Conformance]"), "|", `\|`)
}

func cell(cases map[string]report.Case, name string) string {
	tc, ok := cases[name]
	switch {
	case !ok:
		return "not run"
	case tc.State == report.Skipped:
		return "skipped"
	}
	return fmt.Sprintf("%s, %.0f s", tc.State, tc.Time.Seconds())
}

// writeReasons writes the reason of each case that did not pass: that of causes.go, and otherwise that of the report.
func writeReasons(page *strings.Builder, all []results) {
	reasons := map[string][]string{} // the cases of a reason
	var order []string
	for _, r := range all {
		for _, name := range r.names {
			for i, c := range columns {
				tc, ok := r.cases[i][name]
				if ok && tc.State == report.Passed {
					continue
				}
				reason := cause(c.title, name)
				switch {
				case reason != "":
				case ok:
					line, _, _ := strings.Cut(strings.TrimSpace(tc.Reason), "\n")
					reason = "The report has: " + line
				default:
					reason = "Not run:"
				}
				if reasons[reason] == nil {
					order = append(order, reason)
				}
				reasons[reason] = append(reasons[reason], fmt.Sprintf("%s: %s", c.title, short(name)))
			}
		}
	}
	if len(order) > 0 {
		page.WriteString("\n## Not passed\n")
	}
	for _, reason := range order {
		page.WriteString("\n" + reason + "\n\n")
		for _, tc := range reasons[reason] {
			page.WriteString("- " + tc + "\n")
		}
	}
}
