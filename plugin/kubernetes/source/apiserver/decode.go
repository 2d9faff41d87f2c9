package apiserver

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// decoder decodes objects in protobuf, those of lists and of events, to their records. To decode them first to objects of Kubernetes' API
// packages would be most of the cost, and all of it garbage.
type decoder struct {
	kinds map[string]kindDecoder
	index atomic.Pointer[index.Index] // has the present records; nil until the source runs
}

// kindDecoder decodes the objects of a kind with this apiVersion.
type kindDecoder struct {
	version string
	decode  func(message []byte) (*decoded, error)
}

// decoded is an object as its record. Its metadata are those that the reflector reads, deletionTimestamp, and readAnnotations.
type decoded struct {
	metav1.PartialObjectMetadata
	record any // a pointer, as in typed; nil of an object without a name, as in a bookmark
}

// DeepCopyObject implements runtime.Object. The copy has the same record: records do not change.
func (d *decoded) DeepCopyObject() runtime.Object { return &decoded{*d.DeepCopy(), d.record} }

// readAnnotations are those of a bookmark that ends a streamed list, and of the EndpointSlices of the controller.
var readAnnotations = [...]string{metav1.InitialEventsAnnotationKey, corev1.EndpointsLastChangeTriggerTime}

// decodedList is a list of objects.
type decodedList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*decoded
}

// DeepCopyObject implements runtime.Object.
func (l *decodedList) DeepCopyObject() runtime.Object {
	return &decodedList{l.TypeMeta, *l.ListMeta.DeepCopy(), slices.Clone(l.Items)}
}

// newDecoder returns the decoder of the kinds of which clusters have many objects, and of namespaces.
func newDecoder(s source.Stripper) *decoder {
	d := new(decoder)
	core, discovery := corev1.SchemeGroupVersion.String(), discoveryv1.SchemeGroupVersion.String()
	d.kinds = map[string]kindDecoder{
		"Namespace":     {core, decodeTo(s, (*message).namespace, func(m *message) any { return namespaceRecord(s, &m.namespaceObject) })},
		"Service":       {core, decodeTo(s, (*message).service, func(m *message) any { return s.Service(&m.serviceObject) })},
		"Pod":           {core, decodeTo(s, (*message).pod, func(m *message) any { return podRecord(s, &m.podObject) })},
		"EndpointSlice": {discovery, decodeTo(s, (*message).slice, func(m *message) any { return d.slice(s, &m.sliceObject) })},
	}
	return d
}

// slice returns the record of an EndpointSlice, that of the index if it is equal: after a relist nearly all are.
func (d *decoder) slice(s source.Stripper, o *discoveryv1.EndpointSlice) *index.Slice {
	ix := d.index.Load()
	if ix == nil {
		return s.Slice(o)
	}
	return s.SliceOr(o, ix.SliceRecord(o.Namespace, o.Name))
}

// decodeTo returns a function that reads the fields of an encoded object, and makes its record of them.
func decodeTo(s source.Stripper, read func(m *message, b []byte) *metav1.ObjectMeta, record func(*message) any) func(b []byte) (*decoded, error) {
	return func(b []byte) (*decoded, error) {
		m := messages.Get().(*message)
		defer m.release()
		m.options = &s.Options
		from := read(m, b)
		if m.malformed {
			return nil, errMalformed
		}
		d := &decoded{}
		d.Namespace, d.Name, d.ResourceVersion = strings.Clone(from.Namespace), strings.Clone(from.Name), strings.Clone(from.ResourceVersion)
		d.DeletionTimestamp = from.DeletionTimestamp
		for _, key := range readAnnotations {
			if value, ok := from.Annotations[key]; ok {
				metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, strings.Clone(value))
			}
		}
		if d.Name != "" {
			d.record = record(m)
		}
		return d, nil
	}
}

var errMalformed = errors.New("malformed protobuf")

