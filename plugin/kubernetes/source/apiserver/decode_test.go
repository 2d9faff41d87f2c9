package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/randfill"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// fieldOptions are options with which other fields are read.
var fieldOptions = map[string]source.Options{
	"default":      {Endpoints: true},
	"pods":         {Endpoints: true, Pods: true},
	"pod names":    {Endpoints: true, EndpointPodNames: true},
	"zones":        {Endpoints: true, Zones: true},
	"topology":     {Endpoints: true, Pods: true, Topology: true, EndpointPodNames: true, Imports: true},
	"search paths": {Pods: true, SearchPaths: true, Booted: time.Unix(1e9, 0)},
	"node":         {Pods: true, PodsOnly: true, SearchPaths: true, Topology: true, Booted: time.Unix(1e9, 0)},
}

// TestDecode has random objects of each kind, with all fields, and lists: their records are those of the objects that Kubernetes' API packages
// decode, also after the memory of the message has other content, and of another object.
func TestDecode(t *testing.T) {
	whole, _ := codecs(t)
	all := decoderOf(whole)
	for name, o := range fieldOptions {
		t.Run(name, func(t *testing.T) {
			s := &Source{options: o, stripper: source.NewStripper(o)}
			records := decoderOf(newRecordCodecs(whole, newDecoder(s.stripper)))
			for kind, objects := range encodedObjects(t) {
				for seed, data := range objects {
					want, wantGVK, err := all.Decode(data, nil, nil)
					kit.Must(t, err)
					event := bytes.Clone(data)
					got, gvk, err := records.Decode(event, nil, nil)
					kit.Must(t, err)
					for i := range event {
						event[i] = '!'
					}
					if *gvk != *wantGVK {
						t.Fatalf("decoded as %v, want %v", gvk, wantGVK)
					}
					if g, w := s.read(got), s.read(want); !reflect.DeepEqual(g, w) {
						t.Fatalf("%s %d: records differ:\ngot  %+v\nwant %+v\nof %+v", kind, seed, g, w, want)
					}
				}
			}
		})
	}
}

// TestDecode_Again: the record of an EndpointSlice that has not changed is that of the index, and its endpoints cost no allocation.
func TestDecode_Again(t *testing.T) {
	whole, encode := codecs(t)
	ix := index.New()
	d := newDecoder(source.NewStripper(fieldOptions["topology"]))
	d.index.Store(ix)
	records := decoderOf(newRecordCodecs(whole, d))
	decode := func(o *discoveryv1.EndpointSlice) *index.Slice {
		data := encode(o)
		got, _, err := records.Decode(data, nil, nil)
		kit.Must(t, err)
		return got.(*decoded).record.(*index.Slice)
	}
	o := largeSlice(1000)
	first := decode(o)
	ix.PutSlice(first)
	if decode(o) != first {
		t.Error("an equal record is another one")
	}
	data := encode(o)
	// 15, and under the race detector, with which pools of libraries lose objects, 800.
	if n := testing.AllocsPerRun(20, func() { _, _, _ = records.Decode(data, nil, nil) }); n > 1000 {
		t.Errorf("%v allocations for 1000 endpoints that have not changed", n)
	}
	o.Endpoints[999].Zone = new("zone-x")
	if decode(o) == first {
		t.Error("a changed record is that of the index")
	}
}

// TestDecode_Truncated cuts a list after each byte: that is an error, or the whole list, and never one of fewer objects.
func TestDecode_Truncated(t *testing.T) {
	whole, encode := codecs(t)
	s := &Source{stripper: source.NewStripper(source.Options{})}
	records := decoderOf(newRecordCodecs(whole, newDecoder(s.stripper)))
	o := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for _, name := range []string{"web", "db"} {
		o.Items = append(o.Items, corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}})
	}
	data := encode(o)
	want, _, err := records.Decode(data, nil, nil)
	kit.Must(t, err)
	for n := range len(data) {
		if got, _, err := records.Decode(data[:n], nil, nil); err == nil && !reflect.DeepEqual(s.read(got), s.read(want)) {
			t.Errorf("%d bytes of %d: %+v", n, len(data), got)
		}
	}
}

