package index

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/property"
)

// plainNode is a node of the model.
type plainNode struct {
	uid    string
	labels map[string]string
	cidrs  []netip.Prefix
}

// nodeModel is a slow and simple model of the nodes of an Index: a map and linear searches.
type nodeModel struct {
	nodes   map[string]plainNode
	numbers map[string]uint32 // of the current nodes, as first seen
	given   map[uint32]string // the number of each node that ever existed
	changed bool              // whether the last operation changed labels, or added or removed a node
}

func newNodeModel() *nodeModel {
	return &nodeModel{nodes: map[string]plainNode{}, numbers: map[string]uint32{}, given: map[uint32]string{}}
}

func (m *nodeModel) put(name string, n plainNode) {
	old, ok := m.nodes[name]
	if ok && n.cidrs == nil && n.uid == old.uid {
		n.cidrs = old.cidrs
	}
	m.nodes[name] = n
	m.changed = m.changed || !ok || !maps.Equal(old.labels, n.labels)
}

func (m *nodeModel) setCIDRs(name, uid string, cidrs []netip.Prefix) {
	if n, ok := m.nodes[name]; ok && n.uid == uid && cidrs != nil {
		n.cidrs = cidrs
		m.nodes[name] = n
	}
}

func (m *nodeModel) delete(name string) {
	if _, ok := m.nodes[name]; ok {
		delete(m.nodes, name)
		delete(m.numbers, name)
		m.changed = true
	}
}

// byIP returns the names of the nodes with the longest range that contains an address.
func (m *nodeModel) byIP(a netip.Addr) (found []string) {
	longest := -1
	for name, n := range m.nodes {
		for _, p := range n.cidrs {
			switch {
			case !p.Contains(a) || p.Bits() < longest:
			case p.Bits() > longest:
				longest, found = p.Bits(), []string{name}
			default:
				found = append(found, name)
			}
		}
	}
	return found
}

func (n plainNode) record(name string) *Node {
	r := &Node{Name: NewSymbol(name), UID: NewUID(n.uid), CIDRs: slices.Clone(n.cidrs)}
	for _, k := range slices.Sorted(maps.Keys(n.labels)) {
		r.Labels = append(r.Labels, Label{NewSymbol(k), NewSymbol(n.labels[k])})
	}
	return r
}

// nodeAlphabet has the values of random nodes.
type nodeAlphabet struct {
	names  []string
	keys   []string
	ranges []netip.Prefix
}

// newNodeAlphabet has ranges of several lengths that contain each other, not all written with their first address.
func newNodeAlphabet(names int) nodeAlphabet {
	a := nodeAlphabet{names: numbered("node", names), keys: []string{"zone", "rack", "empty"}}
	for _, text := range []string{
		"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/16", "10.1.2.0/24", "10.1.2.128/25", "10.1.2.129/32", "10.1.3.0/24", "192.168.0.0/30",
		"fd00::/8", "fd00:1::/32", "fd00:1::/48", "fd00:1::/64", "fd00:1::5/64", "fd00:1:0:1::/64", "fd00:1::/112", "fd00:1::1/128", "a01:300::/24",
	} {
		a.ranges = append(a.ranges, netip.MustParsePrefix(text))
	}
	return a
}

// addresses are the first and the last of each range, and those next to it.
func (a nodeAlphabet) addresses() (all []netip.Addr) {
	for _, p := range a.ranges {
		last := p.Masked().Addr().AsSlice()
		for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		end, _ := netip.AddrFromSlice(last)
		first := p.Masked().Addr()
		all = append(all, first.Prev(), first, end, end.Next())
	}
	return slices.DeleteFunc(distinct(all), func(a netip.Addr) bool { return !a.IsValid() })
}