// recordCodecs are codecs that decode objects to their records. Objects in other encodings, and of other kinds, are decoded whole.
type recordCodecs struct {
	runtime.NegotiatedSerializer
	types []runtime.SerializerInfo
}

func newRecordCodecs(whole runtime.NegotiatedSerializer, d *decoder) recordCodecs {
	c := recordCodecs{whole, slices.Clone(whole.SupportedMediaTypes())} // cloned, since whole has other users
	for i := range c.types {
		if info := &c.types[i]; info.MediaType == runtime.ContentTypeProtobuf {
			info.Serializer = recordSerializer{info.Serializer, d}
			stream := *info.StreamSerializer
			stream.Serializer = eventSerializer{stream.Serializer}
			info.StreamSerializer = &stream
		}
	}
	return c
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c recordCodecs) SupportedMediaTypes() []runtime.SerializerInfo { return c.types }

type recordSerializer struct {
	runtime.Serializer
	decoder *decoder
}

// Decode implements runtime.Serializer. It returns a decoded or a decodedList unless into is given.
func (s recordSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil {
		if o, kind, err := s.decoder.decode(data); o != nil || err != nil {
			return o, kind, err
		}
	}
	return s.Serializer.Decode(data, defaults, into)
}

// envelope precedes the message runtime.Unknown. Field 1 of the message is the type of an object, with apiVersion and kind; field
// 2 is the object.
var envelope = []byte("k8s\x00")

// decode returns an object or a list, nil if it is of another kind.
func (d *decoder) decode(data []byte) (runtime.Object, *schema.GroupVersionKind, error) {
	unknown, ok := bytes.CutPrefix(data, envelope)
	if !ok {
		return nil, nil, nil
	}
	typeMeta := bytesField(unknown, 1)
	version, kind := string(bytesField(typeMeta, 1)), string(bytesField(typeMeta, 2))
	object, isList := strings.CutSuffix(kind, "List")
	how, ok := d.kinds[object]
	if !ok || version != how.version {
		return nil, nil, nil
	}
	encoded := bytesField(unknown, 2)
	if encoded == nil { // the response has ended before: it is no empty list
		return nil, nil, errMalformed
	}
	gvk := schema.FromAPIVersionAndKind(version, kind)
	var o runtime.Object
	var err error
	if isList {
		o, err = decodeList(encoded, how.decode)
	} else {
		o, err = how.decode(encoded)
	}
	if err != nil {
		return nil, nil, err
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return o, &gvk, nil
}

// decodeList decodes a list: field 1 has its metadata, each field 2 an object.
func decodeList(b []byte, decode func([]byte) (*decoded, error)) (*decodedList, error) {
	list, malformed := &decodedList{}, false
	for f := (reader{malformed: &malformed, rest: b}); f.next(); {
		switch f.number {
		case 1:
			if err := list.ListMeta.Unmarshal(f.bytes); err != nil {
				return nil, err
			}
		case 2:
			o, err := decode(f.bytes)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, o)
		}
	}
	if malformed {
		return nil, errMalformed
	}
	return list, nil
}

// eventSerializer decodes the events of a watch without a copy of their objects: these are decoded before the next event is read.
type eventSerializer struct{ runtime.Serializer }

// Decode implements runtime.Serializer.
func (s eventSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	event, ok := into.(*metav1.WatchEvent)
	if !ok {
		return s.Serializer.Decode(data, defaults, into)
	}
	event.Reset()
	event.Type = string(bytesField(data, 1))
	event.Object.Raw = bytesField(bytesField(data, 2), 1) // of the message runtime.RawExtension
	return event, defaults, nil
}

// bytesField returns the value of the field with a number, nil if there is none before the end or a malformed field. Of several the last one
// counts.
func bytesField(b []byte, number protowire.Number) (last []byte) {
	malformed := false
	for f := (reader{malformed: &malformed, rest: b}); f.next(); {
		if f.number == number {
			last = f.bytes
		}
	}
	return last
}
