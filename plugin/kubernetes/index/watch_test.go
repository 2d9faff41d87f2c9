package index

import (
	"net/netip"
	"testing"
)

// advancedFunc is a watcher.
type advancedFunc func()

func (f advancedFunc) Advanced() { f() }

// TestWatch asserts that a watcher is called after each change, when readers find the new records and number.
func TestWatch(t *testing.T) {
	tests := []struct {
		name       string
		generation func(*Index) *Generation
		change     func(*Index)
		sees       func(*Index) bool
	}{
		{"Service changed", func(ix *Index) *Generation { return ix.Service("default", "web").Generation() },
			func(ix *Index) { ix.PutService(with(web(), func(s *Service) { s.Ports = nil })) },
			func(ix *Index) bool { return len(ix.Service("default", "web").Service.Ports) == 0 }},
		{"endpoint added", func(ix *Index) *Generation { return ix.Service("default", "web").Generation() },
			func(ix *Index) { ix.PutSlice(webSlice()) },
			func(ix *Index) bool { return ix.Service("default", "web").Ready() == 1 }},
		{"Service deleted", func(ix *Index) *Generation { return ix.Service("default", "web").Generation() },
			func(ix *Index) { ix.DeleteService("default", "web") },
			func(ix *Index) bool { return ix.Service("default", "web") == nil }},
		{"Service created", func(ix *Index) *Generation { return ix.NameGeneration("default", "new") },
			func(ix *Index) { ix.PutService(&Service{Namespace: "default", Name: "new"}) },
			func(ix *Index) bool { return ix.Service("default", "new") != nil }},
		{"ServiceImport created", func(ix *Index) *Generation { return ix.NameGeneration("default", "new") },
			func(ix *Index) { ix.PutImport(&Service{Namespace: "default", Name: "new"}) },
			func(ix *Index) bool { return ix.Import("default", "new") != nil }},
		{"namespace created", func(ix *Index) *Generation { return ix.NamespaceGeneration("missing") },
			func(ix *Index) { ix.PutNamespace("missing") },
			func(ix *Index) bool { return ix.HasNamespace("missing") }},
		{"namespace of a Service created", func(ix *Index) *Generation { return ix.NameGeneration("missing", "web") },
			func(ix *Index) { ix.ReplaceNamespaces([]string{"default", "missing"}) },
			func(ix *Index) bool { return ix.HasNamespace("missing") }},
		{"namespace of a Service deleted", func(ix *Index) *Generation { return ix.Service("default", "web").Generation() },
			func(ix *Index) { ix.DeleteNamespace("default") },
			func(ix *Index) bool { return !ix.HasNamespace("default") }},
		{"ClusterIP moved", func(ix *Index) *Generation { return ix.AddressGeneration(otherIP) },
			func(ix *Index) { ix.PutService(with(web(), func(s *Service) { s.IPs = []netip.Addr{otherIP} })) },
			func(ix *Index) bool { return len(ix.ServicesByIP(otherIP)) == 1 }},
		{"pod created", func(ix *Index) *Generation { return ix.AddressGeneration(podIP) },
			func(ix *Index) { ix.PutPod(webPod()) },
			func(ix *Index) bool { return len(ix.PodsByIP(podIP)) == 1 }},
		{"node created", (*Index).NodesGeneration,
			func(ix *Index) { ix.PutNode(&Node{Name: NewSymbol("n1")}) },
			func(ix *Index) bool { return ix.NodeNamed("n1") != nil }},
		{"ID of the cluster", (*Index).NodesGeneration,
			func(ix *Index) { ix.SetClusterID(NewSymbol("west")) },
			func(ix *Index) bool { return ix.ClusterID() == NewSymbol("west") }},
		{"access lost", (*Index).AccessGeneration, (*Index).Outdate, func(*Index) bool { return true }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ix := New()
			ix.PutNamespace("default")
			ix.PutService(web())
			ix.PutService(stray())
			g, calls, seen := tt.generation(ix), 0, true
			before := g.Load()
			w := advancedFunc(func() {
				calls++
				seen = seen && tt.sees(ix) && g.Load() > before
			})
			g.Watch(w)
			g.Watch(advancedFunc(func() { t.Error("the second watcher was called") }))
			tt.change(ix)
			if calls == 0 || !seen {
				t.Errorf("called %d times, saw the change: %t", calls, seen)
			}
			if advances := int(g.Load() - before); calls != advances { // #nosec G115 -- a few
				t.Errorf("called %d times for %d advances", calls, advances)
			}
		})
	}
}

// TestNamespacesOnce asserts that a list of namespaces advances the generation of each of their Services once.
func TestNamespacesOnce(t *testing.T) {
	ix := New()
	ix.PutService(web())
	ix.PutService(stray())
	all := []*Generation{ix.services.generation(t, "default", "web"), ix.services.generation(t, "missing", "web")}
	ix.ReplaceNamespaces([]string{"default", "missing", "empty"})
	for i, g := range all {
		if n := g.Load(); n != 2 { // the first when it was created
			t.Errorf("generation %d advanced %d times, want 2", i, n)
		}
	}
}

func (o objects) generation(t *testing.T, namespace, name string) *Generation {
	t.Helper()
	e := o.find(namespace, name)
	if e == nil {
		t.Fatalf("no entry of %s/%s", namespace, name)
	}
	return e.generation
}
