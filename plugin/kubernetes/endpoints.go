package kubernetes

import (
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

// policyOf returns the policy that selects endpoints of a Service or ServiceImport for a caller. Names of one endpoint, of a
// zone and below a ClusterIP Service are not filtered.
func (k *Kubernetes) policyOf(s *index.Service, n *objectName) (p topology.Policy) {
	if s.Kind != index.Headless || n.endpoint != "" || n.zone != "" {
		return p
	}
	if k.source.Topology {
		p = topology.PolicyOf(s, k.topologyKeys)
	}
	if n.imported && k.preferCluster {
		p = p.OwnClusterFirst()
	}
	return p
}

// queryCaller is the caller of a query, located when the answer first depends on it.
type queryCaller struct {
	topology.Caller
	evidence  evidence
	located   bool
	unlocated bool // no endpoint was selected, possibly because Nodes are not synced
}

// isUsed reports whether the answer depends on the caller.
func (c *queryCaller) isUsed() bool { return c != nil && c.located }

// needsNodes reports whether the query can't be answered before Nodes are synced.
func (c *queryCaller) needsNodes() bool { return c != nil && c.unlocated }

func (c *queryCaller) view() store.View {
	return viewOf(location{node: c.Node, name: c.Name.String(), zone: c.Zone.String()}, c.evidence)
}

// count counts an answer that depends on the caller.
func (c *queryCaller) count() {
	if c.evidence != noAddress {
		callersTotal[c.evidence].Inc()
	}
}

// mayUseCaller prepares a query whose answer may depend on the caller: the name is filtered, or an alias, whose target may
// be.
func (k *Kubernetes) mayUseCaller(q *query, f *result) {
	q.dependencies.onNodes(f)
	if q.caller == nil && k.callers != nil && (f.policy.ByCaller() || f.kind == alias) {
		q.caller = &queryCaller{}
	}
}

// locate returns the caller of a query.
func (k *Kubernetes) locate(q *query) topology.Caller {
	c := q.caller
	if !c.located {
		c.located = true
		c.Caller, c.evidence = k.callerOf(q.state.IP(), optionOf(q.state.Req), q.trusted)
	}
	return c.Caller
}

// callerOf returns the caller with an address and the data of the caller option. If trusted, the option counts from any
// address.
func (k *Kubernetes) callerOf(ip string, option []byte, trusted bool) (topology.Caller, evidence) {
	from, err := netip.ParseAddr(ip)
	if err != nil {
		return topology.Caller{}, noAddress
	}
	return k.callers.find(from, option, trusted)
}

// selectEndpoints returns the endpoints of a filtered name that the caller gets. Some may be of a family that was not
// queried.
func (k *Kubernetes) selectEndpoints(q *query, f *result) (selected []topology.Endpoint) {
	nodesSynced := k.hasNodes() // before Nodes are looked up
	var caller topology.Caller
	if f.policy.ByCaller() {
		caller = k.locate(q)
	}
	caller.Cluster = k.ownCluster()
	exists := false
	for _, family := range families(q.qtype, f.name.imported) {
		all := f.selectable(family)
		exists = exists || len(all) > 0
		selected = append(selected, f.policy.Select(k.index, caller, all)...)
	}
	if q.caller.isUsed() && exists && len(selected) == 0 && !nodesSynced {
		q.caller.unlocated = true // never reset: a lookup of the other family may follow
	}
	return selected
}

// selectable returns the endpoints of a family from which a policy selects.
func (f *result) selectable(family uint16) []topology.Endpoint {
	all := make([]topology.Endpoint, 0, f.entry.Ready())
	for e, slice := range f.endpoints() {
		if isOf(family, e) {
			all = append(all, topology.Endpoint{Endpoint: e, Slice: slice})
		}
	}
	return all
}

func isOf(family uint16, e index.Endpoint) bool {
	return family == bothFamilies || family == addressType(e.Addr)
}

// bothFamilies stands for both types of addresses.
const bothFamilies = dns.TypeANY

// families returns the address types, with one selection of endpoints for each. For a Service each family is separate, as in
// kube-proxy. For a ServiceImport both are together, so that A and AAAA have the same endpoints (KEP-1645).
func families(qtype uint16, imported bool) []uint16 {
	switch {
	case imported:
		return []uint16{bothFamilies}
	case qtype == dns.TypeA, qtype == dns.TypeAAAA:
		return []uint16{qtype}
	}
	return []uint16{dns.TypeA, dns.TypeAAAA}
}

// ownCluster returns the ID of this cluster, zero if unknown.
func (k *Kubernetes) ownCluster() index.Symbol {
	if k.clusterID != (index.Symbol{}) {
		return k.clusterID
	}
	return k.index.ClusterID()
}
