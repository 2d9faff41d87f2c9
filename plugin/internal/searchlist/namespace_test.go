package searchlist

import (
	"fmt"
	"slices"
	"testing"
)

// counted returns the number of queries of a namespace, false without a counter.
func counted(name string) (uint64, bool) {
	for _, n := range Namespaces() {
		if n.Name == name {
			return n.Queries(), true
		}
	}
	return 0, false
}

// TestNamespaces has pods of two namespaces with equal search lists: counters and list IDs are separate.
func TestNamespaces(t *testing.T) {
	before := map[string]uint64{} // the counters are those of the process
	for _, n := range Namespaces() {
		before[n.Name] = n.Queries()
	}
	list := []string{"example.org."}
	one, two := NewForPods("counted-one", list), NewForPods("counted-two", list)
	if one == nil || two == nil || one.ID == two.ID || !slices.Equal(one.Suffixes, two.Suffixes) {
		t.Fatalf("lists %+v, %+v", one, two)
	}
	one.Namespace.Inc()
	one.Namespace.Inc()
	NewForPods("counted-one", []string{"other.example.org."}).Namespace.Inc() // another list of the namespace
	two.Namespace.Inc()
	for name, want := range map[string]uint64{"counted-one": 3, "counted-two": 1} {
		if got, ok := counted(name); !ok || got-before[name] != want {
			t.Errorf("%s: %d, want %d", name, got-before[name], want)
		}
	}
	if p := New([]string{"example.org."}); p.Namespace != nil || p.ID == one.ID {
		t.Errorf("the list without a namespace is %+v", p)
	}
	(*Namespace)(nil).Inc()
}

// TestManyNamespaces has more namespaces than counters.
func TestManyNamespaces(t *testing.T) {
	namespaces.mu.Lock()
	before := namespaces.byName
	namespaces.byName = map[string]*Namespace{}
	namespaces.mu.Unlock()
	defer func() {
		namespaces.mu.Lock()
		namespaces.byName = before
		namespaces.mu.Unlock()
	}()
	for i := range maxNamespaces + 5 {
		namespaceOf(fmt.Sprintf("many-%d", i)).Inc()
	}
	if got, ok := counted(otherNamespace); !ok || got != 5 {
		t.Errorf("%d queries of others, want 5", got)
	}
	if n := len(Namespaces()); n != maxNamespaces+1 {
		t.Errorf("%d namespaces, want %d", n, maxNamespaces+1)
	}
	namespaceOf("many-0").Inc()
	if got, ok := counted("many-0"); !ok || got != 2 {
		t.Errorf("%d queries of the first namespace, want 2", got)
	}
}
