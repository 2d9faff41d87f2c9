package apiserver

import (
	"bytes"
	"iter"
	"reflect"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// fieldSet has the fields of a protobuf message that are decoded, by number. nil stands for all fields of the message, and for the value of
// a field that is not a message.
type fieldSet map[protowire.Number]fieldSet

// partialKind is how a kind of object is decoded.
type partialKind struct {
	version string // the apiVersion of its objects
	create  func(fields []byte) protobufObject
	fields  fieldSet
}

// protobufObject is an object of Kubernetes' API packages.
type protobufObject interface {
	runtime.Object
	Reset()
	Unmarshal([]byte) error
}

// partialKinds returns how objects, and their lists, are decoded for a Stripper with these options: with the fields that it reads. The
// numbers are those of generated.proto in the API's packages. A kind that is missing is decoded whole.
func partialKinds(o source.Options) map[string]partialKind {
	endpoint := fieldSet{
		1: nil,      // addresses
		2: {1: nil}, // conditions.ready
		3: nil,      // hostname
	}
	if o.EndpointPodNames {
		endpoint[4] = fieldSet{3: nil} // targetRef.name
	}
	if o.Zones || o.Topology {
		endpoint[7] = nil // zone
	}
	if o.Topology {
		endpoint[6] = nil // nodeName
		endpoint[8] = nil // hints
	}
	podSpec, podStatus := fieldSet{}, fieldSet{
		1:  nil, // phase
		12: nil, // podIPs
	}
	if o.Topology {
		podSpec[10] = nil // nodeName
	}
	if o.SearchPaths {
		podSpec[6] = nil                                                       // dnsPolicy
		podSpec[11] = nil                                                      // hostNetwork
		podSpec[26] = nil                                                      // dnsConfig
		started := fieldSet{2: {2: nil}}                                       // state.running
		podStatus[2] = fieldSet{1: nil, 2: nil}                                // conditions, type and status
		podStatus[8], podStatus[10], podStatus[13] = started, started, started // containerStatuses, also init and ephemeral
	}
	serviceSpec := fieldSet{
		1:  {1: nil, 2: nil, 3: nil}, // ports: name, protocol, port
		3:  nil,                      // clusterIP
		4:  nil,                      // type
		5:  nil,                      // externalIPs
		10: nil,                      // externalName
		18: nil,                      // clusterIPs
	}
	if o.Topology {
		serviceSpec[22] = nil // internalTrafficPolicy
		serviceSpec[23] = nil // trafficDistribution
	}
	pod := fieldSet{1: metadata(9 /* deletionTimestamp */), 3: podStatus}
	if !o.PodsOnly {
		pod[1][11] = nil // labels
	}
	if len(podSpec) > 0 {
		pod[2] = podSpec
	}
	slice := fieldSet{1: metadata(11 /* labels */), endpointsOfSlice: endpoint, 3: nil /* ports */, 4: nil /* addressType */}
	service := fieldSet{1: metadata(), 2: serviceSpec, 3: {1: nil} /* status.loadBalancer */}
	list := func(items fieldSet) fieldSet { return fieldSet{1: nil /* metadata */, 2: items} }
	core, discovery := corev1.SchemeGroupVersion.String(), discoveryv1.SchemeGroupVersion.String()
	return map[string]partialKind{
		"Namespace":         {core, create[corev1.Namespace], fieldSet{1: metadata()}},
		"NamespaceList":     {core, create[corev1.NamespaceList], list(fieldSet{1: metadata()})},
		"EndpointSlice":     {discovery, createSlice, slice},
		"EndpointSliceList": {discovery, create[discoveryv1.EndpointSliceList], list(slice)},
		"Service":           {core, create[corev1.Service], service},
		"ServiceList":       {core, create[corev1.ServiceList], list(service)},
		"Pod":               {core, create[corev1.Pod], pod},
		"PodList":           {core, create[corev1.PodList], list(pod)},
	}
}

func create[T any, P interface {
	*T
	protobufObject
}]([]byte) protobufObject {
	return P(new(T))
}

const endpointsOfSlice = 2 // number of the field endpoints of an EndpointSlice

// createSlice returns an EndpointSlice with capacity for its endpoints, which take most of the memory of all objects.
func createSlice(fields []byte) protobufObject {
	n := 0
	for number := range eachOf(fields) {
		if number == endpointsOfSlice {
			n++
		}
	}
	return &discoveryv1.EndpointSlice{Endpoints: make([]discoveryv1.Endpoint, 0, n)}
}

// metadata returns the fields of an object's metadata that the reflector and all records need, and others.
func metadata(others ...protowire.Number) fieldSet {
	f := fieldSet{
		1:  nil, // name
		3:  nil, // namespace
		5:  nil, // uid
		6:  nil, // resourceVersion
		12: nil, // annotations: that of a bookmark ends a streamed list
	}
	for _, number := range others {
		f[number] = nil
	}
	return f
}

// appendTo appends the fields of an encoded message to b. It reports whether the message is well-formed, as far as it is read.
func (f fieldSet) appendTo(b, message []byte) ([]byte, bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return b, false
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return b, false
		}
		field := message[:n+size]
		message = message[n+size:]
		inner, ok := f[number]
		switch {
		case !ok:
		case inner == nil:
			b = append(b, field...)
		case kind != protowire.BytesType:
			return b, false
		default:
			value, _ := protowire.ConsumeBytes(field[n:])
			if b, ok = inner.appendMessage(append(b, field[:n]...), value); !ok {
				return b, false
			}
		}
	}
	return b, true
}

