package index

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"
)

var (
	webIP      = netip.MustParseAddr("10.96.0.1")
	otherIP    = netip.MustParseAddr("10.96.0.2")
	endpointIP = netip.MustParseAddr("10.128.0.1")
	movedIP    = netip.MustParseAddr("10.128.0.2")
	podIP      = netip.MustParseAddr("10.128.0.3")
	strayIP    = netip.MustParseAddr("10.96.0.3")
)

func web() *Service {
	return &Service{
		Namespace: "default", Name: "web", IPs: []netip.Addr{webIP},
		Ports: []Port{{Name: NewSymbol("http"), Protocol: NewSymbol("tcp"), Number: 80}},
	}
}

// stray returns a Service without its namespace.
func stray() *Service { return &Service{Namespace: "missing", Name: "web", IPs: []netip.Addr{strayIP}} }

func webSlice() *Slice {
	return &Slice{
		Namespace: "default", Name: "web-1", Service: "web",
		Ports:     []Port{{Name: NewSymbol("http"), Protocol: NewSymbol("tcp"), Number: 8080}},
		Endpoints: []Endpoint{{Addr: endpointIP, Name: "a", Zone: NewSymbol("zone-a")}},
	}
}

func webPod() *Pod {
	return &Pod{Namespace: "default", Name: "web-a", IPs: []netip.Addr{podIP}}
}

// with returns a modified copy of r.
func with[R any](r *R, change func(*R)) *R {
	change(r)
	return r
}

// The generations that the cases of TestGenerations check.
const (
	genWeb       = "Service web"
	genOther     = "Service other"
	genImport    = "ServiceImport web"
	genWebName   = "name web"
	genOtherName = "name other"
	genNewName   = "name new, which does not exist"
	genLoneName  = "name lone, of EndpointSlices only"
	genStray     = "name web in namespace missing, which does not exist"
	genNamespace = "namespace default"
	genEmpty     = "namespace empty"
	genMissing   = "namespace missing"
	genAccess    = "access"
	genWebIP     = "ClusterIP of web"
	genOtherIP   = "ClusterIP of other"
	genEndpoint  = "endpoint of web"
	genMoved     = "address of no endpoint yet"
	genPod       = "pod"
	genStrayIP   = "ClusterIP of web in namespace missing"
)

// allOfDefault are the generations of the names, Services and addresses of namespace default.
var allOfDefault = []string{genNamespace, genWeb, genOther, genImport, genWebName, genOtherName, genWebIP, genOtherIP, genEndpoint}

// generations returns those that a reader could have now.
func generations(ix *Index) map[string]*Generation {
	all := map[string]*Generation{
		genWebName:   ix.NameGeneration("default", "web"),
		genOtherName: ix.NameGeneration("default", "other"),
		genNewName:   ix.NameGeneration("default", "new"),
		genLoneName:  ix.NameGeneration("default", "lone"),
		genStray:     ix.NameGeneration("missing", "web"),
		genNamespace: ix.NamespaceGeneration("default"),
		genEmpty:     ix.NamespaceGeneration("empty"),
		genMissing:   ix.NamespaceGeneration("missing"),
		genAccess:    ix.AccessGeneration(),
		genStrayIP:   ix.AddressGeneration(strayIP),
		genWebIP:     ix.AddressGeneration(webIP),
		genOtherIP:   ix.AddressGeneration(otherIP),
		genEndpoint:  ix.AddressGeneration(endpointIP),
		genMoved:     ix.AddressGeneration(movedIP),
		genPod:       ix.AddressGeneration(podIP),
	}
	if e := ix.Service("default", "web"); e != nil {
		all[genWeb] = e.Generation()
	}
	if e := ix.Service("default", "other"); e != nil {
		all[genOther] = e.Generation()
	}
	if e := ix.Import("default", "web"); e != nil {
		all[genImport] = e.Generation()
	}
	return all
}

