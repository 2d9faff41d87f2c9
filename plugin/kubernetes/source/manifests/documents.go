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

	"go.yaml.in/yaml/v3"
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

// maxAliased is the maximum number of values that aliases add to a document: a few lines can stand for any number.
const maxAliased = 100_000

// documents returns the documents of a file, which are YAML or JSON values, without empty ones. The nodes have the lines
// of the file.
func documents(path string, content []byte) (roots []*yaml.Node, err error) {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if strings.EqualFold(filepath.Ext(path), ".json") {
		roots, err = jsonDocuments(content)
	} else if roots, err = yamlDocuments(content); err != nil {
		err = syntaxProblem(content, err)
	}
	if err != nil {
		return nil, err
	}
	for _, n := range roots {
		if bad := checkAliases(n, len(content)+maxAliased); bad != nil {
			return nil, bad
		}
	}
	return slices.DeleteFunc(roots, isNull), nil
}

func isNull(n *yaml.Node) bool { return n.ShortTag() == "!!null" }

func yamlDocuments(content []byte) (roots []*yaml.Node, err error) {
	for d := yaml.NewDecoder(bytes.NewReader(content)); ; {
		n := &yaml.Node{}
		err := safely(func() error { return d.Decode(n) })
		if errors.Is(err, io.EOF) {
			return roots, nil
		}
		if err != nil {
			return nil, err
		}
		roots = append(roots, n.Content...)
	}
}

// safely calls the YAML parser, which panics in states that it considers impossible.
func safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: the parser fails: %v", r)
		}
	}()
	return f()
}

var jsonText = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// jsonDocuments parses JSON as YAML, for the lines. JSON is valid YAML except for some escapes in text.
func jsonDocuments(content []byte) (roots []*yaml.Node, err error) {
	for d := json.NewDecoder(bytes.NewReader(content)); ; {
		var value json.RawMessage
		err := d.Decode(&value)
		if errors.Is(err, io.EOF) {
			return roots, nil
		}
		end := len(bytes.TrimSpace(content))
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			end = int(syntax.Offset) - 1 // the offset is behind the wrong byte
		}
		var all []*yaml.Node
		if err == nil {
			end = int(d.InputOffset()) - len(value)
			all, err = yamlDocuments(jsonText.ReplaceAllFunc(value, yamlText))
		}
		line := lineAt(content, end)
		if err != nil {
			return nil, &problem{line: line, text: "invalid JSON: " + err.Error()}
		}
		for _, n := range all {
			moveDown(n, line-1)
		}
		roots = append(roots, all...)
	}
}

// yamlText converts quoted text of JSON to YAML, where an escape of half a character is invalid.
func yamlText(quoted []byte) []byte {
	var text string
	_ = json.Unmarshal(quoted, &text) // it has been parsed before
	return []byte(strconv.QuoteToASCII(text))
}

// lineAt returns the line of an offset.
func lineAt(content []byte, offset int) int {
	return 1 + bytes.Count(content[:min(max(offset, 0), len(content))], []byte("\n"))
}

func moveDown(n *yaml.Node, lines int) {
	n.Line += lines
	for _, c := range n.Content {
		moveDown(c, lines)
	}
}

// checkAliases counts the values of a document, those behind aliases as often as they are used, up to a limit.
func checkAliases(root *yaml.Node, limit int) (bad *problem) {
	sizes := map[*yaml.Node]int{} // of nodes with anchors; while one is counted, the limit
	var size func(*yaml.Node) int
	size = func(n *yaml.Node) int {
		n = target(n)
		if known, ok := sizes[n]; ok {
			return known
		}
		if n.Anchor != "" {
			sizes[n] = limit
		}
		total := 1
		for _, c := range n.Content {
			if total = min(total+size(c), limit); total == limit && bad == nil {
				bad = &problem{line: c.Line, text: fmt.Sprintf("aliases stand for more than %d values, or for themselves; write them out", maxAliased)}
			}
		}
		if n.Anchor != "" {
			sizes[n] = total
		}
		return total
	}
	size(root)
	return bad
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
func syntaxProblem(content []byte, err error) *problem {
	line, text := splitError(err)
	ends := lineEnds.FindAllIndex(content, -1)
	start := 1 + bytes.LastIndex(content[:ends[min(line, len(ends)-1)][1]], []byte("\n---"))
	part := content[start:min(start+maxSearched, len(content))]
	if hasError(part, text) {
		ends = lineEnds.FindAllIndex(part, -1)
		line = lineAt(content, start) + sort.Search(len(ends)-1, func(i int) bool { return hasError(part[:ends[i][1]], text) })
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
	_, err := yamlDocuments(part)
	if err == nil {
		return false
	}
	_, got := splitError(err)
	return got == text
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
}
