package apiserver

import (
	"sync"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// message has the object of an encoded message, with the fields that a Stripper reads. Until release, its strings are in the memory of the encoded
// message, in which the next event is read; then its own memory is used for the next object. So nothing of it may be kept, as Stripper
// promises. The numbers of the fields are those of generated.proto in the API's packages.
type message struct {
	options   *source.Options // fields that cost much are read only if records need them
	malformed bool

	namespaceObject corev1.Namespace
	serviceObject   corev1.Service
	podObject       corev1.Pod
	sliceObject     discoveryv1.EndpointSlice

	labels, annotations map[string]string // of the object
	// What the fields of endpoints and ports point at.
	texts      []string
	references []corev1.ObjectReference
	hints      []discoveryv1.EndpointHints
	protocols  []corev1.Protocol
	numbers    []int32
}

var messages = sync.Pool{New: func() any { return &message{labels: map[string]string{}, annotations: map[string]string{}} }}

// release empties the object. Only the memory that all kinds, and large EndpointSlices, need is used again.
func (m *message) release() {
	*m = message{
		sliceObject: discoveryv1.EndpointSlice{Endpoints: emptied(m.sliceObject.Endpoints), Ports: emptied(m.sliceObject.Ports)},
		labels:      emptiedMap(m.labels), annotations: emptiedMap(m.annotations),
		texts: emptied(m.texts), references: emptied(m.references), hints: emptied(m.hints), protocols: emptied(m.protocols), numbers: emptied(m.numbers),
	}
	messages.Put(m)
}

// maxMap is the number of entries up to which a map is used again: maps do not shrink.
const maxMap = 64

// emptiedMap returns an empty map, in the same memory if that is small.
func emptiedMap(m map[string]string) map[string]string {
	if m == nil || len(m) > maxMap {
		return map[string]string{}
	}
	clear(m)
	return m
}

// emptied returns an empty slice in the same memory.
func emptied[T any](all []T) []T {
	clear(all)
	return all[:0]
}

// added appends a value, and returns a pointer to it.
func added[T any](all *[]T, v T) *T {
	*all = append(*all, v)
	return &(*all)[len(*all)-1]
}

// reader reads the fields of an encoded message one after the other.
type reader struct {
	malformed *bool // set at a malformed field
	rest      []byte
	number    protowire.Number
	bytes     []byte // the value of a message, a text or bytes
	value     uint64 // that of a number
}

func (m *message) fields(b []byte) reader { return reader{malformed: &m.malformed, rest: b} }

// next reads the next field. It returns false at the end, and at a malformed field.
func (f *reader) next() bool {
	if len(f.rest) == 0 {
		return false
	}
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n >= 0 {
		f.number, f.bytes, f.value, f.rest = number, nil, 0, f.rest[n:]
		switch kind {
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(f.rest)
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(f.rest)
		default:
			n = protowire.ConsumeFieldValue(number, kind, f.rest)
		}
	}
	if n < 0 {
		*f.malformed = true
		return false
	}
	f.rest = f.rest[n:]
	return true
}

// text returns the value of a text in the memory of the message.
func (f *reader) text() string {
	return unsafe.String(unsafe.SliceData(f.bytes), len(f.bytes)) // #nosec G103 -- see message
}

// textOf returns the text that is the field of an inner message with a number, "" if there is none.
func (m *message) textOf(b []byte, number protowire.Number) (text string) {
	for f := m.fields(b); f.next(); {
		if f.number == number {
			text = f.text()
		}
	}
	return text
}

func (m *message) metadata(b []byte, o *metav1.ObjectMeta) {
	o.Labels, o.Annotations = m.labels, m.annotations
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			o.Name = f.text()
		case 3:
			o.Namespace = f.text()
		case 6:
			o.ResourceVersion = f.text()
		case 9:
			o.DeletionTimestamp = m.time(f.bytes)
		case 11:
			m.entry(f.bytes, o.Labels)
		case 12:
			m.entry(f.bytes, o.Annotations)
		}
	}
}

// entry adds the entry of an encoded map.
func (m *message) entry(b []byte, to map[string]string) { to[m.textOf(b, 1)] = m.textOf(b, 2) }

