package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
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
	_, line := find(n, path)
	return &problem{line, object, path, text}
}

// find returns the value at a path and its line; nil and the line of the object around it if it is missing.
func find(n *yaml.Node, path string) (value *yaml.Node, line int) {
	line = n.Line
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
			return nil, line
		}
	}
	return n, line
}

// fieldsOf returns the fields of a mapping in order: its own, and after them those that `<<` merges and that it does not
// have. With an error, it returns the own fields before it.
func fieldsOf(n *yaml.Node) (all []member, bad *problem) {
	line := n.Line
	if n = target(n); n.Kind != yaml.MappingNode {
		return nil, &problem{line: line, text: "want " + wanted["struct"] + ", not " + describe(n)}
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
func valueOf(n *yaml.Node) (v any, err error) {
	switch n = target(n); n.Kind {
	case yaml.MappingNode:
		fields, bad := fieldsOf(n)
		if bad != nil {
			return nil, bad
		}
		all := make(map[string]any, len(fields))
		for _, f := range fields {
			if all[f.key.Value], err = valueOf(f.value); err != nil {
				return nil, err
			}
		}
		return all, nil
	case yaml.SequenceNode:
		all := make([]any, len(n.Content))
		for i, c := range n.Content {
			if all[i], err = valueOf(c); err == nil && all[i] == nil {
				err = &problem{line: c.Line, text: noValue}
			}
			if err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	if is, ok := truth(n); ok {
		return is, nil
	}
	if tag := n.ShortTag(); tag == "!!str" || tag == "!!timestamp" {
		return n.Value, nil
	}
	err = n.Decode(&v)
	return v, err
}

// truth returns a truth value. On and no are truth values in YAML 1.1, which kubectl reads, and text in YAML 1.2.
func truth(n *yaml.Node) (is, ok bool) {
	isWord := n.ShortTag() == "!!str" && n.Style == 0 && len(n.Value) <= len("false")
	if n.ShortTag() != "!!bool" && !isWord {
		return false, false
	}
	err := (&yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}).Decode(&is)
	return is, err == nil
}

// decode fills an object, or the field at a path, as strictly as the API server does with fieldValidation=Strict.
func decode(n *yaml.Node, line int, path string, into any) *problem {
	err := convert(n, into)
	if err == nil {
		return nil
	}
	return cmp.Or(locate(n, line, path, reflect.TypeOf(into).Elem()), &problem{line: line, path: path, text: err.Error()})
}

// convert is decode without the line of an error.
func convert(n *yaml.Node, into any) error {
	v, err := valueOf(n)
	if err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(text, into)
	return errors.Join(append(strict, err)...)
}

// locate returns the first error of a node as a value of a Go type, nil for none: the strict decoder reports no lines.
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
			if isNull(c) {
				return &problem{line: c.Line, path: item, text: noValue}
			}
			if bad := locate(c, c.Line, item, t.Elem()); bad != nil {
				return bad
			}
		}
		return nil
	}
	err := convert(n, reflect.New(t).Interface())
	bad := (*problem)(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bad):
		bad.path = join(path, bad.path)
		return bad
	}
	text := fmt.Sprintf("want %s, not %s", cmp.Or(wanted[t.Name()], wanted[t.Kind().String()], t.String()), describe(n))
	if t.Kind() == reflect.String && at.Kind == yaml.ScalarNode {
		text += fmt.Sprintf("; write %q in quotes", at.Value)
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
		fieldType, ok := known[name]
		switch {
		case t.Kind() == reflect.Map:
			fieldType = t.Elem()
		case !ok:
			return &problem{line: f.key.Line, path: join(path, name), text: "unknown field; " + suggestion(name, slices.Sorted(maps.Keys(known)))}
		}
		if bad := locate(f.value, f.key.Line, join(path, name), fieldType); bad != nil {
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

// isNear reports whether a becomes b if up to edits letters are added, deleted or replaced.
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

// wanted are the forms of values by the names of their types or kinds in Go.
var wanted = map[string]string{
	"string":      "text",
	"bool":        "true or false",
	"int32":       "a whole number of up to 32 bits",
	"int64":       "a whole number",
	"slice":       `a list ("- ...")`,
	"map":         `fields ("name: value")`,
	"struct":      `fields ("name: value")`,
	"Time":        "a time such as 2026-01-31T12:00:00Z",
	"MicroTime":   "a time such as 2026-01-31T12:00:00.000000Z",
	"Quantity":    "a quantity such as 100m or 64Mi",
	"IntOrString": "a number or text",
}

// describe returns the kind and the value of a node for messages.
func describe(n *yaml.Node) string {
	n = target(n)
	_, isTruth := truth(n)
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.MappingNode:
		return "fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isTruth:
		return "the truth value " + n.Value
	case tag == "!!str" || tag == "!!timestamp":
		return strconv.Quote(n.Value)
	case tag == "!!null":
		return "nothing"
	case tag == "!!int" || tag == "!!float":
		return "the number " + n.Value
	default:
		return "a value tagged " + tag
	}
}
