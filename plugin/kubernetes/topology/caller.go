package topology

import "github.com/nearside-dns/nearside/plugin/kubernetes/index"

// Caller is the location of the client of a query. The zero Caller is unknown.
type Caller struct {
	// Name is the name of the caller's node, empty for an unknown caller.
	Name index.Symbol
	// Zone is the node's label topology.kubernetes.io/zone, or the zone in the query's option if there is no record of the
	// node. It may be empty.
	Zone index.Symbol
	// Node is the record of the node, nil if there is none.
	Node *index.Node
	// Cluster is the ID of the caller's cluster, zero if unknown. It matters for endpoints in several clusters.
	Cluster index.Symbol
}

// Known reports whether the name of the caller's node is known.
func (c Caller) Known() bool { return c.Name != index.Symbol{} }

// inCluster reports whether the endpoints of a slice are known to be in the caller's cluster.
func (c Caller) inCluster(s *index.Slice) bool {
	return s.Cluster != index.Symbol{} && s.Cluster == c.Cluster
}

// inOtherCluster reports whether the endpoints of a slice are known to be in another cluster.
func (c Caller) inOtherCluster(s *index.Slice) bool {
	return s.Cluster != index.Symbol{} && c.Cluster != index.Symbol{} && s.Cluster != c.Cluster
}

// nodeOf returns the name of an endpoint's node, zero for one in another cluster: nodes of several clusters may have the
// same name.
func (c Caller) nodeOf(e Endpoint) index.Symbol {
	if c.inOtherCluster(e.Slice) {
		return index.Symbol{}
	}
	return e.Node
}

// Nodes finds the record of a node by name, nil if there is none. An index.Index implements it.
type Nodes interface {
	Node(name index.Symbol) *index.Node
}
