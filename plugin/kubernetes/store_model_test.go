package kubernetes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// model is a slow oracle for the endpoints of headless Services that a caller gets: it uses lists, and no code of the
// handler.
type model struct {
	services   map[index.Name]index.Service
	slices     map[index.Name]index.Slice
	pods       map[index.Name]index.Pod
	namespaces map[string]bool
	nodes      map[string]modelNode

	defaults []string                // default keys in the Corefile
	trusts   func(a netip.Addr) bool // whether the option of an address is used
}

type modelNode struct {
	uid    index.UID
	labels map[string]string
	cidrs  []netip.Prefix
}

func newModel() *model {
	return &model{
		services: map[index.Name]index.Service{}, slices: map[index.Name]index.Slice{}, pods: map[index.Name]index.Pod{},
		namespaces: map[string]bool{}, nodes: map[string]modelNode{},
	}
}

// recorded is an index that a model follows.
type recorded struct {
	*index.Index
	model *model
}

func (r *recorded) PutService(s *index.Service) {
	r.model.services[index.Name{Namespace: s.Namespace, Name: s.Name}] = *s
	r.Index.PutService(s)
}

func (r *recorded) DeleteService(namespace, name string) {
	delete(r.model.services, index.Name{Namespace: namespace, Name: name})
	r.Index.DeleteService(namespace, name)
}

func (r *recorded) ReplaceServices(all []*index.Service) {
	clear(r.model.services)
	for _, s := range all {
		r.model.services[index.Name{Namespace: s.Namespace, Name: s.Name}] = *s
	}
	r.Index.ReplaceServices(all)
}

func (r *recorded) PutSlice(s *index.Slice) {
	r.model.slices[index.Name{Namespace: s.Namespace, Name: s.Name}] = *s
	r.Index.PutSlice(s)
}

func (r *recorded) DeleteSlice(namespace, name string) {
	delete(r.model.slices, index.Name{Namespace: namespace, Name: name})
	r.Index.DeleteSlice(namespace, name)
}

func (r *recorded) ReplaceSlices(all []*index.Slice) {
	clear(r.model.slices)
	for _, s := range all {
		r.model.slices[index.Name{Namespace: s.Namespace, Name: s.Name}] = *s
	}
	r.Index.ReplaceSlices(all)
}

func (r *recorded) PutPod(p *index.Pod) {
	r.model.pods[index.Name{Namespace: p.Namespace, Name: p.Name}] = *p
	r.Index.PutPod(p)
}

func (r *recorded) DeletePod(namespace, name string) {
	delete(r.model.pods, index.Name{Namespace: namespace, Name: name})
	r.Index.DeletePod(namespace, name)
}

func (r *recorded) PutNamespace(name string) {
	r.model.namespaces[name] = true
	r.Index.PutNamespace(name)
}

func (r *recorded) DeleteNamespace(name string) {
	delete(r.model.namespaces, name)
	r.Index.DeleteNamespace(name)
}

func (r *recorded) ReplaceNamespaces(all []string) {
	clear(r.model.namespaces)
	for _, name := range all {
		r.model.namespaces[name] = true
	}
	r.Index.ReplaceNamespaces(all)
}

// noteNode copies a node before the index packs its labels.
func (r *recorded) noteNode(n *index.Node) {
	name := n.Name.String()
	noted := modelNode{uid: n.UID, labels: map[string]string{}, cidrs: n.CIDRs}
	for _, l := range n.Labels {
		noted.labels[l.Key.String()] = l.Value.String()
	}
	if old, ok := r.model.nodes[name]; ok && n.CIDRs == nil && old.uid == n.UID {
		noted.cidrs = old.cidrs
	}
	r.model.nodes[name] = noted
}

func (r *recorded) PutNode(n *index.Node) {
	r.noteNode(n)
	r.Index.PutNode(n)
}

func (r *recorded) DeleteNode(name index.Symbol) {
	delete(r.model.nodes, name.String())
	r.Index.DeleteNode(name)
}

func (r *recorded) SetNodeCIDRs(name index.Symbol, uid index.UID, cidrs []netip.Prefix) {
	if n, ok := r.model.nodes[name.String()]; ok && n.uid == uid {
		n.cidrs = cidrs
		r.model.nodes[name.String()] = n
	}
	r.Index.SetNodeCIDRs(name, uid, cidrs)
}

func (r *recorded) ReplaceNodes(all []*index.Node) {
	left := map[string]bool{}
	for _, n := range all {
		left[n.Name.String()] = true
		r.noteNode(n)
	}
	maps.DeleteFunc(r.model.nodes, func(name string, _ modelNode) bool { return !left[name] })
	r.Index.ReplaceNodes(all)
}

// modelCaller is the caller of a query; without a node it is unknown.
type modelCaller struct{ node, zone string }