func (a nodeAlphabet) node(r *rand.Rand) plainNode {
	n := plainNode{uid: pick(r, []string{"u1", "u1", "u2"}), labels: map[string]string{}, cidrs: a.cidrs(r)}
	for _, k := range a.keys {
		if r.IntN(3) > 0 {
			n.labels[k] = pick(r, []string{"", "v1", "v2"})
		}
	}
	return n
}

// cidrs returns nil (unknown), an empty list, or a few ranges, of which two may be equal.
func (a nodeAlphabet) cidrs(r *rand.Rand) []netip.Prefix {
	if r.IntN(3) == 0 {
		return nil
	}
	all := []netip.Prefix{}
	for range r.IntN(4) {
		all = append(all, pick(r, a.ranges))
	}
	return all
}

// nodeStep runs a random operation on both, and returns its description.
func nodeStep(r *rand.Rand, a nodeAlphabet, ix *Index, m *nodeModel) string {
	m.changed = false
	name := pick(r, a.names)
	switch op := r.IntN(20); {
	case op < 8:
		n := a.node(r)
		m.put(name, n)
		ix.PutNode(n.record(name))
		return fmt.Sprintf("PutNode %s %+v", name, n)
	case op < 10:
		n := m.nodes[name]
		if n.uid == "" {
			return "nothing"
		}
		ix.PutNode(n.record(name))
		return "PutNode of an equal record of " + name
	case op < 14:
		uid, cidrs := pick(r, []string{"u1", "u2"}), a.cidrs(r)
		m.setCIDRs(name, uid, cidrs)
		ix.SetNodeCIDRs(NewSymbol(name), NewUID(uid), slices.Clone(cidrs))
		return fmt.Sprintf("SetNodeCIDRs %s %s %v", name, uid, cidrs)
	case op < 18:
		m.delete(name)
		ix.DeleteNode(NewSymbol(name))
		return "DeleteNode " + name
	default:
		return replaceStep(r, a, ix, m)
	}
}

