package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/monitoring/picture"
)

const folder = "../../deploy/monitoring"

// dashboards are the files, by program.
var dashboards = map[string]string{
	"nodecache":  folder + "/dashboards/nodecache.json",
	"clusterdns": folder + "/dashboards/clusterdns.json",
}

// TestDashboards checks the properties that need no running program.
func TestDashboards(t *testing.T) {
	for program, path := range dashboards {
		t.Run(program, func(t *testing.T) {
			d, err := picture.Read(path)
			kit.Must(t, err)
			if d.UID != "nearside-"+program || d.Title == "" {
				t.Errorf("uid %q, title %q", d.UID, d.Title)
			}
			for _, wrong := range inspect(t, d) {
				t.Error(wrong)
			}
		})
	}
	files, err := filepath.Glob(folder + "/dashboards/*")
	if err != nil || len(files) != len(dashboards) {
		t.Errorf("there are %q, error %v", files, err)
	}
}

// inspect returns the errors of a dashboard.
func inspect(t *testing.T, d *picture.Dashboard) (wrong []string) {
	t.Helper()
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	known := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		known[v.Name] = true
	}
	var expressions []string
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			expressions = append(expressions, picture.Fill(target.Expr, filled))
		}
	}
	parsed := parse(t, expressions...)
	ids := map[int]bool{}
	for i, p := range d.Panels {
		at := fmt.Sprintf("panel %d %q", p.ID, p.Title)
		if p.Title == "" || p.ID == 0 || ids[p.ID] {
			complain("%s: the title is empty, or the id is not its own", at)
		}
		ids[p.ID] = true
		for _, other := range d.Panels[:i] {
			if p.GridPos.Overlaps(other.GridPos) {
				complain("%s is over %q", at, other.Title)
			}
		}
		if g := p.GridPos; g.X+g.W > 24 || g.W == 0 || g.H == 0 {
			complain("%s has the place %+v", at, g)
		}
		if p.Type == "row" {
			continue
		}
		if p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			complain("%s has no unit, or no expression", at)
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				complain("%s asks the data source %q", at, target.Datasource.UID)
			}
			for _, use := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !known[use[1]] {
					complain("%s uses the variable %s, which is not there", at, use[1])
				}
			}
			n := parsed[0]
			parsed = parsed[1:]
			if n.Error != "" {
				complain("%s: %s: %s", at, target.Expr, n.Error)
				continue
			}
			for _, l := range legendLabels(target.LegendFormat) {
				if n.Result != nil && !slices.Contains(n.Result, l) {
					complain("%s shows the label %s, which %s has not", at, l, target.Expr)
				}
			}
			for _, s := range n.Selectors {
				for _, l := range targetLabels {
					if s.Matching[l] == "" {
						complain("%s: %s takes no notice of the variable %s", at, s.Metric, l)
					}
				}
			}
		}
	}
	return wrong
}

// filled are values for the variables of a dashboard.
var filled = map[string]string{"job": ".*", "node": ".*", "instance": ".+", "datasource": "prometheus", "__rate_interval": "1m"}

func legendLabels(format string) (all []string) {
	for _, m := range regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`).FindAllStringSubmatch(format, -1) {
		all = append(all, m[1])
	}
	return all
}

// variables are the series of a dashboard's variables.
func variables(t *testing.T, d *picture.Dashboard) (all []string) {
	t.Helper()
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		query, _ := v.Query.(map[string]any)
		text, _ := query["query"].(string)
		m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(text)
		if m == nil || m[2] != v.Name {
			t.Fatalf("the variable %s asks for %q", v.Name, text)
		}
		all = append(all, picture.Fill(m[1], filled))
	}
	if len(all) != len(targetLabels) {
		t.Fatalf("the variables ask for %q, want those of %q", all, targetLabels)
	}
	return all
}

// TestInvalidDashboard asserts that the test above can fail.
func TestInvalidDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboards[nodecache])
	kit.Must(t, err)
	for name, tc := range map[string]struct {
		change func(*picture.Dashboard)
		want   string
	}{
		"legend": {func(d *picture.Dashboard) { target(d).LegendFormat = "{{zone}} {{nope}}" }, "shows the label nope"},
		"variable": {func(d *picture.Dashboard) {
			target(d).Expr = `sum(up{job=~"$nope", node=~"$node", instance=~"$instance"})`
		}, "uses the variable nope"},
		"no job": {func(d *picture.Dashboard) {
			target(d).Expr = `sum by (zone) (up{node=~"$node", instance=~"$instance"})`
		}, "takes no notice of the variable job"},
		"expression": {func(d *picture.Dashboard) { target(d).Expr = "sum by (zone) (up" }, "unclosed left parenthesis"},
		"place":      {func(d *picture.Dashboard) { d.Panels[2].GridPos = d.Panels[1].GridPos }, "is over"},
		"unit":       {func(d *picture.Dashboard) { d.Panels[1].FieldConfig.Defaults.Unit = "" }, "has no unit"},
		"source":     {func(d *picture.Dashboard) { target(d).Datasource.UID = "mine" }, "asks the data source"},
		"id":         {func(d *picture.Dashboard) { d.Panels[2].ID = d.Panels[1].ID }, "not its own"},
	} {
		t.Run(name, func(t *testing.T) {
			var d picture.Dashboard
			kit.Must(t, json.Unmarshal(text, &d))
			tc.change(&d)
			wrong := strings.Join(inspect(t, &d), "\n")
			if !strings.Contains(wrong, tc.want) {
				t.Errorf("found %q, want %q", wrong, tc.want)
			}
		})
	}
}

// target returns an expression with the legend {{zone}}.
func target(d *picture.Dashboard) *picture.Target {
	for i := range d.Panels {
		for j := range d.Panels[i].Targets {
			if d.Panels[i].Targets[j].LegendFormat == "{{zone}}" {
				return &d.Panels[i].Targets[j]
			}
		}
	}
	panic("no expression with the legend {{zone}}")
}
