package index

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
)

// nodes are the Nodes of the cluster, by name and by the addresses of their pods.
type nodes struct {
	byName     *table[string, *Node]
	byCIDR     *table[netip.Prefix, *Node]
	lengths    atomic.Pointer[[]int] // lengths of the prefixes in byCIDR, as IPv6 prefixes, in descending order
	generation Generation

	// Guarded by the index's mutex.
	count   map[int]int // number of prefixes of each length
	keys    keyLists
	numbers uint32 // the last Number assigned
}

func newNodes() nodes {
	return nodes{byName: newTable[string, *Node](), byCIDR: newTable[netip.Prefix, *Node](), count: map[int]int{}, keys: keyLists{}}
}

// Node returns the record of a node, or nil.
func (ix *Index) Node(name Symbol) *Node { return ix.NodeNamed(name.String()) }

// NodeNamed is Node for a name as text, which it does not retain.
func (ix *Index) NodeNamed(name string) *Node {
	n, _ := ix.nodes.byName.get(name)
	return n
}

// NodeByIP returns the node with the smallest range that contains an address, or nil.
func (ix *Index) NodeByIP(a netip.Addr) *Node {
	lengths := ix.nodes.lengths.Load()
	if lengths == nil {
		return nil
	}
	for _, length := range *lengths {
		if a.Is4() {
			length -= 96
		}
		if length < 0 {
			continue // a length of IPv6 ranges, an error in Prefix
		}
		if p, err := a.Prefix(length); err == nil {
			if n, ok := ix.nodes.byCIDR.get(p); ok {
				return n
			}
		}
	}
	return nil
}

// EndpointNode returns the name of the node that runs the ready endpoints with an address. It is zero if no node is known,
// and if there are several nodes, as while an address moves from one pod to another.
func (ix *Index) EndpointNode(a netip.Addr) (name Symbol) {
	for s := range ix.endpoints.with(a) {
		if s.Cluster != (Symbol{}) {
			continue // the node may be in another cluster; the cluster's own endpoints also have slices without a cluster ID
		}
		for i := range s.withAddr(a) {
			if !sameNode(&name, s.node(i)) {
				return Symbol{}
			}
		}
	}
	return name
}

// PodNode is EndpointNode for pods.
func (ix *Index) PodNode(a netip.Addr) (name Symbol) {
	for p := range ix.podIPs.all(a) {
		if !sameNode(&name, p.Node) {
			return Symbol{}
		}
	}
	return name
}

// sameNode sets name to other if name is unknown, and reports whether both agree. An unknown other agrees with every name.
func sameNode(name *Symbol, other Symbol) bool {
	switch {
	case other == (Symbol{}):
		return true
	case *name == (Symbol{}):
		*name = other
	}
	return *name == other
}

// ClusterID returns the ID of this cluster in its clusterset, zero if unknown.
func (ix *Index) ClusterID() Symbol {
	if id := ix.clusterID.Load(); id != nil {
		return *id
	}
	return Symbol{}
}

// SetClusterID sets the ID of this cluster, zero for an unknown one.
func (ix *Index) SetClusterID(id Symbol) {
	ix.write(func() {
		ix.replaced[clusterIDKind] = true
		ix.setClusterID(id)
	})
}

func (ix *Index) setClusterID(id Symbol) {
	if id != ix.ClusterID() {
		ix.clusterID.Store(&id)
		ix.nodes.generation.advance()
	}
}

// NodesGeneration advances when a node is created or deleted, with every change of labels, and with the ID of this cluster,
// which decides whether an endpoint's node is in this cluster. It does not count changes of the ranges of pod addresses.
func (ix *Index) NodesGeneration() *Generation { return &ix.nodes.generation }

// PutNode adds a node or replaces the one of that name. A record without CIDRs inherits those of its predecessor with the
// same UID: they never change.
func (ix *Index) PutNode(n *Node) { ix.write(func() { ix.putNode(n) }) }

// SetNodeCIDRs sets the ranges of the pods' addresses of a node, if it exists with that UID.
func (ix *Index) SetNodeCIDRs(name Symbol, uid UID, cidrs []netip.Prefix) {
	ix.write(func() {
		if old := ix.Node(name); old != nil && old.UID == uid {
			n := *old
			n.CIDRs = cidrs
			ix.putNode(&n)
		}
	})
}

// DeleteNode removes a node, if it exists.
func (ix *Index) DeleteNode(name Symbol) { ix.write(func() { ix.deleteNode(name.String()) }) }

// ReplaceNodes replaces all nodes.
func (ix *Index) ReplaceNodes(all []*Node) {
	replaceKind(ix, nodeKind, all, (*Node).key, ix.putNode, ix.nodes.byName.keys(), ix.deleteNode)
}

func (n *Node) key() string { return n.Name.String() }

func (ix *Index) putNode(n *Node) {
	old := ix.Node(n.Name)
	switch {
	case old == nil:
		ix.nodes.numbers++
		n.number = ix.nodes.numbers
	case old.Covers(n):
		return // n may be a record of the index, which readers use: it must not be modified
	default:
		n.number = old.number
		if n.CIDRs == nil && n.UID == old.UID {
			n.CIDRs = old.CIDRs
		}
	}
	ix.nodes.keys.pack(n)
	ix.nodes.byName.set(n.key(), n)
	ix.moveCIDRs(old, n)
	if old == nil || !old.sameLabels(n) {
		ix.nodes.generation.advance()
	}
	if old != nil {
		ix.nodes.keys.release(old)
	}
}

func (ix *Index) deleteNode(name string) {
	old := ix.NodeNamed(name)
	if old == nil {
		return
	}
	ix.nodes.byName.remove(name, old)
	ix.moveCIDRs(old, nil)
	ix.nodes.keys.release(old)
	ix.nodes.generation.advance()
}

// moveCIDRs replaces a node under its ranges.
func (ix *Index) moveCIDRs(old, n *Node) {
	if n != nil {
		for _, p := range n.CIDRs {
			ix.nodes.byCIDR.add(p.Masked(), n)
			ix.countLength(p, 1)
		}
	}
	if old != nil {
		for _, p := range old.CIDRs {
			ix.nodes.byCIDR.remove(p.Masked(), old)
			ix.countLength(p, -1)
		}
	}
}

// countLength adds to the number of prefixes with the length of p.
func (ix *Index) countLength(p netip.Prefix, more int) {
	length := p.Bits()
	if p.Addr().Is4() {
		length += 96
	}
	before := ix.nodes.count[length]
	ix.nodes.count[length] += more
	if now := ix.nodes.count[length]; (before == 0) == (now == 0) {
		return
	} else if now == 0 {
		delete(ix.nodes.count, length)
	}
	lengths := slices.Sorted(maps.Keys(ix.nodes.count))
	slices.Reverse(lengths)
	ix.nodes.lengths.Store(&lengths)
}
