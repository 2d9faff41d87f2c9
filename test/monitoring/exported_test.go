package monitoring

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// exported are the labels of metrics, with their values.
type exported map[string]map[string]map[string]bool

// read adds the metrics of a program in the text format of Prometheus.
func (e exported) read(page string) {
	for line := range strings.Lines(page) {
		m := sample.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if e[m[1]] == nil {
			e[m[1]] = map[string]map[string]bool{}
		}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if e[m[1]][l[1]] == nil {
				e[m[1]][l[1]] = map[string]bool{}
			}
			e[m[1]][l[1]][l[2]] = true
		}
	}
}

var (
	sample = regexp.MustCompile(`^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+\s*$`)
	label  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// lacks returns the names of a selector that are not exported. A value that was not seen is accepted if a document has
// it.
func (e exported) lacks(s selector, documented map[string]bool) (all []string) {
	if s.Metric == "up" {
		return nil // Prometheus's own
	}
	labels, there := e[s.Metric]
	if !there {
		return []string{fmt.Sprintf("the metric %s", s.Metric)}
	}
	for _, l := range s.Labels {
		if !isTarget(l) && labels[l] == nil {
			all = append(all, fmt.Sprintf("the label %s of %s", l, s.Metric))
		}
	}
	for l, want := range s.Equal {
		if !isTarget(l) && labels[l] != nil && !labels[l][want] && !documented[want] {
			all = append(all, fmt.Sprintf("the value %s=%q of %s", l, want, s.Metric))
		}
	}
	for l, want := range s.Matching {
		if isTarget(l) || labels[l] == nil {
			continue
		}
		pattern, err := regexp.Compile("^(?:" + want + ")$")
		if err != nil {
			all = append(all, err.Error())
			continue
		}
		matches := false
		for value := range labels[l] {
			matches = matches || pattern.MatchString(value)
		}
		if !matches {
			all = append(all, fmt.Sprintf("a value %s=~%q of %s", l, want, s.Metric))
		}
	}
	slices.Sort(all)
	return all
}

// configuration is the page with all metrics.
const configuration = "../../docs/configuration.md"

// undocumented returns the metrics of nearside and CoreDNS that a page does not have.
func (e exported) undocumented(page string) (all []string) {
	listed := regexp.MustCompile(`\b(?:coredns|nearside)_\w+`).FindAllString(page, -1)
	for name := range e {
		family := regexp.MustCompile(`_(?:bucket|sum|count)$`).ReplaceAllString(name, "") // of a histogram
		isOwn := strings.HasPrefix(name, "coredns_") || strings.HasPrefix(name, "nearside_")
		if isOwn && !slices.Contains(listed, name) && !slices.Contains(listed, family) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// documentedValues are the words in backticks in the plugins' READMEs about metrics.
func documentedValues(t *testing.T) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob("../../plugin/*/README.md")
	kit.Must(t, err)
	all := map[string]bool{}
	for _, path := range paths {
		text := kit.Read(t, path)
		_, rest, _ := strings.Cut(text, "\n## Metrics\n")
		section, _, _ := strings.Cut(rest, "\n## ")
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(section, -1) {
			all[m[1]] = true
		}
	}
	if !all["overload"] {
		t.Fatal("the README of fastpath no longer has the reasons of dropped queries")
	}
	return all
}

// TestUndocumented asserts that metrics without documentation are found.
func TestUndocumented(t *testing.T) {
	e := exported{}
	e.read("nearside_a_total 1\nnearside_b_seconds_bucket{le=\"1\"} 1\nnearside_b_seconds_count 1\nnearside_c 1\ncoredns_d_total{x=\"y\"} 1\ngo_e 1\n")
	got := e.undocumented("* `nearside_a_total` - text\n* `nearside_b_seconds{x}` - text\n* `nearside_cc`\n")
	if want := []string{"coredns_d_total", "nearside_c"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestMissingMetrics asserts that missing metrics are found.
func TestMissingMetrics(t *testing.T) {
	e := exported{}
	e.read("# HELP a_total text {x=\"9\"} 1\na_total{x=\"1\",y=\"a \\\" b\"} 3\na_total{x=\"2\",y=\"\"} 0\nb 1e+06\nc_bucket{le=\"+Inf\"} 7\n")
	for name, tc := range map[string]struct {
		expression, want string
	}{
		"all is there":         {`sum by (x, job) (rate(a_total{x="1", y!="", instance="i"}[5m])) / on (job) b`, ""},
		"metric":               {"sum(a_totals)", "the metric a_totals"},
		"metric of a part":     {"b / bb", "the metric bb"},
		"label of by":          {"sum by (z) (a_total)", "the label z of a_total"},
		"label of a matcher":   {`a_total{z!="1"}`, "the label z of a_total"},
		"value":                {`a_total{x="3"}`, `the value x="3" of a_total`},
		"documented value":     {`a_total{x="overload"}`, ""},
		"pattern":              {`a_total{x=~"1|4"}`, ""},
		"pattern of nothing":   {`a_total{x=~"[a-z]"}`, `a value x=~"[a-z]" of a_total`},
		"part of a histogram":  {"histogram_quantile(0.9, sum by (le, job) (rate(c_bucket[1m])))", ""},
		"bucket without le":    {"histogram_quantile(0.9, sum by (le) (rate(a_total[1m])))", "the label le of a_total"},
		"what Prometheus adds": {`up{job="x"} == 0`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range parse(t, tc.expression)[0].Selectors {
				got = append(got, e.lacks(s, map[string]bool{"overload": true})...)
			}
			if strings.Join(got, "; ") != tc.want {
				t.Errorf("lacks %q, want %q", got, tc.want)
			}
		})
	}
}