// caller returns the caller, by the option of a query or by its address.
func (m *model) caller(query *dns.Msg, from netip.Addr) modelCaller {
	if node, zone, ok := optionIn(query); ok && m.trusts(from) {
		if n, known := m.nodes[node]; known {
			zone = n.labels[keyZone]
		}
		return modelCaller{node, zone}
	}
	node := m.nodeOf(from)
	return modelCaller{node, m.nodes[node].labels[keyZone]}
}

// nodeOf returns the node of an address.
func (m *model) nodeOf(from netip.Addr) string {
	var nodes []string
	for _, p := range m.pods {
		if slices.Contains(p.IPs, from) && p.Node.String() != "" {
			nodes = append(nodes, p.Node.String())
		}
	}
	if len(nodes) > 0 && allSame(nodes) {
		return nodes[0]
	}
	nodes = nil
	for _, s := range m.slices {
		for e := range s.All() {
			if e.Addr == from && e.Node.String() != "" {
				nodes = append(nodes, e.Node.String())
			}
		}
	}
	if len(nodes) > 0 && allSame(nodes) {
		return nodes[0]
	}
	node, longest := "", -1
	for name, n := range m.nodes {
		for _, p := range n.cidrs {
			if p.Contains(from) && p.Bits() > longest {
				node, longest = name, p.Bits()
			}
		}
	}
	if longest >= 0 {
		return node
	}
	return ""
}

func allSame(all []string) bool {
	return !slices.ContainsFunc(all, func(s string) bool { return s != all[0] })
}

// optionIn parses the only caller option of a query.
func optionIn(query *dns.Msg) (node, zone string, ok bool) {
	var all []string
	if opt := query.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if local, is := o.(*dns.EDNS0_LOCAL); is && local.Code == 65313 {
				all = append(all, string(local.Data))
			}
		}
	}
	if len(all) != 1 || len(all[0]) < 3 || all[0][0] != 1 {
		return "", "", false
	}
	rest := all[0][1:]
	node, rest, ok = lengthAnd(rest)
	if ok && rest != "" {
		zone, rest, ok = lengthAnd(rest)
		ok = ok && rest == ""
	}
	return node, zone, ok
}

func lengthAnd(s string) (part, rest string, ok bool) {
	n := int(s[0])
	if n == 0 || len(s) < 1+n {
		return "", "", false
	}
	return s[1 : 1+n], s[1+n:], true
}

const (
	keyZone     = "topology.kubernetes.io/zone"
	keyHostname = "kubernetes.io/hostname"
)

// label returns the label of a node, or its substitute for a node without a record; zone is the known zone.
func (m *model) label(node, zone, key string) (value string, ok bool) {
	if n, known := m.nodes[node]; known {
		value, ok = n.labels[key]
		return value, ok
	}
	switch key {
	case keyHostname:
		return node, node != ""
	case keyZone:
		return zone, zone != ""
	}
	return "", false
}

// modelEndpoint is an endpoint with the ports of its slice.
type modelEndpoint struct {
	index.Endpoint
	ports []index.Port
}

// that returns the endpoints that match.
func that(all []modelEndpoint, matches func(index.Endpoint) bool) (some []modelEndpoint) {
	for _, e := range all {
		if matches(e.Endpoint) {
			some = append(some, e)
		}
	}
	return some
}

// seen returns the endpoints of a Service that a caller gets, given all endpoints of one family.
func (m *model) seen(s index.Service, who modelCaller, all []modelEndpoint) []modelEndpoint {
	policy := index.Topology{}
	if s.Topology != nil {
		policy = *s.Topology
	}
	var keys []string
	for _, k := range policy.Keys {
		keys = append(keys, k.String())
	}
	switch {
	case keys != nil:
		return m.byKeys(keys, who, all)
	case policy.Local:
		return that(all, func(e index.Endpoint) bool { return who.node != "" && e.Node.String() == who.node })
	case policy.Auto, policy.Distribution != index.NoDistribution && len(that(all, isHinted)) > 0:
		return byHints(who, all)
	case policy.Distribution != index.NoDistribution:
		return byPreference(policy.Distribution, who, all)
	}
	if len(m.defaults) > 0 {
		return m.byKeys(m.defaults, who, all)
	}
	return all
}

