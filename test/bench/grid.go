package main

import (
	"fmt"
	"strings"
)

// column is a column of a table with a line for each server or setup.
type column struct {
	title  string
	what   string // name of the figures
	format string // of a figure, "" for the ratio to the figure of own
	own    string // a server
	// in reports whether a line has the figure; nil if all have it.
	in func(row string) bool
}

// grid writes a table: a line for each server or setup.
func (b *bench) grid(text *strings.Builder, title string, rows []string, columns []column) {
	fmt.Fprintf(text, "\n| %s |", title)
	for _, c := range columns {
		fmt.Fprintf(text, " %s |", c.title)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range rows {
		fmt.Fprintf(text, "| %s |", row)
		for _, c := range columns {
			v := b.results[c.what][row]
			switch {
			case c.in != nil && !c.in(row):
				text.WriteString(" |")
			case c.format == "":
				fmt.Fprintf(text, " %s |", times(v, b.results[c.what][c.own]))
			default:
				fmt.Fprintf(text, " %s |", cell(c.format, v))
			}
		}
		text.WriteString("\n")
	}
}
