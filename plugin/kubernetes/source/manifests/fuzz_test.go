package manifests

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// FuzzParse: the parser never panics, its errors have no line behind the file, and the objects that it accepts have the
// same records when the Kubernetes encoder has written them and they are read again.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/broken/*", "../../../../deploy/demo/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		kit.Must(f, err)
		for _, path := range paths {
			f.Add([]byte(kit.Read(f, path)), filepath.Ext(path) == ".json")
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
			if !errors.As(err, &bad) || bad.line < 0 || bad.line > len(content)+1 {
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
	err := documents(name, content, func(d document) error {
		if string(d.text) != "null" {
			out = append(out, encodeItem(t, d.text, metav1.TypeMeta{})...)
		}
		return nil
	})
	kit.Must(t, err)
	return out
}

// encodeItem writes an object, with the kind and version of the list that it is in.
func encodeItem(t *testing.T, text json.RawMessage, element metav1.TypeMeta) (out []byte) {
	t.Helper()
	h, err := readHeader(text, element)
	kit.Must(t, err)
	k, isList := kindRead(h.Kind, h.APIVersion)
	switch {
	case isList:
		var l list
		kit.Must(t, decode(text, &l))
		items := metav1.TypeMeta{}
		if k != nil {
			items.Kind, items.APIVersion = k.name, h.APIVersion
		}
		for _, text := range l.Items {
			out = append(out, encodeItem(t, text, items)...)
		}
		return out
	case k == nil:
		return nil
	}
	o := k.new()
	kit.Must(t, decode(text, o))
	reflect.ValueOf(o).Elem().FieldByName("TypeMeta").Set(reflect.ValueOf(h.TypeMeta))
	out, err = json.Marshal(o)
	if err != nil {
		t.Skipf("the encoder refuses it: %v", err)
	}
	return append(out, '\n')
}
