package main

import (
	"strings"

	_ "embed"
)

// head is the text before the tables. Its arguments are the versions of Kubernetes and of CoreDNS, and the date.
//
//go:embed head.txt
var head string

// causes are the reasons of cases that did not pass, by parts of columns and names.
var causes = []struct{ title, name, reason string }{}

// cause returns the reason of a case in a column, and "" if there is none.
func cause(title, name string) string {
	for _, c := range causes {
		if strings.Contains(title, c.title) && strings.Contains(name, c.name) {
			return c.reason
		}
	}
	return ""
}