func (m *message) time(b []byte) *metav1.Time {
	t := new(metav1.Time)
	if t.Unmarshal(b) != nil {
		m.malformed = true
	}
	return t
}

func (m *message) namespace(b []byte) *metav1.ObjectMeta {
	o := &m.namespaceObject.ObjectMeta
	for f := m.fields(b); f.next(); {
		if f.number == 1 {
			m.metadata(f.bytes, o)
		}
	}
	return o
}

func (m *message) service(b []byte) *metav1.ObjectMeta {
	o := &m.serviceObject
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			m.metadata(f.bytes, &o.ObjectMeta)
		case 2:
			m.serviceSpec(f.bytes, &o.Spec)
		case 3:
			m.serviceStatus(f.bytes, &o.Status)
		}
	}
	return &o.ObjectMeta
}

func (m *message) serviceSpec(b []byte, o *corev1.ServiceSpec) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			o.Ports = append(o.Ports, m.servicePort(f.bytes))
		case 3:
			o.ClusterIP = f.text()
		case 4:
			o.Type = corev1.ServiceType(f.text())
		case 5:
			o.ExternalIPs = append(o.ExternalIPs, f.text())
		case 10:
			o.ExternalName = f.text()
		case 18:
			o.ClusterIPs = append(o.ClusterIPs, f.text())
		case 22:
			o.InternalTrafficPolicy = (*corev1.ServiceInternalTrafficPolicy)(added(&m.texts, f.text()))
		case 23:
			o.TrafficDistribution = added(&m.texts, f.text())
		}
	}
}

func (m *message) servicePort(b []byte) (p corev1.ServicePort) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			p.Name = f.text()
		case 2:
			p.Protocol = corev1.Protocol(f.text())
		case 3:
			p.Port = int32(f.value) // #nosec G115 -- as the API's own decoder does
		}
	}
	return p
}

func (m *message) serviceStatus(b []byte, o *corev1.ServiceStatus) {
	for f := m.fields(b); f.next(); {
		if f.number != 1 { // loadBalancer
			continue
		}
		for ingress := m.fields(f.bytes); ingress.next(); {
			if ingress.number == 1 {
				to := &o.LoadBalancer.Ingress
				*to = append(*to, corev1.LoadBalancerIngress{IP: m.textOf(ingress.bytes, 1), Hostname: m.textOf(ingress.bytes, 2)})
			}
		}
	}
}

func (m *message) slice(b []byte) *metav1.ObjectMeta {
	o := &m.sliceObject
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			m.metadata(f.bytes, &o.ObjectMeta)
		case 2:
			m.endpoint(f.bytes, added(&o.Endpoints, discoveryv1.Endpoint{}))
		case 3:
			m.endpointPort(f.bytes, added(&o.Ports, discoveryv1.EndpointPort{}))
		case 4:
			o.AddressType = discoveryv1.AddressType(f.text())
		}
	}
	return &o.ObjectMeta
}

func (m *message) endpoint(b []byte, e *discoveryv1.Endpoint) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			m.addAddress(f.text(), e)
		case 2:
			m.conditions(f.bytes, &e.Conditions)
		case 3:
			e.Hostname = added(&m.texts, f.text())
		case 4:
			if m.options.EndpointPodNames {
				e.TargetRef = added(&m.references, corev1.ObjectReference{Name: m.textOf(f.bytes, 3)})
			}
		case 6:
			e.NodeName = added(&m.texts, f.text())
		case 7:
			e.Zone = added(&m.texts, f.text())
		case 8:
			if m.options.Topology {
				e.Hints = added(&m.hints, discoveryv1.EndpointHints{})
				m.endpointHints(f.bytes, e.Hints)
			}
		}
	}
}

// addAddress adds an address. Nearly all endpoints have one: that is in texts.
func (m *message) addAddress(text string, e *discoveryv1.Endpoint) {
	if e.Addresses != nil {
		e.Addresses = append(e.Addresses, text)
		return
	}
	m.texts = append(m.texts, text)
	e.Addresses = m.texts[len(m.texts)-1 : len(m.texts) : len(m.texts)]
}

