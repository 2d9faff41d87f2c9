// Package picture draws dashboards of Grafana with the data of a Prometheus, for the documents and for tests. Input is a
// dashboard's JSON and a function that evaluates expressions, output is SVG. It supports the panels of the dashboards in
// deploy/monitoring (rows, stats and time series), with colours, fonts and ticks of its own. It queries no server
// itself, and imports only the standard library.
package picture

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Dashboard has the fields of a dashboard's JSON that are read.
type Dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []Panel `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Type  string `json:"type"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

// Panel is a row, a stat or a time series.
type Panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	GridPos     Place    `json:"gridPos"`
	Targets     []Target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit     string   `json:"unit"`
			Decimals *int     `json:"decimals"`
			Max      *float64 `json:"max"`
			Custom   struct {
				Stacking struct {
					Mode string `json:"mode"`
				} `json:"stacking"`
			} `json:"custom"`
			Thresholds struct {
				Steps []struct {
					Color string   `json:"color"`
					Value *float64 `json:"value"`
				} `json:"steps"`
			} `json:"thresholds"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// Place is the position of a panel, in the units of a grid 24 wide.
type Place struct{ X, Y, W, H int }

// Overlaps reports whether two panels have a part of the grid in common.
func (p Place) Overlaps(o Place) bool {
	return p.X < o.X+o.W && o.X < p.X+p.W && p.Y < o.Y+o.H && o.Y < p.Y+p.H
}

// Target is an expression of a panel.
type Target struct {
	Datasource struct {
		UID string `json:"uid"`
	} `json:"datasource"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

// Read reads a dashboard from a file.
func Read(path string) (*Dashboard, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var d Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &d, nil
}

var variable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// Fill replaces the variables of an expression by values. A variable without a value stays.
func Fill(expression string, values map[string]string) string {
	return variable.ReplaceAllStringFunc(expression, func(m string) string {
		if value, known := values[strings.Trim(m, "${}")]; known {
			return value
		}
		return m
	})
}
