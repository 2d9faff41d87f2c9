package index

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// model is a slow and simple Index: maps of the records put, and linear searches. It is the oracle of these tests.
type model struct {
	services   map[Name]record[Service]
	imports    map[Name]record[Service]
	slices     map[Name]record[Slice]
	pods       map[Name]record[Pod]
	namespaces map[string]bool
	clusterID  Symbol
}

// record is a record that was put: its pointer, and a copy of its content, since the Index may write to a record
// passed to it.
type record[R any] struct {
	put *R
	was *R
}

// writer is the set of write methods that a model and an Index share.
type writer interface {
	PutService(*Service)
	DeleteService(namespace, name string)
	ReplaceServices([]*Service)
	PutImport(*Service)
	DeleteImport(namespace, name string)
	ReplaceImports([]*Service)
	PutSlice(*Slice)
	DeleteSlice(namespace, name string)
	ReplaceSlices([]*Slice)
	PutPod(*Pod)
	DeletePod(namespace, name string)
	ReplacePods([]*Pod)
	PutNamespace(name string)
	DeleteNamespace(name string)
	ReplaceNamespaces([]string)
	SetClusterID(Symbol)
}

var _, _ writer = (*Index)(nil), (*model)(nil)

func newModel() *model {
	return &model{
		services:   map[Name]record[Service]{},
		imports:    map[Name]record[Service]{},
		slices:     map[Name]record[Slice]{},
		pods:       map[Name]record[Pod]{},
		namespaces: map[string]bool{},
	}
}

func copyService(s *Service) *Service {
	c := *s
	c.IPs, c.Ports = slices.Clone(s.IPs), slices.Clone(s.Ports)
	if s.Topology != nil {
		t := *s.Topology
		t.Keys = slices.Clone(t.Keys)
		c.Topology = &t
	}
	if x := s.External; x != nil {
		c.External = &External{IPs: slices.Clone(x.IPs), Hosts: slices.Clone(x.Hosts)}
	}
	return &c
}

func copySlice(s *Slice) *Slice {
	c := *s
	c.Ports, c.Endpoints = slices.Clone(s.Ports), slices.Collect(s.All())
	c.packed = packedEndpoints{}
	for i := range c.Endpoints {
		if h := c.Endpoints[i].Hints; h != nil {
			c.Endpoints[i].Hints = &Hints{Nodes: slices.Clone(h.Nodes), Zones: slices.Clone(h.Zones)}
		}
	}
	return &c
}

func copyPod(p *Pod) *Pod {
	c := *p
	c.IPs = slices.Clone(p.IPs)
	return &c
}

func (m *model) PutService(s *Service)  { put(m.services, s.key(), s, copyService(s)) }
func (m *model) PutImport(s *Service)   { put(m.imports, s.key(), s, copyService(s)) }
func (m *model) PutSlice(s *Slice)      { put(m.slices, s.key(), s, copySlice(s)) }
func (m *model) PutPod(p *Pod)          { put(m.pods, p.key(), p, copyPod(p)) }
func (m *model) PutNamespace(n string)  { m.namespaces[n] = true }
func (m *model) SetClusterID(id Symbol) { m.clusterID = id }

// put sets the record of k, unless the current one is equal.
func put[R any](all map[Name]record[R], k Name, s, was *R) {
	if old, ok := all[k]; ok && fmt.Sprintf("%+v", *old.was) == fmt.Sprintf("%+v", *was) {
		return
	}
	all[k] = record[R]{s, was}
}

func (m *model) DeleteService(namespace, name string) { delete(m.services, Name{namespace, name}) }
func (m *model) DeleteImport(namespace, name string)  { delete(m.imports, Name{namespace, name}) }
func (m *model) DeleteSlice(namespace, name string)   { delete(m.slices, Name{namespace, name}) }
func (m *model) DeletePod(namespace, name string)     { delete(m.pods, Name{namespace, name}) }
func (m *model) DeleteNamespace(name string)          { delete(m.namespaces, name) }