// TestGenerations asserts for each kind of change which generations advance, and that no other does. Before each
// change the index has the Services web, with an endpoint, and other, the ServiceImport web, the EndpointSlice lone-1 of a
// Service that does not exist, a Service web in a namespace that does not exist, and a pod.
func TestGenerations(t *testing.T) {
	checkGenerations(t, generationCluster, generations, []generationTest{
		{"Service put again", func(ix *Index) { ix.PutService(ix.ServiceRecord("default", "web")) }, nil},
		{"Service without ports, which were none", func(ix *Index) {
			ix.PutService(&Service{Namespace: "default", Name: "other", IPs: []netip.Addr{otherIP}, Ports: []Port{}})
		}, nil},
		{"ports of a Service", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.Ports[0].Number = 81 }))
		}, []string{genWeb, genWebIP}},
		{"ClusterIP of a Service", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.IPs[0] = movedIP }))
		}, []string{genWeb, genWebIP, genMoved}},
		{"ClusterIP added", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.IPs = append(s.IPs, movedIP) }))
		}, []string{genWeb, genWebIP, genMoved}},
		{"external address added", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.External = &External{IPs: []netip.Addr{movedIP}} }))
		}, []string{genWeb, genWebIP, genMoved}},
		{"external host added", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.External = &External{Hosts: []string{"lb.example."}} }))
		}, []string{genWeb, genWebIP}},
		{"Service becomes headless", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.Kind, s.IPs = Headless, nil }))
		}, []string{genWeb, genWebIP, genEndpoint}},
		{"Service becomes an alias", func(ix *Index) {
			ix.PutService(with(web(), func(s *Service) { s.Kind, s.Target = ExternalName, "example." }))
		}, []string{genWeb, genWebIP, genEndpoint}},
		{"Service created", func(ix *Index) {
			ix.PutService(&Service{Namespace: "default", Name: "new", Kind: Headless})
		}, []string{genNewName}},
		{"Service created over its EndpointSlice", func(ix *Index) {
			ix.PutService(&Service{Namespace: "default", Name: "lone", Kind: Headless})
		}, []string{genLoneName, genMoved}},
		{"Service created where there is no namespace", func(ix *Index) {
			ix.PutService(&Service{Namespace: "missing", Name: "new", IPs: []netip.Addr{movedIP}})
		}, []string{genMoved}},
		{"Service deleted where there is no namespace", func(ix *Index) { ix.DeleteService("missing", "web") }, []string{genStray, genStrayIP}},
		{"Service deleted", func(ix *Index) { ix.DeleteService("default", "web") }, []string{genWeb, genWebName, genWebIP, genEndpoint}},
		{"Service deleted that was not there", func(ix *Index) { ix.DeleteService("default", "lone") }, nil},
		{"all Services put again", func(ix *Index) {
			ix.ReplaceServices([]*Service{ix.ServiceRecord("default", "other"), web(), stray()})
		}, nil},
		{"one Service less", func(ix *Index) {
			ix.ReplaceServices([]*Service{web(), stray()})
		}, []string{genOther, genOtherName, genOtherIP}},

		{"ServiceImport put again", func(ix *Index) { ix.PutImport(ix.ImportRecord("default", "web")) }, nil},
		{"ports of a ServiceImport", func(ix *Index) {
			ix.PutImport(&Service{Namespace: "default", Name: "web", Ports: []Port{{Number: 1}}})
		}, []string{genImport}},
		{"ServiceImport created", func(ix *Index) { ix.PutImport(&Service{Namespace: "default", Name: "new"}) }, []string{genNewName}},
		{"ServiceImport deleted", func(ix *Index) { ix.DeleteImport("default", "web") }, []string{genImport, genWebName}},
		{"no ServiceImports any more", func(ix *Index) { ix.ReplaceImports(nil) }, []string{genImport, genWebName}},

		{"EndpointSlice put again", func(ix *Index) { ix.PutSlice(ix.SliceRecord("default", "web-1")) }, nil},
		{"endpoint added", func(ix *Index) {
			ix.PutSlice(with(webSlice(), func(s *Slice) { s.Endpoints = append(s.Endpoints, Endpoint{Addr: movedIP}) }))
		}, []string{genWeb, genMoved}}, // the other endpoint has no other answer
		{"endpoint removed", func(ix *Index) {
			ix.PutSlice(with(webSlice(), func(s *Slice) { s.Endpoints = nil }))
		}, []string{genWeb, genEndpoint}},
		{"name of an endpoint", func(ix *Index) {
			ix.PutSlice(with(webSlice(), func(s *Slice) { s.Endpoints[0].Name = "b" }))
		}, []string{genWeb, genEndpoint}},
		{"zone of an endpoint", func(ix *Index) {
			ix.PutSlice(with(webSlice(), func(s *Slice) { s.Endpoints[0].Zone = Symbol{} }))
		}, []string{genWeb, genEndpoint}},
		{"ports of an EndpointSlice", func(ix *Index) {
			ix.PutSlice(with(webSlice(), func(s *Slice) { s.Ports[0].Number = NoPort }))
		}, []string{genWeb, genEndpoint}},
		{"EndpointSlice passes to another Service", func(ix *Index) {
			ix.PutSlice(with(webSlice(), func(s *Slice) { s.Service = "other" }))
		}, []string{genWeb, genOther, genEndpoint}},
		{"EndpointSlice of IPv6", func(ix *Index) {
			ix.PutSlice(&Slice{Namespace: "default", Name: "web-0", Service: "web"})
		}, []string{genWeb}},
		{"EndpointSlice of no Service", func(ix *Index) {
			ix.PutSlice(with(webSlice(), func(s *Slice) { s.Name, s.Service = "new-1", "new" }))
		}, []string{genEndpoint}},
		{"EndpointSlice deleted", func(ix *Index) { ix.DeleteSlice("default", "web-1") }, []string{genWeb, genEndpoint}},
		{"EndpointSlice deleted that was not there", func(ix *Index) { ix.DeleteSlice("default", "web-9") }, nil},
		{"all EndpointSlices put again", func(ix *Index) {
			ix.ReplaceSlices([]*Slice{ix.SliceRecord("default", "lone-1"), webSlice()})
		}, nil},
		{"one EndpointSlice less", func(ix *Index) {
			ix.ReplaceSlices([]*Slice{webSlice()})
		}, []string{genMoved}},

		{"namespace put again", func(ix *Index) { ix.PutNamespace("default") }, nil},
		{"namespace created", func(ix *Index) { ix.PutNamespace("new") }, []string{}},
		{"namespace of a Service created", func(ix *Index) { ix.PutNamespace("missing") }, []string{genMissing, genStray, genStrayIP}},
		{"namespace deleted", func(ix *Index) { ix.DeleteNamespace("default") }, allOfDefault},
		{"other namespace deleted", func(ix *Index) { ix.DeleteNamespace("empty") }, []string{genEmpty}},
		{"namespace deleted that was not there", func(ix *Index) { ix.DeleteNamespace("missing") }, nil},
		{"all namespaces put again", func(ix *Index) { ix.ReplaceNamespaces([]string{"empty", "default"}) }, nil},
		{"one namespace less", func(ix *Index) { ix.ReplaceNamespaces([]string{"default"}) }, []string{genEmpty}},
		{"other namespaces", func(ix *Index) { ix.ReplaceNamespaces([]string{"empty", "missing"}) },
			slices.Concat(allOfDefault, []string{genMissing, genStray, genStrayIP})},
		{"access lost", func(ix *Index) { ix.Outdate() }, []string{genAccess}},

		{"pod put again", func(ix *Index) { ix.PutPod(ix.PodRecord("default", "web-a")) }, nil},
		{"labels of a pod, which no answer shows", func(ix *Index) {
			ix.PutPod(with(webPod(), func(p *Pod) { p.Labels = NewPodLabels(map[string]string{"a": "b"}) }))
		}, nil},
		{"address of a pod", func(ix *Index) {
			ix.PutPod(with(webPod(), func(p *Pod) { p.IPs = []netip.Addr{movedIP} }))
		}, []string{genPod, genMoved}},
		{"pod of the same address", func(ix *Index) {
			ix.PutPod(with(webPod(), func(p *Pod) { p.Name = "host-network" }))
		}, []string{genPod}},
		{"pod deleted", func(ix *Index) { ix.DeletePod("default", "web-a") }, []string{genPod}},
		{"pod deleted that was not there", func(ix *Index) { ix.DeletePod("default", "web-z") }, nil},
		{"all pods put again", func(ix *Index) { ix.ReplacePods([]*Pod{webPod()}) }, nil},
		{"no pods any more", func(ix *Index) { ix.ReplacePods(nil) }, []string{genPod}},
	})
}

