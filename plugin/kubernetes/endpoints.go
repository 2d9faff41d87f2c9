package kubernetes

import (
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

// policyOf returns which endpoints of a Service or ServiceImport a caller sees by a name: all by the name of one, by
// the name of a zone, and below a ClusterIP.
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

// asker is who asks, found out where the answer depends on it.
type asker struct {
	topology.Caller
	why      evidence
	done     bool
	unplaced bool // nothing is seen, which may be for want of Nodes that have not been read
}

// asked reports whether the answer depends on who asks.
func (a *asker) asked() bool { return a != nil && a.done }

// early reports whether the answer can't be given before Nodes have been read.
func (a *asker) early() bool { return a != nil && a.unplaced }

func (a *asker) view() answers.View { return viewOf(a.Caller, a.why) }

// count counts an answer that depends on who asks.
func (a *asker) count() {
	if a.asked() && a.why != nowhere {
		callersTotal[a.why].Inc()
	}
}

// expectAsker makes an answer one that may depend on who asks, if what is found is like that: an alias may lead to
// what is filtered.
func (k *Kubernetes) expectAsker(q *query, f *found) {
	q.dependencies.onNodes(f)
	if q.asker == nil && k.callers != nil && (f.policy.ByCaller() || f.kind == alias) {
		q.asker = &asker{}
	}
}

// ask finds out who asks.
func (k *Kubernetes) ask(q *query) topology.Caller {
	a := q.asker
	if a.done {
		return a.Caller
	}
	a.done = true
	a.Caller, a.why = k.callerOf(q.state.IP(), optionOf(q.state.Req))
	return a.Caller
}

// callerOf returns who asks, as far as it is known, given the address and the data of the option.
func (k *Kubernetes) callerOf(ip string, option []byte) (topology.Caller, evidence) {
	from, err := netip.ParseAddr(ip)
	if err != nil {
		return topology.Caller{}, nowhere
	}
	return k.callers.find(from, option)
}

// chosen returns the endpoints of a name that the caller sees, where not everyone sees all. Some may be of a family
// that is not asked for.
func (k *Kubernetes) chosen(q *query, f *found) (seen []topology.Endpoint) {
	placed := k.hasNodes() // before the look
	var who topology.Caller
	if f.policy.ByCaller() {
		who = k.ask(q)
	}
	who.Cluster = k.ownCluster()
	any := false
	for _, family := range families(q.qtype, f.name.imported) {
		all := make([]topology.Endpoint, 0, f.entry.Ready())
		for e, slice := range f.endpoints() {
			if family == bothFamilies || family == addressType(e.Addr) {
				all = append(all, topology.Endpoint{Endpoint: e, Slice: slice})
			}
		}
		any = any || len(all) > 0
		seen = append(seen, f.policy.Select(k.index, who, all)...)
	}
	if q.asker.asked() && any && len(seen) == 0 && !placed {
		q.asker.unplaced = true // and stays so: a lookup of the other family may follow
	}
	return seen
}

// bothFamilies stands for the types of addresses of both families.
const bothFamilies = dns.TypeANY

// families returns the types of the addresses that are chosen from for a type, each by itself. For a Service each
// family is, as for kube-proxy. For a ServiceImport both are together, so that A and AAAA are of the same endpoints
// (KEP-1645).
func families(qtype uint16, imported bool) []uint16 {
	switch {
	case imported:
		return []uint16{bothFamilies}
	case qtype == dns.TypeA, qtype == dns.TypeAAAA:
		return []uint16{qtype}
	}
	return []uint16{dns.TypeA, dns.TypeAAAA}
}

// ownCluster returns the ID of this cluster, zero if it is not known.
func (k *Kubernetes) ownCluster() index.Symbol {
	if k.clusterID != (index.Symbol{}) {
		return k.clusterID
	}
	return k.index.ClusterID()
}
