package index

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

// TestPack asserts that a packed slice has the endpoints that it was made with, and that it is equal to the one that is not packed.
func TestPack(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	for _, tc := range []struct {
		name string
		all  []Endpoint
	}{
		{"none", nil},
		{"one address", []Endpoint{{Addr: v4}}},
		{"IPv6", []Endpoint{{Addr: v6}, {Addr: v6.Next()}}},
		{"both families", []Endpoint{{Addr: v4}, {Addr: v6}, {Addr: v4}}},
		{"the first has a name", []Endpoint{{Addr: v4, Name: "db-0"}, {Addr: v4.Next()}}},
		{"the last has a name", []Endpoint{{Addr: v4}, {Addr: v4.Next(), Name: "db-1"}}},
		{"names", []Endpoint{{Addr: v4, Name: "a"}, {Addr: v4.Next(), Name: ""}, {Addr: v4, Name: "a-longer-name"}}},
		{"names in names", []Endpoint{{Addr: v4, Name: "aa"}, {Addr: v4, Name: "a"}, {Addr: v4}, {Addr: v4, Name: "aaa"}, {Addr: v4, Name: "a"}}},
		{"a zone", []Endpoint{{Addr: v4}, {Addr: v4, Zone: NewSymbol("east")}}},
		{"a node", []Endpoint{{Addr: v6, Node: NewSymbol("n1")}, {Addr: v4}}},
		{"hints", []Endpoint{{Addr: v4}, {Addr: v4, Hints: &Hints{Zones: []Symbol{NewSymbol("east")}}}}},
		{"all fields", []Endpoint{{v6, "db-0", NewSymbol("east"), NewSymbol("n1"), &Hints{}}, {v4, "db-1", NewSymbol("west"), NewSymbol("n2"), nil}}},
	} {
		t.Run(tc.name, func(t *testing.T) { checkPack(t, tc.all) })
	}
	t.Run("random", func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		o := &operations{Rand: r, alphabet: newAlphabet(3, 3, 3)}
		for range 2000 {
			family := pick(r, [][]netip.Addr{o.v4, o.v6, slices.Concat(o.v4, o.v6)})
			var all []Endpoint
			for range r.IntN(12) {
				all = append(all, o.endpoint(family))
			}
			checkPack(t, all)
		}
	})
}

func checkPack(t *testing.T, all []Endpoint) {
	t.Helper()
	made := func() *Slice {
		return &Slice{Namespace: "default", Name: "web-1", Service: "web", Endpoints: slices.Clone(all)}
	}
	s := made()
	s.Pack()
	s.Pack() // changes nothing
	if s.Endpoints != nil || s.Len() != len(all) || !reflect.DeepEqual(slices.Collect(s.All()), all) {
		t.Fatalf("%d endpoints %+v, want %+v", s.Len(), slices.Collect(s.All()), all)
	}
	if !s.Equal(made()) || !made().Equal(s) || !s.Equal(s) {
		t.Error("not equal to the slice that is not packed")
	}
	for i, e := range all {
		other := made()
		other.Endpoints[i].Addr = e.Addr.Next()
		if s.Equal(other) || other.Equal(s) {
			t.Errorf("equal to a slice with another address of endpoint %d", i)
		}
		var with []int
		for at, f := range all {
			if f.Addr == e.Addr {
				with = append(with, at)
			}
			if s.node(at) != f.Node {
				t.Errorf("node of endpoint %d is %v, want %v", at, s.node(at), f.Node)
			}
		}
		if got := slices.Collect(s.withAddr(e.Addr)); !slices.Equal(got, with) || !s.hasAddr(e.Addr) {
			t.Errorf("endpoints %v have the address %s, want %v", got, e.Addr, with)
		}
	}
	checkNamed(t, s, all)
	for _, absent := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:ffff::1")} {
		if s.hasAddr(absent) {
			t.Errorf("an endpoint has the address %s", absent)
		}
	}
}

// checkNamed asserts that the endpoints of a packed slice are found by their names and addresses, and by parts of names only if these are
// names.
func checkNamed(t *testing.T, s *Slice, all []Endpoint) {
	t.Helper()
	names := []string{"a", "aa", "db-1"}
	for _, e := range all {
		if e.Name != "" {
			names = append(names, e.Name, e.Name[1:]+"x", e.Name+e.Name, e.Name[:len(e.Name)/2]+"-")
		}
	}
	addrs := []netip.Addr{{}, netip.MustParseAddr("192.0.2.1")}
	for _, e := range all {
		addrs = append(addrs, e.Addr)
	}
	for _, name := range names {
		for _, a := range addrs {
			var want []int
			for i, e := range all {
				if e.Name == name || e.Name == "" && e.Addr == a {
					want = append(want, i)
				}
			}
			for what, s := range map[string]*Slice{"packed": s, "not packed": {Endpoints: slices.Clone(all)}} {
				var got []int
				for i := s.NextNamed(0, name, a); i < s.Len(); i = s.NextNamed(i+1, name, a) {
					got = append(got, i)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%s: endpoints %v are named %q or have the address %v without a name, want %v of %+v", what, got, name, a, want, all)
				}
			}
		}
	}
}

// TestUnpackedReplaces asserts that Endpoints, if they are set, replace the packed ones of a copied record.
func TestUnpackedReplaces(t *testing.T) {
	s := webSlice()
	s.Pack()
	c := *s
	c.Endpoints = []Endpoint{}
	if c.Len() != 0 || c.Equal(s) {
		t.Errorf("%d endpoints of a copy without endpoints", c.Len())
	}
	c.Pack()
	if c.Len() != 0 || s.Len() != 1 {
		t.Errorf("%d endpoints of a packed copy without endpoints, %d of the record", c.Len(), s.Len())
	}
}