// generationTest is a change, and the generations that advance with it: nil if the content is unchanged.
type generationTest struct {
	name   string
	change func(*Index)
	want   []string
}

// generationCluster fills an index for TestGenerations.
func generationCluster(ix *Index) {
	ix.ReplaceNamespaces([]string{"default", "empty"})
	ix.PutService(web())
	ix.PutService(&Service{Namespace: "default", Name: "other", IPs: []netip.Addr{otherIP}})
	ix.PutSlice(webSlice())
	ix.PutSlice(&Slice{Namespace: "default", Name: "lone-1", Service: "lone", Endpoints: []Endpoint{{Addr: movedIP}}})
	ix.PutService(stray())
	ix.PutImport(&Service{Namespace: "default", Name: "web"})
	ix.PutPod(webPod())
}

// checkGenerations asserts which of the generations advance with each change of a filled index, and that Modified does.
func checkGenerations(t *testing.T, fill func(*Index), read func(*Index) map[string]*Generation, tests []generationTest) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ix := New()
			clock := time.Unix(1000, 0)
			ix.now = func() time.Time { return clock }
			fill(ix)
			all, numbers := read(ix), map[string]uint64{}
			for name, g := range all {
				numbers[name] = g.Load()
			}

			clock = time.Unix(2000, 0)
			tt.change(ix)
			var advanced []string
			for _, name := range slices.Sorted(maps.Keys(all)) {
				if all[name].Load() != numbers[name] {
					advanced = append(advanced, name)
				}
			}
			if want := slices.Sorted(slices.Values(tt.want)); !slices.Equal(advanced, want) {
				t.Errorf("advanced: %q, want %q", advanced, want)
			}
			for name, g := range read(ix) {
				if all[name] != nil && all[name] != g {
					t.Errorf("%s has another generation than before", name)
				}
			}
			want := int64(2000)
			if tt.want == nil || slices.Contains(tt.want, genAccess) {
				want = 1000
			}
			if got := ix.Modified(); got != want {
				t.Errorf("Modified() = %d, want %d", got, want)
			}
		})
	}
}

