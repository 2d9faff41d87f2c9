package topology

import "github.com/nearside-dns/nearside/plugin/kubernetes/index"

// Caller is the one who asks, as far as it is known. The zero Caller is unknown.
type Caller struct {
	// Name is that of the caller's node; empty if the caller is unknown.
	Name index.Symbol
	// Zone is that of the node by its label topology.kubernetes.io/zone, or by what came with the query if
	// there is no record of the node. It may be empty.
	Zone index.Symbol
	// Node is nil if there is no record of the node.
	Node *index.Node
	// Cluster is the ID of the cluster that the caller is in, zero if it is not known. It counts where endpoints
	// are in several.
	Cluster index.Symbol
}

// Known reports whether the caller's node is known by name.
func (c Caller) Known() bool { return c.Name != index.Symbol{} }

// shares reports whether the endpoints of a slice are known to be in the caller's cluster.
func (c Caller) shares(s *index.Slice) bool {
	return s.Cluster != index.Symbol{} && s.Cluster == c.Cluster
}

// elsewhere reports whether they are known to be in another.
func (c Caller) elsewhere(s *index.Slice) bool {
	return s.Cluster != index.Symbol{} && c.Cluster != index.Symbol{} && !c.shares(s)
}

// nodeOf returns the name of the node that an endpoint is on, zero if it is not one of the caller's cluster: nodes of
// several clusters may have the same name.
func (c Caller) nodeOf(a Candidate) index.Symbol {
	if c.elsewhere(a.Slice) {
		return index.Symbol{}
	}
	return a.Endpoint.Node
}

// Nodes finds the record of a node by name; nil where there is none. It is an index.Index.
type Nodes interface {
	Node(name index.Symbol) *index.Node
}
