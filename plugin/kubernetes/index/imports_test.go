package index

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var (
	importIP  = netip.MustParseAddr("10.97.0.1")
	remoteIP  = netip.MustParseAddr("10.129.0.1")
	sharedIP  = netip.MustParseAddr("10.129.0.2")
	strangeIP = netip.MustParseAddr("10.129.0.3")
)

// store is a ServiceImport with the name of a Service.
func store() *Service {
	return &Service{
		Namespace: "default", Name: "web", IPs: []netip.Addr{importIP},
		Ports: []Port{{Name: NewSymbol("http"), Protocol: NewSymbol("tcp"), Number: 80}},
	}
}

// remoteSlice belongs to the ServiceImport only, sharedSlice also to the Service of that name.
func remoteSlice() *Slice {
	return &Slice{
		Namespace: "default", Name: "web-remote", Import: "web", Cluster: NewSymbol("east"),
		Endpoints: []Endpoint{{Addr: remoteIP, Name: "a", Node: NewSymbol("n1")}},
	}
}

func sharedSlice() *Slice {
	return &Slice{
		Namespace: "default", Name: "web-shared", Service: "web", Import: "web",
		Endpoints: []Endpoint{{Addr: sharedIP, Name: "b", Node: NewSymbol("n2")}},
	}
}

// Generations that the cases of TestImportGenerations check, besides those of TestGenerations.
const (
	genOtherImp = "ServiceImport other"
	genImportIP = "ClusterSetIP of web"
	genRemote   = "endpoint of another cluster"
	genShared   = "endpoint of both"
	genStrange  = "address of nothing"
	genNodes    = "Nodes and the ID of the cluster"
)

func importGenerations(ix *Index) map[string]*Generation {
	all := generations(ix)
	maps.Copy(all, map[string]*Generation{
		genImportIP: ix.AddressGeneration(importIP),
		genRemote:   ix.AddressGeneration(remoteIP),
		genShared:   ix.AddressGeneration(sharedIP),
		genStrange:  ix.AddressGeneration(strangeIP),
		genNodes:    ix.NodesGeneration(),
	})
	if e := ix.Import("default", "other"); e != nil {
		all[genOtherImp] = e.Generation()
	}
	return all
}

// importCluster has the Services web and other, ServiceImports of the same names, an EndpointSlice of each kind and
// one of a ServiceImport that does not exist, in a cluster with the ID west.
func importCluster(ix *Index) {
	ix.ReplaceNamespaces([]string{"default", "empty"})
	ix.PutService(web())
	ix.PutService(&Service{Namespace: "default", Name: "other", IPs: []netip.Addr{otherIP}})
	ix.PutImport(store())
	ix.PutImport(&Service{Namespace: "default", Name: "other", Kind: Headless})
	ix.PutSlice(remoteSlice())
	ix.PutSlice(sharedSlice())
	ix.PutSlice(&Slice{Namespace: "default", Name: "lone-1", Import: "lone", Endpoints: []Endpoint{{Addr: movedIP}}})
	ix.SetClusterID(NewSymbol("west"))
}

