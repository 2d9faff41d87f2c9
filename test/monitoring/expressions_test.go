package monitoring

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// The programs, as in the label job.
const (
	nodecache  = "nodecache"
	clusterdns = "clusterdns"
)

// selector is a metric of an expression, in the output of test/monitoring/promql.
type selector struct {
	Metric   string
	Labels   []string          // labels that it must have
	Equal    map[string]string // values of labels
	Matching map[string]string // regular expressions for values of labels
}

// names are the names in an expression.
type names struct {
	Selectors []selector
	Result    []string // labels of the result; nil if they are those of the metrics
	Error     string
}

// targetLabels are the labels of the scrape target, not of the program.
var targetLabels = []string{"job", "instance", "node"}

// parse returns the names in expressions. It skips the test without the parser.
func parse(t *testing.T, expressions ...string) []names {
	t.Helper()
	var in, errors bytes.Buffer
	encoder := json.NewEncoder(&in)
	for _, e := range expressions {
		kit.Must(t, encoder.Encode(e))
	}
	cmd := exec.Command(controlplane.RequireBinary(t, "promql-names"))
	cmd.Stdin, cmd.Stderr = &in, &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("promql-names: %v\n%s", err, errors.String())
	}
	all := make([]names, len(expressions))
	decoder := json.NewDecoder(bytes.NewReader(out))
	for i := range all {
		kit.Must(t, decoder.Decode(&all[i]))
	}
	return all
}

// TestParse checks the parser's results that the tests of this package use.
func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		expression string
		selectors  string // metric, and its labels
		result     string
	}{
		"matchers":       {`rate(a{x="1", y!~"2"}[5m])`, "a:x,y", "none"},
		"by":             {`sum by (x) (rate(a{y="1"}[5m])) / 2`, "a:x,y", "x"},
		"quantile":       {`histogram_quantile(0.9, sum by (x, le) (rate(a_bucket[5m])))`, "a_bucket:le,x", "x"},
		"top":            {`topk(5, sum by (x) (a))`, "a:x", "x"},
		"without":        {`sum without (x) (a{y="1"})`, "a:y", "none"},
		"on":             {`sum by (x, z) (a) / on (x) group_left (y) b{v="1"}`, "a:x,z b:v,x,y", "x,z"},
		"no aggregation": {`time() - a`, "a:", "none"},
		"all":            {`sum(a)`, "a:", ""},
		"subquery":       {`max_over_time(sum by (x) (a)[1h:1m])`, "a:x", "x"},
		"name by label":  {`{__name__="a", x="1"}`, "a:x", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			got := parse(t, tc.expression)[0]
			var selectors []string
			for _, s := range got.Selectors {
				selectors = append(selectors, s.Metric+":"+strings.Join(s.Labels, ","))
			}
			result := strings.Join(got.Result, ",")
			if got.Result == nil {
				result = "none"
			}
			if got.Error != "" || strings.Join(selectors, " ") != tc.selectors || result != tc.result {
				t.Errorf("%s: %q, result %s, error %q; want %q, result %s", tc.expression, selectors, result, got.Error, tc.selectors, tc.result)
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		if got := parse(t, "sum((a)", "a")[0]; !strings.Contains(got.Error, "unclosed left parenthesis") {
			t.Errorf("error %q", got.Error)
		}
	})
}

// isTarget reports whether a label is one of the target.
func isTarget(label string) bool { return slices.Contains(targetLabels, label) }