// TestRecord_Stale: a record that the index had when it was decoded, and has no more, is not put again: readers may have it.
func TestRecord_Stale(t *testing.T) {
	ix := index.New()
	s := &Source{stripper: source.NewStripper(source.Options{Endpoints: true})}
	d := newDecoder(s.stripper)
	d.index.Store(ix)
	whole, encode := codecs(t)
	events, slices := decoderOf(newRecordCodecs(whole, d)), s.records(source.EndpointSlices, ix)
	decode := func(endpoints int) runtime.Object {
		o, _, err := events.Decode(encode(largeSlice(endpoints)), nil, nil)
		kit.Must(t, err)
		return o
	}
	kit.Must(t, slices.put(decode(2)))
	first := ix.SliceRecord("shop", "web-abcde")
	change, back := decode(3), decode(2) // before the first is put
	kit.Must(t, slices.put(change))
	kit.Must(t, slices.put(back))
	if again := ix.SliceRecord("shop", "web-abcde"); again == first || !again.Equal(first) {
		t.Errorf("the record is %p %+v, want a copy of %p %+v", again, again, first, first)
	}
	if err := s.records(source.Services, ix).put(back); err == nil {
		t.Error("an EndpointSlice in a watch of Services is no error")
	}
}

// read returns all that the source reads of an object or a list.
func (s *Source) read(object runtime.Object) any {
	metadata := func(o metav1.Object) []any {
		annotations := o.GetAnnotations()
		return []any{
			o.GetNamespace(), o.GetName(), o.GetResourceVersion(), o.GetDeletionTimestamp(),
			annotations[metav1.InitialEventsAnnotationKey], annotations[corev1.EndpointsLastChangeTriggerTime],
		}
	}
	named := func(o metav1.Object, record any) []any {
		if o.GetName() == "" {
			record = nil // a bookmark
		}
		return append(metadata(o), record)
	}
	switch o := object.(type) {
	case *decoded:
		return append(metadata(o), o.record)
	case *discoveryv1.EndpointSlice:
		return named(o, s.stripper.Slice(o))
	case *corev1.Service:
		return named(o, s.stripper.Service(o))
	case *corev1.Pod:
		return named(o, podRecord(s.stripper, o))
	case *corev1.Namespace:
		return named(o, namespaceRecord(s.stripper, o))
	}
	if apimeta.IsListType(object) {
		all := []any{reflect.ValueOf(object).Elem().FieldByName("ListMeta").Interface()}
		if err := apimeta.EachListItem(object, func(item runtime.Object) error {
			all = append(all, s.read(item))
			return nil
		}); err != nil {
			panic(err)
		}
		return all
	}
	return object
}

// encodedObjects returns random objects of each kind, and lists.
func encodedObjects(t *testing.T) map[string][][]byte {
	_, encode := codecs(t)
	randomEncoded.Do(func() {
		randomEncoded.all = map[string][][]byte{}
		// Few Services have all that a traffic distribution needs to count.
		for kind, n := range map[string]int64{"Namespace": 50, "EndpointSlice": 150, "Service": 1000, "Pod": 150} {
			for seed := range n {
				randomEncoded.all[kind] = append(randomEncoded.all[kind], encode(randomObject(seed, kind)))
			}
			for seed := range int64(10) {
				randomEncoded.all[kind+"List"] = append(randomEncoded.all[kind+"List"], encode(randomObject(seed, kind+"List")))
			}
		}
	})
	return randomEncoded.all
}

var randomEncoded struct {
	sync.Once
	all map[string][][]byte
}

