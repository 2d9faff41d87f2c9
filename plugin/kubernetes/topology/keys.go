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

// maxKeys is the greatest number of keys, as KEP-536 had it.
const maxKeys = 16

// ParseKeys returns the keys of an annotation nearside.dev/topology-keys: label keys separated by commas, or
// as a YAML list. Empty text and an empty list are as no annotation, and give nil.
//
// Keys are as KEP-536 had them: 16 at most, none of them twice, each a label key or "*", which has to be the
// last.
func ParseKeys(text string) ([]index.Symbol, error) {
	trimmed := strings.TrimSpace(text)
	if trimmed == "" {
		return nil, nil
	}
	if trimmed[0] != '[' && trimmed[0] != '-' { // neither can begin a label key
		return Keys(fields(trimmed))
	}
	keys, err := parseList(text)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	return Keys(keys)
}

// fields returns the parts between commas, without the space about them.
func fields(text string) []string {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// Keys returns the keys that are the arguments of an option: one at least, and else as in the annotation.
func Keys(args []string) ([]index.Symbol, error) {
	switch {
	case len(args) == 0:
		return nil, fmt.Errorf("no keys; want 1 to %d", maxKeys)
	case len(args) > maxKeys:
		return nil, fmt.Errorf("%d keys; want %d at most", len(args), maxKeys)
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

// checkKey returns what is wrong with a key in its place. Of text it quotes 80 characters: it may be long.
func checkKey(keys []string, i int) error {
	key := keys[i]
	switch {
	case key == "":
		return fmt.Errorf("key %d is empty", i+1)
	case key == "*" && i < len(keys)-1:
		return errors.New(`"*" has to be the last key`)
	case slices.Contains(keys[:i], key):
		return fmt.Errorf("%.80q is there twice", key)
	case key == "*":
		return nil
	}
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return fmt.Errorf("%.80q is not a label key: %s", key, wrong[0])
	}
	return nil
}

// parseList returns the strings of a YAML list.
func parseList(text string) ([]string, error) {
	root, err := decode(text)
	if err != nil {
		hint := ""
		if strings.Contains(text, "*") {
			hint = `; in YAML any is written "*", with the quotes`
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
		if r := recover(); r != nil { // the parser has panics for states that it holds impossible
			root, err = nil, fmt.Errorf("the YAML parser fails on this: %v", r)
		}
	}()
	d := yaml.NewDecoder(strings.NewReader(text))
	var document, more yaml.Node
	if err := d.Decode(&document); err != nil {
		return nil, err
	}
	if err := d.Decode(&more); err == nil {
		return nil, errors.New("there is more after it")
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return document.Content[0], nil
}

// kindOf says what a YAML node is that should have been something else.
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
		return fmt.Sprintf("%.20s %.80s; with quotes it is a string", tag, n.Value)
	}
}
