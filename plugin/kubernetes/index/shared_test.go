package index

import (
	"fmt"
	"net/netip"
	"testing"
)

const (
	crowdedSlices    = 10
	crowdedEndpoints = 1000 // the maximum of an EndpointSlice
)

// crowdedSlice returns an EndpointSlice whose endpoints all have the address endpointIP. The version is in the name of
// its first endpoint.
func crowdedSlice(number, version int) *Slice {
	s := &Slice{Namespace: "default", Name: fmt.Sprintf("shared-%d", number), Service: "shared"}
	for i := range crowdedEndpoints {
		s.Endpoints = append(s.Endpoints, Endpoint{Addr: endpointIP, Name: fmt.Sprintf("host-%d-%d", number, i), Node: NewSymbol("n1")})
	}
	s.Endpoints[0].Name += fmt.Sprintf("-%d", version)
	return s
}

func crowdedAddress() *Index {
	ix := New()
	for i := range crowdedSlices {
		ix.PutSlice(crowdedSlice(i, 0))
	}
	return ix
}

// TestUpdateWhereEndpointsShareAnAddress asserts that the cost of an update of EndpointSlices whose endpoints all have
// one address depends on the number of slices, not on the square of the number of endpoints.
func TestUpdateWhereEndpointsShareAnAddress(t *testing.T) {
	ix := crowdedAddress()
	if ix.endpoints.size != crowdedSlices {
		t.Errorf("%d entries for one address of %d EndpointSlices, want one entry per slice", ix.endpoints.size, crowdedSlices)
	}
	const runs = 3
	var updates []*Slice
	for version := range runs + 1 { // one more as a warm-up
		updates = append(updates, crowdedSlice(0, version+1))
	}
	allocations := testing.AllocsPerRun(runs, func() {
		ix.PutSlice(updates[0])
		updates = updates[1:]
	})
	if allocations > 10*crowdedSlices {
		t.Errorf("one update allocates %.0f times, want at most %d", allocations, 10*crowdedSlices)
	}
	if found := ix.SlicesByIP(endpointIP); len(found) != crowdedSlices || found[0].Endpoint(0).Name != fmt.Sprintf("host-0-0-%d", runs+1) {
		t.Errorf("SlicesByIP = %s, want %d slices in order, the first as it was put last", keys(found), crowdedSlices)
	}
	for i := range crowdedSlices {
		ix.DeleteSlice("default", fmt.Sprintf("shared-%d", i))
	}
	if found := ix.SlicesByIP(endpointIP); len(found) != 0 || ix.endpoints.size != 0 {
		t.Errorf("after all slices were deleted %s is found, and %d entries are left", keys(found), ix.endpoints.size)
	}
}

// BenchmarkUpdate replaces one EndpointSlice.
func BenchmarkUpdate(b *testing.B) {
	apart := func(version int) *Slice {
		s, a := crowdedSlice(0, version), netip.MustParseAddr("10.128.0.1")
		for i := range s.Endpoints {
			s.Endpoints[i].Addr, a = a, a.Next()
		}
		return s
	}
	many := New()
	const manySlices = 10_000
	one := func(number int) *Slice {
		s := crowdedSlice(number, 0)
		s.Endpoints = s.Endpoints[:1]
		return s
	}
	for i := range manySlices {
		many.PutSlice(one(i))
	}
	b.Run("1,000 endpoints apart", func(b *testing.B) { benchmarkUpdate(b, New(), apart) })
	b.Run("10 slices of 1,000 endpoints share an address", func(b *testing.B) {
		benchmarkUpdate(b, crowdedAddress(), func(version int) *Slice { return crowdedSlice(0, version) })
	})
	b.Run("10,000 slices of 1 endpoint share an address", func(b *testing.B) {
		benchmarkUpdate(b, many, func(version int) *Slice {
			s := one(version % manySlices)
			s.Endpoints[0].Name += fmt.Sprint(version)
			return s
		})
	})
}

func benchmarkUpdate(b *testing.B, ix *Index, slice func(version int) *Slice) {
	b.ReportAllocs()
	for i := range b.N {
		b.StopTimer()
		s := slice(i + 1)
		b.StartTimer()
		ix.PutSlice(s)
	}
}

// BenchmarkBuildShared is BenchmarkBuild with one address for all endpoints of a slice.
func BenchmarkBuildShared(b *testing.B) {
	var ix *Index
	before := liveHeap()
	for b.Loop() {
		ix = crowdedAddress()
	}
	b.ReportMetric(float64(liveHeap()-before)/(crowdedSlices*crowdedEndpoints), "heap-B/endpoint")
	if ix.endpoints.size == 0 {
		b.Fatal("nothing was put")
	}
}