// randomObject returns an object with random fields, valid where a record depends on it.
func randomObject(seed int64, kind string) runtime.Object {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	pick := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	fill := randfill.NewWithSeed(r.Int64()).NilChance(0.2).NumElements(0, 4).MaxDepth(12).Funcs(
		func(s *string, c randfill.Continue) {
			*s = pick("", "a", "web", "zone-1", "node-7", "10.0.0.1", "2001:db8::1", "UDP", "80", "None", "Local", "PreferSameZone", c.String(20))
		},
		func(s **string, c randfill.Continue) { // a pointer to a type with a function is never nil
			if *s = nil; r.IntN(4) > 0 {
				text := pick("", "a", "web", "zone-1", "Local", "PreferSameZone", c.String(20))
				*s = &text
			}
		},
		func(t *metav1.Time, _ randfill.Continue) { *t = metav1.Unix(r.Int64N(2e9), 0) },
		func(t **metav1.Time, _ randfill.Continue) {
			if *t = nil; r.IntN(2) > 0 {
				at := metav1.Unix(r.Int64N(2e9), 0)
				*t = &at
			}
		},
		func(t *metav1.MicroTime, _ randfill.Continue) { *t = metav1.NewMicroTime(time.Unix(r.Int64N(2e9), 0)) },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.Raw = []byte(`{"f:metadata":{}}`) },
		func(m *map[string]string, c randfill.Continue) {
			*m = map[string]string{c.String(5): "x"}
			for _, key := range []string{discoveryv1.LabelServiceName, mcsv1beta1.LabelServiceName, mcsv1beta1.LabelSourceCluster, source.AnnotationTopologyKeys, source.AnnotationWaitForNames, metav1.InitialEventsAnnotationKey, corev1.EndpointsLastChangeTriggerTime} {
				if r.IntN(2) == 0 {
					(*m)[key] = pick("web", "2s", "topology.kubernetes.io/zone", "true")
				}
			}
		},
		func(a *discoveryv1.AddressType, _ randfill.Continue) {
			*a = discoveryv1.AddressType(pick("IPv4", "IPv6", "FQDN"))
		},
		func(p *corev1.ServiceInternalTrafficPolicy, _ randfill.Continue) {
			*p = corev1.ServiceInternalTrafficPolicy(pick("Local", "Cluster"))
		},
		func(a *corev1.ServiceType, _ randfill.Continue) {
			*a = corev1.ServiceType(pick("ClusterIP", "ExternalName", "LoadBalancer"))
		},
		func(o *corev1.ServiceSpec, c randfill.Continue) {
			if c.FillNoCustom(o); r.IntN(2) == 0 {
				o.ClusterIP, o.ClusterIPs, o.Type = pick("None", "10.0.0.1"), nil, corev1.ServiceTypeClusterIP
			}
		},
		func(p *corev1.PodPhase, _ randfill.Continue) {
			*p = corev1.PodPhase(pick("Running", "Pending", "Failed"))
		},
		func(p *corev1.DNSPolicy, _ randfill.Continue) {
			*p = corev1.DNSPolicy(pick("ClusterFirst", "None", "Default", "ClusterFirstWithHostNet"))
		},
		func(p *corev1.PodConditionType, _ randfill.Continue) {
			*p = corev1.PodConditionType(pick("Ready", string(corev1.PodReadyToStartContainers)))
		},
		func(p *corev1.ConditionStatus, _ randfill.Continue) {
			*p = corev1.ConditionStatus(pick("True", "False"))
		},
	)
	o := map[string]runtime.Object{
		"Namespace": &corev1.Namespace{}, "EndpointSlice": &discoveryv1.EndpointSlice{}, "Service": &corev1.Service{}, "Pod": &corev1.Pod{},
		"EndpointSliceList": &discoveryv1.EndpointSliceList{}, "PodList": &corev1.PodList{}, "ServiceList": &corev1.ServiceList{}, "NamespaceList": &corev1.NamespaceList{},
	}[kind]
	fill.Fill(o)
	return o
}

