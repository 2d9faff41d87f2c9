package kubernetes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// importModel is a slow oracle for the answers in a clusterset: it uses lists, and no code of the handler.
type importModel struct {
	*model
	imports map[index.Name]index.Service
	id      string // ID in the ClusterProperty
	unread  *atomic.Bool

	// Options of the block.
	topology    bool
	prefer      bool
	given       string // ID in the Corefile
	ignoreEmpty bool
	shown       []string // exposed namespaces; empty for all
}

// recordedImports is an index that an importModel follows.
type recordedImports struct {
	*recorded
	model *importModel
}

func (r *recordedImports) PutImport(s *index.Service) {
	r.model.imports[index.Name{Namespace: s.Namespace, Name: s.Name}] = *s
	r.Index.PutImport(s)
}

func (r *recordedImports) DeleteImport(namespace, name string) {
	delete(r.model.imports, index.Name{Namespace: namespace, Name: name})
	r.Index.DeleteImport(namespace, name)
}

func (r *recordedImports) ReplaceImports(all []*index.Service) {
	clear(r.model.imports)
	for _, s := range all {
		r.model.imports[index.Name{Namespace: s.Namespace, Name: s.Name}] = *s
	}
	r.Index.ReplaceImports(all)
}

func (r *recordedImports) SetClusterID(id index.Symbol) {
	r.model.id = id.String()
	r.Index.SetClusterID(id)
}

// own returns the ID of this cluster, empty if unknown.
func (m *importModel) own() string {
	if m.given != "" {
		return m.given
	}
	return m.id
}

// caller is model.caller: endpoints of ServiceImports only, and those with a cluster ID, locate no caller.
func (m *importModel) caller(query *dns.Msg, from netip.Addr) modelCaller {
	plain := *m.model
	plain.slices = maps.Clone(m.slices)
	maps.DeleteFunc(plain.slices, func(_ index.Name, s index.Slice) bool { return s.Service == "" || s.Cluster != index.Symbol{} })
	return plain.caller(query, from)
}

// importedName is a parsed name below svc of the zone.
type importedName struct {
	namespace, name string
	host, cluster   string
	port, protocol  string
}

const modelZone = "clusterset.local."

// parse parses a name in lower case; ok is false for one that cannot exist.
func (m *importModel) parse(name string) (n importedName, ok bool) {
	labels := strings.Split(strings.TrimSuffix(name, "."+modelZone), ".")
	last := len(labels) - 1
	if last < 1 || labels[last] != "svc" {
		return n, false
	}
	n.namespace = labels[last-1]
	if last == 1 {
		return n, true
	}
	n.name = labels[last-2]
	left := labels[:last-2]
	underscores := slices.ContainsFunc(left, func(l string) bool { return l[0] == '_' })
	switch {
	case len(left) == 0:
	case len(left) == 2 && underscores:
		n.port, n.protocol = strings.TrimPrefix(left[0], "_"), strings.TrimPrefix(left[1], "_")
	case underscores:
		return n, false
	default:
		n.host, n.cluster = left[0], strings.Join(left[1:], ".")
	}
	return n, true
}

// modelAnswer is an unordered reply in lower case: addresses, or targets of SRV with their ports; and the names with
// addresses in the additional section.
type modelAnswer struct {
	rcode          int
	records, extra map[string]bool
}

func (a modelAnswer) String() string {
	return fmt.Sprintf("%s %q additional %q", dns.RcodeToString[a.rcode], slices.Sorted(maps.Keys(a.records)), slices.Sorted(maps.Keys(a.extra)))
}

func (a modelAnswer) equal(b modelAnswer) bool {
	return a.rcode == b.rcode && maps.Equal(a.records, b.records) && maps.Equal(a.extra, b.extra)
}

// answer returns the reply to a query for a name below svc.
func (m *importModel) answer(q dns.Question, who modelCaller) modelAnswer {
	if m.unread != nil && m.unread.Load() {
		return modelAnswer{rcode: dns.RcodeServerFailure}
	}
	none := modelAnswer{rcode: dns.RcodeNameError}
	n, ok := m.parse(strings.ToLower(q.Name))
	if !ok || !m.namespaces[n.namespace] || len(m.shown) > 0 && !slices.Contains(m.shown, n.namespace) {
		return none
	}
	if n.name == "" {
		return modelAnswer{}
	}
	s, ok := m.imports[index.Name{Namespace: n.namespace, Name: n.name}]
	if !ok || m.ignoreEmpty && s.Kind == index.ClusterIP && len(m.under(s, importedName{})) == 0 {
		return none
	}
	base := n.name + "." + n.namespace + ".svc." + modelZone
	var all []target
	if s.Kind == index.ClusterIP && n.host == "" {
		ports, asked := n.ports(s.Ports)
		if !asked {
			return none
		}
		for _, a := range s.IPs {
			all = append(all, target{base, a, ports})
		}
	} else {
		under := m.under(s, n)
		if len(under) == 0 {
			return none
		}
		if n.host == "" {
			under = m.choose(s, who, under)
		}
		for _, e := range under {
			name := e.label() + "."
			if e.cluster != "" {
				name += strings.ToLower(e.cluster) + "."
			}
			all = append(all, target{name + base, e.Addr, e.ports})
		}
	}
	return modelRecords(q.Qtype, all)
}

