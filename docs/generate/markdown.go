package main

import (
	"path"
	"regexp"
	"strings"
)

// section is a part of a Markdown text: a heading of the second level and the text below it.
type section struct{ title, text string }

// sections splits a Markdown text at its headings of the second level, without the text before the first.
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

// isFence reports whether a line begins or ends a block of code.
func isFence(line string) bool {
	line = strings.TrimLeft(line, " ")
	return strings.HasPrefix(line, "```") || strings.HasPrefix(line, "~~~")
}

// lower moves every heading of a text down by a number of levels.
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

// link matches the target of a Markdown link and the bracket before it.
var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// relinked returns a text of a README for a page in another folder, with relative links adjusted. Both paths are from the
// root of the repository.
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
