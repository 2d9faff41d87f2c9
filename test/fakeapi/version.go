package fakeapi

import (
	"bytes"
	"fmt"
	"strconv"

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
// other forms are decoded from them when asked for.
type version struct {
	res    *resource
	key    key
	rv     uint64 // resource version
	uid    string
	raw    []byte // protobuf message, without the "k8s\x00" envelope
	labels labels.Set
	fields fields.Set
}

// newVersion encodes obj, which the caller no longer uses afterwards, at the
// resource version rv.
func newVersion(c *codecs, res *resource, obj object, rv uint64) (*version, error) {
	obj.SetResourceVersion(strconv.FormatUint(rv, 10))
	var buf bytes.Buffer
	if err := c.protobuf.stream.Encode(obj, &buf); err != nil {
		return nil, fmt.Errorf("encode %s %s/%s: %w", res.name, obj.GetNamespace(), obj.GetName(), err)
	}
	return &version{
		res:    res,
		key:    key{obj.GetNamespace(), obj.GetName()},
		rv:     rv,
		uid:    string(obj.GetUID()),
		raw:    bytes.Clone(buf.Bytes()),
		labels: obj.GetLabels(),
		fields: res.fields(obj),
	}, nil
}

// decode gives the object back, with kind and apiVersion set.
func (v *version) decode(c *codecs) (object, error) {
	obj := v.res.newObject()
	gvk := v.res.gvk()
	if _, _, err := c.protobuf.stream.Decode(v.raw, &gvk, obj); err != nil {
		return nil, fmt.Errorf("decode %s %s/%s: %w", v.res.name, v.key.namespace, v.key.name, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj, nil
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