func (m *model) ReplaceServices(all []*Service) {
	keep(m.services, all)
	for _, s := range all {
		m.PutService(s)
	}
}

func (m *model) ReplaceImports(all []*Service) {
	keep(m.imports, all)
	for _, s := range all {
		m.PutImport(s)
	}
}

func (m *model) ReplaceSlices(all []*Slice) {
	keep(m.slices, all)
	for _, s := range all {
		m.PutSlice(s)
	}
}

func (m *model) ReplacePods(all []*Pod) {
	keep(m.pods, all)
	for _, p := range all {
		m.PutPod(p)
	}
}

func (m *model) ReplaceNamespaces(all []string) {
	clear(m.namespaces)
	for _, n := range all {
		m.PutNamespace(n)
	}
}

// keep removes all records except the given ones.
func keep[R interface {
	*T
	key() Name
}, T any](all map[Name]record[T], records []R) {
	maps.DeleteFunc(all, func(k Name, _ record[T]) bool {
		return !slices.ContainsFunc(records, func(r R) bool { return r.key() == k })
	})
}

// sorted returns the records that match, as they were put, ordered by key.
func sorted[R interface {
	*T
	key() Name
}, T any](all map[Name]record[T], match func(R) bool) []R {
	var found []R
	for _, r := range all {
		if match(r.was) {
			found = append(found, r.put)
		}
	}
	slices.SortFunc(found, func(a, b R) int { return a.key().compare(b.key()) })
	return found
}

func (m *model) slicesOf(service Name) []*Slice {
	return sorted(m.slices, func(s *Slice) bool { return Name{s.Namespace, s.Service} == service })
}

func (m *model) slicesOfImport(name Name) []*Slice {
	return sorted(m.slices, func(s *Slice) bool { return Name{s.Namespace, s.Import} == name })
}

func (m *model) servicesByIP(a netip.Addr) []*Service {
	return sorted(m.services, func(s *Service) bool { return slices.Contains(s.IPs, a) })
}

func (m *model) servicesByExternalIP(a netip.Addr) []*Service {
	return sorted(m.services, func(s *Service) bool { return s.External != nil && slices.Contains(s.External.IPs, a) })
}

func (m *model) slicesByIP(a netip.Addr) []*Slice {
	return sorted(m.slices, func(s *Slice) bool { return slices.Contains(s.pointedAt(), a) })
}

// endpointNode returns the name of the only node of an address's endpoints.
func (m *model) endpointNode(a netip.Addr) (name Symbol) {
	nodes := map[Symbol]bool{}
	for _, s := range m.slicesByIP(a) {
		for e := range s.All() {
			if e.Addr == a && e.Node != (Symbol{}) && s.Cluster == (Symbol{}) {
				nodes[e.Node] = true
				name = e.Node
			}
		}
	}
	if len(nodes) > 1 {
		return Symbol{}
	}
	return name
}

func (m *model) podsByIP(a netip.Addr) []*Pod {
	return sorted(m.pods, func(p *Pod) bool { return slices.Contains(p.IPs, a) })
}

// addresses returns the addresses of all Services and endpoints, sorted and without duplicates.
func (m *model) addresses() []netip.Addr {
	var all []netip.Addr
	for _, s := range m.services {
		all = append(all, s.was.IPs...)
	}
	for _, s := range m.slices {
		all = append(all, s.was.pointedAt()...)
	}
	return distinct(all)
}

func (s *Slice) addresses() []netip.Addr {
	var all []netip.Addr
	for e := range s.All() {
		all = append(all, e.Addr)
	}
	return all
}

// pointedAt returns the addresses under which an EndpointSlice is found: none if it is not of a Service.
func (s *Slice) pointedAt() []netip.Addr {
	if s.Service == "" {
		return nil
	}
	return s.addresses()
}

