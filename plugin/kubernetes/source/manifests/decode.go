package manifests

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
)

// member is a field of a mapping.
type member struct{ key, value *yaml.Node }

// decode fills a value, such as a string.
func (f member) decode(into any) *problem { return decodeAt(f.value, f.key.Line, f.key.Value, into) }

// target returns the node itself, or the node behind an alias.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// join returns the path of a field of the object at a path.
func join(path, name string) string { return strings.Trim(path+"."+name, ".") }

// problemAt returns an error of a field of an object.
func problemAt(n *yaml.Node, object, path, text string) *problem {
	return &problem{lineOf(n, path), object, path, text}
}

// lineOf returns the line of a field; of a field that is missing that of the object around it.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		fields, _ := fieldsOf(n)
		at := slices.IndexFunc(fields, func(f member) bool { return f.key.Value == step })
		i, err := strconv.Atoi(step)
		switch n = target(n); {
		case at >= 0:
			n, line = fields[at].value, fields[at].key.Line
		case err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content):
			n, line = n.Content[i], n.Content[i].Line
		default:
			return line
		}
	}
	return line
}

// fieldsOf returns the fields of a mapping in order: its own, and after them those that `<<` merges and that it does not
// have. With an error, it returns the own fields before it.
func fieldsOf(n *yaml.Node) (all []member, bad *problem) {
	line := n.Line
	if n = target(n); n.Kind != yaml.MappingNode {
		return nil, &problem{line: line, text: "want " + wanted[reflect.Struct] + ", not " + describe(n)}
	}
	lines := map[string]int{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch first, twice := lines[key.Value]; {
		case key.ShortTag() == "!!merge" && target(value).Kind == yaml.SequenceNode:
			merged = append(merged, target(value).Content...)
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case key.Kind != yaml.ScalarNode:
			return all, &problem{line: key.Line, text: fmt.Sprintf("want the name of a field, not %s; put a value that begins with {{ in quotes, or render the template first", describe(key))}
		case twice:
			return all, &problem{line: key.Line, path: key.Value, text: fmt.Sprintf("already in line %d; delete one of the two", first)}
		default:
			lines[key.Value] = key.Line
			all = append(all, member{key, value})
		}
	}
	for _, m := range merged {
		more, bad := fieldsOf(m)
		if bad != nil {
			bad.path = join("<<", bad.path)
			return all, bad
		}
		for _, f := range more {
			if _, ok := lines[f.key.Value]; !ok {
				lines[f.key.Value] = f.key.Line
				all = append(all, f)
			}
		}
	}
	return all, nil
}

const noValue = "an item without a value"

// valueOf returns the value of a node, as encoding/json has it.
func valueOf(n *yaml.Node) (any, *problem) {
	switch n = target(n); n.Kind {
	case yaml.MappingNode:
		fields, bad := fieldsOf(n)
		all := make(map[string]any, len(fields))
		for _, f := range fields {
			if bad == nil {
				all[f.key.Value], bad = valueOf(f.value)
			}
		}
		return all, bad
	case yaml.SequenceNode:
		all := make([]any, len(n.Content))
		for i, c := range n.Content {
			v, bad := valueOf(c)
			if bad != nil {
				return nil, bad
			}
			if v == nil {
				return nil, &problem{line: c.Line, text: noValue}
			}
			all[i] = v
		}
		return all, nil
	}
	return scalar(n)
}

// scalar returns text, a number, a truth value or nil.
func scalar(n *yaml.Node) (v any, bad *problem) {
	if is, ok := truth(n); ok {
		return is, nil
	}
	if tag := n.ShortTag(); tag == "!!str" || tag == "!!timestamp" {
		return n.Value, nil
	}
	if err := n.Decode(&v); err != nil {
		_, text := splitError(err)
		return nil, &problem{line: n.Line, text: text}
	}
	return v, nil
}

// truths are the words that are truth values in YAML 1.1, which kubectl reads; in 1.2 some of them are text.
var truths = map[string]bool{
	"true": true, "yes": true, "on": true, "y": true,
	"false": false, "no": false, "off": false, "n": false,
}

func truth(n *yaml.Node) (is, ok bool) {
	lower := strings.ToLower(n.Value)
	if n.ShortTag() != "!!bool" && n.Style != 0 || n.Value != lower && n.Value != strings.ToUpper(lower) && n.Value != strings.ToUpper(lower[:1])+lower[1:] {
		return false, false
	}
	is, ok = truths[lower]
	return is, ok
}

// decode fills an object as strictly as the API server does with fieldValidation=Strict.
func decode(n *yaml.Node, into any) *problem { return decodeAt(n, n.Line, "", into) }

func decodeAt(n *yaml.Node, line int, path string, into any) *problem {
	v, bad := valueOf(n)
	var err error
	if bad == nil {
		err = decodeValue(v, into)
	}
	if bad == nil && err == nil {
		return nil
	}
	if found := locate(n, line, path, reflect.TypeOf(into).Elem()); found != nil || bad != nil {
		return cmp.Or(found, bad)
	}
	return &problem{line: line, path: path, text: err.Error()}
}

