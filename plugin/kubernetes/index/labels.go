package index

import (
	"iter"
	"strings"
)

// keyLists are the label keys of nodes, by the joined keys. The nodes of a cluster have few different lists, so they share
// them: a list of its own would be a quarter of the memory of a node.
type keyLists map[string]*keyList

// keyList is the list of label keys of a number of nodes.
type keyList struct {
	keys  []Symbol
	users int
}

// pack replaces the Labels of a node that is added to the index by a shared list of keys and the values.
func (k keyLists) pack(n *Node) {
	if n.keys != nil { // a copy of a node of the index
		n.keys.users++
		return
	}
	if len(n.Labels) == 0 {
		return
	}
	keys, values := make([]Symbol, len(n.Labels)), make([]Symbol, len(n.Labels))
	for i, l := range n.Labels {
		keys[i], values[i] = l.Key, l.Value
	}
	joined := join(keys)
	list, ok := k[joined]
	if !ok {
		list = &keyList{keys: keys}
		k[joined] = list
	}
	list.users++
	n.keys, n.values, n.Labels = list, values, nil
}

// release ends the use of a list by a node that leaves the index.
func (k keyLists) release(n *Node) {
	if n.keys == nil {
		return
	}
	if n.keys.users--; n.keys.users == 0 {
		delete(k, join(n.keys.keys))
	}
}

// join returns the keys, separated by a byte that no key has.
func join(keys []Symbol) string {
	var all strings.Builder
	for _, k := range keys {
		all.WriteString(k.String())
		all.WriteByte(0)
	}
	return all.String()
}

// Label returns the value of a label, which may be empty, and whether the node has the label.
func (n *Node) Label(key Symbol) (value Symbol, ok bool) {
	if n.keys != nil {
		for i, k := range n.keys.keys {
			if k == key {
				return n.values[i], true
			}
		}
		return Symbol{}, false
	}
	for _, l := range n.Labels {
		if l.Key == key {
			return l.Value, true
		}
	}
	return Symbol{}, false
}

// label returns the label at an index, and whether there is one.
func (n *Node) label(i int) (l Label, ok bool) {
	switch {
	case n.keys != nil && i < len(n.values):
		return Label{n.keys.keys[i], n.values[i]}, true
	case n.keys == nil && i < len(n.Labels):
		return n.Labels[i], true
	}
	return Label{}, false
}

// AllLabels yields the labels of a node, packed or not.
func (n *Node) AllLabels() iter.Seq[Label] {
	return func(yield func(Label) bool) {
		for i := 0; ; i++ {
			if l, more := n.label(i); !more || !yield(l) {
				return
			}
		}
	}
}

// sameLabels reports whether two nodes have the same labels, packed or not.
func (n *Node) sameLabels(o *Node) bool {
	for i := 0; ; i++ {
		l, more := n.label(i)
		m, others := o.label(i)
		if l != m || more != others {
			return false
		}
		if !more {
			return true
		}
	}
}
