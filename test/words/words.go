package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// permit marks a line that is not checked.
const permit = "words:permit"

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

// skipped reports whether a file is not prose of the project, or quotes others.
func skipped(name string) bool {
	return strings.Contains(name, "testdata/") || strings.HasPrefix(name, ".") && !strings.HasPrefix(name, ".ci/") ||
		strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "test/words/")
}

// check returns the findings in the files of a folder.
func check(root fs.FS) (all []finding, err error) {
	err = fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || skipped(name) {
			return err
		}
		scan := scannerOf(name)
		if scan == nil {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		found, err := scan(name, string(text))
		all = append(all, found...)
		return err
	})
	return all, err
}

// scannerOf returns the function that checks a file, nil for a file without prose.
func scannerOf(name string) func(name, text string) ([]finding, error) {
	switch path.Ext(name) {
	case ".go":
		return checkGo
	case ".md", ".tmpl":
		return func(name, text string) ([]finding, error) { return checkText(name, 1, text), nil }
	case ".yaml", ".yml", ".sh", ".tpl":
		return checkHashes
	}
	if base := path.Base(name); base == "Makefile" || name == ".ci/run" || strings.HasPrefix(base, "Corefile") || strings.HasPrefix(base, "Dockerfile") {
		return checkHashes
	}
	return nil
}

// checkGo checks comments, string literals and declared identifiers.
func checkGo(name, text string) (all []finding, err error) {
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
		names := declared(n)
		isSwitch := slices.ContainsFunc(names, func(i *ast.Ident) bool { return i.Name == "off" }) // on, off := ...
		for _, i := range names {
			if !isSwitch || i.Name != "on" {
				all = append(all, checkIdentifier(name, files.Position(i.Pos()).Line, i.Name)...)
			}
		}
		return true
	})
	lines := strings.Split(text, "\n")
	return slices.DeleteFunc(all, func(f finding) bool { return strings.Contains(lines[f.line-1], permit) }), nil
}

// declared returns the identifiers that a node declares.
func declared(n ast.Node) (all []*ast.Ident) {
	assigned := func(all ...ast.Expr) (names []*ast.Ident) {
		for _, e := range all {
			if i, ok := e.(*ast.Ident); ok {
				names = append(names, i)
			}
		}
		return names
	}
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}
	case *ast.ValueSpec:
		return n.Names
	case *ast.Field:
		return n.Names
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return assigned(n.Lhs...)
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			return assigned(n.Key, n.Value)
		}
	}
	return nil
}

// camelWords matches the words of an identifier.
var camelWords = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

func checkIdentifier(name string, line int, text string) (all []finding) {
	for _, forbidden := range identifiers {
		words := []string{text}
		if !forbidden.whole {
			words = camelWords.FindAllString(text, -1)
		}
		for _, w := range words {
			if slices.Contains(forbidden.words, w) || !forbidden.whole && slices.Contains(forbidden.words, strings.ToLower(w)) {
				all = append(all, finding{name, line, text, forbidden.instead})
			}
		}
	}
	return all
}

// comment matches a comment of a file whose comments begin with #.
var comment = regexp.MustCompile(`(?:^|\s)#.*`)

// checkHashes checks the comments of a file whose comments begin with #, and descriptions in YAML.
func checkHashes(name, text string) (all []finding, err error) {
	for i, l := range strings.Split(text, "\n") {
		key, _, _ := strings.Cut(strings.TrimSpace(l), ":")
		if slices.Contains([]string{"summary", "description", "message", "warning"}, strings.TrimPrefix(key, "- ")) {
			all = append(all, checkText(name, i+1, l)...)
		} else if c := comment.FindString(l); c != "" {
			all = append(all, checkText(name, i+1, c)...)
		}
	}
	return all, nil
}

// checkText returns the findings in a text that begins in a line.
func checkText(name string, line int, text string) (all []finding) {
	for _, l := range strings.Split(text, "\n") {
		if strings.Contains(l, permit) {
			line++
			continue
		}
		for _, q := range quoted {
			l = strings.ReplaceAll(l, q, "")
		}
		for _, p := range patterns {
			if found := p.text.FindString(l); found != "" {
				all = append(all, finding{name, line, found, p.instead})
			}
		}
		line++
	}
	return all
}
