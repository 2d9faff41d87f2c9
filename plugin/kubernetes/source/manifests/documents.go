package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// problem is what is wrong with a file, and where.
type problem struct {
	line   int    // from 1
	object string // such as "Service shop/web", or empty
	path   string // of the field, or empty
	text   string
}

// Error returns the line number and what is wrong there, as one line.
func (p *problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: ", p.line)
	for _, part := range []string{p.object, p.path} {
		if part != "" {
			b.WriteString(part + ": ")
		}
	}
	b.WriteString(p.text)
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' ' // what a manifest says must not break a line of the log in two
		}
		return r
	}, b.String())
}

// documents returns the root of each document in a file; empty documents are left out. What a node
// says of its line is its line in the file.
func documents(path string, content []byte) ([]*yaml.Node, *problem) {
	if strings.EqualFold(filepath.Ext(path), ".json") {
		return jsonDocuments(content)
	}
	all, err := yamlDocuments(content)
	if err != nil {
		return nil, syntaxProblem(content, err)
	}
	return all, nil
}

func yamlDocuments(content []byte) (all []*yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil { // the parser has panics for states that it holds impossible
			all, err = nil, fmt.Errorf("the YAML parser fails on this: %v", r)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var n yaml.Node
		err := d.Decode(&n)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		for _, root := range n.Content {
			if root.ShortTag() != "!!null" {
				all = append(all, root)
			}
		}
	}
}

var yamlError = regexp.MustCompile(`(?s)^yaml: (?:line (\d+): )?(.*)$`)

// syntaxProblem makes a problem of a YAML error, with what would be right where that is known.
func syntaxProblem(content []byte, err error) *problem {
	line, text := splitYAMLError(err)
	p := &problem{line: syntaxLine(content, line, text), text: "no YAML: " + text}
	for _, h := range syntaxHints {
		if strings.Contains(text, h.text) {
			p.text += "; " + h.hint
			break
		}
	}
	return p
}

// maxSearched bounds the part of a file in which the line of a syntax error is searched, in bytes.
const maxSearched = 1 << 20

// syntaxLine finds the line of a YAML error. The parser names the line where the enclosing block
// begins, the one before it, or none. But the document up to the right line and no further has the
// same error, and so has every longer part of it.
func syntaxLine(content []byte, line int, text string) int {
	same := func(part []byte) bool {
		_, err := yamlDocuments(part)
		if err == nil {
			return false
		}
		_, t := splitYAMLError(err)
		return t == text
	}
	for _, start := range []int{documentStart(content, line), 0} {
		part := content[start:min(start+maxSearched, len(content))]
		if !same(part) {
			continue // the error is further down, or the start is not one
		}
		ends := lineEnds(part)
		before := bytes.Count(content[:start], []byte("\n"))
		return 1 + before + sort.Search(len(ends)-1, func(i int) bool { return same(part[:ends[i]]) })
	}
	return max(line, 1)
}

// documentStart returns the offset of the last document that begins in the first lines.
func documentStart(content []byte, lines int) (start int) {
	at := 0
	for line := range bytes.Lines(content) {
		if lines--; lines < 0 {
			break
		}
		if bytes.HasPrefix(line, []byte("---")) {
			start = at
		}
		at += len(line)
	}
	return start
}

func splitYAMLError(err error) (line int, text string) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return 1, err.Error()
	}
	if m[1] != "" {
		line, _ = strconv.Atoi(m[1]) // digits; a number too large to be a line is none
	}
	return line, m[2]
}

// lineEnds returns the offset behind each line, one at least.
func lineEnds(content []byte) []int {
	var ends []int
	for i, b := range content {
		if b == '\n' {
			ends = append(ends, i+1)
		}
	}
	if len(ends) == 0 || ends[len(ends)-1] != len(content) {
		ends = append(ends, len(content))
	}
	return ends
}

// syntaxHints say what would be right, for the errors that are met most.
var syntaxHints = []struct{ text, hint string }{
	{"cannot start any token", "indent with spaces, not tabs, and put a value that begins with @, % or ` in quotes"},
	{"mapping values are not allowed", "a key stands in a line of its own, indented as its siblings are; put a value with a colon in quotes"},
	{"could not find expected ':'", "want \"key: value\", with a space behind the colon"},
	{"did not find expected key", "indent the fields of one object alike"},
	{"did not find expected '-' indicator", "indent the items of one list alike"},
	{"did not find expected ',' or ']'", "close the list with ]"},
	{"did not find expected ',' or '}'", "close the object with }"},
	{"unexpected end of stream", "close the quotes"},
	{"unknown anchor", "define it with & further up in the same document"},
}
