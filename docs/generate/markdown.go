package main

import (
	"path"
	"regexp"
	"strings"
)

// section is a part of a Markdown text: a heading of the second level and what follows it.
type section struct{ title, text string }

// sections splits a Markdown text at its headings of the second level. What stands before the first is left out.
func sections(markdown string) (all []section) {
	fenced := false
	for line := range strings.Lines(markdown) {
		fenced = fenced != isFence(line)
		if title, found := strings.CutPrefix(line, "## "); found && !fenced {
			all = append(all, section{title: strings.TrimSpace(title)})
		} else if len(all) > 0 {
			all[len(all)-1].text += line
		}
	}
	return all
}

// isFence tells a line that begins or ends a block of code.
func isFence(line string) bool {
	line = strings.TrimLeft(line, " ")
	return strings.HasPrefix(line, "```") || strings.HasPrefix(line, "~~~")
}

// lower makes every heading of a text so many levels less.
func lower(markdown string, levels int) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(markdown) {
		fenced = fenced != isFence(line)
		if strings.HasPrefix(line, "#") && !fenced {
			line = strings.Repeat("#", levels) + line
		}
		b.WriteString(line)
	}
	return b.String()
}

// link is one of Markdown with its text in square brackets, on one line or two.
var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// relinked returns a text of a README as it stands in a page of another folder: links that lead from the README
// lead from the page to the same place. Both paths are from the root of the repository.
func relinked(markdown, readme, page string) string {
	up := strings.Repeat("../", strings.Count(page, "/"))
	return link.ReplaceAllStringFunc(markdown, func(found string) string {
		target := link.FindStringSubmatch(found)[1]
		switch {
		case strings.Contains(target, "://"):
			return found
		case strings.HasPrefix(target, "#"):
			return "](" + up + readme + target + ")"
		}
		return "](" + up + path.Join(path.Dir(readme), target) + ")"
	})
}