// codecs returns the codecs of a source, and a function that encodes as an API server does.
func codecs(t testing.TB) (runtime.NegotiatedSerializer, func(runtime.Object) []byte) {
	all, err := builtinCodecs()
	kit.Must(t, err)
	info, _ := runtime.SerializerInfoForMediaType(all.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return all, func(o runtime.Object) []byte {
		version := corev1.SchemeGroupVersion
		switch o.(type) {
		case *discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList:
			version = discoveryv1.SchemeGroupVersion
		case *metav1.PartialObjectMetadata:
			version = metav1.SchemeGroupVersion
		}
		kind := reflect.TypeOf(o).Elem().Name()
		o.GetObjectKind().SetGroupVersionKind(version.WithKind(kind))
		var b bytes.Buffer
		if err := info.Serializer.Encode(o, &b); err != nil {
			t.Fatal(err) // not kit.Must: a fuzz target may not call Helper of the test around it
		}
		return b.Bytes()
	}
}

func decoderOf(codecs runtime.NegotiatedSerializer) runtime.Decoder {
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	return codecs.DecoderToVersion(info.Serializer, schema.GroupVersion{})
}

// TestCodecsShared decodes with many clients of the same codecs at the same time, as client-go asks for the serializers for each request:
// those of all other users stay as they are.
func TestCodecsShared(t *testing.T) {
	whole, _ := codecs(t)
	some := newRecordCodecs(whole, newDecoder(source.NewStripper(source.Options{Endpoints: true})))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				n := runtime.NewClientNegotiator(some, corev1.SchemeGroupVersion)
				if _, _, _, err := n.StreamDecoder(runtime.ContentTypeProtobuf, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for what, codecs := range map[string]runtime.NegotiatedSerializer{"objects": whole, "records": some} {
		info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
		inner := info.Serializer
		if p, ok := inner.(recordSerializer); ok == (what == "records") {
			if ok {
				inner = p.Serializer
			}
		}
		if _, ok := inner.(*protobuf.Serializer); !ok {
			t.Errorf("%s: the serializer is %T in %T", what, inner, info.Serializer)
		}
	}
}

// TestDecode_Events decodes the events of a watch from one stream, whose buffer is used again for each: added objects, a bookmark, metadata
// only, and an error.
func TestDecode_Events(t *testing.T) {
	whole, encode := codecs(t)
	o := fieldOptions["topology"]
	s := &Source{options: o, stripper: source.NewStripper(o)}
	node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"a": "b"}}}
	bookmark := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	failure := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired}
	events := []watch.Event{{Type: watch.Added, Object: node}, {Type: watch.Bookmark, Object: bookmark}}
	for seed := range int64(50) {
		for _, kind := range []string{"EndpointSlice", "Service", "Pod"} {
			events = append(events, watch.Event{Type: watch.Modified, Object: randomObject(seed, kind)})
		}
	}
	events = append(events, watch.Event{Type: watch.Error, Object: failure})

	var stream bytes.Buffer
	info, _ := runtime.SerializerInfoForMediaType(whole.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	frames := info.StreamSerializer.Framer.NewFrameWriter(&stream)
	for _, e := range events {
		event := &metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: encode(e.Object)}}
		kit.Must(t, info.StreamSerializer.Serializer.Encode(event, frames))
	}
	n := runtime.NewClientNegotiator(newRecordCodecs(whole, newDecoder(s.stripper)), corev1.SchemeGroupVersion)
	objects, outer, framer, err := n.StreamDecoder(runtime.ContentTypeProtobuf, nil)
	kit.Must(t, err)
	d := restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(io.NopCloser(&stream)), outer), objects)
	all := decoderOf(whole)
	var got []runtime.Object
	for _, e := range events {
		kind, object, err := d.Decode()
		kit.Must(t, err)
		if kind != e.Type {
			t.Fatalf("event %s, want %s", kind, e.Type)
		}
		got = append(got, object)
	}
	for i, e := range events { // after all have been read
		want, _, err := all.Decode(encode(e.Object), nil, nil)
		kit.Must(t, err)
		if g, w := s.read(got[i]), s.read(want); !reflect.DeepEqual(g, w) {
			t.Fatalf("event %d: got %+v, want %+v", i, g, w)
		}
	}
}