// The values that conditions point at.
var no, yes = false, true

func (m *message) conditions(b []byte, o *discoveryv1.EndpointConditions) {
	for f := m.fields(b); f.next(); {
		if f.number == 1 {
			if o.Ready = &no; f.value != 0 {
				o.Ready = &yes
			}
		}
	}
}

func (m *message) endpointHints(b []byte, o *discoveryv1.EndpointHints) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			o.ForZones = append(o.ForZones, discoveryv1.ForZone{Name: m.textOf(f.bytes, 1)})
		case 2:
			o.ForNodes = append(o.ForNodes, discoveryv1.ForNode{Name: m.textOf(f.bytes, 1)})
		}
	}
}

func (m *message) endpointPort(b []byte, o *discoveryv1.EndpointPort) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			o.Name = added(&m.texts, f.text())
		case 2:
			o.Protocol = added(&m.protocols, corev1.Protocol(f.text()))
		case 3:
			o.Port = added(&m.numbers, int32(f.value)) // #nosec G115 -- as the API's own decoder does
		}
	}
}

func (m *message) pod(b []byte) *metav1.ObjectMeta {
	o := &m.podObject
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			m.metadata(f.bytes, &o.ObjectMeta)
		case 2:
			if m.options.Topology || m.options.SearchPaths {
				m.podSpec(f.bytes, &o.Spec)
			}
		case 3:
			m.podStatus(f.bytes, &o.Status)
		}
	}
	return &o.ObjectMeta
}

func (m *message) podSpec(b []byte, o *corev1.PodSpec) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 6:
			o.DNSPolicy = corev1.DNSPolicy(f.text())
		case 10:
			o.NodeName = f.text()
		case 11:
			o.HostNetwork = f.value != 0
		case 26:
			o.DNSConfig = new(corev1.PodDNSConfig)
			m.podDNSConfig(f.bytes, o.DNSConfig)
		}
	}
}

func (m *message) podDNSConfig(b []byte, o *corev1.PodDNSConfig) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 2:
			o.Searches = append(o.Searches, f.text())
		case 3:
			option := added(&o.Options, corev1.PodDNSConfigOption{})
			for f := m.fields(f.bytes); f.next(); {
				switch f.number {
				case 1:
					option.Name = f.text()
				case 2:
					option.Value = added(&m.texts, f.text())
				}
			}
		}
	}
}

func (m *message) podStatus(b []byte, o *corev1.PodStatus) {
	for f := m.fields(b); f.next(); {
		switch f.number {
		case 1:
			o.Phase = corev1.PodPhase(f.text())
		case 12:
			o.PodIPs = append(o.PodIPs, corev1.PodIP{IP: m.textOf(f.bytes, 1)})
		case 2, 8, 10, 13:
			if m.options.SearchPaths {
				m.podState(f, o)
			}
		}
	}
}

// podState reads a condition, or the status of a container.
func (m *message) podState(f reader, o *corev1.PodStatus) {
	switch f.number {
	case 2:
		o.Conditions = append(o.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(m.textOf(f.bytes, 1)), Status: corev1.ConditionStatus(m.textOf(f.bytes, 2)),
		})
	case 8:
		m.containerStatus(f.bytes, added(&o.ContainerStatuses, corev1.ContainerStatus{}))
	case 10:
		m.containerStatus(f.bytes, added(&o.InitContainerStatuses, corev1.ContainerStatus{}))
	case 13:
		m.containerStatus(f.bytes, added(&o.EphemeralContainerStatuses, corev1.ContainerStatus{}))
	}
}

// containerStatus reads state.running.startedAt.
func (m *message) containerStatus(b []byte, o *corev1.ContainerStatus) {
	for f := m.fields(b); f.next(); {
		if f.number != 2 {
			continue
		}
		for state := m.fields(f.bytes); state.next(); {
			if state.number != 2 {
				continue
			}
			o.State.Running = new(corev1.ContainerStateRunning)
			for running := m.fields(state.bytes); running.next(); {
				if running.number == 1 {
					o.State.Running.StartedAt = *m.time(running.bytes)
				}
			}
		}
	}
}
