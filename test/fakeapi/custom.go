package fakeapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// custom is what is different about a resource that a CustomResourceDefinition
// defines: its objects are JSON, in whatever order of fields the API server
// writes them, and each version of it is served or not.
type custom struct {
	singular   string
	shortNames []string
	status     bool // has the subresource status
	absent     bool // until ServeVersions says otherwise
}

// ClusterProperty is a fact about the cluster (KEP-2149), such as its ID in
// the ClusterSet. It belongs to no namespace.
type ClusterProperty struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec ClusterPropertySpec `json:"spec"`
}

// ClusterPropertySpec is the spec of a ClusterProperty.
type ClusterPropertySpec struct {
	Value string `json:"value"`
}

// DeepCopyObject gives a copy that shares nothing.
func (p *ClusterProperty) DeepCopyObject() runtime.Object {
	c := *p
	p.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// ServeVersions says which versions of a custom resource are served, as the
// versions of its CustomResourceDefinition do. Without any the resource is
// absent, as it is without the definition: its paths give 404, and discovery
// does not name it. ServiceImports and ClusterProperties are served in all
// their versions at first, ServiceExports in none.
//
// Watches on the resource are ended, as a real server does whenever the
// definition changes. Objects are kept, and can be changed, meanwhile; a real
// server deletes them before the definition goes.
func (s *Server) ServeVersions(resource string, versions ...string) error {
	s.state.mu.Lock()
	c := s.state.collections[resource]
	if c == nil || c.res.custom == nil {
		s.state.mu.Unlock()
		return fmt.Errorf("serve versions: no custom resource %q", resource)
	}
	for _, v := range versions {
		if !slices.Contains(c.res.versions, v) {
			s.state.mu.Unlock()
			return fmt.Errorf("serve versions: %s has no version %q: only %q", resource, v, c.res.versions)
		}
	}
	c.served = slices.Clone(versions)
	s.state.mu.Unlock()
	s.watches.drop(resource)
	return nil
}

// customRaw gives the stored form of an object of a custom resource: JSON with
// its fields in alphabetical order, without apiVersion and kind.
func customRaw(obj object) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	delete(fields, "apiVersion")
	delete(fields, "kind")
	if status, ok := fields["status"].(map[string]any); ok && len(status) == 0 {
		delete(fields, "status") // Go types have one that nobody wrote
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	return raw, nil
}

// customJSON gives the whole JSON object of a stored form in one version of
// its API. The two fields that it lacks come before all others.
func customJSON(gvk schema.GroupVersionKind, raw []byte) []byte {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	return slices.Concat(fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,`, apiVersion, kind), raw[1:])
}

// customList gives the list of custom objects, whose fields are in
// alphabetical order as well.
func customList(gvk schema.GroupVersionKind, meta metav1.ListMeta, versions []*version) (runtime.Object, error) {
	l := struct {
		APIVersion string            `json:"apiVersion"`
		Items      []json.RawMessage `json:"items"`
		Kind       string            `json:"kind"`
		Metadata   struct {
			Continue           string `json:"continue"`
			RemainingItemCount *int64 `json:"remainingItemCount,omitempty"`
			ResourceVersion    string `json:"resourceVersion"`
		} `json:"metadata"`
	}{Items: make([]json.RawMessage, len(versions))}
	l.APIVersion, l.Kind = gvk.GroupVersion().String(), gvk.Kind+"List"
	l.Metadata.Continue, l.Metadata.RemainingItemCount, l.Metadata.ResourceVersion = meta.Continue, meta.RemainingItemCount, meta.ResourceVersion
	for i, v := range versions {
		l.Items[i] = customJSON(gvk, v.raw)
	}
	raw, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("encode list of %s: %w", gvk.Kind, err)
	}
	return &runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}, nil
}

// customBookmark gives the object of a BOOKMARK event of a custom resource.
func customBookmark(gvk schema.GroupVersionKind) object {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(gvk)
	return u
}

// encodeRaw gives the stored form of an object at a resource version.
func encodeRaw(c *codecs, res *resource, obj object, rv uint64) ([]byte, error) {
	obj.SetResourceVersion(strconv.FormatUint(rv, 10))
	if res.custom != nil {
		return customRaw(obj)
	}
	var buf bytes.Buffer
	if err := c.protobuf.stream.Encode(obj, &buf); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// decodeRaw reads a stored form into an empty object.
func decodeRaw(c *codecs, res *resource, raw []byte, into object) error {
	if res.custom != nil {
		return json.Unmarshal(raw, into)
	}
	gvk := res.gvk(res.versions[0])
	_, _, err := c.protobuf.stream.Decode(raw, &gvk, into)
	return err
}
