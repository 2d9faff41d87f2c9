package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// FuzzParse: the parser never panics, its problems have a line of the file, and what it accepts says
// the same when it is written by the Kubernetes encoder and read again.
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
		p := parser{opts: opts, strip: source.Stripper{Options: opts, Skipped: new(source.Skipped)}}
		c, bad := p.parse(name, content)
		if bad != nil {
			// YAML has more line breaks than a line feed; no problem is behind the last byte.
			if bad.line < 1 || bad.line > len(content)+1 {
				t.Errorf("line %d of %d bytes", bad.line, len(content))
			}
			return
		}
		again, bad := p.parse("again.json", encode(t, name, content))
		if bad != nil {
			t.Fatalf("not accepted again: %v", bad)
		}
		if len(c.objects) != len(again.objects) {
			t.Fatalf("%d objects and %d again", len(c.objects), len(again.objects))
		}
		for i, o := range c.objects {
			a := again.objects[i]
			a.line = o.line
			if !reflect.DeepEqual(records(p, o), records(p, a)) {
				t.Errorf("%s: %+v and again %+v", o.key, records(p, o), records(p, a))
			}
		}
	})
}

// records returns an object without the API object that it may wait with.
func records(p parser, o *object) object {
	r := *o
	if o.unplaced != nil {
		r.slice, r.unplaced = p.strip.Slice(withZones(o.unplaced, map[string]string{"node-1": "zone-1"})), nil
	}
	return r
}

// encode writes the objects of a file as JSON, as the Kubernetes encoder does.
func encode(t *testing.T, name string, content []byte) (out []byte) {
	t.Helper()
	roots, bad := documents(name, content)
	if bad != nil {
		t.Fatal(bad)
	}
	var r reading
	for _, n := range flatten(t, &r, roots) {
		h, bad := r.header(n.node, position{line: 1}, n.of)
		if bad != nil {
			t.Fatal(bad)
		}
		k, ok := kinds[h.kind]
		if !ok || !slices.Contains(k.apiVersions, h.apiVersion) {
			continue
		}
		o := k.new()
		if bad := r.decoder.decode(n.node, reflect.ValueOf(o).Elem(), position{line: 1}); bad != nil {
			t.Fatal(bad)
		}
		m := reflect.ValueOf(o).Elem().FieldByName("TypeMeta")
		m.FieldByName("Kind").SetString(h.kind)
		m.FieldByName("APIVersion").SetString(h.apiVersion)
		text, err := json.Marshal(o)
		if err != nil {
			t.Skipf("the encoder refuses it: %v", err)
		}
		out = append(append(out, text...), '\n')
	}
	return out
}

type item struct {
	node *yaml.Node
	of   metav1.TypeMeta
}

func flatten(t *testing.T, r *reading, roots []*yaml.Node) (all []item) {
	t.Helper()
	for _, n := range roots {
		h, bad := r.header(n, position{line: 1}, metav1.TypeMeta{})
		if bad != nil {
			t.Fatal(bad)
		}
		of := metav1.TypeMeta{}
		kind, isList := strings.CutSuffix(h.kind, "List")
		k, known := kinds[kind]
		switch {
		case isList && known:
			of.Kind, of.APIVersion = kind, h.apiVersion
			if !slices.Contains(k.apiVersions, h.apiVersion) {
				continue // of custom resources
			}
		case h.kind == "List":
			if h.apiVersion != "v1" {
				continue
			}
		default:
			all = append(all, item{node: n})
			continue
		}
		var c collection
		if bad := r.decoder.decode(n, reflect.ValueOf(&c).Elem(), position{line: 1}); bad != nil {
			t.Fatal(bad)
		}
		for _, n := range c.Items {
			all = append(all, item{n, of})
		}
	}
	return all
}
