package fakeapi

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// codecs are the encodings the server speaks, as apimachinery implements them.
type codecs struct {
	json     *encoding
	protobuf *encoding
}

// encoding is one media type.
type encoding struct {
	name       string             // media type, such as "application/json"
	watchName  string             // media type of a watch stream
	serializer runtime.Serializer // whole objects
	stream     runtime.Serializer // watch event frames
	framer     runtime.Framer
}

// newCodecs registers the few API groups the server knows and picks their
// serializers.
func newCodecs() (*codecs, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	factory := serializer.NewCodecFactory(scheme,
		serializer.WithStreamingCollectionEncodingToProtobuf(),
		serializer.DisablePretty)

	c := &codecs{}
	for _, info := range factory.SupportedMediaTypes() {
		if info.StreamSerializer == nil {
			continue
		}
		e := &encoding{
			name:       info.MediaType,
			watchName:  info.MediaType,
			serializer: info.Serializer,
			stream:     info.StreamSerializer.Serializer,
			framer:     info.StreamSerializer.Framer,
		}
		switch info.MediaType {
		case runtime.ContentTypeJSON:
			c.json = e
		case runtime.ContentTypeProtobuf:
			e.watchName += ";stream=watch"
			c.protobuf = e
		}
	}
	if c.json == nil || c.protobuf == nil {
		return nil, fmt.Errorf("no serializers for %s and %s", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf)
	}
	return c, nil
}

// representation is the form of objects which a client asked for: an encoding,
// a version of their API, and whole objects or only their metadata.
type representation struct {
	codecs       *codecs
	encoding     *encoding
	version      string
	metadataOnly bool
	metadataList bool // the client named the kind for lists
}

// contentType names the representation for Requests.
func (r representation) contentType() string {
	if r.metadataOnly {
		return r.encoding.name + ";as=PartialObjectMetadata"
	}
	return r.encoding.name
}

// fits tells whether metadata was asked for by the kind which goes with the
// object at hand, one or a list of a resource.
func (r representation) fits(res *resource, list bool) error {
	goType := "core." + res.kind
	if res.group != "" {
		group, _, _ := strings.Cut(res.group, ".")
		goType = group + "." + res.kind
	}
	if res.custom != nil {
		goType = "unstructured.Unstructured"
	}
	switch {
	case !r.metadataOnly || r.metadataList == list:
		return nil
	case list:
		return errNotAcceptable(fmt.Sprintf("you requested %s, but the requested object is a list (*%sList)", partialKind, goType))
	case res.custom != nil:
		return errNoList()
	default:
		return errNotAcceptable(fmt.Sprintf("you requested %s, but the requested object is not a list (*%s)", partialListKind, goType))
	}
}

// single gives an object which the encoding's serializer writes as v. Whole
// protobuf objects are not encoded anew, only wrapped, and so are those of
// custom resources.
func (r representation) single(v *version) (runtime.Object, error) {
	switch {
	case r.metadataOnly:
		return v.partial()
	case v.res.custom != nil:
		return &runtime.Unknown{Raw: customJSON(v.res.gvk(r.version), v.raw), ContentType: runtime.ContentTypeJSON}, nil
	case r.encoding == r.codecs.protobuf:
		apiVersion, kind := v.res.gvk(r.version).ToAPIVersionAndKind()
		return &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: v.raw}, nil
	default:
		return v.decode(r.codecs)
	}
}

// bookmark gives the object of a BOOKMARK event: one with nothing but a
// resource version and, for the one at the end of the initial events, the
// annotation that says so.
func (r representation) bookmark(res *resource, rv uint64, initialEventsEnd bool) runtime.Object {
	var obj object
	switch {
	case r.metadataOnly:
		obj = &metav1.PartialObjectMetadata{}
		obj.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(partialKind))
	case res.custom != nil:
		obj = customBookmark(res.gvk(r.version))
	default:
		obj = res.newObject()
		obj.GetObjectKind().SetGroupVersionKind(res.gvk(r.version))
	}
	obj.SetResourceVersion(strconv.FormatUint(rv, 10))
	if initialEventsEnd {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return obj
}

// list gives an object which the encoding's serializer writes as the typed
// list of versions.
func (r representation) list(res *resource, meta metav1.ListMeta, versions []*version) (runtime.Object, error) {
	gvk := res.gvk(r.version)
	if res.custom != nil && !r.metadataOnly {
		return customList(gvk, meta, versions)
	}
	l := &list{ListMeta: meta, Items: make([]listItem, len(versions))}
	gvk.Kind += "List"
	if r.metadataOnly {
		gvk = metav1.SchemeGroupVersion.WithKind(partialListKind)
	}
	if r.metadataOnly && len(versions) == 0 {
		l.Items = nil // "null" in JSON, as a real server has it
	}
	l.APIVersion, l.Kind = gvk.ToAPIVersionAndKind()
	for i, v := range versions {
		item, err := r.listItem(v)
		if err != nil {
			return nil, err
		}
		l.Items[i] = listItem{bytes: item}
	}
	return l, nil
}

// listItem gives the bytes of one element of a list. Elements carry no kind of
// their own, except as PartialObjectMetadata in JSON.
func (r representation) listItem(v *version) ([]byte, error) {
	if !r.metadataOnly && r.encoding == r.codecs.protobuf {
		return v.raw, nil
	}
	obj, err := r.single(v)
	if err != nil {
		return nil, err
	}
	if !r.metadataOnly {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	var buf bytes.Buffer
	if err := r.encoding.stream.Encode(obj, &buf); err != nil {
		return nil, fmt.Errorf("encode list element: %w", err)
	}
	return buf.Bytes(), nil
}

// list has the fields, JSON names and protobuf tags of every typed list, with
// elements which are encoded already.
type list struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Items           []listItem `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// DeepCopyObject is there to make list a runtime.Object; elements are shared.
func (l *list) DeepCopyObject() runtime.Object {
	c := *l
	return &c
}

// listItem is an encoded element of a list.
type listItem struct{ bytes []byte }

// GetObjectKind and DeepCopyObject are there to make listItem a runtime.Object.
func (i *listItem) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject gives an element with the same bytes.
func (i *listItem) DeepCopyObject() runtime.Object { return &listItem{bytes: i.bytes} }

// Size and Marshal give the protobuf form, in bytes.
func (i *listItem) Size() int { return len(i.bytes) }

// Marshal gives the protobuf form.
func (i *listItem) Marshal() ([]byte, error) { return i.bytes, nil }

// MarshalJSON gives the JSON form.
func (i listItem) MarshalJSON() ([]byte, error) { return i.bytes, nil }

// write encodes obj to w.
func (e *encoding) write(obj runtime.Object, w io.Writer) error {
	if err := e.serializer.Encode(obj, w); err != nil {
		return fmt.Errorf("encode %s: %w", e.name, err)
	}
	return nil
}
