package topology

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// maxKeys is the maximum number of keys, as in KEP-536.
const maxKeys = 16

// ParseKeys parses an annotation nearside.dev/topology-keys: label keys separated by commas, or a YAML list of them. For
// empty text and an empty list it returns nil, as without the annotation.
//
// As in KEP-536, there are at most 16 different keys, each a label key or, as the last one, "*".
func ParseKeys(text string) ([]index.Symbol, error) {
	trimmed := strings.TrimSpace(text)
	if trimmed == "" {
		return nil, nil
	}
	if trimmed[0] != '[' && trimmed[0] != '-' { // no label key starts with these
		return Keys(fields(trimmed))
	}
	keys, err := parseList(text)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	return Keys(keys)
}

// fields splits a text at commas and trims the parts.
func fields(text string) []string {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// Keys returns the keys in the arguments of an option, at least one. The rules are those of the annotation.
func Keys(args []string) ([]index.Symbol, error) {
	switch {
	case len(args) == 0:
		return nil, fmt.Errorf("no keys: want 1 to %d", maxKeys)
	case len(args) > maxKeys:
		return nil, fmt.Errorf("%d keys: want 1 to %d", len(args), maxKeys)
	}
	keys := make([]index.Symbol, 0, len(args))
	for i, arg := range args {
		if err := checkKey(args, i); err != nil {
			return nil, err
		}
		keys = append(keys, index.NewSymbol(arg))
	}
	return keys, nil
}

// checkKey validates the key at an index. Errors quote at most 80 characters, since the annotation may be long.
func checkKey(keys []string, i int) error {
	key := keys[i]
	switch {
	case key == "":
		return fmt.Errorf("key %d is empty", i+1)
	case key == "*" && i < len(keys)-1:
		return errors.New(`"*" must be the last key`)
	case slices.Contains(keys[:i], key):
		return fmt.Errorf("duplicate key %.80q", key)
	case key == "*":
		return nil
	}
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return fmt.Errorf("invalid label key %.80q: %s", key, wrong[0])
	}
	return nil
}

// parseList returns the strings of a YAML list.
func parseList(text string) ([]string, error) {
	root, err := decode(text)
	if err != nil {
		hint := ""
		if strings.Contains(text, "*") {
			hint = `; in YAML, * needs quotes: "*"`
		}
		return nil, fmt.Errorf("not a YAML list: %.200s%s", strings.TrimPrefix(err.Error(), "yaml: "), hint)
	}
	if root.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("want a YAML list, found %s", kindOf(root))
	}
	keys := make([]string, 0, len(root.Content))
	for _, n := range root.Content {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			return nil, fmt.Errorf("line %d: want a label key, found %s", n.Line, kindOf(n))
		}
		keys = append(keys, n.Value)
	}
	return keys, nil
}

// decode returns the root of the one YAML document in a text.
func decode(text string) (root *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil { // the parser panics in states that it considers impossible
			root, err = nil, fmt.Errorf("YAML parser failed: %v", r)
		}
	}()
	d := yaml.NewDecoder(strings.NewReader(text))
	var document, more yaml.Node
	if err := d.Decode(&document); err != nil {
		return nil, err
	}
	if err := d.Decode(&more); err == nil {
		return nil, errors.New("text after the list")
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return document.Content[0], nil
}

// kindOf describes a YAML node of an unexpected kind.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	case yaml.AliasNode:
		return "an alias"
	}
	switch tag := n.ShortTag(); tag {
	case "!!str":
		return "a string"
	case "!!null":
		return "null"
	default:
		return fmt.Sprintf("%.20s %.80s: a string needs quotes", tag, n.Value)
	}
}
