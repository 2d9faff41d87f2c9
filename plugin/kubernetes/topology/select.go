package topology

import (
	"math"
	"slices"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Candidate is an endpoint to choose from, and the EndpointSlice that has it.
type Candidate struct {
	Endpoint *index.Endpoint
	Slice    *index.Slice
}

// Select returns those of all that the caller gets, in their order. They take the place of all, in its array.
//
// An unknown caller gets all from a preference and from hints, nothing from Local, and from keys what "*"
// gives.
//
// Where the endpoints of the caller's cluster come first, the others count only if nothing is left of those.
func (p Policy) Select(nodes Nodes, c Caller, all []Candidate) []Candidate {
	if p.ownCluster && c.Cluster != (index.Symbol{}) {
		own := slices.DeleteFunc(slices.Clone(all), func(a Candidate) bool { return !c.shares(a.Slice) })
		if own = p.byRule(nodes, c, own); len(own) > 0 {
			return append(all[:0], own...)
		}
	}
	return p.byRule(nodes, c, all)
}

func (p Policy) byRule(nodes Nodes, c Caller, all []Candidate) []Candidate {
	switch p.rule {
	case annotation, defaultKeys:
		return c.byKeys(p.keys, nodes, all)
	case local:
		return c.onNode(all)
	case hints:
		return c.byHints(all)
	case preference:
		if slices.ContainsFunc(all, hasHints) {
			return c.byHints(all)
		}
		return c.byPlace(p.distribution, all)
	}
	return all
}

// never is the rank of an endpoint that the caller does not get.
const never = math.MaxInt

// nearest returns the candidates of the least rank.
func nearest(all []Candidate, rank func(Candidate) int) []Candidate {
	least, kept := never, all[:0]
	for _, c := range all {
		r := rank(c)
		if r == never || r > least {
			continue
		}
		if r < least {
			least, kept = r, kept[:0]
		}
		kept = append(kept, c)
	}
	return kept
}

// only returns the candidates that match.
func only(all []Candidate, match func(Candidate) bool) []Candidate {
	return nearest(all, func(a Candidate) int {
		if match(a) {
			return 0
		}
		return never
	})
}

// onNode is the rule of internalTrafficPolicy: Local.
func (c Caller) onNode(all []Candidate) []Candidate {
	return only(all, func(a Candidate) bool { return c.Known() && c.nodeOf(a) == c.Name })
}

// byPlace is the rule of a trafficDistribution where the EndpointSlices have no hints.
func (c Caller) byPlace(d index.Distribution, all []Candidate) []Candidate {
	if !c.Known() {
		return all
	}
	return nearest(all, func(a Candidate) int {
		switch {
		case d == index.PreferSameNode && c.nodeOf(a) == c.Name:
			return 0
		case c.Zone != index.Symbol{} && a.Endpoint.Zone == c.Zone:
			return 1
		}
		return 2
	})
}

func hasHints(c Candidate) bool {
	h := c.Endpoint.Hints
	return h != nil && len(h.Nodes)+len(h.Zones) > 0
}

func forNodes(e *index.Endpoint) []index.Symbol {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Nodes
}

func forZones(e *index.Endpoint) []index.Symbol {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Zones
}

// byHints is what kube-proxy does (KEP-2433, KEP-3015): the endpoints with a hint for the caller's node, else
// those with one for its zone, else all. Hints of a kind count only if every endpoint has one: the others may be
// those that serve the caller.
func (c Caller) byHints(all []Candidate) []Candidate {
	if !c.Known() {
		return all
	}
	for _, hint := range [...]struct {
		of     func(*index.Endpoint) []index.Symbol
		wanted index.Symbol
		here   bool // what they name is of one cluster
	}{{forNodes, c.Name, true}, {forZones, c.Zone, false}} {
		isFor := func(a Candidate) bool {
			return slices.Contains(hint.of(a.Endpoint), hint.wanted) && !(hint.here && c.elsewhere(a.Slice))
		}
		has := func(a Candidate) bool { return len(hint.of(a.Endpoint)) > 0 }
		if hint.wanted != (index.Symbol{}) && allOf(all, has) && slices.ContainsFunc(all, isFor) {
			return only(all, isFor)
		}
	}
	return all
}

func allOf(all []Candidate, is func(Candidate) bool) bool {
	return !slices.ContainsFunc(all, func(a Candidate) bool { return !is(a) })
}

// ZoneLabel is the label of nodes that names their zone.
var ZoneLabel = index.NewSymbol("topology.kubernetes.io/zone")

// Other keys that stand for more than a label of a record.
var (
	anyKey      = index.NewSymbol("*")
	hostnameKey = index.NewSymbol("kubernetes.io/hostname")
)

// byKeys is the rule of topology keys (KEP-536): the first key counts for which some endpoint's node has the
// value that the caller's node has.
func (c Caller) byKeys(keys []index.Symbol, nodes Nodes, all []Candidate) []Candidate {
	var room [maxKeys]index.Label
	wanted := c.labels(keys, room[:0])
	return nearest(all, func(a Candidate) int { return rank(c.nodeOf(a), a.Endpoint.Zone, nodes, wanted) })
}

// labels appends the labels that an endpoint's node is to have one of, in the order of the keys: those of the
// keys that the caller's node has, and "*".
func (c Caller) labels(keys []index.Symbol, dst []index.Label) []index.Label {
	for _, key := range keys {
		if key == anyKey {
			dst = append(dst, index.Label{Key: key})
		} else if value, ok := labelOf(c.Node, c.Name, c.Zone, key); ok && c.Known() {
			dst = append(dst, index.Label{Key: key, Value: value})
		}
	}
	return dst
}

// rank returns which of the labels wanted is the first that an endpoint's node has, given the node's name and zone.
func rank(node, zone index.Symbol, nodes Nodes, wanted []index.Label) int {
	var n *index.Node
	if node != (index.Symbol{}) {
		n = nodes.Node(node)
	}
	for i, l := range wanted {
		if l.Key == anyKey {
			return i
		}
		if value, ok := labelOf(n, node, zone, l.Key); ok && value == l.Value {
			return i
		}
	}
	return never
}

// labelOf returns a label of a node, and whether it has it. Where there is no record, the node's name stands for
// the name of its host, and the zone is known from elsewhere.
func labelOf(n *index.Node, name, zone, key index.Symbol) (value index.Symbol, ok bool) {
	switch {
	case n != nil:
		return n.Label(key)
	case key == hostnameKey:
		value = name
	case key == ZoneLabel:
		value = zone
	}
	return value, value != index.Symbol{}
}
