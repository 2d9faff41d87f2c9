package index

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/property"
)

// labelWorld is a Service, and a ServiceImport, with many endpoints in several EndpointSlices.
type labelWorld struct {
	*Index
	*rand.Rand
	slices map[string]*Slice
	labels []string
}

// newLabelWorld returns a world in which every second endpoint has a name. Some labels occur twice.
func newLabelWorld(r *rand.Rand) *labelWorld {
	w := &labelWorld{New(), r, map[string]*Slice{}, nil}
	w.PutNamespace("ns")
	w.PutService(&Service{Namespace: "ns", Name: "big", Kind: Headless})
	w.PutService(&Service{Namespace: "ns", Name: "other", Kind: Headless})
	w.PutImport(&Service{Namespace: "ns", Name: "big", Kind: Headless})
	for i := range 6 {
		s := &Slice{Namespace: "ns", Name: fmt.Sprint("slice-", i), Service: "big", Import: "big"}
		for range manyEndpoints / 5 {
			s.Endpoints = append(s.Endpoints, w.endpoint())
		}
		w.put(s)
	}
	for i := range 900 {
		w.labels = append(w.labels, fmt.Sprint("host-", i), AddressLabel(addressOfLabel(i)))
	}
	return w
}

func addressOfLabel(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

func (w *labelWorld) endpoint() Endpoint {
	e := Endpoint{Addr: addressOfLabel(w.IntN(900))}
	if w.IntN(2) == 0 {
		e.Name = fmt.Sprint("host-", w.IntN(900))
	}
	if w.IntN(3) == 0 {
		e.Zone = NewSymbol(fmt.Sprint("zone-", w.IntN(3)))
	}
	return e
}

// put puts a copy of a slice, which a later change may use.
func (w *labelWorld) put(s *Slice) {
	w.slices[s.Name] = s
	c := *s
	c.Endpoints = slices.Clone(s.Endpoints)
	w.PutSlice(&c)
}

// change changes something, and returns the maximum number of labels whose answers change, 0 for any number.
func (w *labelWorld) change() (what string, labels int) {
	s := *w.slices[fmt.Sprint("slice-", w.IntN(6))]
	s.Endpoints = slices.Clone(s.Endpoints)
	at := 0
	if n := len(s.Endpoints); n > 0 {
		at = w.IntN(n)
	}
	switch w.IntN(12) {
	case 0, 1, 2:
		if len(s.Endpoints) > 0 {
			s.Endpoints = slices.Delete(s.Endpoints, at, at+1)
		}
		s.Endpoints = append(s.Endpoints, w.endpoint())
		what, labels = "an endpoint replaced at the end", 2
	case 3, 4:
		s.Endpoints = slices.Insert(s.Endpoints, at, w.endpoint())
		what, labels = "an endpoint inserted", 1
	case 5:
		if len(s.Endpoints) > 0 {
			s.Endpoints[at] = w.endpoint()
		}
		what, labels = "an endpoint replaced", 2
	case 6:
		w.Shuffle(len(s.Endpoints), func(i, j int) { s.Endpoints[i], s.Endpoints[j] = s.Endpoints[j], s.Endpoints[i] })
		what = "another order"
	case 7:
		s.Ports = []Port{{Number: int32(w.IntN(3) + 1)}}
		what = "ports"
	case 8:
		s.Service = []string{"big", "other", ""}[w.IntN(3)]
		what = "another Service"
	case 9:
		s.Import, s.Cluster = []string{"big", ""}[w.IntN(2)], NewSymbol([]string{"", "east"}[w.IntN(2)])
		what = "another ServiceImport or cluster"
	case 10:
		if w.IntN(2) == 0 {
			w.DeleteService("ns", "big")
			return "no Service", 0
		}
		w.PutService(&Service{Namespace: "ns", Name: "big", Kind: Kind(w.IntN(2))})
		return "Service", 0
	default:
		if w.IntN(2) == 0 {
			w.DeleteNamespace("ns")
			return "no namespace", 0
		}
		w.PutNamespace("ns")
		return "namespace", 0
	}
	w.put(&s)
	return what, labels
}

// answers describes the records that an answer about each label is made from, none without an object.
func (w *labelWorld) answers(e *Entry) map[string]string {
	if e == nil || !w.HasNamespace("ns") {
		return nil
	}
	all := map[string]string{}
	for _, label := range w.labels {
		all[label] = fmt.Sprint(e.Service.Kind)
	}
	for _, s := range e.Slices {
		others := fmt.Sprint(s.Ports, s.Cluster)
		for endpoint := range s.All() {
			all[endpoint.Label()] += fmt.Sprint(" ", endpoint.Addr, endpoint.Zone, others)
		}
	}
	return all
}

// TestLabelGenerations changes Services with many endpoints: the Generation of a label advances whenever its answer changes, and with a change
// of few endpoints only few others.
func TestLabelGenerations(t *testing.T) {
	property.Seeds(t, 0, 10, func(t *testing.T, seed uint64) {
		w := newLabelWorld(rand.New(rand.NewPCG(seed, 1)))
		for step := range 40 {
			find := []func() *Entry{func() *Entry { return w.Service("ns", "big") }, func() *Entry { return w.Import("ns", "big") }}
			type before struct {
				generation *Generation
				number     uint64
				answer     string
			}
			var all [2]map[string]before
			for i, entry := range find {
				all[i] = map[string]before{}
				for label, answer := range w.answers(entry()) {
					g := entry().LabelGeneration(label)
					all[i][label] = before{g, g.Load(), answer}
				}
			}
			what, labels := w.change()
			for i, entry := range find {
				advanced, answers := 0, w.answers(entry())
				for label, b := range all[i] {
					changed := answers[label] != b.answer
					if b.generation.Load() != b.number {
						advanced++
					} else if changed {
						t.Fatalf("step %d, %s: the answer for %s changed, and its generation did not advance", step, what, label)
					}
				}
				if e := entry(); e != nil && e.labels != nil && labels > 0 && advanced > labels*30 {
					t.Errorf("step %d, %s: the generations of %d labels advanced", step, what, advanced)
				}
			}
		}
	})
}

// TestFewEndpoints: a Service with few endpoints has one Generation.
func TestFewEndpoints(t *testing.T) {
	ix := New()
	ix.PutNamespace("ns")
	ix.PutService(&Service{Namespace: "ns", Name: "small", Kind: Headless})
	s := &Slice{Namespace: "ns", Name: "a", Service: "small"}
	for i := range manyEndpoints - 1 {
		s.Endpoints = append(s.Endpoints, Endpoint{Addr: addressOfLabel(i)})
	}
	ix.PutSlice(s)
	e := ix.Service("ns", "small")
	if e.LabelGeneration("10-0-0-1") != e.Generation() {
		t.Error("a label has a Generation of its own")
	}
	ix.PutSlice(&Slice{Namespace: "ns", Name: "b", Service: "small", Endpoints: []Endpoint{{Addr: addressOfLabel(800)}}})
	if many := ix.Service("ns", "small"); many.LabelGeneration("10-0-0-1") == e.Generation() || many.Generation() != e.Generation() {
		t.Error("no Generations of labels with many endpoints, or another one of the Service")
	}
}