// FuzzDecode has any data: an object that Kubernetes' API packages can decode has the same record. It is encoded again first, since decoders
// treat some malformed fields differently.
func FuzzDecode(f *testing.F) {
	whole, encode := codecs(f)
	yes, name := true, "a"
	f.Add(envelope)
	for _, o := range []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}, Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 1}}}},
		&discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Hostname: &name, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}}},
		&corev1.PodList{Items: []corev1.Pod{{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}}},
	} {
		f.Add(encode(o))
	}
	o := fieldOptions["topology"]
	s := &Source{options: o, stripper: source.NewStripper(o)}
	d := newDecoder(s.stripper)
	some, all := decoderOf(newRecordCodecs(whole, d)), decoderOf(whole)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, _ = some.Decode(bytes.Clone(data), nil, nil)
		object, _, err := all.Decode(bytes.Clone(data), nil, nil)
		if err != nil {
			return
		}
		if _, read := d.kinds[strings.TrimSuffix(reflect.TypeOf(object).Elem().Name(), "List")]; !read {
			return
		}
		data = encode(object)
		want, _, err := all.Decode(bytes.Clone(data), nil, nil)
		if err != nil {
			return
		}
		got, _, err := some.Decode(data, nil, nil)
		if err != nil {
			t.Fatalf("got error %v, want none", err)
		}
		if g, w := s.read(got), s.read(want); !reflect.DeepEqual(g, w) {
			t.Fatalf("got  %+v\nwant %+v", g, w)
		}
	})
}

// largeSlice returns an EndpointSlice with this number of endpoints, as the EndpointSlice controller writes it.
func largeSlice(n int) *discoveryv1.EndpointSlice {
	yes := true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-abcde", GenerateName: "web-", Namespace: "shop", UID: "8f1c2a8e-7a6b-4b7e-9b51-5f2d8b0f6a01", ResourceVersion: "123456", Generation: 7,
			Labels:          map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "web", UID: "8f1c2a8e-7a6b-4b7e-9b51-5f2d8b0f6a02", Controller: &yes}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "discovery.k8s.io/v1", FieldsType: "FieldsV1",
				FieldsV1: &metav1.FieldsV1{Raw: bytes.Repeat([]byte("x"), 700)}}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range n {
		node, zone := fmt.Sprintf("node-%d", i), fmt.Sprintf("zone-%d", i%3)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: new(bool)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("web-%d", i), UID: "8f1c2a8e-7a6b-4b7e-9b51-5f2d8b0f6a03"},
		})
	}
	return slice
}

// BenchmarkDecode makes the record of an EndpointSlice with 100 endpoints: of its object, directly, and where the index has an equal one.
func BenchmarkDecode(b *testing.B) {
	whole, encode := codecs(b)
	data := encode(largeSlice(100))
	s := source.NewStripper(source.Options{Endpoints: true})
	d, again := newDecoder(s), newDecoder(s)
	again.index.Store(index.New())
	for name, c := range map[string]runtime.Decoder{
		"object": decoderOf(whole), "record": decoderOf(newRecordCodecs(whole, d)), "again": decoderOf(newRecordCodecs(whole, again)),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				o, _, err := c.Decode(data, nil, nil)
				if err != nil {
					b.Fatal(err)
				}
				switch o := o.(type) {
				case *discoveryv1.EndpointSlice:
					s.Slice(o)
				case *decoded:
					if name == "again" {
						again.index.Load().PutSlice(o.record.(*index.Slice))
					}
				}
			}
		})
	}
}