func decodeValue(v, into any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(text, into)
	if err == nil && len(strict) > 0 {
		return strict[0]
	}
	return err
}

// locate returns the first error of a node as the value of a Go type, nil for none. The decoder reports no line.
func locate(n *yaml.Node, line int, path string, t reflect.Type) *problem {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	at := target(n)
	switch _, decodesItself := reflect.New(t).Interface().(json.Unmarshaler); {
	case decodesItself:
	case at.Kind == yaml.MappingNode && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		return locateField(at, path, t)
	case at.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		for i, c := range at.Content {
			item := fmt.Sprintf("%s[%d]", path, i)
			if c.ShortTag() == "!!null" {
				return &problem{line: c.Line, path: item, text: noValue}
			}
			if bad := locate(c, c.Line, item, t.Elem()); bad != nil {
				return bad
			}
		}
		return nil
	}
	v, bad := valueOf(n)
	if bad != nil {
		bad.path = join(path, bad.path)
		return bad
	}
	if decodeValue(v, reflect.New(t).Interface()) == nil {
		return nil
	}
	text := fmt.Sprintf("want %s, not %s", wantedOf(t), describe(n))
	if t.Kind() == reflect.String && at.Kind == yaml.ScalarNode {
		text += fmt.Sprintf("; write %q in quotes", clip(at.Value))
	}
	return &problem{line: line, path: path, text: text}
}

func locateField(n *yaml.Node, path string, t reflect.Type) *problem {
	fields, bad := fieldsOf(n)
	known := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		addFields(known, t)
	}
	for _, f := range fields {
		name := f.key.Value
		of, ok := known[name]
		switch {
		case t.Kind() == reflect.Map:
			of = t.Elem()
		case !ok:
			return &problem{line: f.key.Line, path: join(path, name), text: "unknown field; " + suggestion(name, slices.Sorted(maps.Keys(known)))}
		}
		if bad := locate(f.value, f.key.Line, join(path, name), of); bad != nil {
			return bad
		}
	}
	if bad != nil {
		bad.path = join(path, bad.path)
	}
	return bad
}

// addFields adds the fields of a struct by their names in JSON.
func addFields(all map[string]reflect.Type, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case name != "" && name != "-":
			all[name] = f.Type
		case f.Anonymous:
			addFields(all, f.Type)
		}
	}
}

// suggestion returns the field that is probably meant, or the existing fields if they are few.
func suggestion(name string, fields []string) string {
	for edits := range 3 {
		for _, f := range fields {
			if isNear(strings.ToLower(name), strings.ToLower(f), edits) {
				return "did you mean " + f + "?"
			}
		}
	}
	if len(fields) <= 12 {
		return "want " + strings.Join(fields, ", ")
	}
	return "see kubectl explain"
}

// isNear reports whether up to a number of letters must be added, deleted or replaced to make one text of another.
func isNear(a, b string, edits int) bool {
	switch {
	case edits < 0:
		return false
	case a == "" || b == "":
		return len(a)+len(b) <= edits
	case a[0] == b[0]:
		return isNear(a[1:], b[1:], edits)
	}
	return isNear(a[1:], b, edits-1) || isNear(a, b[1:], edits-1) || isNear(a[1:], b[1:], edits-1)
}

// wanted are the forms of values by the kinds of Go's types, and those of types that decode themselves by their names.
var wanted = map[any]string{
	reflect.String: "text",
	reflect.Bool:   "true or false",
	reflect.Int32:  "a whole number of up to 32 bits",
	reflect.Int64:  "a whole number",
	reflect.Slice:  `a list ("- ...")`,
	reflect.Map:    `fields ("name: value")`,
	reflect.Struct: `fields ("name: value")`,
	"Time":         "a time such as 2026-01-31T12:00:00Z",
	"MicroTime":    "a time such as 2026-01-31T12:00:00.000000Z",
	"Quantity":     "a quantity such as 100m or 64Mi",
	"IntOrString":  "a number or text",
}

func wantedOf(t reflect.Type) string {
	for _, of := range []any{t.Name(), t.Kind()} {
		if text := wanted[of]; text != "" {
			return text
		}
	}
	return t.String()
}

// describe returns the value of a node for messages.
func describe(n *yaml.Node) string {
	switch n = target(n); n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	}
	if _, ok := truth(n); ok {
		return "the truth value " + n.Value
	}
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp":
		return strconv.Quote(clip(n.Value))
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "the number " + clip(n.Value)
	default:
		return "a value tagged " + clip(tag)
	}
}

// clip shortens a text that a message quotes.
func clip(text string) string {
	if len(text) > 63 {
		return strings.ToValidUTF8(text[:60], "") + "..."
	}
	return text
}