// appendMessage appends the fields of an inner message with their length.
func (f fieldSet) appendMessage(b, message []byte) ([]byte, bool) {
	start := len(b)
	b = protowire.AppendVarint(b, uint64(len(message))) // at least as long as that of fewer fields
	first := len(b)
	b, ok := f.appendTo(b, message)
	short := protowire.AppendVarint(b[:start], uint64(len(b)-first))
	return append(short, b[first:]...), ok
}

// partial decodes only some fields of objects: others, as managedFields, are most of an object, and each event and each list would leave
// them as garbage. Objects in other encodings than protobuf are decoded whole.
type partial struct {
	runtime.NegotiatedSerializer
	types []runtime.SerializerInfo
}

// newPartial returns codecs that decode objects by their kind.
func newPartial(whole runtime.NegotiatedSerializer, kinds map[string]partialKind) partial {
	p := partial{whole, slices.Clone(whole.SupportedMediaTypes())} // cloned, since whole has other users
	for i := range p.types {
		if info := &p.types[i]; info.MediaType == runtime.ContentTypeProtobuf {
			info.Serializer = partialSerializer{info.Serializer, kinds}
			stream := *info.StreamSerializer
			stream.Serializer = eventSerializer{stream.Serializer}
			info.StreamSerializer = &stream
		}
	}
	return p
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (p partial) SupportedMediaTypes() []runtime.SerializerInfo { return p.types }

type partialSerializer struct {
	runtime.Serializer
	kinds map[string]partialKind
}

// Decode implements runtime.Serializer. It leaves an object that it cannot decode to the next serializer, which reports errors.
func (p partialSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if o, kind := p.decode(data, into); o != nil {
		return o, kind, nil
	}
	return p.Serializer.Decode(data, defaults, into)
}

// envelope precedes the message runtime.Unknown. Field 1 of the message is the type of an object, with apiVersion and kind; field
// 2 is the object.
var envelope = []byte("k8s\x00")

// decode returns the object, nil if it is of another kind or malformed.
func (p partialSerializer) decode(data []byte, into runtime.Object) (runtime.Object, *schema.GroupVersionKind) {
	message, ok := bytes.CutPrefix(data, envelope)
	if !ok {
		return nil, nil
	}
	typeMeta := bytesField(message, 1)
	name := bytesField(typeMeta, 2)
	how, ok := p.kinds[string(name)]
	if !ok || string(bytesField(typeMeta, 1)) != how.version {
		return nil, nil
	}
	buffer := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buffer) <= maxBuffer {
			buffers.Put(buffer)
		}
	}()
	if *buffer, ok = how.fields.appendTo((*buffer)[:0], bytesField(message, 2)); !ok {
		return nil, nil
	}
	o := how.create(*buffer)
	if into != nil { // a list
		if reflect.TypeOf(into) != reflect.TypeOf(o) {
			return nil, nil
		}
		o = into.(protobufObject)
		o.Reset()
	}
	if o.Unmarshal(*buffer) != nil { // it copies the fields
		return nil, nil
	}
	kind := schema.FromAPIVersionAndKind(how.version, string(name))
	o.GetObjectKind().SetGroupVersionKind(kind)
	return o, &kind
}

// buffers have the encoded fields of an object while it is decoded.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxBuffer is the size of a buffer, in bytes, up to which it is used again: larger ones, as for lists, are rarely needed.
const maxBuffer = 1 << 20

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

// eachOf yields the fields of an encoded message with their values, which are nil unless they are a message, a text or bytes. It ends at a
// malformed field.
func eachOf(message []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for len(message) > 0 {
			number, kind, n := protowire.ConsumeTag(message)
			if n < 0 {
				return
			}
			size := protowire.ConsumeFieldValue(number, kind, message[n:])
			if size < 0 {
				return
			}
			var value []byte
			if kind == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(message[n:])
			}
			if message = message[n+size:]; !yield(number, value) {
				return
			}
		}
	}
}

// bytesField returns the value of the field with a number, nil if there is none. Of several the last one counts.
func bytesField(message []byte, number protowire.Number) (last []byte) {
	for at, value := range eachOf(message) {
		if at == number {
			last = value
		}
	}
	return last
}