// TestImportGenerations asserts for each kind of change which generations advance, and that no other does, in
// particular no address's: ServiceImports have no PTR records.
func TestImportGenerations(t *testing.T) {
	checkGenerations(t, importCluster, importGenerations, []generationTest{
		{"put again", func(ix *Index) { ix.PutImport(ix.ImportRecord("default", "web")) }, nil},
		{"an equal one put", func(ix *Index) { ix.PutImport(store()) }, nil},
		{"ports", func(ix *Index) { ix.PutImport(with(store(), func(s *Service) { s.Ports[0].Number = 81 })) }, []string{genImport}},
		{"ClusterSetIP", func(ix *Index) { ix.PutImport(with(store(), func(s *Service) { s.IPs[0] = movedIP })) }, []string{genImport}},
		{"ClusterSetIP of a Service", func(ix *Index) { ix.PutImport(with(store(), func(s *Service) { s.IPs[0] = webIP })) }, []string{genImport}},
		{"becomes headless", func(ix *Index) { ix.PutImport(with(store(), func(s *Service) { s.Kind, s.IPs = Headless, nil })) }, []string{genImport}},
		{"topology", func(ix *Index) { ix.PutImport(with(store(), func(s *Service) { s.Topology = &Topology{Local: true} })) }, []string{genImport}},
		{"created", func(ix *Index) { ix.PutImport(&Service{Namespace: "default", Name: "new"}) }, []string{genNewName}},
		{"created over its EndpointSlice", func(ix *Index) { ix.PutImport(&Service{Namespace: "default", Name: "lone"}) }, []string{genLoneName}},
		{"created where there is no namespace", func(ix *Index) { ix.PutImport(&Service{Namespace: "missing", Name: "web"}) }, []string{genStray}},
		{"deleted", func(ix *Index) { ix.DeleteImport("default", "web") }, []string{genImport, genWebName}},
		{"deleted that was not there", func(ix *Index) { ix.DeleteImport("default", "lone") }, nil},
		{"all put again", func(ix *Index) { ix.ReplaceImports([]*Service{ix.ImportRecord("default", "other"), store()}) }, nil},
		{"one less", func(ix *Index) { ix.ReplaceImports([]*Service{store()}) }, []string{genOtherImp, genOtherName}},
		{"none any more", func(ix *Index) { ix.ReplaceImports(nil) }, []string{genImport, genOtherImp, genWebName, genOtherName}},
		{"the Service of the name deleted", func(ix *Index) { ix.DeleteService("default", "web") }, []string{genWeb, genWebName, genWebIP, genShared}},
		{"the Service of the name changed", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.Ports[0].Number = 81 }))
		}, []string{genWeb, genWebIP}},

		{"EndpointSlice put again", func(ix *Index) { ix.PutSlice(remoteSlice()) }, nil},
		{"endpoint of another cluster added", func(ix *Index) {
			ix.PutSlice(with(remoteSlice(), func(s *Slice) { s.Endpoints = append(s.Endpoints, Endpoint{Addr: movedIP}) }))
		}, []string{genImport}},
		{"cluster of an EndpointSlice", func(ix *Index) {
			ix.PutSlice(with(remoteSlice(), func(s *Slice) { s.Cluster = NewSymbol("north") }))
		}, []string{genImport}},
		{"case of the cluster", func(ix *Index) {
			ix.PutSlice(with(remoteSlice(), func(s *Slice) { s.Cluster = NewSymbol("EAST") }))
		}, []string{genImport}},
		{"EndpointSlice passes to another ServiceImport", func(ix *Index) {
			ix.PutSlice(with(remoteSlice(), func(s *Slice) { s.Import = "other" }))
		}, []string{genImport, genOtherImp}},
		{"EndpointSlice becomes the Service's, too", func(ix *Index) {
			ix.PutSlice(with(remoteSlice(), func(s *Slice) { s.Service = "web" }))
		}, []string{genImport, genWeb, genRemote}},
		{"EndpointSlice becomes the Service's alone", func(ix *Index) {
			ix.PutSlice(with(remoteSlice(), func(s *Slice) { s.Service, s.Import = "web", "" }))
		}, []string{genImport, genWeb, genRemote}},
		{"EndpointSlice of both changed", func(ix *Index) {
			ix.PutSlice(with(sharedSlice(), func(s *Slice) { s.Endpoints[0].Addr = strangeIP }))
		}, []string{genImport, genWeb, genShared, genStrange}},
		{"EndpointSlice of both becomes the ServiceImport's alone", func(ix *Index) {
			ix.PutSlice(with(sharedSlice(), func(s *Slice) { s.Service = "" }))
		}, []string{genImport, genWeb, genShared}},
		{"EndpointSlice of both deleted", func(ix *Index) { ix.DeleteSlice("default", "web-shared") }, []string{genImport, genWeb, genShared}},
		{"EndpointSlice of another cluster deleted", func(ix *Index) { ix.DeleteSlice("default", "web-remote") }, []string{genImport}},
		{"EndpointSlice of no ServiceImport deleted", func(ix *Index) { ix.DeleteSlice("default", "lone-1") }, []string{}},
		{"EndpointSlice of no ServiceImport yet", func(ix *Index) {
			ix.PutSlice(with(remoteSlice(), func(s *Slice) { s.Name, s.Import = "new-1", "new" }))
		}, []string{}},
		{"no EndpointSlices any more", func(ix *Index) { ix.ReplaceSlices(nil) }, []string{genImport, genWeb, genShared}},

		{"namespace deleted", func(ix *Index) { ix.DeleteNamespace("default") },
			[]string{genNamespace, genWeb, genOther, genImport, genOtherImp, genWebName, genOtherName, genWebIP, genOtherIP, genShared}},
	})
}

// TestClusterID asserts that the Nodes' generation advances when the ID changes, and only then.
func TestClusterID(t *testing.T) {
	ix := New()
	if id := ix.ClusterID(); id != (Symbol{}) {
		t.Errorf("the ID of a new index is %q", id)
	}
	for _, step := range []struct {
		id       string
		advances bool
	}{{"", false}, {"west", true}, {"west", false}, {"West", true}, {"a.b", true}, {"", true}, {"", false}, {"west", true}} {
		before := ix.NodesGeneration().Load()
		ix.SetClusterID(NewSymbol(step.id))
		if got := ix.ClusterID().String(); got != step.id {
			t.Errorf("the ID is %q, want %q", got, step.id)
		}
		if got := ix.NodesGeneration().Load() != before; got != step.advances {
			t.Errorf("%q: the generation advanced: %t, want %t", step.id, got, step.advances)
		}
	}
}

