package manifests

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// decoder fills API objects from nodes as strictly as `kubectl apply` does: an unknown field, a field
// that is there twice and a value of another type are errors, with their line. The decoders of the
// Kubernetes libraries are as strict but know no lines.
type decoder struct {
	// aliased counts the nodes met behind aliases: a few lines can stand for any number of them.
	aliased int
}

const (
	maxAliased = 100_000
	maxDepth   = 100
)

// position is where a value was announced: the line of its key or item, and its path.
type position struct {
	line  int
	path  string
	depth int
	alias bool // behind an alias
}

func (at position) problem(format string, v ...any) *problem {
	return &problem{line: at.line, path: at.path, text: fmt.Sprintf(format, v...)}
}

func (at position) field(name string, line int) position {
	if at.path != "" {
		name = at.path + "." + name
	}
	if at.alias {
		line = at.line
	}
	return position{line: line, path: name, depth: at.depth + 1, alias: at.alias}
}

func (at position) item(i, line int) position {
	if at.alias {
		line = at.line
	}
	return position{line: line, path: fmt.Sprintf("%s[%d]", at.path, i), depth: at.depth + 1, alias: at.alias}
}

// enter follows an alias and keeps the bounds.
func (d *decoder) enter(n *yaml.Node, at *position) (*yaml.Node, *problem) {
	if n.Kind == yaml.AliasNode {
		n, at.alias = n.Alias, true
		at.depth++
	}
	if at.alias {
		d.aliased++
	}
	if at.depth > maxDepth || d.aliased > maxAliased {
		return nil, at.problem("nested too deeply or made of too many aliases; write it out")
	}
	return n, nil
}

// decode sets v to what n says. A null leaves it as it is.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, at position) *problem {
	if t, ok := v.Interface().(*yaml.Node); ok && t == nil {
		v.Set(reflect.ValueOf(n)) // to be decoded when its kind is known
		return nil
	}
	n, p := d.enter(n, &at)
	if p != nil {
		return p
	}
	if n.ShortTag() == "!!null" {
		return nil
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return d.decode(n, v.Elem(), at)
	}
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		return d.unmarshal(n, u, at)
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.object(n, v, at)
	case reflect.Map:
		return d.mapping(n, v, at)
	case reflect.Slice:
		return d.list(n, v, at)
	default:
		return scalar(n, v, at)
	}
}

// pair is a field of a mapping.
type pair struct {
	name  string
	line  int
	value *yaml.Node
}

// pairs returns the fields of a mapping in order, at last those that `<<` merges in and that it does
// not have itself.
func (d *decoder) pairs(n *yaml.Node, at position) ([]pair, *problem) {
	n, p := d.enter(n, &at)
	if p != nil {
		return nil, p
	}
	if n.Kind != yaml.MappingNode {
		return nil, at.problem("want fields (\"name: value\"), not %s", describe(n))
	}
	if at.alias {
		d.aliased += len(n.Content)
	}
	all := make([]pair, 0, len(n.Content)/2)
	lines := map[string]int{}
	var merged []pair
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.ShortTag() == "!!merge" {
			more, p := d.merged(v, at)
			if p != nil {
				return nil, p
			}
			merged = append(merged, more...)
			continue
		}
		if k.Kind != yaml.ScalarNode {
			return nil, at.field("?", k.Line).problem("want the name of a field, not %s", describe(k))
		}
		if line, ok := lines[k.Value]; ok {
			return nil, at.field(k.Value, k.Line).problem("already in line %d; delete one of the two", line)
		}
		lines[k.Value] = k.Line
		all = append(all, pair{k.Value, k.Line, v})
	}
	for _, m := range merged {
		if _, ok := lines[m.name]; !ok {
			lines[m.name] = m.line
			all = append(all, m)
		}
	}
	return all, nil
}

