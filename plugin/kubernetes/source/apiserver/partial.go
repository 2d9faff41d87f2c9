package apiserver

import (
	"bytes"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// fieldSet has the fields of a protobuf message that are decoded, by number. nil stands for all fields of the message, and for the value of
// a field that is not a message.
type fieldSet map[protowire.Number]fieldSet

// fieldsOf returns the fields of each kind of object, and of its list, that a Stripper with these options reads, in the message
// runtime.Unknown around the object, as its field 2. The numbers are those of generated.proto in the API's packages. A kind that is missing
// is decoded whole.
func fieldsOf(o source.Options) map[string]fieldSet {
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
	envelopes := map[string]fieldSet{}
	for kind, object := range map[string]fieldSet{
		"Namespace":     {1: metadata()},
		"EndpointSlice": {1: metadata(11 /* labels */), 2: endpoint, 3: nil /* ports */, 4: nil /* addressType */},
		"Service":       {1: metadata(), 2: serviceSpec, 3: {1: nil} /* status.loadBalancer */},
		"Pod":           pod,
	} {
		list := fieldSet{1: nil /* metadata */, 2: object /* items */}
		envelopes[kind], envelopes[kind+"List"] = fieldSet{1: nil, 2: object}, fieldSet{1: nil, 2: list}
	}
	return envelopes
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
	fields map[string]fieldSet // by kind
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (p partial) SupportedMediaTypes() []runtime.SerializerInfo {
	all := p.NegotiatedSerializer.SupportedMediaTypes()
	for i := range all {
		if all[i].MediaType == runtime.ContentTypeProtobuf {
			all[i].Serializer = partialSerializer{all[i].Serializer, p.fields}
		}
	}
	return all
}

type partialSerializer struct {
	runtime.Serializer
	fields map[string]fieldSet
}

// Decode implements runtime.Serializer. Data that is not a message in the envelope of Kubernetes is left to the next serializer, and so
// are its errors.
func (p partialSerializer) Decode(data []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	message, ok := bytes.CutPrefix(data, envelopePrefix)
	if !ok {
		return p.Serializer.Decode(data, kind, into)
	}
	f, ok := p.fields[string(kindOf(message))]
	if !ok {
		return p.Serializer.Decode(data, kind, into)
	}
	buffer := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buffer) <= maxBuffer {
			buffers.Put(buffer)
		}
	}()
	if *buffer, ok = f.appendTo(append((*buffer)[:0], envelopePrefix...), message); !ok {
		return p.Serializer.Decode(data, kind, into)
	}
	return p.Serializer.Decode(*buffer, kind, into) // which copies what it needs
}

// envelopePrefix is before each message runtime.Unknown.
var envelopePrefix = []byte("k8s\x00")

// kindOf returns the kind of the object in a message runtime.Unknown: its typeMeta, field 1, has it as field 2.
func kindOf(message []byte) []byte {
	return bytesField(bytesField(message, 1), 2)
}

// bytesField returns the first field with a number, nil if there is none.
func bytesField(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		at, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		if at == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			return value
		}
		size := protowire.ConsumeFieldValue(at, kind, message[n:])
		if size < 0 {
			return nil
		}
		message = message[n+size:]
	}
	return nil
}

// buffers have the encoded fields of an object while it is decoded.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxBuffer is the size of a buffer, in bytes, up to which it is used again: that of a list is rarely needed.
const maxBuffer = 1 << 20
