package fakeapi

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// key names an object within its resource.
type key struct{ namespace, name string }

func (k key) less(o key) bool {
	if k.namespace != o.namespace {
		return k.namespace < o.namespace
	}
	return k.name < o.name
}

// version is one state of one object. It never changes once made. The object
// is kept as its protobuf bytes, which lists and watches send as they are;
// other forms are decoded from them when asked for. That of a custom resource
// is kept as JSON.
type version struct {
	res    *resource
	key    key
	rv     uint64 // resource version
	uid    string
	raw    []byte // protobuf message, without the "k8s\x00" envelope; or see customRaw
	labels labels.Set
	fields fields.Set
}

// newVersion encodes obj, which the caller no longer uses afterwards, at the
// resource version rv.
func newVersion(c *codecs, res *resource, obj object, rv uint64) (*version, error) {
	raw, err := encodeRaw(c, res, obj, rv)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s/%s: %w", res.name, obj.GetNamespace(), obj.GetName(), err)
	}
	return &version{
		res:    res,
		key:    key{obj.GetNamespace(), obj.GetName()},
		rv:     rv,
		uid:    string(obj.GetUID()),
		raw:    raw,
		labels: obj.GetLabels(),
		fields: res.fields(obj),
	}, nil
}

// decode gives the object back, with kind and apiVersion set: those of the
// resource's preferred version.
func (v *version) decode(c *codecs) (object, error) {
	obj := v.res.newObject()
	if err := decodeRaw(c, v.res, v.raw, obj); err != nil {
		return nil, fmt.Errorf("decode %s %s/%s: %w", v.res.name, v.key.namespace, v.key.name, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(v.res.gvk(v.res.versions[0]))
	return obj, nil
}

// partial gives the metadata of the object alone. Metadata is the first field
// of every API object, so that its bytes can be read as those of a
// PartialObjectMetadata, which ignores the other fields.
func (v *version) partial() (p *metav1.PartialObjectMetadata, err error) {
	p = &metav1.PartialObjectMetadata{}
	if v.res.custom != nil {
		err = json.Unmarshal(v.raw, p)
	} else {
		err = p.Unmarshal(v.raw)
	}
	if err != nil {
		return nil, fmt.Errorf("decode metadata of %s %s/%s: %w", v.res.name, v.key.namespace, v.key.name, err)
	}
	p.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(partialKind))
	return p, nil
}

// at gives the same state under another resource version, as the last state of
// an object carries the version of its deletion.
func (v *version) at(c *codecs, rv uint64) (*version, error) {
	obj, err := v.decode(c)
	if err != nil {
		return nil, err
	}
	return newVersion(c, v.res, obj, rv)
}

// Has and Get make a version the set of fields which field selectors match.
func (v *version) Has(field string) bool {
	switch field {
	case "metadata.name", "metadata.namespace":
		return true
	}
	return v.fields.Has(field)
}

// Get gives the value of a field, or "" when there is none.
func (v *version) Get(field string) string {
	switch field {
	case "metadata.name":
		return v.key.name
	case "metadata.namespace":
		return v.key.namespace
	}
	return v.fields.Get(field)
}

// filter says which objects a request is about.
type filter struct {
	namespace string // "" is all namespaces
	labels    labels.Selector
	fields    fields.Selector
}

func (f filter) matches(v *version) bool {
	return (f.namespace == "" || f.namespace == v.key.namespace) &&
		f.labels.Matches(v.labels) && f.fields.Matches(v)
}
