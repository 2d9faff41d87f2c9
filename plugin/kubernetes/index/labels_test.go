package index

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
)

// labelled returns the record of a node with labels, given as keys and values.
func labelled(name string, pairs ...string) *Node {
	n := &Node{Name: NewSymbol(name), UID: NewUID("uid-" + name)}
	for i := 0; i < len(pairs); i += 2 {
		n.Labels = append(n.Labels, Label{NewSymbol(pairs[i]), NewSymbol(pairs[i+1])})
	}
	return n
}

func TestLabels(t *testing.T) {
	for _, tc := range []struct {
		name, key string
		want      string
		has       bool
	}{
		{"the first", "a", "1", true},
		{"the last", "c", "3", true},
		{"an empty value", "b", "", true},
		{"one that is not there", "d", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := labelled("n", "a", "1", "b", "", "c", "3")
			for form := range 2 {
				if v, ok := n.Label(NewSymbol(tc.key)); v.String() != tc.want || ok != tc.has {
					t.Errorf("%q, %v in form %d, want %q, %v", v, ok, form, tc.want, tc.has)
				}
				New().PutNode(n) // packs the labels
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		ix := New()
		ix.PutNode(labelled("n"))
		if _, ok := ix.Node(NewSymbol("n")).Label(NewSymbol("a")); ok {
			t.Error("a label of a node without labels")
		}
	})
}

func TestSameLabels(t *testing.T) {
	base := []string{"a", "1", "b", "2"}
	for _, tc := range []struct {
		name  string
		other []string
		want  bool
	}{
		{"the same", []string{"a", "1", "b", "2"}, true},
		{"another value", []string{"a", "1", "b", "3"}, false},
		{"another key", []string{"a", "1", "c", "2"}, false},
		{"one more", []string{"a", "1", "b", "2", "c", ""}, false},
		{"one less", []string{"a", "1"}, false},
		{"none", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			small, other := labelled("n", base...), labelled("n", tc.other...)
			New().PutNode(small)
			for _, n := range []*Node{labelled("n", base...), small} {
				if n.Equal(other) != tc.want || other.Equal(n) != tc.want || n.Covers(other) != tc.want {
					t.Errorf("want %v", tc.want)
				}
			}
		})
	}
}

// TestKeyLists asserts that nodes with the same keys share a list, and that lists without users are removed.
func TestKeyLists(t *testing.T) {
	ix := New()
	lists := func(want int) {
		t.Helper()
		if n := len(ix.nodes.keys); n != want {
			t.Errorf("%d lists of keys, want %d", n, want)
		}
	}
	for i := range 10 {
		ix.PutNode(labelled(fmt.Sprintf("n%d", i), "host", fmt.Sprint(i), "zone", "a"))
	}
	lists(1)
	ix.PutNode(labelled("n0", "host", "0", "zone", "b"))
	lists(1)
	ix.PutNode(labelled("n0", "host", "0"))
	lists(2)
	ix.SetNodeCIDRs(NewSymbol("n0"), NewUID("uid-n0"), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")})
	lists(2)
	if v, ok := ix.NodeByIP(netip.MustParseAddr("10.0.0.1")).Label(NewSymbol("host")); !ok || v.String() != "0" {
		t.Errorf("host is %q after the range was set", v)
	}
	ix.PutNode(labelled("n0", "host", "0", "zone", "b"))
	lists(1)
	for i := range 9 {
		ix.DeleteNode(NewSymbol(fmt.Sprintf("n%d", i)))
	}
	lists(1)
	ix.ReplaceNodes(nil)
	lists(0)
}

// TestReplaceByThePresent puts records again that are in the index, or were until ranges were set, while they are
// read: they are not written to, which the race detector would find, and no generation advances.
func TestReplaceByThePresent(t *testing.T) {
	ix, name := New(), NewSymbol("n")
	before := labelled("n", "zone", "a")
	ix.PutNode(before)
	cidr := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	ix.SetNodeCIDRs(name, NewUID("uid-n"), cidr)
	now, generation := ix.Node(name), ix.NodesGeneration().Load()
	var wg sync.WaitGroup
	for _, n := range []*Node{before, now} {
		wg.Go(func() {
			for range 100 {
				if v, _ := n.Label(NewSymbol("zone")); v.String() != "a" || n.Number() != 1 || len(n.CIDRs) > 1 {
					t.Errorf("zone %q, number %d, ranges %v", v, n.Number(), n.CIDRs)
					return
				}
			}
		})
	}
	for range 100 {
		ix.ReplaceNodes([]*Node{before})
		ix.PutNode(now)
	}
	wg.Wait()
	if ix.Node(name) != now || ix.NodesGeneration().Load() != generation {
		t.Error("the index changed")
	}
}
