package index

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
)

func TestReadersDoNotAllocate(t *testing.T) {
	ix := New()
	ix.PutNamespace("default")
	ix.PutService(&Service{Namespace: "default", Name: "web"})
	ix.PutSlice(&Slice{Namespace: "default", Name: "web-1", Service: "web", Endpoints: []Endpoint{{Addr: steadyEndpoint}}})
	// Names from packets are not constants known to the compiler.
	namespace, name, missing := strings.Clone("default"), strings.Clone("web"), strings.Clone("missing")
	tests := []struct {
		name string
		read func() bool
	}{
		{"Service", func() bool { return ix.Service(namespace, name) != nil }},
		{"Service that is missing", func() bool { return ix.Service(namespace, missing) == nil }},
		{"ServiceRecord", func() bool { return ix.ServiceRecord(namespace, name) != nil }},
		{"HasNamespace", func() bool { return ix.HasNamespace(namespace) }},
		{"HasNamespace that is missing", func() bool { return !ix.HasNamespace(missing) }},
		{"NamespaceGeneration", func() bool { return ix.NamespaceGeneration(namespace).Load() > 0 }},
		{"NameGeneration", func() bool { return ix.NameGeneration(namespace, name).Load() > 0 }},
		{"AccessGeneration", func() bool { return ix.AccessGeneration().Load() == 0 }},
		{"AddressGeneration", func() bool { return ix.AddressGeneration(steadyEndpoint).Load() > 0 }},
		{"Generation of a Service", func() bool { return ix.Service(namespace, name).Generation().Load() > 0 }},
		{"Ready", func() bool { return ix.Service(namespace, name).Ready() == 1 }},
		{"Modified", func() bool { return ix.Modified() > 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found := true
			if n := testing.AllocsPerRun(100, func() { found = tt.read() && found }); n != 0 {
				t.Errorf("%v allocations, want none", n)
			}
			if !found {
				t.Error("it was not read")
			}
		})
	}
}

// BenchmarkBuild fills an index like the first list of a large cluster, and reports the memory in use afterwards.
func BenchmarkBuild(b *testing.B) {
	const services, endpoints = 10_000, 110_000
	var ix *Index
	before := liveHeap()
	for b.Loop() {
		ix = buildCluster(services, endpoints/services)
	}
	b.ReportMetric(float64(liveHeap()-before)/endpoints, "heap-B/endpoint")
	if n := len(ix.Services()); n != services {
		b.Fatalf("%d Services, want %d", n, services)
	}
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // frees handles of package unique and objects with finalizers that the first run marked
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// buildCluster creates records with their own strings, like decoded ones.
func buildCluster(services, endpoints int) *Index {
	ix := New()
	clusterIP, pod := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.128.0.1")
	for i := range services {
		namespace, name := fmt.Sprintf("namespace-%d", i/100), fmt.Sprintf("service-%d", i)
		ix.PutNamespace(strings.Clone(namespace))
		ix.PutService(&Service{
			Namespace: namespace, Name: name,
			IPs:   []netip.Addr{clusterIP},
			Ports: []Port{{Name: NewSymbol("http"), Protocol: NewSymbol("tcp"), Number: 80}},
		})
		clusterIP = clusterIP.Next()
		s := &Slice{
			Namespace: strings.Clone(namespace), Name: name + "-abcde", Service: strings.Clone(name),
			Ports:     []Port{{Name: NewSymbol("http"), Protocol: NewSymbol("tcp"), Number: 8080}},
			Endpoints: make([]Endpoint, 0, endpoints),
		}
		for range endpoints {
			s.Endpoints = append(s.Endpoints, Endpoint{Addr: pod, Zone: NewSymbol("zone-a")})
			pod = pod.Next()
		}
		ix.PutSlice(s)
	}
	return ix
}

// TestEndpointMemory measures the memory of an endpoint by field, in Services of 50 endpoints. The limits are those of the capacity table in
// docs/operating.md.
func TestEndpointMemory(t *testing.T) {
	const services, endpoints, nodes = 1000, 50, 1500
	names := make([]Symbol, nodes)
	for i := range names {
		names[i] = NewSymbol(fmt.Sprintf("ip-10-0-%d-%d.compute.internal", i/256, i%256))
	}
	zones := []Symbol{NewSymbol("zone-a"), NewSymbol("zone-b"), NewSymbol("zone-c")}
	measure := func(t *testing.T, fill func(n int, e *Endpoint)) float64 {
		t.Helper()
		ix := New()
		before := liveHeap()
		pod := netip.MustParseAddr("10.128.0.1")
		for i := range services {
			s := &Slice{Namespace: "default", Name: fmt.Sprintf("service-%d-abcde", i), Service: fmt.Sprintf("service-%d", i)}
			for n := range endpoints {
				e := Endpoint{Addr: pod}
				fill(i*endpoints+n, &e)
				s.Endpoints = append(s.Endpoints, e)
				pod = pod.Next()
			}
			ix.PutSlice(s)
		}
		bytes := float64(liveHeap()-before) / (services * endpoints)
		runtime.KeepAlive(ix)
		return bytes
	}
	plain := 0.0
	for _, tt := range []struct {
		name  string
		fill  func(n int, e *Endpoint)
		limit float64 // bytes of an endpoint, of the first case with its share of Service and slice, of the others in addition to the first
	}{
		{"address", func(int, *Endpoint) {}, 50},
		{"IPv6 address", func(n int, e *Endpoint) {
			e.Addr = netip.AddrFrom16([16]byte{0xfd, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
		}, 16},
		{"name", func(n int, e *Endpoint) { e.Name = fmt.Sprintf("service-%d-%d", n/endpoints, n%endpoints) }, 24},
		{"zone", func(n int, e *Endpoint) { e.Zone = zones[n%3] }, 14},
		{"node", func(n int, e *Endpoint) { e.Node = names[n%nodes] }, 14},
		{"zone, node and hints", func(n int, e *Endpoint) {
			e.Zone, e.Node, e.Hints = zones[n%3], names[n%nodes], sharedHints[n%3]
		}, 32},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bytes := measure(t, tt.fill)
			if plain == 0 {
				plain = bytes
			} else {
				bytes -= plain
			}
			t.Logf("%.1f bytes", bytes)
			if bytes > tt.limit {
				t.Errorf("%.1f bytes, want at most %.0f", bytes, tt.limit)
			}
		})
	}
}

var sharedHints = []*Hints{{Zones: []Symbol{NewSymbol("zone-a")}}, {Zones: []Symbol{NewSymbol("zone-b")}}, {Zones: []Symbol{NewSymbol("zone-c")}}}
