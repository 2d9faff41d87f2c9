package manifests

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// FuzzParse: the parser never panics, its errors have a line of the file, and the objects that it accepts have the
// same records when the Kubernetes encoder has written them and they are read again.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/broken/*", "../../../../deploy/demo/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(content, filepath.Ext(path) == ".json")
		}
	}
	f.Add([]byte(endpoints+node), false)
	f.Add([]byte(imports), false)
	opts := everything
	opts.Imports, opts.ClusterID = true, true
	f.Fuzz(func(t *testing.T, content []byte, isJSON bool) {
		name := "f.yaml"
		if isJSON {
			name = "f.json"
		}
		p := parser{opts: opts, strip: source.NewStripper(opts)}
		c, err := p.parse(name, content)
		if err != nil {
			var bad *problem
			// YAML has more line breaks than a line feed; no error is behind the last byte.
			if !errors.As(err, &bad) || bad.line < 1 || bad.line > len(content)+1 {
				t.Errorf("%v, in a file of %d bytes", err, len(content))
			}
			return
		}
		again, err := p.parse("again.json", encode(t, name, content))
		if err != nil {
			t.Fatalf("not accepted again: %v", err)
		}
		if len(c.objects) != len(again.objects) {
			t.Fatalf("%d objects and %d again", len(c.objects), len(again.objects))
		}
		for i, o := range c.objects {
			a := again.objects[i]
			a.file, a.line = o.file, o.line
			if !reflect.DeepEqual(records(p, o), records(p, a)) {
				t.Errorf("%s: %+v and again %+v", o.key, records(p, o), records(p, a))
			}
		}
	})
}

// records returns an object with its record, even if that depends on Nodes.
func records(p parser, o *object) object {
	r := *o
	if o.unplaced != nil {
		r.record, r.unplaced = p.strip.Slice(withZones(o.unplaced, map[string]string{"node-1": "zone-1"})), nil
	}
	return r
}

// encode writes the objects of a file as JSON, as the Kubernetes encoder does.
func encode(t *testing.T, name string, content []byte) (out []byte) {
	t.Helper()
	roots, err := documents(name, content)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range roots {
		out = append(out, encodeItem(t, n, metav1.TypeMeta{})...)
	}
	return out
}

// encodeItem writes an object, with the kind and version of the list that it is in.
func encodeItem(t *testing.T, n *yaml.Node, element metav1.TypeMeta) (out []byte) {
	t.Helper()
	h, bad := readHeader(n, element)
	if bad != nil {
		t.Fatal(bad)
	}
	name, isList := strings.CutSuffix(h.Kind, "List")
	k := kindOf(name, h.APIVersion)
	switch {
	case isList && (k != nil || name == ""):
		items := metav1.TypeMeta{}
		if name != "" {
			items.Kind, items.APIVersion = name, h.APIVersion
		}
		fields, _ := fieldsOf(n)
		for _, f := range fields {
			if f.key.Value == "items" {
				for _, n := range target(f.value).Content {
					out = append(out, encodeItem(t, n, items)...)
				}
			}
		}
		return out
	case k == nil:
		return nil
	}
	o := k.new()
	if bad := decode(n, n.Line, "", o); bad != nil {
		t.Fatal(bad)
	}
	reflect.ValueOf(o).Elem().FieldByName("TypeMeta").Set(reflect.ValueOf(h.TypeMeta))
	out, err := json.Marshal(o)
	if err != nil {
		t.Skipf("the encoder refuses it: %v", err)
	}
	return append(out, '\n')
}
