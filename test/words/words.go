package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// pattern is a wording that does not name its subject, with what to write instead.
type pattern struct {
	text    *regexp.Regexp
	instead string
}

func newPattern(text, instead string) pattern {
	return pattern{regexp.MustCompile(`(?i)\b(?:` + text + `)\b`), instead}
}

var patterns = []pattern{
	newPattern(`some(?:body|one)|nobody|no one|anybody|everybody|whoever`, "the client, the process, the reader"),
	newPattern(`who (?:asks|asked|waits|reads|writes|needs|wants|comes|calls|keeps|has it)`, "the client, the caller, the reader"),
	newPattern(`what (?:comes?|came|becomes?|became) of`, "the result, the reply"),
	newPattern(`what (?:is|was) (?:kept|asked|said|told|given|there|known|left|wanted|meant)`, "name the thing"),
	newPattern(`h(?:angs?|ung) on`, "depends on"),
	newPattern(`(?:has|have|had) a say`, "matches, handles"),
	newPattern(`it is (?:said|told)`, "it is logged, it is reported"),
	newPattern(`(?:is|are) told (?:of|that|which|what|by)`, "receives, is notified"),
	newPattern(`say(?:s|ing)? so`, "logs it, reports it"),
	newPattern(`is there if`, "is set if"),
	newPattern(`so many`, "the number"),
}

// finding is a line with a forbidden wording.
type finding struct {
	file    string
	line    int
	text    string // the wording
	instead string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %q: write %s", f.file, f.line, f.text, f.instead)
}

// skipped are the files that are not prose of the project, or that quote others.
func skipped(name string) bool {
	return strings.Contains(name, "testdata/") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "bin/") ||
		strings.HasPrefix(name, "test/words/") || name == "CHANGELOG.md"
}

// check returns the findings in the Go files and Markdown pages of a folder.
func check(root fs.FS) (all []finding, err error) {
	err = fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || skipped(name) {
			return err
		}
		switch path.Ext(name) {
		case ".go", ".md":
		default:
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		found, err := checkFile(name, text)
		all = append(all, found...)
		return err
	})
	return all, err
}

func checkFile(name string, text []byte) (all []finding, err error) {
	if path.Ext(name) == ".md" {
		return checkText(name, 1, string(text)), nil
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			all = append(all, checkText(name, files.Position(c.Pos()).Line, c.Text)...)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			all = append(all, checkText(name, files.Position(literal.Pos()).Line, literal.Value)...)
		}
		return true
	})
	return all, nil
}

// checkText returns the findings in a text that begins in a line.
func checkText(name string, line int, text string) (all []finding) {
	for _, l := range strings.Split(text, "\n") {
		l = strings.ReplaceAll(l, "nobody.invalid", "") // the mailbox of RFC 6303, section 3
		for _, p := range patterns {
			if found := p.text.FindString(l); found != "" {
				all = append(all, finding{name, line, found, p.instead})
			}
		}
		line++
	}
	return all
}