func distinct(all []netip.Addr) []netip.Addr {
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// names returns the names of Services and of the owners of EndpointSlices.
func (m *model) names() map[Name]bool {
	all := map[Name]bool{}
	for k := range m.services {
		all[k] = true
	}
	for _, s := range m.slices {
		if s.was.Service != "" {
			all[Name{s.was.Namespace, s.was.Service}] = true
		}
	}
	return all
}

// importNames is names for ServiceImports.
func (m *model) importNames() map[Name]bool {
	all := map[Name]bool{}
	for k := range m.imports {
		all[k] = true
	}
	for _, s := range m.slices {
		if s.was.Import != "" {
			all[Name{s.was.Namespace, s.was.Import}] = true
		}
	}
	return all
}

// compare compares all results that readers can get for the names of the alphabet, and returns the first difference
// between Index and model.
func (m *model) compare(ix *Index, a *alphabet) error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, ns := range a.namespaces {
		check(ix.HasNamespace(ns) == m.namespaces[ns], "HasNamespace(%q) = %t", ns, ix.HasNamespace(ns))
		for _, name := range a.services {
			errs = append(errs, m.compareService(ix, Name{ns, name}), m.compareImport(ix, Name{ns, name}))
		}
		for _, name := range a.slices {
			got, want := ix.SliceRecord(ns, name), m.slices[Name{ns, name}]
			check(got == want.put, "SliceRecord(%q, %q) = %p, want %p", ns, name, got, want.put)
		}
		for _, name := range a.pods {
			got, want := ix.PodRecord(ns, name), m.pods[Name{ns, name}]
			check(got == want.put, "PodRecord(%q, %q) = %p, want %p", ns, name, got, want.put)
		}
	}
	for _, ip := range slices.Concat(a.v4, a.v6) {
		errs = append(errs,
			sameRecords("ServicesByIP", ip, ix.ServicesByIP(ip), m.servicesByIP(ip)),
			sameRecords("ServicesByExternalIP", ip, ix.ServicesByExternalIP(ip), m.servicesByExternalIP(ip)),
			sameRecords("SlicesByIP", ip, ix.SlicesByIP(ip), m.slicesByIP(ip)),
			sameRecords("PodsByIP", ip, ix.PodsByIP(ip), m.podsByIP(ip)),
		)
		check(ix.EndpointNode(ip) == m.endpointNode(ip), "EndpointNode(%v) = %q, want %q", ip, ix.EndpointNode(ip), m.endpointNode(ip))
	}
	errs = append(errs,
		sameRecords("Services", "", recordsOf(ix.Services()), sorted(m.services, func(*Service) bool { return true })),
		sameRecords("Imports", "", recordsOf(ix.Imports()), sorted(m.imports, func(*Service) bool { return true })))
	check(ix.ClusterID() == m.clusterID, "ClusterID() = %q, want %q", ix.ClusterID(), m.clusterID)
	addresses := distinct(slices.Collect(ix.Addresses()))
	check(slices.Equal(addresses, m.addresses()), "Addresses() = %v, not those of the model", addresses)
	errs = append(errs, m.compareContent(), m.compareSizes(ix))
	return errors.Join(errs...)
}

func recordsOf(entries []*Entry) []*Service {
	var all []*Service
	for _, e := range entries {
		all = append(all, e.Service)
	}
	return all
}

func (m *model) compareService(ix *Index, k Name) error {
	want := m.services[k].put
	if got := ix.ServiceRecord(k.Namespace, k.Name); got != want {
		return fmt.Errorf("ServiceRecord(%v) = %p, want %p", k, got, want)
	}
	return compareEntry("Service", k, ix.Service(k.Namespace, k.Name), want, m.slicesOf(k))
}

func (m *model) compareImport(ix *Index, k Name) error {
	want := m.imports[k].put
	if got := ix.ImportRecord(k.Namespace, k.Name); got != want {
		return fmt.Errorf("ImportRecord(%v) = %p, want %p", k, got, want)
	}
	return compareEntry("Import", k, ix.Import(k.Namespace, k.Name), want, m.slicesOfImport(k))
}

