package index

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
)

// alphabet has the names and addresses of random operations. A small one makes records collide.
type alphabet struct {
	namespaces, services, slices, pods []string
	v4, v6                             []netip.Addr
}

func newAlphabet(namespaces, names, addresses int) *alphabet {
	a := &alphabet{
		namespaces: numbered("ns", namespaces),
		services:   numbered("svc", names),
		slices:     numbered("slice", names+1),
		pods:       numbered("pod", names),
	}
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for range addresses {
		a.v4, a.v6 = append(a.v4, v4), append(a.v6, v6)
		v4, v6 = v4.Next(), v6.Next()
	}
	return a
}

func numbered(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = prefix + strconv.Itoa(i)
	}
	return all
}

// operation is one call of a write method, on an Index or a model.
type operation struct {
	text string
	run  func(writer)
}

// operations draws random operations that make sense in the current state, which the model has.
type operations struct {
	*alphabet
	*rand.Rand
	m        *model
	versions int
}

func newOperations(seed uint64, a *alphabet) *operations {
	return &operations{alphabet: a, Rand: rand.New(rand.NewPCG(seed, 0)), m: newModel()}
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// next draws an operation and runs it on the model.
func (o *operations) next() operation {
	op := o.draw()
	op.run(o.m)
	return op
}

func (o *operations) draw() operation {
	switch n := o.IntN(100); {
	case n < 15:
		s := o.service(o.m.services, o.name(o.services))
		return operation{fmt.Sprintf("PutService %+v", *s), func(w writer) { w.PutService(s) }}
	case n < 25:
		s := o.service(o.m.imports, o.name(o.services))
		return operation{fmt.Sprintf("PutImport %+v", *s), func(w writer) { w.PutImport(s) }}
	case n < 50:
		s := o.slice(o.name(o.slices))
		return operation{fmt.Sprintf("PutSlice %+v", *s), func(w writer) { w.PutSlice(s) }}
	case n < 60:
		p := o.pod(o.name(o.pods))
		return operation{fmt.Sprintf("PutPod %+v", *p), func(w writer) { w.PutPod(p) }}
	case n < 65:
		ns := pick(o.Rand, o.namespaces)
		return operation{"PutNamespace " + ns, func(w writer) { w.PutNamespace(ns) }}
	case n < 66:
		id := o.symbol("", "east", "west", "a.b")
		return operation{"SetClusterID " + id.String(), func(w writer) { w.SetClusterID(id) }}
	case n < 90:
		return o.delete()
	default:
		return o.replace()
	}
}

func (o *operations) delete() operation {
	switch n := o.IntN(24); {
	case n < 5:
		k := o.name(o.services)
		return operation{fmt.Sprint("DeleteService ", k), func(w writer) { w.DeleteService(k.Namespace, k.Name) }}
	case n < 8:
		k := o.name(o.services)
		return operation{fmt.Sprint("DeleteImport ", k), func(w writer) { w.DeleteImport(k.Namespace, k.Name) }}
	case n < 16:
		k := o.name(o.slices)
		return operation{fmt.Sprint("DeleteSlice ", k), func(w writer) { w.DeleteSlice(k.Namespace, k.Name) }}
	case n < 20:
		k := o.name(o.pods)
		return operation{fmt.Sprint("DeletePod ", k), func(w writer) { w.DeletePod(k.Namespace, k.Name) }}
	default:
		ns := pick(o.Rand, o.namespaces)
		return operation{"DeleteNamespace " + ns, func(w writer) { w.DeleteNamespace(ns) }}
	}
}

// replace draws a relist: most records are known, some are missing, and sometimes all are.
func (o *operations) replace() operation {
	keep := pick(o.Rand, []float64{0, 0.5, 1, 1})
	switch o.IntN(5) {
	case 0:
		all := relist(o, o.m.services, o.services, keep, func(k Name) *Service { return o.service(o.m.services, k) })
		return operation{fmt.Sprint("ReplaceServices ", keys(all)), func(w writer) { w.ReplaceServices(all) }}
	case 4:
		all := relist(o, o.m.imports, o.services, keep, func(k Name) *Service { return o.service(o.m.imports, k) })
		return operation{fmt.Sprint("ReplaceImports ", keys(all)), func(w writer) { w.ReplaceImports(all) }}
	case 1:
		all := relist(o, o.m.slices, o.slices, keep, o.slice)
		return operation{fmt.Sprint("ReplaceSlices ", keys(all)), func(w writer) { w.ReplaceSlices(all) }}
	case 2:
		all := relist(o, o.m.pods, o.pods, keep, o.pod)
		return operation{fmt.Sprint("ReplacePods ", keys(all)), func(w writer) { w.ReplacePods(all) }}
	default:
		var all []string
		for _, ns := range o.namespaces {
			if o.Float64() < keep {
				all = append(all, ns)
			}
		}
		return operation{fmt.Sprint("ReplaceNamespaces ", all), func(w writer) { w.ReplaceNamespaces(all) }}
	}
}

// relist returns a part of the known records, unchanged or drawn again, with a few new ones, in any order.
func relist[R any](o *operations, known map[Name]record[R], names []string, keep float64, draw func(Name) *R) []*R {
	listed := slices.SortedFunc(maps.Keys(known), Name.compare)
	if o.IntN(2) == 0 {
		for range 3 {
			if k := o.name(names); !slices.Contains(listed, k) {
				listed = append(listed, k)
			}
		}
	}
	o.Shuffle(len(listed), func(i, j int) { listed[i], listed[j] = listed[j], listed[i] })
	redraw := pick(o.Rand, []float64{0, 0.5})
	var all []*R
	for _, k := range listed {
		old, ok := known[k]
		switch {
		case o.Float64() >= keep:
		case ok && o.Float64() >= redraw:
			all = append(all, old.put)
		default:
			all = append(all, draw(k))
		}
	}
	return all
}

func (o *operations) name(names []string) Name {
	return Name{pick(o.Rand, o.namespaces), pick(o.Rand, names)}
}

func (o *operations) version() string {
	o.versions++
	return strconv.Itoa(o.versions)
}

// service draws a record of a Service or ServiceImport for a name: the current one, an equal one, an altered one or a
// new one.
func (o *operations) service(known map[Name]record[Service], k Name) *Service {
	if old, ok := known[k]; ok {
		switch o.IntN(8) {
		case 0:
			return old.put
		case 1:
			s := copyService(old.was)
			return s
		case 2, 3, 4, 5:
			return o.alteredService(old.was)
		}
	}
	s := &Service{Namespace: k.Namespace, Name: k.Name, Ports: o.ports(), External: o.external()}
	switch s.Kind = Kind(o.IntN(3)); s.Kind {
	case ClusterIP:
		s.IPs = o.ips()
	case ExternalName:
		s.Target = pick(o.Rand, []string{"", "a.example.", "b.example."})
	}
	return s
}

// alteredService changes one field, so that nothing else can reveal the change. It may make Services that no API
// server accepts; the index does not validate records.
func (o *operations) alteredService(old *Service) *Service {
	s := copyService(old)
	switch o.IntN(6) {
	case 5:
		s.External = o.external()
	case 4:
		s.Topology = o.topology()
	case 0:
		s.Kind = Kind(o.IntN(3))
	case 1:
		s.IPs = o.ips()
	case 2:
		s.Target = pick(o.Rand, []string{"", "a.example.", "b.example."})
	case 3:
		s.Ports = o.ports()
	}
	return s
}

func (o *operations) slice(k Name) *Slice {
	if old, ok := o.m.slices[k]; ok {
		switch o.IntN(8) {
		case 0:
			return old.put
		case 1:
			s := copySlice(old.was)
			return s
		case 2, 3, 4, 5:
			return o.alteredSlice(old.was)
		}
	}
	s := &Slice{Namespace: k.Namespace, Name: k.Name, Cluster: o.cluster(), Ports: o.ports()}
	s.Service, s.Import = o.owners()
	family := pick(o.Rand, [][]netip.Addr{o.v4, o.v6})
	endpoints := o.IntN(5)
	if o.IntN(8) == 0 { // many endpoints with the same address
		endpoints += 30
		family = family[:min(1+o.IntN(2), len(family))]
	}
	for range endpoints {
		s.Endpoints = append(s.Endpoints, o.endpoint(family))
	}
	return s
}

func (o *operations) alteredSlice(old *Slice) *Slice {
	s := copySlice(old)
	family := o.v4
	if len(s.Endpoints) > 0 && s.Endpoints[0].Addr.Is6() {
		family = o.v6
	}
	what := o.IntN(12)
	if len(s.Endpoints) == 0 {
		what = o.IntN(6)
	}
	switch what {
	case 0:
		s.Service = pick(o.Rand, o.services)
	case 1:
		s.Ports = o.ports()
	case 2:
		s.Endpoints = append(s.Endpoints, o.endpoint(family))
	case 3:
		s.Import = pick(o.Rand, o.services)
	case 4:
		s.Cluster = o.cluster()
	case 5:
		s.Service, s.Import = o.owners()
	case 9:
		at := o.IntN(len(s.Endpoints))
		s.Endpoints = slices.Delete(s.Endpoints, at, at+1)
	case 10:
		s.Endpoints[o.IntN(len(s.Endpoints))].Name = o.endpoint(family).Name
	case 11:
		s.Endpoints[o.IntN(len(s.Endpoints))].Zone = o.endpoint(family).Zone
	case 6:
		slices.Reverse(s.Endpoints)
	case 7:
		s.Endpoints[o.IntN(len(s.Endpoints))].Node = o.endpoint(family).Node
	case 8:
		s.Endpoints[o.IntN(len(s.Endpoints))].Hints = o.endpoint(family).Hints
	}
	return s
}

// owners draws the owners of an EndpointSlice: a Service, a ServiceImport, or both, usually of one name then.
func (o *operations) owners() (service, imported string) {
	service = pick(o.Rand, o.services)
	imported = service
	switch o.IntN(10) {
	case 0, 1, 2, 3:
		imported = ""
	case 4, 5, 6:
		service = ""
	case 7:
		imported = pick(o.Rand, o.services)
	}
	return service, imported
}

func (o *operations) cluster() Symbol { return o.symbol("", "east", "west", "a.b") }

func (o *operations) endpoint(family []netip.Addr) Endpoint {
	return Endpoint{
		Addr: pick(o.Rand, family),
		Name: pick(o.Rand, []string{"", "", "host0", "host1"}),
		Zone: o.symbol("", "zone0", "zone1"),
		Node: o.symbol("", "node0", "node1"),
		Hints: pick(o.Rand, []*Hints{
			nil, {}, {Nodes: []Symbol{o.symbol("node0", "node1")}}, {Zones: []Symbol{o.symbol("zone0", "zone1")}},
		}),
	}
}

func (o *operations) symbol(choices ...string) Symbol { return NewSymbol(pick(o.Rand, choices)) }

func (o *operations) topology() *Topology {
	return pick(o.Rand, []*Topology{
		nil, {Keys: []Symbol{o.symbol("a", "b"), o.symbol("c", "*")}}, {Local: true}, {Auto: true}, {Distribution: PreferSameNode},
	})
}

func (o *operations) external() *External {
	if o.IntN(3) == 0 {
		return nil
	}
	return &External{IPs: o.ips(), Hosts: pick(o.Rand, [][]string{nil, {"lb.example."}})}
}

func (o *operations) pod(k Name) *Pod {
	if old, ok := o.m.pods[k]; ok {
		switch o.IntN(6) {
		case 0:
			return old.put
		case 1:
			p := copyPod(old.was)
			return p
		case 3:
			p := copyPod(old.was)
			p.Node = o.symbol("", "node0", "node1")
			return p
		case 2:
			p := copyPod(old.was)
			p.Labels = NewPodLabels(map[string]string{"version": o.version()})
			return p
		}
	}
	return &Pod{Namespace: k.Namespace, Name: k.Name, IPs: o.ips()}
}

// ips returns none, one, one of each family, or one twice, as a manifest may have it.
func (o *operations) ips() []netip.Addr {
	switch o.IntN(5) {
	case 0:
		return nil
	case 1:
		return []netip.Addr{pick(o.Rand, o.v6)}
	case 2:
		return []netip.Addr{pick(o.Rand, o.v4)}
	case 3:
		return slices.Repeat([]netip.Addr{pick(o.Rand, o.v4)}, 2)
	default:
		return []netip.Addr{pick(o.Rand, o.v4), pick(o.Rand, o.v6)}
	}
}

func (o *operations) ports() []Port {
	all := []Port{
		{Name: NewSymbol("http"), Protocol: NewSymbol("tcp"), Number: 80},
		{Name: NewSymbol("dns"), Protocol: NewSymbol("udp"), Number: 53},
		{Protocol: NewSymbol("tcp"), Number: NoPort},
	}
	o.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:o.IntN(3)]
}