func (m *model) byKeys(keys []string, who modelCaller, all []modelEndpoint) []modelEndpoint {
	for _, key := range keys {
		if key == "*" {
			return all
		}
		if who.node == "" {
			continue
		}
		mine, has := m.label(who.node, who.zone, key)
		found := that(all, func(e index.Endpoint) bool {
			its, ok := m.label(e.Node.String(), e.Zone.String(), key)
			return has && ok && its == mine
		})
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

func isHinted(e index.Endpoint) bool { return e.Hints != nil }

// byHints is kube-proxy's rule.
func byHints(who modelCaller, all []modelEndpoint) []modelEndpoint {
	if who.node == "" {
		return all
	}
	names := func(e index.Endpoint, zones bool) []index.Symbol {
		switch {
		case e.Hints == nil:
			return nil
		case zones:
			return e.Hints.Zones
		}
		return e.Hints.Nodes
	}
	for _, zones := range []bool{false, true} {
		me := index.NewSymbol(who.node)
		if zones {
			me = index.NewSymbol(who.zone)
		}
		hinted := that(all, func(e index.Endpoint) bool { return len(names(e, zones)) > 0 })
		mine := that(all, func(e index.Endpoint) bool { return slices.Contains(names(e, zones), me) })
		if len(hinted) == len(all) && len(mine) > 0 && me.String() != "" {
			return mine
		}
	}
	return all
}

func byPreference(d index.Distribution, who modelCaller, all []modelEndpoint) []modelEndpoint {
	if who.node == "" {
		return all
	}
	if d == index.PreferSameNode {
		if near := that(all, func(e index.Endpoint) bool { return e.Node.String() == who.node }); len(near) > 0 {
			return near
		}
	}
	if near := that(all, func(e index.Endpoint) bool { return who.zone != "" && e.Zone.String() == who.zone }); len(near) > 0 {
		return near
	}
	return all
}

// records returns the unordered records of an answer besides CNAMEs, as texts: addresses, or targets of SRV with their
// ports. It reports whether the answer is independent of the caller; the other results are empty then.
func (m *model) records(q dns.Question, who modelCaller) (records map[string]bool, addresses map[netip.Addr]bool, depends bool) {
	name := strings.ToLower(q.Name)
	been := map[string]bool{}
	for {
		s, port, protocol, ok := m.service(name)
		switch {
		case !ok || been[name]:
			return nil, nil, false
		case s.Kind == index.ExternalName && port+protocol == "" && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA):
			been[name] = true
			name = s.Target
			continue
		case s.Kind != index.Headless:
			return nil, nil, false
		}
		records, addresses = m.endpointRecords(q.Qtype, s, port, protocol, who)
		return records, addresses, records != nil
	}
}

// endpointRecords is records for a headless Service.
func (m *model) endpointRecords(qtype uint16, s index.Service, port, protocol string, who modelCaller) (records map[string]bool, addresses map[netip.Addr]bool) {
	families := map[uint16][]bool{dns.TypeA: {true}, dns.TypeAAAA: {false}, dns.TypeSRV: {true, false}}[qtype]
	if families == nil {
		return nil, nil
	}
	records, addresses = map[string]bool{}, map[netip.Addr]bool{}
	for _, v4 := range families {
		for _, e := range m.seen(s, who, m.endpoints(s, port, protocol, v4)) {
			addresses[e.Addr] = true
			if qtype != dns.TypeSRV {
				records[e.Addr.String()] = true
				continue
			}
			for _, p := range e.ports {
				if p.Number > 0 {
					records[fmt.Sprintf("%s.%s.%s.svc.cluster.local. %d", modelLabel(e.Endpoint), s.Name, s.Namespace, p.Number)] = true
				}
			}
		}
	}
	return records, addresses
}

func modelLabel(e index.Endpoint) string {
	if e.Name != "" {
		return e.Name
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(e.Addr.String())
}

// service returns the Service of a name, which may be that of one of its ports.
func (m *model) service(name string) (s index.Service, port, protocol string, ok bool) {
	labels := strings.Split(strings.TrimSuffix(name, ".svc.cluster.local."), ".")
	if len(labels) == 4 && strings.HasPrefix(labels[0], "_") && strings.HasPrefix(labels[1], "_") {
		port, protocol, labels = labels[0][1:], labels[1][1:], labels[2:]
	}
	if len(labels) != 2 || !m.namespaces[labels[1]] {
		return s, "", "", false
	}
	s, ok = m.services[index.Name{Namespace: labels[1], Name: labels[0]}]
	return s, port, protocol, ok
}

// endpoints returns the endpoints of a family for the name of a Service or of one of its ports.
func (m *model) endpoints(s index.Service, port, protocol string, v4 bool) (all []modelEndpoint) {
	for _, sl := range m.slices {
		if sl.Namespace != s.Namespace || sl.Service != s.Name {
			continue
		}
		var ports []index.Port
		for _, p := range sl.Ports {
			if (port == "" || port == p.Name.String()) && (protocol == "" || protocol == p.Protocol.String()) {
				ports = append(ports, p)
			}
		}
		if len(ports) == 0 && (len(sl.Ports) > 0 || port+protocol != "") {
			continue
		}
		for e := range sl.All() {
			if e.Addr.Is4() == v4 {
				all = append(all, modelEndpoint{e, ports})
			}
		}
	}
	return all
}
