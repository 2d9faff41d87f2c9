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
	existing   map[Name]string // the kinds of objects with a name, if its namespace exists
	pods       map[Name]item   // without a generation
	namespaces map[string]bool

	modified int64
	access   uint64
}

// advances are the shared generations that have advanced since the last check.
type advances map[*Generation]bool

// watchShared records the advances of all generations that names, namespaces and addresses share.
func watchShared(ix *Index) advances {
	all := advances{}
	for _, some := range [...][]Generation{ix.nameGenerations[:], ix.namespaceGenerations[:], ix.addressGenerations[:]} {
		for i := range some {
			some[i].Watch(noting{all, &some[i]})
		}
	}
	return all
}

type noting struct {
	advances
	generation *Generation
}

func (n noting) Advanced() { n.advances[n.generation] = true }

type item struct {
	content    string
	addresses  []netip.Addr
	generation hold
}

func takeStock(ix *Index, m *model) *stock {
	s := &stock{
		ix:         ix,
		names:      map[Name]item{},
		imports:    map[Name]item{},
		existing:   map[Name]string{},
		pods:       map[Name]item{},
		namespaces: maps.Clone(m.namespaces),
		modified:   ix.Modified(),
		access:     ix.AccessGeneration().Load(),
	}
	under, imported := map[Name][]*Slice{}, map[Name][]*Slice{}
	for _, sl := range sorted(m.slices, func(*Slice) bool { return true }) {
		under[Name{sl.Namespace, sl.Service}] = append(under[Name{sl.Namespace, sl.Service}], sl)
		imported[Name{sl.Namespace, sl.Import}] = append(imported[Name{sl.Namespace, sl.Import}], sl)
	}
	for k := range m.names() {
		s.names[k] = takeName(ix.services, k, m.services[k].was, under[k], m.namespaces)
	}
	for k := range m.importNames() {
		it := takeName(ix.imports, k, m.imports[k].was, imported[k], m.namespaces)
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
	for k := range m.services {
		if m.namespaces[k.Namespace] {
			s.existing[k] += "Service"
		}
	}
	for k := range m.imports {
		if m.namespaces[k.Namespace] {
			s.existing[k] += "ServiceImport"
		}
	}
	return s
}

func takeName(in objects, k Name, service *Service, under []*Slice, namespaces map[string]bool) item {
	var it item
	if e, ok := in.get(k); ok { // also an entry with slices only, which Service does not return
		it.generation = load(e.generation)
	}
	var b []byte
	if service != nil {
		b = fmt.Append(appendService(b, service), namespaces[k.Namespace])
		it.addresses = slices.Concat(it.addresses, service.IPs, service.externalIPs())
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
func (s *stock) precise(after *stock, advanced advances, now int64) error {
	may, moved := s.mayAdvance(after)
	errs := []error{unmoved("Service", s.names, after.names), unmoved("ServiceImport", s.imports, after.imports)}
	if s.access != after.access {
		errs = append(errs, errors.New("the generation of the access advanced"))
	}
	for g := range advanced {
		if !may[g] {
			errs = append(errs, errors.New("a shared generation advanced, and nothing that has it changed"))
		}
	}
	clear(advanced)
	want := s.modified
	if moved {
		want = now
	}
	if after.modified != want {
		errs = append(errs, fmt.Errorf("Modified() = %d, want %d; was %d", after.modified, want, s.modified))
	}
	return errors.Join(errs...)
}

// mayAdvance returns the shared generations of what has changed, and whether anything has.
func (s *stock) mayAdvance(after *stock) (may map[*Generation]bool, moved bool) {
	may = map[*Generation]bool{}
	for _, c := range slices.Concat(differences(s.names, after.names), differences(s.imports, after.imports), differences(s.pods, after.pods)) {
		moved = true
		for _, a := range c.addresses {
			may[s.ix.AddressGeneration(a)] = true
		}
	}
	for _, all := range [...]map[string]bool{s.namespaces, after.namespaces} {
		for ns := range all {
			if s.namespaces[ns] != after.namespaces[ns] {
				moved = true
				may[s.ix.NamespaceGeneration(ns)] = true
			}
		}
	}
	// Without the namespace, the generation of a name advances with its objects although no answer changes.
	for _, all := range [...]map[Name]item{s.names, s.imports, after.names, after.imports} {
		for k := range all {
			if s.existing[k] != after.existing[k] || !s.namespaces[k.Namespace] && !after.namespaces[k.Namespace] {
				may[s.ix.NameGeneration(k.Namespace, k.Name)] = true
			}
		}
	}
	return may, moved
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
