// Command promql-names lists the names in expressions of dashboards and rules, with Prometheus's own parser. Input is
// expressions, output their names, both as JSON, one after the other in the same order. It queries no server, and does
// not know which metrics exist.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// selector is a metric that an expression reads.
type selector struct {
	Metric string `json:"metric"`
	// Labels are those that the series must have: of matchers, and of by() and on() around it.
	Labels []string `json:"labels,omitempty"`
	// Equal are the values of its matchers, by label, Matching the regular expressions.
	Equal    map[string]string `json:"equal,omitempty"`
	Matching map[string]string `json:"matching,omitempty"`
}

// names are the names in an expression.
type names struct {
	Selectors []selector `json:"selectors,omitempty"`
	// Result are the labels of the result if an aggregation sets them; nil if they are those of the metrics.
	Result []string `json:"result"`
	Error  string   `json:"error,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "promql-names:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	promql := parser.NewParser(parser.Options{})
	for {
		var text string
		if err := decoder.Decode(&text); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an expression: %w", err)
		}
		var n names
		expression, err := promql.ParseExpr(text)
		if err != nil {
			n.Error = err.Error()
		} else {
			n.Selectors = selectors(expression, nil)
			n.Result = result(expression)
		}
		if err := encoder.Encode(n); err != nil {
			return fmt.Errorf("write the names: %w", err)
		}
	}
}

// selectors returns the metrics below a node, which must have these labels too.
func selectors(node parser.Node, needed []string) (all []selector) {
	switch n := node.(type) {
	case *parser.VectorSelector:
		return []selector{selected(n, needed)}
	case *parser.AggregateExpr:
		// A series without a label need not have it.
		if !n.Without {
			needed = append(slices.Clone(needed), n.Grouping...)
		}
		// A parameter is a number: its metrics have their own labels.
		if n.Param != nil {
			all = selectors(n.Param, nil)
		}
		return append(all, selectors(n.Expr, needed)...)
	case *parser.BinaryExpr:
		left, right := needed, needed
		if m := n.VectorMatching; m != nil {
			if m.On {
				left, right = m.MatchingLabels, m.MatchingLabels
			}
			// The "one" side of a many-to-one match contributes labels; the others are those of the "many" side.
			switch m.Card {
			case parser.CardManyToOne:
				left, right = join(left, without(needed, m.Include)), join(right, m.Include)
			case parser.CardOneToMany:
				left, right = join(left, m.Include), join(right, without(needed, m.Include))
			}
		}
		return append(selectors(n.LHS, left), selectors(n.RHS, right)...)
	}
	for _, child := range parser.Children(node) {
		all = append(all, selectors(child, needed)...)
	}
	return all
}

func join(a, b []string) []string { return append(slices.Clone(a), b...) }

func without(all, those []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(l string) bool { return slices.Contains(those, l) })
}

func selected(v *parser.VectorSelector, needed []string) selector {
	s := selector{Metric: v.Name, Labels: slices.Clone(needed), Equal: map[string]string{}, Matching: map[string]string{}}
	for _, m := range v.LabelMatchers {
		switch {
		case m.Name == labels.MetricName:
			if m.Type == labels.MatchEqual {
				s.Metric = m.Value
			}
			continue
		case m.Type == labels.MatchEqual:
			s.Equal[m.Name] = m.Value
		case m.Type == labels.MatchRegexp:
			s.Matching[m.Name] = m.Value
		}
		s.Labels = append(s.Labels, m.Name)
	}
	slices.Sort(s.Labels)
	s.Labels = slices.Compact(s.Labels)
	return s
}

// result returns the labels of an expression's result, or nil if they are those of its metrics.
func result(node parser.Node) []string {
	switch n := node.(type) {
	case *parser.ParenExpr:
		return result(n.Expr)
	case *parser.AggregateExpr:
		switch {
		case n.Op == parser.TOPK || n.Op == parser.BOTTOMK:
			return result(n.Expr)
		case n.Without:
			return nil
		}
		return append([]string{}, n.Grouping...)
	case *parser.BinaryExpr:
		if n.VectorMatching == nil {
			// One side is a number.
			if n.LHS.Type() == parser.ValueTypeScalar {
				return result(n.RHS)
			}
			return result(n.LHS)
		}
		if n.VectorMatching.Card == parser.CardOneToMany {
			return result(n.RHS)
		}
		return result(n.LHS)
	case *parser.Call:
		switch n.Func.Name {
		case "histogram_quantile":
			return without(result(n.Args[1]), []string{"le"})
		case "label_replace", "label_join", "absent", "absent_over_time":
			return nil
		}
		for _, arg := range n.Args {
			if t := arg.Type(); t == parser.ValueTypeVector || t == parser.ValueTypeMatrix {
				return result(arg)
			}
		}
		return nil
	case *parser.SubqueryExpr:
		return result(n.Expr)
	}
	return nil
}
