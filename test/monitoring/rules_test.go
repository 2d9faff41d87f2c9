package monitoring

import (
	"flag"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nearside-dns/nearside/test/kit"
)

var update = flag.Bool("update", false, "write the files that are made from others")

const (
	rulesFile = folder + "/rules.yaml"
	unitTests = "testdata/rules_test.yaml"
	dayTests  = "testdata/rules_day_test.yaml" // with fewer evaluations, for time
	runbooks  = "../../docs/runbooks.md"
)

// rule is an alert.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// ruleFile is a file of rules.
type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

// readYAML reads a file, in which unknown fields are an error.
func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	kit.Must(t, err)
	decoder := yaml.NewDecoder(f)
	decoder.KnownFields(true)
	err = decoder.Decode(into)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// alerts returns all rules.
func alerts(t *testing.T) (all []rule) {
	t.Helper()
	var f ruleFile
	readYAML(t, rulesFile, &f)
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// promtool runs promtool, and skips the test without it.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	kit.Require(t, "promtool")
	out, err := exec.Command("promtool", args...).CombinedOutput()
	return string(out), err
}

// TestRules has promtool read the rules and run their unit tests.
func TestRules(t *testing.T) {
	for name, args := range map[string][]string{
		"rules":         {"check", "rules", "--lint-fatal", rulesFile},
		"unit tests":    {"test", "rules", unitTests, dayTests},
		"configuration": {"check", "config", "--lint-fatal", withoutKubernetes(t)},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := promtool(t, args...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("can fail", func(t *testing.T) {
		rules, err := os.ReadFile(rulesFile)
		kit.Must(t, err)
		tests, err := os.ReadFile(unitTests)
		kit.Must(t, err)
		// With another threshold, the unit tests do not pass.
		changed := t.TempDir()
		for path, text := range map[string]string{
			changed + "/rules.yaml": strings.Replace(string(rules), "nearside_nodelocal_lease == 0", "nearside_nodelocal_lease == 2", 1),
			changed + "/tests.yaml": strings.Replace(string(tests), "../"+rulesFile, "rules.yaml", 1),
		} {
			kit.Write(t, path, text)
		}
		if out, err := promtool(t, "test", "rules", changed+"/tests.yaml"); err == nil || !strings.Contains(out, "NodecacheLeaseOut") {
			t.Errorf("error %v\n%s", err, out)
		}
	})
}

// TestAlerts asserts that each alert has a runbook with all sections, labels, and unit tests.
func TestAlerts(t *testing.T) {
	text := kit.Read(t, runbooks)
	tests := readUnitTests(t)
	all := alerts(t)
	var names []string
	for _, r := range all {
		names = append(names, r.Alert)
		t.Run(r.Alert, func(t *testing.T) {
			for _, lack := range incomplete(r, text, tests) {
				t.Error(lack)
			}
		})
	}
	if books := headings(text); !slices.Equal(books, names) {
		t.Errorf("the runbooks are of %q, the alerts are %q", books, names)
	}
	t.Run("can fail", func(t *testing.T) {
		r := rule{
			Alert: "A", Expr: "b", Labels: map[string]string{"severity": "page"},
			Annotations: map[string]string{"summary": "s", "description": "d", "runbook_url": runbookURL + "b"},
		}
		want := []string{"severity page", "runbook_url " + runbookURL + "b", "no runbook", "the runbook has no **What pods see.**", "no unit test in which it fires", "no unit test in which it does not fire"}
		got := incomplete(r, "## A\n\n**What it means.** x\n\n**How to look.** x\n\n**What to do.** x\n\n## B\n", &unitTestFile{})
		if !slices.Equal(got, slices.Delete(slices.Clone(want), 2, 3)) {
			t.Errorf("found %q", got)
		}
		if got := incomplete(r, "", &unitTestFile{}); !slices.Contains(got, "no runbook") {
			t.Errorf("found %q", got)
		}
	})
}

// runbookURL is the page of the runbooks; the name of an alert in small letters follows.
const runbookURL = "https://github.com/nearside-dns/nearside/blob/main/docs/runbooks.md#"

// incomplete returns the missing parts of an alert.
func incomplete(r rule, runbooks string, tests *unitTestFile) (all []string) {
	if s := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, s) {
		all = append(all, "severity "+s)
	}
	for _, a := range []string{"summary", "description"} {
		if r.Annotations[a] == "" {
			all = append(all, "no "+a)
		}
	}
	if u := r.Annotations["runbook_url"]; u != runbookURL+strings.ToLower(r.Alert) {
		all = append(all, "runbook_url "+u)
	}
	_, book, found := strings.Cut(runbooks, "\n## "+r.Alert+"\n")
	if !found {
		_, book, found = strings.Cut("\n"+runbooks, "\n## "+r.Alert+"\n")
	}
	if !found {
		all = append(all, "no runbook")
	} else {
		book, _, _ = strings.Cut(book, "\n## ")
		for _, part := range []string{"**What it means.**", "**What pods see.**", "**How to look.**", "**What to do.**"} {
			if !strings.Contains(book, part) {
				all = append(all, "the runbook has no "+part)
			}
		}
	}
	fires, silent := tests.coverage(r.Alert)
	if !fires {
		all = append(all, "no unit test in which it fires")
	}
	if !silent {
		all = append(all, "no unit test in which it does not fire")
	}
	return all
}

// headings are the alerts with a runbook, in order.
func headings(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// unitTestFile has the fields of promtool's unit tests that are read.
type unitTestFile struct {
	Tests []struct {
		PromQLExprTest []struct {
			Expr       string `yaml:"expr"`
			ExpSamples []any  `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	} `yaml:"tests"`
}

func readUnitTests(t *testing.T) *unitTestFile {
	t.Helper()
	text, err := os.ReadFile(unitTests)
	kit.Must(t, err)
	var f unitTestFile
	kit.Must(t, yaml.Unmarshal(text, &f))
	return &f
}

// coverage reports whether there is a test in which an alert fires, and one in which it does not.
func (f *unitTestFile) coverage(alert string) (fires, silent bool) {
	for _, test := range f.Tests {
		for _, e := range test.PromQLExprTest {
			if strings.Contains(e.Expr, `(ALERTS{alertname="`+alert+`", alertstate="firing"})`) {
				fires = fires || len(e.ExpSamples) > 0
				silent = silent || len(e.ExpSamples) == 0
			}
		}
	}
	return fires, silent
}

// TestPrometheusRule asserts that the object for the operator has the rules of the file. With -update it is written.
func TestPrometheusRule(t *testing.T) {
	const path = folder + "/prometheusrule.yaml"
	text := kit.Read(t, rulesFile)
	if *update {
		kit.Must(t, os.WriteFile(path, []byte(prometheusRule(text)), 0o644))
	}
	var object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   struct {
			Name      string            `yaml:"name"`
			Namespace string            `yaml:"namespace"`
			Labels    map[string]string `yaml:"labels"`
		} `yaml:"metadata"`
		Spec ruleFile `yaml:"spec"`
	}
	readYAML(t, path, &object)
	var rules ruleFile
	readYAML(t, rulesFile, &rules)
	if object.APIVersion != "monitoring.coreos.com/v1" || object.Kind != "PrometheusRule" || !reflect.DeepEqual(object.Spec, rules) {
		t.Errorf("%s has other rules than %s: run this test with -update", path, rulesFile)
	}
}

// prometheusRule makes the object from the text of the rules.
func prometheusRule(rules string) string {
	_, groups, _ := strings.Cut(rules, "\ngroups:\n")
	var b strings.Builder
	b.WriteString(`# The rules of rules.yaml as an object for the Prometheus Operator. After a change there, update this file with
# ` + "`go test ./test/monitoring -run TestPrometheusRule -update`" + `.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: nearside
  namespace: kube-system
  labels:
    app.kubernetes.io/part-of: nearside
spec:
  groups:
`)
	for line := range strings.Lines(groups) {
		b.WriteString("  " + line)
	}
	return b.String()
}
