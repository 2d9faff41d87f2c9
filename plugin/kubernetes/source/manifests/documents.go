package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
)

// problem is an error in a file.
type problem struct {
	line   int    // of the error if the library reports it, else of the document; 0 if neither is known
	object string // "" if unknown
	text   string
}

// maxProblem is the maximum length of an error in bytes: errors quote values, which can have any length.
const maxProblem = 500

// Error returns the error as one line, whatever it quotes, as it follows the name of the file.
func (p *problem) Error() string {
	text := ": " + p.text
	if p.object != "" {
		text = ": " + p.object + text
	}
	if p.line > 0 {
		text = ":" + strconv.Itoa(p.line) + text
	}
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

// document is a value of a file, or an item of a list in it, as JSON.
type document struct {
	line int // of the file; an item has that of its list
	text json.RawMessage
}

// documents passes on the documents of a file, which are YAML or JSON values, up to the first error. One is in memory at a
// time: aliases make them long.
func documents(path string, content []byte, each func(document) error) error {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if strings.EqualFold(filepath.Ext(path), ".json") {
		return jsonDocuments(content, each)
	}
	return yamlDocuments(content, each)
}

func yamlDocuments(content []byte, each func(document) error) error {
	for d := yaml.NewDecoder(bytes.NewReader(content)); ; {
		n := &yaml.Node{}
		err := safely(func() error { return d.Decode(n) })
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return yamlProblem(0, err)
		}
		line := n.Content[0].Line
		text, err := toJSON(n)
		if err != nil {
			return yamlProblem(line, err)
		}
		if err := each(document{line, text}); err != nil {
			return err
		}
	}
}

func jsonDocuments(content []byte, each func(document) error) error {
	line, counted := 1, 0 // the number of the line at the offset counted
	for d := json.NewDecoder(bytes.NewReader(content)); ; {
		var text json.RawMessage
		err := d.Decode(&text)
		at := int(d.InputOffset()) - len(text)
		switch syntax := (*json.SyntaxError)(nil); {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &syntax):
			at = int(syntax.Offset) - 1 // the offset is behind the wrong byte
		case err != nil:
			at = len(bytes.TrimRight(content, " \t\r\n"))
		}
		at = max(at, counted)
		line += bytes.Count(content[counted:at], []byte("\n"))
		counted = at
		if err != nil {
			return &problem{line: line, text: "invalid JSON: " + err.Error()}
		}
		if err := each(document{line, text}); err != nil {
			return err
		}
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

// yamlProblem returns an error of the YAML library with the line from its text, else with the given line.
func yamlProblem(line int, err error) *problem {
	if bad := (*problem)(nil); errors.As(err, &bad) {
		return bad
	}
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "json: ")
	if bad := (*yaml.TypeError)(nil); errors.As(err, &bad) {
		text = bad.Errors[0]
	}
	if n, _ := fmt.Sscanf(text, "line %d:", &line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
	}
	return &problem{line: line, text: "invalid YAML: " + text}
}

// toJSON converts a document. An object that is not read becomes its header: the rest of it need not be valid. The library
// limits the number of values that aliases stand for.
func toJSON(n *yaml.Node) (json.RawMessage, error) {
	if err := normalize(n); err != nil {
		return nil, err
	}
	var h struct {
		APIVersion any       `yaml:"apiVersion"`
		Kind       any       `yaml:"kind"`
		Metadata   yaml.Node `yaml:"metadata"`
	}
	if err := n.Decode(&h); err == nil && isUnread(h.Kind, h.APIVersion) {
		var m struct {
			Namespace string `yaml:"namespace" json:"namespace"`
		}
		_ = h.Metadata.Decode(&m) // without a valid namespace, only the kind counts
		return json.Marshal(map[string]any{"apiVersion": h.APIVersion, "kind": h.Kind, "metadata": m})
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, err
	}
	if size(v) > maxDocument {
		return nil, fmt.Errorf("aliases stand for more than %d MiB", maxDocument>>20)
	}
	return json.Marshal(v)
}

// maxDocument is the maximum size of a document with the values that aliases stand for, in bytes: the values may be long.
const maxDocument = 32 << 20

func size(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			n += len(name) + size(field)
		}
	case []any:
		for _, item := range v {
			n += size(item)
		}
	case string:
		n = len(v)
	}
	return n
}

func isUnread(name, apiVersion any) bool {
	kind, _ := name.(string)
	version, _ := apiVersion.(string)
	k, isList := kindRead(kind, version)
	return kind != "" && k == nil && !isList
}

// maxFields is the maximum number of fields of an object in YAML: the library compares each with all others.
const maxFields = 10_000

// normalize sets the types of values as kubectl reads them, in YAML 1.1, where on and no are truth values. Dates and names
// of fields are text.
func normalize(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode && len(n.Content)/2 > maxFields {
		return &problem{line: n.Line, text: fmt.Sprintf("more than %d fields of one object", maxFields)}
	}
	for i, c := range n.Content {
		isName := n.Kind == yaml.MappingNode && i%2 == 0
		switch {
		case c.Kind != yaml.ScalarNode:
			if err := normalize(c); err != nil {
				return err
			}
		case c.ShortTag() == "!!timestamp", isName && c.ShortTag() != "!!merge":
			c.Tag = "!!str"
		case c.ShortTag() == "!!bool", c.ShortTag() == "!!str" && c.Style == 0 && len(c.Value) <= len("false"):
			var is bool
			if err := (&yaml.Node{Kind: yaml.ScalarNode, Value: c.Value}).Decode(&is); err == nil {
				c.Tag, c.Value = "!!bool", strconv.FormatBool(is)
			}
		}
	}
	return nil
}

// decode fills an object as strictly as the API server does with fieldValidation=Strict, or with some of its checks.
func decode(text json.RawMessage, into any, checks ...kjson.StrictOption) error {
	strict, err := kjson.UnmarshalStrict(text, into, checks...)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}