// target is an address with its name, and the ports that match the query.
type target struct {
	name  string
	addr  netip.Addr
	ports []index.Port
}

func modelRecords(qtype uint16, all []target) modelAnswer {
	a := modelAnswer{records: map[string]bool{}, extra: map[string]bool{}}
	for _, t := range all {
		switch {
		case qtype == dns.TypeA && t.addr.Is4(), qtype == dns.TypeAAAA && t.addr.Is6():
			a.records[t.addr.String()] = true
		case qtype == dns.TypeSRV:
			for _, p := range t.ports {
				if p.Number > 0 {
					a.records[fmt.Sprintf("%s %d", t.name, p.Number)] = true
					a.extra[t.name+" "+t.addr.String()] = true
				}
			}
		}
	}
	return a
}

// ports returns the ports that match a name, and whether it matches the list: a name without a port matches every
// list.
func (n importedName) ports(all []index.Port) (some []index.Port, asked bool) {
	for _, p := range all {
		if (n.port == "" || n.port == p.Name.String()) && (n.protocol == "" || n.protocol == p.Protocol.String()) {
			some = append(some, p)
		}
	}
	return some, len(some) > 0 || len(all) == 0 && n.port+n.protocol == ""
}

// importedEndpoint is an endpoint in a cluster, with the ports that match the query.
type importedEndpoint struct {
	index.Endpoint
	cluster string
	ports   []index.Port
}

func (e importedEndpoint) label() string {
	if e.Name != "" {
		return e.Name
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(e.Addr.String())
}

// under returns the endpoints of a ServiceImport that match a name.
func (m *importModel) under(s index.Service, n importedName) (all []importedEndpoint) {
	for _, name := range slices.SortedFunc(maps.Keys(m.slices), func(a, b index.Name) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	}) {
		sl := m.slices[name]
		ports, asked := n.ports(sl.Ports)
		if sl.Namespace != s.Namespace || sl.Import != s.Name || !asked {
			continue
		}
		for e := range sl.All() {
			i := importedEndpoint{e, sl.Cluster.String(), ports}
			if n.host == "" || i.label() == n.host && strings.ToLower(i.cluster) == n.cluster {
				all = append(all, i)
			}
		}
	}
	return all
}

// choose returns the endpoints of a headless ServiceImport that a caller gets.
func (m *importModel) choose(s index.Service, who modelCaller, all []importedEndpoint) []importedEndpoint {
	if m.prefer && m.own() != "" {
		var own []importedEndpoint
		for _, e := range all {
			if e.cluster == m.own() {
				own = append(own, e)
			}
		}
		if own = m.byPolicy(s, who, own); len(own) > 0 {
			return own
		}
	}
	return m.byPolicy(s, who, all)
}

// byPolicy applies the model's policy to both families together. Endpoints of other clusters have no node, and no
// hints for nodes of this cluster.
func (m *importModel) byPolicy(s index.Service, who modelCaller, all []importedEndpoint) (chosen []importedEndpoint) {
	if !m.topology {
		return all
	}
	var blind []modelEndpoint
	for i, e := range all {
		b := modelEndpoint{Endpoint: e.Endpoint}
		b.Name = fmt.Sprint(i)
		if m.own() != "" && e.cluster != "" && e.cluster != m.own() {
			b.Node = index.Symbol{}
			if b.Hints != nil && len(b.Hints.Nodes) > 0 {
				b.Hints = &index.Hints{Nodes: []index.Symbol{index.NewSymbol("of another cluster")}, Zones: b.Hints.Zones}
			}
		}
		blind = append(blind, b)
	}
	for _, b := range m.seen(s, who, blind) {
		for i, e := range all {
			if b.Name == fmt.Sprint(i) {
				chosen = append(chosen, e)
			}
		}
	}
	return chosen
}

// answerOf converts a reply to this form, a truncated one as far as it has records.
func answerOf(m *dns.Msg) (a modelAnswer, err error) {
	a = modelAnswer{rcode: m.Rcode, records: map[string]bool{}, extra: map[string]bool{}}
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			a.records[rr.A.String()] = true
		case *dns.AAAA:
			a.records[rr.AAAA.String()] = true
		case *dns.SRV:
			a.records[fmt.Sprintf("%s %d", strings.ToLower(rr.Target), rr.Port)] = true
		default:
			return a, fmt.Errorf("%v is no record of a ServiceImport", rr)
		}
	}
	for _, rr := range m.Extra {
		switch rr := rr.(type) {
		case *dns.A:
			a.extra[strings.ToLower(rr.Hdr.Name)+" "+rr.A.String()] = true
		case *dns.AAAA:
			a.extra[strings.ToLower(rr.Hdr.Name)+" "+rr.AAAA.String()] = true
		}
	}
	return a, nil
}
