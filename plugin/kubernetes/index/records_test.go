package index

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func TestSymbol(t *testing.T) {
	tests := []struct {
		name string
		a, b Symbol
		same bool
	}{
		{"equal strings", NewSymbol("http"), NewSymbol(string([]byte("http"))), true},
		{"other strings", NewSymbol("http"), NewSymbol("https"), false},
		{"empty is zero", NewSymbol(""), Symbol{}, true},
		{"empty and other", NewSymbol(""), NewSymbol("http"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if (tt.a == tt.b) != tt.same || (tt.a.String() == tt.b.String()) != tt.same {
				t.Errorf("%q == %q: %t, want %t", tt.a, tt.b, tt.a == tt.b, tt.same)
			}
		})
	}
	for _, s := range []string{"", "http", "Zone.With.Dots"} {
		if got := NewSymbol(s).String(); got != s {
			t.Errorf("NewSymbol(%q).String() = %q", s, got)
		}
	}
}

// unseen are the fields that Equal does not compare: the key, and the version, which changes with every change of an
// object.
var unseen = map[string]bool{"Namespace": true, "Name": true}

// TestEqual changes every field of every record, including fields added later: a field that Equal ignores would leave
// outdated answers in stores.
func TestEqual(t *testing.T) {
	t.Run("Service", func(t *testing.T) {
		eachField(t, web, unseen, (*Service).Equal)
	})
	t.Run("Slice", func(t *testing.T) {
		eachField(t, webSlice, unseen, (*Slice).Equal)
	})
	t.Run("Pod", func(t *testing.T) {
		eachField(t, webPod, unseen, (*Pod).Equal)
	})
	t.Run("PodDNS", func(t *testing.T) {
		eachField(t, func() *PodDNS { return &PodDNS{Policy: "Default", Searches: []string{"a.example"}} }, nil, func(a, b *PodDNS) bool {
			return (&Pod{DNS: a}).Equal(&Pod{DNS: b})
		})
	})
	t.Run("Topology", func(t *testing.T) {
		eachField(t, func() *Topology { return &Topology{Keys: []Symbol{NewSymbol("a")}} }, nil, func(a, b *Topology) bool {
			return (&Service{Topology: a}).Equal(&Service{Topology: b})
		})
	})
	t.Run("Hints", func(t *testing.T) {
		eachField(t, func() *Hints { return &Hints{Zones: []Symbol{NewSymbol("a")}} }, nil, func(a, b *Hints) bool {
			return Endpoint{Hints: a}.equal(Endpoint{Hints: b})
		})
	})
	t.Run("External", func(t *testing.T) {
		eachField(t, func() *External { return &External{IPs: []netip.Addr{webIP}} }, nil, func(a, b *External) bool {
			return (&Service{External: a}).Equal(&Service{External: b})
		})
	})
	t.Run("Node", func(t *testing.T) {
		eachField(t, func() *Node { return &Node{Name: NewSymbol("n")} }, nil, (*Node).Equal)
	})
	t.Run("Port", func(t *testing.T) {
		eachField(t, func() *Port { return &webSlice().Ports[0] }, nil, func(p, q *Port) bool {
			return (&Slice{Ports: []Port{*p}}).Equal(&Slice{Ports: []Port{*q}})
		})
	})
	t.Run("Endpoint", func(t *testing.T) {
		eachField(t, func() *Endpoint { return &webSlice().Endpoints[0] }, nil, func(e, f *Endpoint) bool {
			return (&Slice{Endpoints: []Endpoint{*e}}).Equal(&Slice{Endpoints: []Endpoint{*f}})
		})
	})
}

func eachField[R any](t *testing.T, record func() *R, ignored map[string]bool, equal func(a, b *R) bool) {
	if !equal(record(), record()) {
		t.Error("two equal records are not equal")
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[R]()) {
		if !f.IsExported() {
			continue // set by the index, not a field of the object
		}
		t.Run(f.Name, func(t *testing.T) {
			r := record()
			alter(t, reflect.ValueOf(r).Elem().FieldByIndex(f.Index))
			if got := equal(record(), r); got != ignored[f.Name] {
				t.Errorf("equal is %t after a change", got)
			}
			if got := equal(r, record()); got != ignored[f.Name] {
				t.Errorf("equal is %t before a change", got)
			}
		})
	}
}

// alter sets v to another value.
func alter(t *testing.T, v reflect.Value) {
	t.Helper()
	switch p := v.Addr().Interface().(type) {
	case *string:
		*p += "x"
	case *Symbol:
		*p = NewSymbol(p.String() + "x")
	case *netip.Addr:
		*p = p.Next()
	case *Kind:
		*p++
	case *int32:
		*p++
	case *uint8:
		*p++
	case *uint16:
		*p++
	case *[]netip.Addr:
		*p = append(*p, movedIP)
	case *PodLabels:
		*p = NewPodLabels(map[string]string{"app": "web"})
	case **Topology:
		*p = &Topology{Local: *p == nil}
	case **External:
		*p = &External{Hosts: []string{"lb.example."}}
	case **PodDNS:
		*p = &PodDNS{}
	case *[]string:
		*p = append(*p, "b.example")
	case **Hints:
		*p = &Hints{}
	case *UID:
		*p++
	case *bool:
		*p = !*p
	case *Distribution:
		*p++
	case *[]Symbol:
		*p = append(*p, NewSymbol("x"))
	case *[]Label:
		*p = append(*p, Label{NewSymbol("x"), NewSymbol("y")})
	case *[]netip.Prefix:
		*p = append(*p, netip.PrefixFrom(movedIP, 7))
	case *[]Port:
		*p = append(*p, Port{Number: 1})
	case *[]Endpoint:
		*p = append(*p, Endpoint{Addr: movedIP})
	default:
		t.Fatalf("missing alteration of a %s", v.Type())
	}
}

// TestPodLabels asserts that all labels are there, in the order of their keys, and that equal ones are equal records.
func TestPodLabels(t *testing.T) {
	for _, labels := range []map[string]string{
		nil, {"app": "web"}, {"empty": ""}, {"b": "2", "a": "1", "c": ""}, {"app.kubernetes.io/name": "web", "app": "a=b"},
	} {
		l := NewPodLabels(labels)
		if got := maps.Collect(l.All()); !maps.Equal(got, labels) {
			t.Errorf("labels %v, want %v", got, labels)
		}
		var keys []string
		for k := range l.All() {
			keys = append(keys, k)
		}
		if !slices.IsSorted(keys) {
			t.Errorf("keys %v are not in order", keys)
		}
		for range l.All() {
			break // the iterator ends
		}
		if same := NewPodLabels(maps.Clone(labels)); same != l {
			t.Errorf("equal labels %v differ", labels)
		}
		if other := NewPodLabels(map[string]string{"app": "other"}); other == l {
			t.Errorf("labels %v are equal to others", labels)
		}
	}
}