// replaceStep replaces the nodes: by current records, equal ones and new ones.
func replaceStep(r *rand.Rand, a nodeAlphabet, ix *Index, m *nodeModel) string {
	drop, anew := pick(r, []int{0, 30, 100}), pick(r, []int{0, 30})
	var all []*Node
	for _, name := range a.names {
		old, ok := m.nodes[name]
		switch {
		case r.IntN(100) < drop:
			m.delete(name)
		case r.IntN(100) < anew:
			n := a.node(r)
			m.put(name, n)
			all = append(all, n.record(name))
		case ok && r.IntN(2) == 0:
			all = append(all, old.record(name))
		case ok:
			all = append(all, ix.Node(NewSymbol(name)))
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	ix.ReplaceNodes(all)
	return fmt.Sprintf("ReplaceNodes by %d", len(all))
}

// compare returns the first difference between Index and model.
func (m *nodeModel) compare(ix *Index, a nodeAlphabet, addresses []netip.Addr) error {
	var errs []error
	for _, name := range a.names {
		errs = append(errs, m.compareNode(ix.Node(NewSymbol(name)), name, a.keys))
		if ix.NodeNamed(name) != ix.Node(NewSymbol(name)) {
			errs = append(errs, fmt.Errorf("NodeNamed(%q) is another node than Node", name))
		}
	}
	for _, ip := range addresses {
		got, want := ix.NodeByIP(ip), m.byIP(ip)
		switch {
		case got == nil && len(want) == 0:
		case got == nil || !slices.Contains(want, got.Name.String()) || got != ix.Node(got.Name):
			errs = append(errs, fmt.Errorf("NodeByIP(%s) = %+v, want the one of %q", ip, got, want))
		}
	}
	return errors.Join(append(errs, m.compareSizes(ix))...)
}

func (m *nodeModel) compareNode(n *Node, name string, keys []string) error {
	want, ok := m.nodes[name]
	if n == nil || !ok {
		if n != nil || ok {
			return fmt.Errorf("Node(%q) = %+v, want one: %t", name, n, ok)
		}
		return nil
	}
	if n.Name.String() != name || n.UID != NewUID(want.uid) || !slices.Equal(n.CIDRs, want.cidrs) || !n.Equal(want.record(name)) {
		return fmt.Errorf("Node(%q) = %+v, want %+v", name, *n, want)
	}
	for _, k := range keys {
		got, has := n.Label(NewSymbol(k))
		if value, ok := want.labels[k]; has != ok || got.String() != value {
			return fmt.Errorf("label %s of %s = %q, %t, want %q, %t", k, name, got, has, value, ok)
		}
	}
	if number, seen := m.numbers[name]; seen {
		if n.Number() != number {
			return fmt.Errorf("the number of %s became %d, was %d", name, n.Number(), number)
		}
		return nil
	}
	if owner, taken := m.given[n.Number()]; taken || n.Number() == 0 {
		return fmt.Errorf("the number %d of %s was that of %q", n.Number(), name, owner)
	}
	m.numbers[name], m.given[n.Number()] = n.Number(), name
	return nil
}

// compareSizes detects values that are never removed from the tables, which readers would not notice.
func (m *nodeModel) compareSizes(ix *Index) error {
	ranges, labeled, lengths, lists := 0, 0, map[int]bool{}, map[string]bool{}
	for _, n := range m.nodes {
		ranges += len(n.cidrs)
		for _, p := range n.cidrs {
			lengths[p.Bits()+128-p.Addr().BitLen()] = true
		}
		if len(n.labels) > 0 {
			labeled++
			lists[strings.Join(slices.Sorted(maps.Keys(n.labels)), ",")] = true
		}
	}
	users, known := 0, []int(nil)
	for _, l := range ix.nodes.keys {
		users += l.users
	}
	if l := ix.nodes.lengths.Load(); l != nil {
		known = *l
	}
	got := [...]int{ix.nodes.byName.size, ix.nodes.byCIDR.size, len(known), len(ix.nodes.count), len(ix.nodes.keys), users}
	want := [...]int{len(m.nodes), ranges, len(lengths), len(lengths), len(lists), labeled}
	if got != want {
		return fmt.Errorf("sizes of byName, byCIDR, lengths, count, keys, and users of keys = %v, want %v", got, want)
	}
	return nil
}

// TestRandomNodes compares all results of readers about nodes with the model.
func TestRandomNodes(t *testing.T) {
	for _, size := range []struct {
		names int
		seeds uint64
		steps int
	}{{3, 30, 250}, {60, 3, 300}} {
		a := newNodeAlphabet(size.names)
		addresses := a.addresses()
		t.Run(fmt.Sprintf("names=%d", size.names), func(t *testing.T) {
			property.Seeds(t, 0, size.seeds, func(t *testing.T, seed uint64) {
				t.Parallel()
				r, ix, m := rand.New(rand.NewPCG(seed, 5)), New(), newNodeModel()
				for step := range size.steps {
					before := ix.NodesGeneration().Load()
					text := nodeStep(r, a, ix, m)
					if advanced := ix.NodesGeneration().Load() != before; advanced != m.changed {
						t.Fatalf("step %d, after %s: the generation advanced: %t, want %t", step, text, advanced, m.changed)
					}
					if err := m.compare(ix, a, addresses); err != nil {
						t.Fatalf("step %d, after %s:\n%v", step, text, err)
					}
				}
			})
		})
	}
}

// TestNodesGeneration asserts for each kind of change whether the generation advances.
func TestNodesGeneration(t *testing.T) {
	first := netip.MustParsePrefix("10.1.0.0/24")
	node := func() plainNode {
		return plainNode{uid: "u1", labels: map[string]string{"zone": "a"}, cidrs: []netip.Prefix{first}}
	}
	n1, n2 := NewSymbol("n1"), NewSymbol("n2")
	tests := []struct {
		name   string
		change func(*Index)
		want   bool
	}{
		{"a node is created", func(ix *Index) { ix.PutNode(node().record("n2")) }, true},
		{"a node without labels is created", func(ix *Index) { ix.PutNode(&Node{Name: n2}) }, true},
		{"an equal record", func(ix *Index) { ix.PutNode(node().record("n1")) }, false},
		{"the very record", func(ix *Index) { ix.PutNode(ix.Node(n1)) }, false},
		{"a record that does not speak of ranges", func(ix *Index) {
			ix.PutNode(plainNode{uid: "u1", labels: map[string]string{"zone": "a"}}.record("n1"))
		}, false},
		{"a label gets another value", func(ix *Index) { ix.PutNode(plainNode{uid: "u1", labels: map[string]string{"zone": "b"}}.record("n1")) }, true},
		{"a label more", func(ix *Index) {
			ix.PutNode(plainNode{uid: "u1", labels: map[string]string{"zone": "a", "rack": ""}}.record("n1"))
		}, true},
		{"no labels any more", func(ix *Index) { ix.PutNode(plainNode{uid: "u1"}.record("n1")) }, true},
		{"other ranges", func(ix *Index) {
			ix.SetNodeCIDRs(n1, NewUID("u1"), []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")})
		}, false},
		{"ranges of a node of before", func(ix *Index) { ix.SetNodeCIDRs(n1, NewUID("u0"), []netip.Prefix{}) }, false},
		{"ranges of no node", func(ix *Index) { ix.SetNodeCIDRs(n2, NewUID("u1"), []netip.Prefix{first}) }, false},
		{"a node is deleted", func(ix *Index) { ix.DeleteNode(n1) }, true},
		{"a node goes that is not there", func(ix *Index) { ix.DeleteNode(n2) }, false},
		{"the same nodes", func(ix *Index) { ix.ReplaceNodes([]*Node{node().record("n1")}) }, false},
		{"no nodes", func(ix *Index) { ix.ReplaceNodes(nil) }, true},
		{"another node in its place", func(ix *Index) { ix.ReplaceNodes([]*Node{node().record("n2")}) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ix := New()
			ix.PutNode(node().record("n1"))
			before := ix.NodesGeneration().Load()
			tt.change(ix)
			if got := ix.NodesGeneration().Load() != before; got != tt.want {
				t.Errorf("advanced: %t, want %t", got, tt.want)
			}
		})
	}
}

func TestNodeRanges(t *testing.T) {
	name, mine := NewSymbol("n1"), []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}
	inside := []netip.Addr{netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00:1::7")}
	tests := []struct {
		name   string
		change func(*Index)
		want   bool // whether the node is found by addresses in the ranges
	}{
		{"nothing changes", func(*Index) {}, true},
		{"a record that does not speak of them", func(ix *Index) {
			ix.PutNode(&Node{Name: name, UID: NewUID("u1"), Labels: []Label{{NewSymbol("k"), NewSymbol("v")}}})
		}, true},
		{"a relist that does not speak of them", func(ix *Index) { ix.ReplaceNodes([]*Node{{Name: name, UID: NewUID("u1")}}) }, true},
		{"another node of the name", func(ix *Index) { ix.PutNode(&Node{Name: name, UID: NewUID("u2")}) }, false},
		{"a record that has none", func(ix *Index) { ix.PutNode(&Node{Name: name, UID: NewUID("u1"), CIDRs: []netip.Prefix{}}) }, false},
		{"set for another node of the name", func(ix *Index) { ix.SetNodeCIDRs(name, NewUID("u2"), []netip.Prefix{}) }, true},
		{"the node is deleted", func(ix *Index) { ix.DeleteNode(name) }, false},
		{"the node goes and comes, unspoken of", func(ix *Index) { ix.DeleteNode(name); ix.PutNode(&Node{Name: name, UID: NewUID("u1")}) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ix := New()
			ix.PutNode(&Node{Name: name, UID: NewUID("u1")})
			ix.SetNodeCIDRs(name, NewUID("u1"), mine)
			tt.change(ix)
			for _, a := range inside {
				if got := ix.NodeByIP(a); (got != nil) != tt.want || got != nil && got != ix.Node(name) {
					t.Errorf("NodeByIP(%s) = %v, want one: %t", a, got, tt.want)
				}
			}
		})
	}
}

// TestNodeOfAddress tests EndpointNode and PodNode, which have the same rules.
func TestNodeOfAddress(t *testing.T) {
	tests := []struct {
		name  string
		nodes []string // one for each record with the address
		want  string
	}{
		{"none", nil, ""},
		{"one", []string{"n1"}, "n1"},
		{"one whose node is not known", []string{""}, ""},
		{"several on one node", []string{"n1", "n1", "n1"}, "n1"},
		{"several, not all known", []string{"", "n1", ""}, "n1"},
		{"on two nodes", []string{"n1", "n2"}, ""},
		{"on two nodes, twice on one", []string{"n1", "n2", "n1"}, ""},
		{"on two nodes, and one not known", []string{"n1", "", "n2"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			slicesOnly, podsOnly, together := New(), New(), New()
			one := &Slice{Name: "all", Service: "web", Endpoints: []Endpoint{{Addr: movedIP, Node: NewSymbol("n9")}}}
			for i, node := range tt.nodes {
				e := Endpoint{Addr: endpointIP, Node: NewSymbol(node)}
				slicesOnly.PutSlice(&Slice{Name: strconv.Itoa(i), Service: "web", Endpoints: []Endpoint{e, {Addr: movedIP, Node: NewSymbol("n9")}}})
				podsOnly.PutPod(&Pod{Name: strconv.Itoa(i), IPs: []netip.Addr{endpointIP}, Node: NewSymbol(node)})
				one.Endpoints = append(one.Endpoints, e)
			}
			together.PutSlice(one)
			for reader, got := range map[string]Symbol{
				"EndpointNode of several slices": slicesOnly.EndpointNode(endpointIP),
				"EndpointNode of one slice":      together.EndpointNode(endpointIP),
				"PodNode":                        podsOnly.PodNode(endpointIP),
			} {
				if got.String() != tt.want {
					t.Errorf("%s = %q, want %q", reader, got, tt.want)
				}
			}
		})
	}
}

func TestNodeReadersDoNotAllocate(t *testing.T) {
	ix, name := New(), strings.Clone("n1")
	n := plainNode{uid: "u1", labels: map[string]string{"zone": "a"}, cidrs: []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64"), netip.MustParsePrefix("10.2.0.0/25"),
	}}
	ix.PutNode(n.record(name))
	ix.PutSlice(&Slice{Name: "web-1", Service: "web", Endpoints: []Endpoint{{Addr: endpointIP, Node: NewSymbol(name)}}})
	ix.PutPod(&Pod{Name: "pod", IPs: []netip.Addr{podIP}, Node: NewSymbol(name)})
	symbol, zone := NewSymbol(name), NewSymbol("zone")
	v4, v6, outside := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00:1::7"), netip.MustParseAddr("11.0.0.1")
	tests := map[string]func() bool{
		"Node":                           func() bool { return ix.Node(symbol) != nil },
		"NodeNamed":                      func() bool { return ix.NodeNamed(name) != nil },
		"NodeByIP":                       func() bool { return ix.NodeByIP(v4) != nil && ix.NodeByIP(v6) != nil },
		"NodeByIP of an address of none": func() bool { return ix.NodeByIP(outside) == nil },
		"EndpointNode":                   func() bool { return ix.EndpointNode(endpointIP) == symbol },
		"PodNode":                        func() bool { return ix.PodNode(podIP) == symbol },
		"Label":                          func() bool { _, ok := ix.Node(symbol).Label(zone); return ok },
		"NodesGeneration":                func() bool { return ix.NodesGeneration().Load() > 0 },
	}
	for name, read := range tests {
		t.Run(name, func(t *testing.T) {
			found := true
			if n := testing.AllocsPerRun(100, func() { found = read() && found }); n != 0 {
				t.Errorf("%v allocations, want none", n)
			}
			if !found {
				t.Error("it was not read")
			}
		})
	}
}

// TestNodesWhileWriting looks up a permanent node with its own range, while it changes and others are added and
// removed. The two labels of a node always have the same value.
func TestNodesWhileWriting(t *testing.T) {
	r, ix, name := rand.New(rand.NewPCG(7, 0)), New(), NewSymbol("steady")
	wide, narrow := netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("10.9.1.0/24")
	inside, own := netip.MustParseAddr("10.9.1.1"), netip.MustParsePrefix("10.8.0.0/16")
	node := func(name Symbol, cidrs ...netip.Prefix) *Node {
		v := NewSymbol(strconv.Itoa(r.IntN(3)))
		return &Node{Name: name, Labels: []Label{{NewSymbol("x"), v}, {NewSymbol("y"), v}}, CIDRs: cidrs}
	}
	ix.PutNode(node(name, wide, own))
	number := ix.Node(name).Number()
	read := func() error {
		all := []*Node{ix.Node(name), ix.NodeByIP(own.Addr())}
		for _, n := range all {
			if n == nil || n.Name != name || n.Number() != number {
				return fmt.Errorf("the steady node is %+v, its number was %d", n, number)
			}
		}
		if by := ix.NodeByIP(inside); by != nil { // there may be none while ranges change
			if !slices.ContainsFunc(by.CIDRs, func(p netip.Prefix) bool { return p.Contains(inside) }) {
				return fmt.Errorf("NodeByIP found %+v", by)
			}
			all = append(all, by)
		}
		for _, n := range all {
			x, hasX := n.Label(NewSymbol("x"))
			y, hasY := n.Label(NewSymbol("y"))
			if x != y || !hasX || !hasY {
				return fmt.Errorf("labels %q %t and %q %t of %s", x, hasX, y, hasY, n.Name)
			}
		}
		return nil
	}
	others := symbolsOf(numbered("node", 100))
	readWhile(t, 2, read, func(failed func() bool) {
		for step := 0; step < 4000 && !failed(); step++ {
			other := pick(r, others)
			switch r.IntN(6) {
			case 0:
				ix.PutNode(node(name))
			case 1:
				ix.SetNodeCIDRs(name, node(name).UID, pick(r, [][]netip.Prefix{{wide, own}, {own, narrow}, {narrow, own, wide}}))
			case 2:
				ix.DeleteNode(other)
			case 3:
				ix.ReplaceNodes([]*Node{ix.Node(name), node(other, narrow)})
			default:
				ix.PutNode(node(other, narrow, netip.PrefixFrom(inside, 20+r.IntN(13))))
			}
		}
	})
}

func symbolsOf(texts []string) (all []Symbol) {
	for _, s := range texts {
		all = append(all, NewSymbol(s))
	}
	return all
}

// TestNodesGenerationComesAfter asserts that a reader of the generation finds the node in the state that the
// generation counts.
func TestNodesGenerationComesAfter(t *testing.T) {
	ix, name, version := New(), NewSymbol("n1"), NewSymbol("version")
	put := func(v int) {
		ix.PutNode(&Node{Name: name, Labels: []Label{{version, NewSymbol(strconv.Itoa(v))}}})
	}
	put(1)
	readWhile(t, 2,
		func() error {
			g := ix.NodesGeneration().Load()
			text, _ := ix.Node(name).Label(version)
			if v, err := strconv.ParseUint(text.String(), 10, 64); err != nil || v < g {
				return fmt.Errorf("version %q at generation %d", text, g)
			}
			return nil
		},
		func(failed func() bool) {
			for v := 2; v < 20_000 && !failed(); v++ {
				put(v)
			}
		})
}
