package index

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// nodes are the Nodes of the cluster, by name and by the addresses of their pods.
type nodes struct {
	byName     *table[string, *Node]
	byCIDR     *table[netip.Prefix, *Node]
	lengths    atomic.Pointer[[]int] // of the prefixes in byCIDR, IPv4 ones as those of IPv6; the longest first
	generation Generation

	// Guarded by the index's mutex.
	count   map[int]int // prefixes of each length
	keys    keyLists
	numbers uint32 // given to nodes so far
}

func newNodes() nodes {
	return nodes{byName: newTable[string, *Node](), byCIDR: newTable[netip.Prefix, *Node](), count: map[int]int{}, keys: keyLists{}}
}

// Node returns what is known of a node, or nil.
func (ix *Index) Node(name Symbol) *Node { return ix.NodeNamed(name.String()) }

// NodeNamed is Node for a name as text, on which it does not hold.
func (ix *Index) NodeNamed(name string) *Node {
	n, _ := ix.nodes.byName.get(name)
	return n
}

// NodeByIP returns the node that has an address in its ranges, or nil. The smallest range counts.
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
			continue // of IPv6 ranges; Prefix would make an error of it
		}
		if p, err := a.Prefix(length); err == nil {
			if n, ok := ix.nodes.byCIDR.get(p); ok {
				return n
			}
		}
	}
	return nil
}

// EndpointNode returns the name of the node that the ready endpoints of an address are on. It is zero if there
// is none, or if they are on several: as an address passes from one pod to another they may be.
func (ix *Index) EndpointNode(a netip.Addr) (name Symbol) {
	for in := range ix.endpoints.all(a) {
		if in.slice.Cluster != (Symbol{}) {
			continue // the node may be another cluster's, and of its own there are slices that say no cluster
		}
		if in.node == nil || !agree(&name, *in.node) {
			return Symbol{}
		}
	}
	return name
}

// PodNode is EndpointNode for pods.
func (ix *Index) PodNode(a netip.Addr) (name Symbol) {
	for p := range ix.podIPs.all(a) {
		if !agree(&name, p.Node) {
			return Symbol{}
		}
	}
	return name
}

// agree takes in the name of a node, if it is known, and reports whether it is the same as before.
func agree(name *Symbol, other Symbol) bool {
	switch {
	case other == (Symbol{}):
		return true
	case *name == (Symbol{}):
		*name = other
	}
	return *name == other
}

// ClusterID returns the ID of this cluster among others, zero while it is not known.
func (ix *Index) ClusterID() Symbol {
	if id := ix.clusterID.Load(); id != nil {
		return *id
	}
	return Symbol{}
}

// SetClusterID sets the ID of this cluster. The zero Symbol says that it is not known.
func (ix *Index) SetClusterID(id Symbol) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if id != ix.ClusterID() {
		ix.clusterID.Store(&id)
		ix.nodes.generation.advance()
	}
}

// NodesGeneration advances with every node that comes or goes, with every change of labels, and with the ID of this
// cluster, which says whose the nodes of endpoints are. The ranges of pod addresses are not part of it.
func (ix *Index) NodesGeneration() *Generation { return &ix.nodes.generation }

// PutNode adds a node or replaces the one of that name. A record without CIDRs takes over those of the one
// that it replaces, if it is of the same node: they never change.
func (ix *Index) PutNode(n *Node) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.putNode(n)
}

// SetNodeCIDRs sets the ranges of the pods' addresses of a node, if it is there with that UID.
func (ix *Index) SetNodeCIDRs(name Symbol, uid UID, cidrs []netip.Prefix) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if old := ix.Node(name); old != nil && old.UID == uid {
		n := *old
		n.CIDRs = cidrs
		ix.putNode(&n)
	}
}

// DeleteNode removes a node, if it is there.
func (ix *Index) DeleteNode(name Symbol) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.deleteNode(name)
}

// ReplaceNodes makes the nodes of the index those of all, and no others.
func (ix *Index) ReplaceNodes(all []*Node) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	keep := make(map[Symbol]struct{}, len(all))
	for _, n := range all {
		keep[n.Name] = struct{}{}
		ix.putNode(n)
	}
	for _, n := range ix.nodes.byName.each() {
		if _, ok := keep[n.Name]; !ok {
			ix.deleteNode(n.Name)
		}
	}
}

func (ix *Index) putNode(n *Node) {
	old := ix.Node(n.Name)
	switch {
	case old == nil:
		ix.nodes.numbers++
		n.number = ix.nodes.numbers
	case old.Covers(n):
		return // n may have been in the index before, and be read: it is not written to
	default:
		n.number = old.number
		if n.CIDRs == nil && n.UID == old.UID {
			n.CIDRs = old.CIDRs
		}
	}
	ix.nodes.keys.pack(n)
	ix.nodes.byName.set(n.Name.String(), n)
	ix.moveCIDRs(old, n)
	if old == nil || !old.sameLabels(n) {
		ix.nodes.generation.advance()
	}
	if old != nil {
		ix.nodes.keys.release(old)
	}
}

func (ix *Index) deleteNode(name Symbol) {
	old := ix.Node(name)
	if old == nil {
		return
	}
	ix.nodes.byName.remove(name.String(), func(*Node) bool { return true })
	ix.moveCIDRs(old, nil)
	ix.nodes.keys.release(old)
	ix.nodes.generation.advance()
}

// moveCIDRs makes the ranges of a node lead to its new record.
func (ix *Index) moveCIDRs(old, n *Node) {
	if n != nil {
		for _, p := range n.CIDRs {
			ix.nodes.byCIDR.add(p.Masked(), n)
			ix.countLength(p, 1)
		}
	}
	if old != nil {
		for _, p := range old.CIDRs {
			ix.nodes.byCIDR.remove(p.Masked(), func(v *Node) bool { return v == old })
			ix.countLength(p, -1)
		}
	}
}

// countLength notes that there is one prefix more, or less, of a length.
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
	lengths := make([]int, 0, len(ix.nodes.count))
	for length := range ix.nodes.count {
		lengths = append(lengths, length)
	}
	slices.Sort(lengths)
	slices.Reverse(lengths)
	ix.nodes.lengths.Store(&lengths)
}
