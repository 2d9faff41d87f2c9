package index

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// stock is the state of the model at one time, with every counter by which the Index reports changes of it.
type stock struct {
	ix *Index

	names      map[Name]item   // a Service, its EndpointSlices or both; with the Service's generation
	imports    map[Name]item   // the same for a ServiceImport, which is not found by address
	pods       map[Name]item   // without a generation
	namespaces map[string]item // the names of the Services and ServiceImports in it; with the namespace's generation

	modified             int64
	namespacesGeneration uint64
	addressGenerations   [addressGenerations]uint64
}

type item struct {
	content    string
	addresses  []netip.Addr
	generation hold
}

func takeStock(ix *Index, m *model) *stock {
	s := &stock{
		ix:                   ix,
		names:                map[Name]item{},
		imports:              map[Name]item{},
		pods:                 map[Name]item{},
		namespaces:           map[string]item{},
		modified:             ix.Modified(),
		namespacesGeneration: ix.NamespacesGeneration().Load(),
	}
	for i := range s.addressGenerations {
		s.addressGenerations[i] = ix.addressGenerations[i].Load()
	}
	under, imported := map[Name][]*Slice{}, map[Name][]*Slice{}
	for _, sl := range sorted(m.slices, func(*Slice) bool { return true }) {
		under[Name{sl.Namespace, sl.Service}] = append(under[Name{sl.Namespace, sl.Service}], sl)
		imported[Name{sl.Namespace, sl.Import}] = append(imported[Name{sl.Namespace, sl.Import}], sl)
	}
	for k := range m.names() {
		s.names[k] = takeName(ix.services, k, m.services[k].was, under[k])
	}
	for k := range m.importNames() {
		it := takeName(ix.imports, k, m.imports[k].was, imported[k])
		it.addresses = nil
		s.imports[k] = it
	}
	for k, p := range m.pods {
		b := []byte("pod")
		for _, a := range p.was.IPs {
			b = append(a.AppendTo(b), ' ')
		}
		s.pods[k] = item{content: string(b), addresses: p.was.IPs}
	}
	inNamespace := map[string][]byte{}
	for _, k := range slices.SortedFunc(maps.Keys(m.services), Name.compare) {
		inNamespace[k.Namespace] = appendStrings(inNamespace[k.Namespace], k.Name)
	}
	for _, k := range slices.SortedFunc(maps.Keys(m.imports), Name.compare) {
		inNamespace[k.Namespace] = appendStrings(inNamespace[k.Namespace], "import", k.Name)
	}
	for ns := range m.namespaces {
		s.namespaces[ns] = item{content: string(inNamespace[ns]), generation: load(ix.NamespaceGeneration(ns))}
	}
	return s
}

func takeName(in objects, k Name, service *Service, under []*Slice) item {
	var it item
	if e, ok := in.get(k); ok { // also an entry with slices only, which Service does not return
		it.generation = load(e.generation)
	}
	var b []byte
	if service != nil {
		b = appendService(b, service)
		it.addresses = append(it.addresses, service.IPs...)
	}
	for _, s := range under {
		b = appendSlice(appendStrings(b, s.Service, s.Import, s.Cluster.String()), s)
		it.addresses = append(it.addresses, s.addresses()...)
	}
	it.content = string(b)
	return it
}

// precise returns the generations that advanced without a change, and an error if Modified is not now after a change,
// or changed without one.
func (s *stock) precise(after *stock, now int64) error {
	var errs []error
	may := map[*Generation]bool{}
	moved := false
	for _, c := range slices.Concat(differences(s.names, after.names), differences(s.imports, after.imports), differences(s.pods, after.pods)) {
		moved = true
		for _, a := range c.addresses {
			may[s.ix.AddressGeneration(a)] = true
		}
	}
	errs = append(errs, unmoved("Service", s.names, after.names), unmoved("ServiceImport", s.imports, after.imports),
		unmoved("namespace", s.namespaces, after.namespaces))
	if !maps.EqualFunc(s.namespaces, after.namespaces, func(item, item) bool { return true }) {
		moved = true
	} else if s.namespacesGeneration != after.namespacesGeneration {
		errs = append(errs, fmt.Errorf("the generation of all namespaces advanced"))
	}
	for i := range s.addressGenerations {
		if s.addressGenerations[i] != after.addressGenerations[i] && !may[&s.ix.addressGenerations[i]] {
			errs = append(errs, fmt.Errorf("generation %d of addresses advanced, and no address that has it changed", i))
		}
	}
	want := s.modified
	if moved {
		want = now
	}
	if after.modified != want {
		errs = append(errs, fmt.Errorf("Modified() = %d, want %d; was %d", after.modified, want, s.modified))
	}
	return errors.Join(errs...)
}

// differences returns an item for every record that was added, removed or changed, with its previous and new
// addresses.
func differences(before, after map[Name]item) []item {
	var all []item
	for k, b := range before {
		if a, ok := after[k]; !ok || a.content != b.content {
			all = append(all, item{addresses: slices.Concat(b.addresses, a.addresses)})
		}
	}
	for k, a := range after {
		if _, ok := before[k]; !ok {
			all = append(all, a)
		}
	}
	return all
}

// unmoved returns an error if content is unchanged and its generation advanced.
func unmoved[K comparable](what string, before, after map[K]item) error {
	for k, b := range before {
		if a, ok := after[k]; ok && a.content == b.content && a.generation != b.generation {
			return fmt.Errorf("the generation of %s %v was %+v, became %+v", what, k, b.generation, a.generation)
		}
	}
	return nil
}
