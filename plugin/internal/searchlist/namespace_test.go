package searchlist

import (
	"fmt"
	"slices"
	"testing"
)

// counted returns what has been counted for a namespace, and whether it is there.
func counted(name string) (uint64, bool) {
	for _, n := range Namespaces() {
		if n.Name == name {
			return n.Queries(), true
		}
	}
	return 0, false
}

// TestNamespaces counts queries of pods with one list in two namespaces: they are told apart, though dnsConfig gives
// both the same list, and so are their answers.
func TestNamespaces(t *testing.T) {
	before := map[string]uint64{} // the counters are those of the process
	for _, n := range Namespaces() {
		before[n.Name] = n.Queries()
	}
	list := []string{"example.org."}
	one, two := NewForPods("counted-one", list), NewForPods("counted-two", list)
	if one == nil || two == nil || one.ID == two.ID || !slices.Equal(one.Suffixes, two.Suffixes) {
		t.Fatalf("paths %+v, %+v", one, two)
	}
	one.Namespace.Inc()
	one.Namespace.Inc()
	NewForPods("counted-one", []string{"other.example.org."}).Namespace.Inc() // another list, the same namespace
	two.Namespace.Inc()
	for name, want := range map[string]uint64{"counted-one": 3, "counted-two": 1} {
		if got, ok := counted(name); !ok || got-before[name] != want {
			t.Errorf("%s: %d, want %d", name, got-before[name], want)
		}
	}
	if p := New([]string{"example.org."}); p.Namespace != nil || p.ID == one.ID {
		t.Errorf("the list of nobody's pods is %+v", p)
	}
	(*Namespace)(nil).Inc() // as for a client without one
}

// TestManyNamespaces has more namespaces than are counted apart.
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
	if got, ok := counted(OtherNamespace); !ok || got != 5 {
		t.Errorf("%d queries of others, want 5", got)
	}
	if n := len(Namespaces()); n != maxNamespaces+1 {
		t.Errorf("%d namespaces, want %d", n, maxNamespaces+1)
	}
	namespaceOf("many-0").Inc()
	if got, ok := counted("many-0"); !ok || got != 2 {
		t.Errorf("the first is counted %d times, want 2", got)
	}
}