// Addresses of ServiceImports only have no records by address, and their endpoints locate no callers.
func TestImportAddresses(t *testing.T) {
	ix := New()
	importCluster(ix)
	for _, a := range []netip.Addr{importIP, remoteIP, movedIP} {
		if s, l := ix.ServicesByIP(a), ix.SlicesByIP(a); len(s)+len(l) > 0 {
			t.Errorf("%s has %s and %s", a, keys(s), keys(l))
		}
		if n := ix.EndpointNode(a); n != (Symbol{}) {
			t.Errorf("%s is on node %q", a, n)
		}
		if slices.Contains(slices.Collect(ix.Addresses()), a) {
			t.Errorf("%s is among all addresses", a)
		}
	}
	if l := ix.SlicesByIP(sharedIP); len(l) != 1 || l[0].Name != "web-shared" {
		t.Errorf("the address of both has %s", keys(l))
	}
	if n := ix.EndpointNode(sharedIP).String(); n != "n2" {
		t.Errorf("the address of both is on node %q, want n2", n)
	}
	if services, imports := ix.Services(), ix.Imports(); len(services) != 2 || len(imports) != 2 {
		t.Errorf("there are %d Services and %d ServiceImports, want 2 of each", len(services), len(imports))
	}
	for _, c := range []struct {
		name string
		e    *Entry
		want []string
	}{
		{"the Service", ix.Service("default", "web"), []string{"web-shared"}},
		{"the ServiceImport", ix.Import("default", "web"), []string{"web-remote", "web-shared"}},
	} {
		var names []string
		for _, s := range c.e.Slices {
			names = append(names, s.Name)
		}
		if !slices.Equal(names, c.want) {
			t.Errorf("%s has the EndpointSlices %q, want %q", c.name, names, c.want)
		}
	}
}

// A slice of another cluster may also belong to a Service, in some implementations. Its nodes are not those of this
// cluster, even with equal names.
func TestImportAddresses_NodesOfOtherClusters(t *testing.T) {
	ix := New()
	ix.PutSlice(with(sharedSlice(), func(s *Slice) { s.Cluster = NewSymbol("east") }))
	if n := ix.EndpointNode(sharedIP); n != (Symbol{}) {
		t.Errorf("the endpoint of another cluster is on node %q", n)
	}
	ix.PutSlice(with(sharedSlice(), func(s *Slice) { s.Name = "own" }))
	if n := ix.EndpointNode(sharedIP).String(); n != "n2" {
		t.Errorf("the endpoint of this cluster is on node %q, want n2", n)
	}
}

// The strings of a slice of both kinds are shared, as those of other slices are.
func TestImportRecords_Equal(t *testing.T) {
	for what, change := range map[string]func(*Slice){
		"Service": func(s *Slice) { s.Service = "x" }, "Import": func(s *Slice) { s.Import = "x" },
		"no Import": func(s *Slice) { s.Import = "" }, "Cluster": func(s *Slice) { s.Cluster = NewSymbol("x") },
		"case of the cluster": func(s *Slice) { s.Cluster = NewSymbol("East") }, "no cluster": func(s *Slice) { s.Cluster = Symbol{} },
	} {
		one, other := remoteSlice(), remoteSlice()
		if !one.Equal(other) {
			t.Error("two of the same are not equal")
		}
		change(other)
		if one.Equal(other) || other.Equal(one) {
			t.Errorf("they are equal though %s is another", what)
		}
	}
}

// TestReadWhileSlicesMove reads every field of a slice of both a Service and a ServiceImport while others replace it:
// the race detector finds writes after it was published.
func TestReadWhileSlicesMove(t *testing.T) {
	ix := New()
	ix.PutNamespace("shop")
	ix.PutService(&Service{Namespace: "shop", Name: "a", Kind: Headless})
	ix.PutImport(&Service{Namespace: "shop", Name: "b", Kind: Headless})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			ix.PutSlice(&Slice{Namespace: strings.Clone("shop"), Name: "x", Service: strings.Clone("a"), Import: strings.Clone("b"), Ports: []Port{{Number: int32(i + 1)}}})
		}
	}()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		for _, e := range []*Entry{ix.Service("shop", "a"), ix.Import("shop", "b")} {
			for _, s := range e.Slices {
				if s.Namespace != "shop" || s.Service != "a" || s.Import != "b" {
					t.Fatalf("slice %+v", s)
				}
			}
		}
	}
}
