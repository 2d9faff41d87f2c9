package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"
	yamlv3 "go.yaml.in/yaml/v3"
)

// problem is an error at a line of a file.
type problem struct {
	line         int
	object, path string // of a field; "" if unknown
	text         string
}

// maxProblem is the maximum length of an error in bytes: errors quote values, which can have any length.
const maxProblem = 500

// Error returns the error as one line, whatever it quotes.
func (p *problem) Error() string {
	parts := slices.DeleteFunc([]string{strconv.Itoa(p.line), p.object, p.path, p.text}, func(s string) bool { return s == "" })
	text := strings.Join(parts, ": ")
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// text is the content of a file: YAML documents, or JSON values.
type text struct {
	content []byte
	isJSON  bool
	roots   []*yamlv3.Node // the documents as trees with lines; nil until a line is looked up
}

func newText(path string, content []byte) *text {
	isJSON := strings.EqualFold(filepath.Ext(path), ".json")
	return &text{content: bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")), isJSON: isJSON}
}

// errTwice is returned if a field is set twice, or replaces one merged by `<<`.
var errTwice = errors.New("a field is set twice")

// documents calls each with the documents as JSON and their numbers, from 0, until one fails. YAML is read in version
// 1.1, as kubectl does: there, yes and off are truth values.
func (t *text) documents(strict bool, each func(number int, document []byte) error) error {
	next := t.yamlValues(strict)
	if t.isJSON {
		next = t.jsonValues()
	}
	for number := 0; ; number++ {
		document, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = each(number, document)
		}
		if err != nil {
			return err
		}
	}
}

func (t *text) jsonValues() (next func() ([]byte, error)) {
	d := json.NewDecoder(bytes.NewReader(t.content))
	return func() ([]byte, error) {
		var value json.RawMessage
		err := d.Decode(&value)
		if err == nil || errors.Is(err, io.EOF) {
			return value, err
		}
		end := len(bytes.TrimSpace(t.content))
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			end = int(syntax.Offset) - 1 // the offset is behind the wrong byte
		}
		line := 1 + bytes.Count(t.content[:min(max(end, 0), len(t.content))], []byte("\n"))
		return nil, &problem{line: line, text: "invalid JSON: " + err.Error()}
	}
}

func (t *text) yamlValues(strict bool) (next func() ([]byte, error)) {
	d := yaml.NewDecoder(bytes.NewReader(t.content))
	d.SetStrict(strict)
	number := -1
	return func() ([]byte, error) {
		number++
		var value any
		err := safely(func() error { return d.Decode(&value) })
		var wrongType *yaml.TypeError
		switch {
		case errors.As(err, &wrongType) && strict:
			return nil, errTwice // the only error of types when the type is any
		case errors.Is(err, io.EOF):
			return nil, err
		case err != nil:
			return nil, t.syntaxProblem(err)
		}
		value = withTextKeys(value)
		document, err := json.Marshal(value)
		if err != nil {
			path := culprit(value, func(v any) bool { _, err := json.Marshal(v); return err != nil })
			return nil, &problem{line: t.lineOf(number, path), path: path, text: err.Error()}
		}
		return document, nil
	}
}

// safely calls a parser of YAML. They panic in states that they regard as impossible.
func safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: the parser fails: %v", r)
		}
	}()
	return f()
}

// withTextKeys returns a value of YAML with text as keys, as JSON has it.
func withTextKeys(v any) any {
	switch v := v.(type) {
	case map[any]any:
		fields := make(map[string]any, len(v))
		for key, value := range v {
			fields[fmt.Sprint(key)] = withTextKeys(value)
		}
		return fields
	case []any:
		for i, value := range v {
			v[i] = withTextKeys(value)
		}
	}
	return v
}

// root returns a document as a tree with lines, an empty one in line 1 if it cannot be parsed.
func (t *text) root(number int) *yamlv3.Node {
	if t.roots == nil {
		t.roots = []*yamlv3.Node{}
		_ = safely(t.parseRoots) // the other parser reports errors
	}
	if number < len(t.roots) {
		return t.roots[number]
	}
	return &yamlv3.Node{Line: 1}
}

func (t *text) parseRoots() error {
	if t.isJSON {
		for d := json.NewDecoder(bytes.NewReader(t.content)); ; {
			var value json.RawMessage
			if err := d.Decode(&value); err != nil {
				return err
			}
			lines := bytes.Count(t.content[:int(d.InputOffset())-len(value)], []byte("\n"))
			n := &yamlv3.Node{}
			if yamlv3.Unmarshal(append(bytes.Repeat([]byte("\n"), lines), value...), n) != nil || len(n.Content) == 0 {
				n.Content = []*yamlv3.Node{{Line: lines + 1}} // some escapes of JSON are not valid in YAML
			}
			t.roots = append(t.roots, n.Content...)
		}
	}
	for d := yamlv3.NewDecoder(bytes.NewReader(t.content)); ; {
		n := &yamlv3.Node{}
		if err := d.Decode(n); err != nil {
			return err
		}
		t.roots = append(t.roots, n.Content...)
	}
}