// compareEntry compares an entry with the record and the EndpointSlices of its name, or nil if there is no record.
func compareEntry(reader string, k Name, e *Entry, want *Service, under []*Slice) error {
	if e == nil || want == nil {
		if e != nil || want != nil {
			return fmt.Errorf("%s(%v) = %v, want one: %t", reader, k, e, want != nil)
		}
		return nil
	}
	ready := 0
	for _, s := range under {
		ready += s.Len()
	}
	switch {
	case e.Service != want:
		return fmt.Errorf("%s(%v).Service = %p, want %p", reader, k, e.Service, want)
	case e.Ready() != ready:
		return fmt.Errorf("%s(%v).Ready() = %d, want %d", reader, k, e.Ready(), ready)
	case e.Generation() == nil:
		return fmt.Errorf("%s(%v).Generation() = nil", reader, k)
	}
	return sameRecords("Slices of "+reader, k, e.Slices, under)
}

// sameRecords compares the result for an argument: it must have the same pointers.
func sameRecords[R interface {
	comparable
	key() Name
}](reader string, argument any, got, want []R) error {
	if slices.Equal(got, want) {
		return nil
	}
	return fmt.Errorf("%s(%v) = %s, want %s", reader, argument, keys(got), keys(want))
}

// compareContent asserts that the content of each record is unchanged since it was put.
func (m *model) compareContent() error {
	return errors.Join(changed(m.services, copyService), changed(m.imports, copyService), changed(m.slices, copySlice), changed(m.pods, copyPod))
}

func changed[R any](all map[Name]record[R], content func(*R) *R) error {
	for k, r := range all {
		if put := content(r.put); !reflect.DeepEqual(put, content(r.was)) {
			return fmt.Errorf("the record of %v became %+v, was put as %+v", k, *put, *r.was)
		}
	}
	return nil
}

// compareSizes detects values that are never removed from the tables, which readers would not notice.
func (m *model) compareSizes(ix *Index) error {
	var clusterIPs, externals, endpoints, podIPs int
	for _, s := range m.services {
		clusterIPs += len(s.was.IPs)
		externals += len(s.was.externalIPs())
	}
	for _, s := range m.slices {
		endpoints += len(distinct(s.was.pointedAt()))
	}
	for _, p := range m.pods {
		podIPs += len(p.was.IPs)
	}
	got := [...]int{
		ix.services.size, ix.imports.size, ix.namespaces.size, ix.clusterIPs.size, ix.externals.size, ix.endpoints.size, ix.podIPs.size,
		len(ix.slicesByName), len(ix.podsByName),
	}
	want := [...]int{
		len(m.names()), len(m.importNames()), len(m.namespaces), clusterIPs, externals, endpoints, podIPs, len(m.slices), len(m.pods),
	}
	if got != want {
		return fmt.Errorf("sizes of services, imports, namespaces, clusterIPs, externals, endpoints, podIPs, slicesByName, podsByName = %v, want %v", got, want)
	}
	return nil
}

// keys returns the names of records, for messages.
func keys[R interface{ key() Name }](all []R) string {
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "%s/%s(%p) ", r.key().Namespace, r.key().Name, any(r))
	}
	return "[" + strings.TrimSpace(b.String()) + "]"
}

// String shows the contents of hints in the text of a record, instead of a pointer.
func (h *Hints) String() string {
	if h == nil {
		return "none"
	}
	return fmt.Sprintf("%+v", *h)
}

// String does the same for External.
func (x *External) String() string {
	if x == nil {
		return "none"
	}
	return fmt.Sprintf("%+v", *x)
}

// String does the same for Topology.
func (t *Topology) String() string {
	if t == nil {
		return "none"
	}
	return fmt.Sprintf("%+v", *t)
}