// TestSharedGenerations asserts that what the cases above share by hash has different generations, and that names,
// namespaces and addresses are spread over many of them.
func TestSharedGenerations(t *testing.T) {
	ix := New()
	t.Run("different in TestGenerations", func(t *testing.T) {
		seen := map[*Generation]string{}
		for name, g := range generations(ix) {
			if other, ok := seen[g]; ok {
				t.Errorf("%s has the generation of %s: choose another", name, other)
			}
			seen[g] = name
		}
	})
	const each = 64
	even := func(t *testing.T, uses map[*Generation]int) {
		for _, n := range uses {
			if n > 2*each {
				t.Errorf("one generation is used %d times, %d would be even", n, each)
			}
		}
	}
	t.Run("spread of names", func(t *testing.T) {
		names, namespaces := map[*Generation]int{}, map[*Generation]int{}
		for i := range each * namespaceGenerations {
			ns := "team-" + strconv.Itoa(i)
			namespaces[ix.NamespaceGeneration(ns)]++
			for service := range nameGenerations / namespaceGenerations {
				names[ix.NameGeneration(ns, "web-"+strconv.Itoa(service))]++
			}
		}
		even(t, names)
		even(t, namespaces)
	})
	for _, first := range []string{"10.128.0.0", "fd00:10:128::"} {
		t.Run("spread from "+first, func(t *testing.T) {
			uses := map[*Generation]int{}
			a := netip.MustParseAddr(first)
			for range each * addressGenerations {
				uses[ix.AddressGeneration(a)]++
				a = a.Next()
			}
			even(t, uses)
		})
	}
}

// TestGenerationOutlivesService creates and deletes a Service or a ServiceImport while its EndpointSlices remain: an answer stored with
// the generation of a deleted one must not be valid.
func TestGenerationOutlivesService(t *testing.T) {
	for _, slice := range []bool{true, false} {
		for name, kind := range map[string]struct {
			q      question
			put    func(ix *Index)
			remove func(ix *Index)
		}{
			"Service":       {serviceQuestion{"default", "web"}, func(ix *Index) { ix.PutService(web()) }, func(ix *Index) { ix.DeleteService("default", "web") }},
			"ServiceImport": {importQuestion{"default", "web"}, func(ix *Index) { ix.PutImport(store()) }, func(ix *Index) { ix.DeleteImport("default", "web") }},
		} {
			t.Run(fmt.Sprintf("%s, EndpointSlices that stay: %t", name, slice), func(t *testing.T) {
				ix := New()
				ix.PutNamespace("default")
				if slice {
					ix.PutSlice(webSlice())
					ix.PutSlice(remoteSlice())
				}
				none := kind.q.ask(ix)
				kind.put(ix)
				if none.valid() {
					t.Error("NXDOMAIN is valid after it was created")
				}
				first := kind.q.ask(ix)
				kind.remove(ix)
				if first.valid() {
					t.Error("the answer is valid after it was deleted")
				}
				kind.put(ix)
				if first.valid() {
					t.Error("the answer is valid under the next one of that name")
				}
			})
		}
	}
}