// merged returns the fields of what `<<` names: a mapping or a list of them.
func (d *decoder) merged(n *yaml.Node, at position) ([]pair, *problem) {
	if !strings.HasSuffix(at.path, "<<") {
		at.path = at.field("<<", 0).path
	}
	if n.Line > 0 && !at.alias {
		at.line = n.Line
	}
	at.depth++
	n, p := d.enter(n, &at)
	if p != nil {
		return nil, p
	}
	if n.Kind != yaml.SequenceNode {
		return d.pairs(n, at)
	}
	var all []pair
	for _, c := range n.Content {
		more, p := d.pairs(c, at)
		if p != nil {
			return nil, p
		}
		all = append(all, more...)
	}
	return all, nil
}

func (d *decoder) object(n *yaml.Node, v reflect.Value, at position) *problem {
	pairs, p := d.pairs(n, at)
	if p != nil {
		return p
	}
	fields := fieldsOf(v.Type())
	for _, f := range pairs {
		index, ok := fields[f.name]
		if !ok {
			return at.field(f.name, f.line).problem("no such field; %s", meant(f.name, fields))
		}
		if p := d.decode(f.value, v.FieldByIndex(index), at.field(f.name, f.line)); p != nil {
			return p
		}
	}
	return nil
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, at position) *problem {
	pairs, p := d.pairs(n, at)
	if p != nil {
		return p
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(pairs)))
	for _, f := range pairs {
		e := reflect.New(v.Type().Elem()).Elem()
		if p := d.decode(f.value, e, at.field(f.name, f.line)); p != nil {
			return p
		}
		v.SetMapIndex(reflect.ValueOf(f.name).Convert(v.Type().Key()), e)
	}
	return nil
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, at position) *problem {
	if n.Kind != yaml.SequenceNode {
		return at.problem("want a list (\"- ...\"), not %s", describe(n))
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, c := range n.Content {
		item := at.item(i, c.Line)
		if c.ShortTag() == "!!null" {
			return item.problem("an item without a value")
		}
		if p := d.decode(c, v.Index(i), item); p != nil {
			return p
		}
	}
	return nil
}

// unmarshal fills a type that knows its own JSON, such as a time or a quantity.
func (d *decoder) unmarshal(n *yaml.Node, to json.Unmarshaler, at position) *problem {
	text, p := d.json(nil, n, at)
	if p != nil {
		return p
	}
	if err := to.UnmarshalJSON(text); err != nil {
		name := reflect.TypeOf(to).Elem().Name()
		if want, ok := wanted[name]; ok {
			return at.problem("want %s, not %s", want, describe(n))
		}
		return at.problem("no %s: %v", name, err)
	}
	return nil
}

// wanted are the forms of the types that know their own JSON.
var wanted = map[string]string{
	"Time":        "a time such as 2026-01-31T12:00:00Z",
	"MicroTime":   "a time such as 2026-01-31T12:00:00.000000Z",
	"Quantity":    "a quantity such as 100m or 64Mi",
	"IntOrString": "a number or text",
}

// json appends what n says as JSON.
func (d *decoder) json(to []byte, n *yaml.Node, at position) ([]byte, *problem) {
	n, p := d.enter(n, &at)
	if p != nil {
		return nil, p
	}
	switch n.Kind {
	case yaml.MappingNode:
		return d.jsonObject(to, n, at)
	case yaml.SequenceNode:
		to = append(to, '[')
		for i, c := range n.Content {
			if i > 0 {
				to = append(to, ',')
			}
			if to, p = d.json(to, c, at.item(i, c.Line)); p != nil {
				return nil, p
			}
		}
		return append(to, ']'), nil
	}
	var v any = n.Value
	switch n.ShortTag() {
	case "!!null":
		v = nil
	case "!!bool", "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return append(to, n.Value...), nil // in its own digits
		}
		if err := n.Decode(&v); err != nil {
			return nil, at.problem("%v", err)
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, at.problem("%v", err)
	}
	return append(to, text...), nil
}

func (d *decoder) jsonObject(to []byte, n *yaml.Node, at position) ([]byte, *problem) {
	pairs, p := d.pairs(n, at)
	if p != nil {
		return nil, p
	}
	to = append(to, '{')
	for i, f := range pairs {
		if i > 0 {
			to = append(to, ',')
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, at.problem("%v", err)
		}
		to = append(append(to, name...), ':')
		if to, p = d.json(to, f.value, at.field(f.name, f.line)); p != nil {
			return nil, p
		}
	}
	return append(to, '}'), nil
}

// scalar sets a string, a number or a truth value.
func scalar(n *yaml.Node, v reflect.Value, at position) *problem {
	tag := n.ShortTag()
	_, isWord := truth(n)
	switch v.Kind() {
	case reflect.String:
		if n.Kind == yaml.ScalarNode && (tag == "!!str" && !isWord || tag == "!!timestamp") {
			v.SetString(n.Value)
			return nil
		}
		if n.Kind == yaml.ScalarNode {
			return at.problem("want text, not %s; write \"%s\" in quotes", describe(n), clip(n.Value))
		}
		return at.problem("want text, not %s", describe(n))
	case reflect.Bool:
		if b, ok := truth(n); ok {
			v.SetBool(b)
			return nil
		}
		return at.problem("want true or false, not %s", describe(n))
	case reflect.Int, reflect.Int32, reflect.Int64:
		var i int64
		if tag != "!!int" {
			return at.problem("want a whole number, not %s", describe(n))
		}
		if err := n.Decode(&i); err != nil || v.OverflowInt(i) {
			return at.problem("%s is too large or too small a number", clip(n.Value))
		}
		v.SetInt(i)
		return nil
	}
	return at.problem("cannot be read here: a field of type %s", v.Type())
}

// truth returns what an unquoted word says where that is true or false. Kubernetes reads YAML 1.1, in
// which yes, on, no and off are such words.
func truth(n *yaml.Node) (value, ok bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" && n.Style != 0 {
		return false, false
	}
	switch n.Value {
	case "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y":
		return true, true
	case "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N":
		return false, true
	}
	return false, false
}

