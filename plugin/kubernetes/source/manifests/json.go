package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"
)

// jsonDocuments reads the JSON values of a file into the same tree that YAML is read into. The YAML
// parser would refuse some of what JSON allows, such as an emoji as a pair of escapes.
func jsonDocuments(content []byte) ([]*yaml.Node, *problem) {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	var all []*yaml.Node
	for d := json.NewDecoder(bytes.NewReader(content)); ; {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, jsonProblem(content, err)
		}
		at := int(d.InputOffset()) - len(raw)
		r := jsonReader{dec: json.NewDecoder(bytes.NewReader(raw)), raw: raw, line: 1 + bytes.Count(content[:at], []byte("\n"))}
		r.dec.UseNumber()
		n, err := r.value()
		if err != nil {
			return nil, jsonProblem(content, err) // not reached: raw has been parsed once
		}
		if n.Tag != "!!null" {
			all = append(all, n)
		}
	}
}

func jsonProblem(content []byte, err error) *problem {
	end := len(content)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		end = min(end, max(0, int(syntax.Offset)-1)) // the offset is behind the byte that is wrong
	} else {
		end = len(bytes.TrimRight(content, " \t\r\n"))
	}
	return &problem{line: 1 + bytes.Count(content[:end], []byte("\n")), text: "no JSON: " + err.Error()}
}

// jsonReader makes nodes of the tokens of one valid JSON value.
type jsonReader struct {
	dec  *json.Decoder
	raw  []byte
	at   int // offset up to which lines have been counted
	line int
}

// token returns the next token and advances line to where it ends, and so begins: none has a line
// break inside.
func (r *jsonReader) token() (json.Token, error) {
	t, err := r.dec.Token()
	end := int(r.dec.InputOffset())
	r.line += bytes.Count(r.raw[r.at:end], []byte("\n"))
	r.at = end
	return t, err
}

func (r *jsonReader) value() (*yaml.Node, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: r.line}
	switch t := t.(type) {
	case nil:
		n.Tag, n.Value = "!!null", "null"
	case bool:
		n.Tag, n.Value = "!!bool", "false"
		if t {
			n.Value = "true"
		}
	case json.Number:
		n.Tag, n.Value = "!!float", t.String()
		if _, err := t.Int64(); err == nil {
			n.Tag = "!!int"
		}
	case string:
		n.Tag, n.Value, n.Style = "!!str", t, yaml.DoubleQuotedStyle
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if t == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for r.dec.More() {
			child, err := r.value() // keys and values take turns
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err = r.token()
	}
	return n, err
}
