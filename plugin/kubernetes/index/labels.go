package index

import "strings"

// keyLists are the lists of keys that the labels of nodes have, by the joined keys. The nodes of a cluster
// have few different ones, so each is kept once: it would be a quarter of the memory of a node.
type keyLists map[string]*keyList

// keyList is used by as many nodes as it counts.
type keyList struct {
	keys  []Symbol
	users int
}

// pack brings the labels of a node that is taken up into the smaller form.
func (k keyLists) pack(n *Node) {
	if n.keys != nil { // the copy of a node of the index
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

// release gives back the list of a node that leaves the index.
func (k keyLists) release(n *Node) {
	if n.keys == nil {
		return
	}
	if n.keys.users--; n.keys.users == 0 {
		delete(k, join(n.keys.keys))
	}
}

// join returns keys with a byte between that is in none.
func join(keys []Symbol) string {
	var all strings.Builder
	for _, k := range keys {
		all.WriteString(k.String())
		all.WriteByte(0)
	}
	return all.String()
}

// Label returns the value of a label, and whether the node has it. A value may be empty.
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

// label returns a label by its place, and whether there are as many.
func (n *Node) label(i int) (l Label, ok bool) {
	switch {
	case n.keys != nil && i < len(n.values):
		return Label{n.keys.keys[i], n.values[i]}, true
	case n.keys == nil && i < len(n.Labels):
		return n.Labels[i], true
	}
	return Label{}, false
}

// sameLabels reports whether two nodes have the same labels, each in whichever form.
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