// describe names what a node is, for messages.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if _, ok := truth(n); ok {
		return fmt.Sprintf("the truth value %s", n.Value)
	}
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp":
		return strconv.Quote(clip(n.Value))
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return fmt.Sprintf("the number %s", clip(n.Value))
	default:
		return "a value tagged " + clip(tag)
	}
}

// clip shortens what a message quotes.
func clip(text string) string {
	if len(text) > 63 {
		return strings.ToValidUTF8(text[:60], "") + "..."
	}
	return text
}

// knownFields keeps what fieldsOf found: there are a few hundred types at most.
var knownFields sync.Map // reflect.Type to map[string][]int

// fieldsOf returns the fields of an API type by their JSON names.
func fieldsOf(t reflect.Type) map[string][]int {
	if known, ok := knownFields.Load(t); ok {
		return known.(map[string][]int)
	}
	all := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && f.IsExported() && inlined(t, f.Index) {
			all[name] = f.Index
		}
	}
	knownFields.Store(t, all)
	return all
}

// inlined tells whether all structs around a field are written into the outermost one, as TypeMeta is
// and ObjectMeta is not.
func inlined(t reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			return false
		}
		t = f.Type
	}
	return true
}

// meant says which field was meant, or which there are.
func meant(name string, fields map[string][]int) string {
	best, least := "", 3
	all := sorted(fields)
	for _, f := range all {
		if strings.EqualFold(f, name) {
			return "write " + f
		}
		if n := distance(f, name); n < least {
			best, least = f, n
		}
	}
	switch {
	case best != "":
		return "did you mean " + best + "?"
	case len(all) <= 12:
		return "there are " + strings.Join(all, ", ")
	}
	return "see kubectl explain for those that there are"
}

// distance returns how many letters must be added, left out or changed to make a into b.
func distance(a, b string) int {
	if max(len(a), len(b)) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := slices.Clone(row)
		row[0] = i + 1
		for j := range len(b) {
			change := 1
			if a[i] == b[j] {
				change = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+change)
		}
	}
	return row[len(b)]
}