// lineOf returns the line of a field of a document; of a field that is missing that of the object around it.
func (t *text) lineOf(number int, path string) int {
	n := t.root(number)
	line := n.Line
	for n != nil {
		if n.Kind == yamlv3.AliasNode {
			n = n.Alias
		}
		var at int
		if n, at, path = child(n, strings.TrimPrefix(path, ".")); n != nil {
			line = at
		}
	}
	return line
}

// child returns the child of a node that a path leads to, its line, and the path from there on. Names of fields, such
// as those of labels, may contain dots: the longest one counts, and of equal ones the last.
func child(n *yamlv3.Node, path string) (found *yamlv3.Node, line int, rest string) {
	if index, after, ok := strings.Cut(strings.TrimPrefix(path, "["), "]"); ok && n.Kind == yamlv3.SequenceNode {
		if i, err := strconv.Atoi(index); err == nil && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line, after
		}
	}
	if n.Kind != yamlv3.MappingNode {
		return nil, 0, ""
	}
	rest = path
	for i := 0; i+1 < len(n.Content); i += 2 {
		after, ok := strings.CutPrefix(path, n.Content[i].Value)
		if ok && len(after) <= len(rest) && (after == "" || after[0] == '.' || after[0] == '[') {
			found, line, rest = n.Content[i+1], n.Content[i].Line, after
		}
	}
	return found, line, rest
}

// join returns the path of a field of the object at a path.
func join(path, field string) string {
	if path == "" || field == "" || field[0] == '[' {
		return path + field
	}
	return path + "." + field
}

// duplicate returns a problem for the first field below a node that is set twice, or that `<<` replaces.
func duplicate(n *yamlv3.Node, path string) *problem {
	lines := map[string]int{}
	for i, c := range n.Content {
		at := path
		switch {
		case n.Kind == yamlv3.SequenceNode:
			at = fmt.Sprintf("%s[%d]", path, i)
		case n.Kind == yamlv3.MappingNode && i%2 == 1:
			at = join(path, n.Content[i-1].Value)
		case n.Kind == yamlv3.MappingNode && c.Value == "<<" && i > 0:
			return &problem{line: c.Line, path: join(path, "<<"), text: "want it before the fields that replace merged ones"}
		case n.Kind == yamlv3.MappingNode && c.Kind == yamlv3.ScalarNode:
			if first, ok := lines[c.Value]; ok {
				return &problem{line: c.Line, path: join(path, c.Value), text: fmt.Sprintf("already in line %d; delete one of the two", first)}
			}
			lines[c.Value] = c.Line
		}
		if p := duplicate(c, at); p != nil {
			return p
		}
	}
	return nil
}

var yamlError = regexp.MustCompile(`(?s)^yaml: (?:line (\d+): )?(.*)$`)

// splitError returns the line of an error of the parser, 0 for none, and its text.
func splitError(err error) (line int, text string) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return 0, err.Error()
	}
	line, _ = strconv.Atoi(m[1]) // "" is 0
	return line, m[2]
}

// maxSearched is the maximum size of the part of a file in which the line of a syntax error is searched, in bytes.
const maxSearched = 1 << 20

var lineEnds = regexp.MustCompile(`\n|$`)

// syntaxProblem returns an error of the parser with its line, and with the accepted form where that is known. The parser
// reports the line in which the block around an error begins, the line before it, or none. But the text of a document up
// to the right line has the same error, and so has all longer text.
func (t *text) syntaxProblem(err error) *problem {
	line, text := splitError(err)
	ends := lineEnds.FindAllIndex(t.content, -1)
	start := 1 + bytes.LastIndex(t.content[:ends[min(line, len(ends)-1)][1]], []byte("\n---"))
	part := t.content[start:min(start+maxSearched, len(t.content))]
	if hasError(part, text) {
		ends = lineEnds.FindAllIndex(part, -1)
		before := bytes.Count(t.content[:start], []byte("\n"))
		line = before + 1 + sort.Search(len(ends)-1, func(i int) bool { return hasError(part[:ends[i][1]], text) })
	}
	p := &problem{line: max(line, 1), text: "invalid YAML: " + text}
	for _, h := range syntaxHints {
		if strings.Contains(text, h.text) {
			p.text += "; " + h.hint
			break
		}
	}
	return p
}

// hasError reports whether the parser fails with a text.
func hasError(part []byte, text string) bool {
	for d := yaml.NewDecoder(bytes.NewReader(part)); ; {
		var value any
		if err := safely(func() error { return d.Decode(&value) }); err != nil {
			_, got := splitError(err)
			return got == text
		}
	}
}

// syntaxHints are the accepted forms for frequent errors.
var syntaxHints = []struct{ text, hint string }{
	{"cannot start any token", "indent with spaces, not tabs, and put a value that begins with @, % or ` in quotes"},
	{"mapping values are not allowed", "write each key on its own line, indented as its siblings; put a value with a colon in quotes"},
	{"could not find expected ':'", "want \"key: value\", with a space behind the colon"},
	{"did not find expected key", "indent the fields of one object alike"},
	{"did not find expected '-' indicator", "indent the items of one list alike"},
	{"did not find expected ',' or ']'", "close the list with ]"},
	{"did not find expected ',' or '}'", "close the object with }"},
	{"unexpected end of stream", "close the quotes"},
	{"unknown anchor", "define it with & before its use in the same document"},
	{"invalid map key", "put a value that begins with {{ in quotes, or render the template first"},
}
