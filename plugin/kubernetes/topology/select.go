package topology

import (
	"math"
	"slices"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Endpoint is an endpoint with its EndpointSlice.
type Endpoint struct {
	index.Endpoint
	Slice *index.Slice
}

// Select returns the endpoints that the caller gets, in their order. It overwrites the array of all.
//
// An unknown caller gets all endpoints by trafficDistribution and by hints, none by internalTrafficPolicy: Local, and by
// topology keys those that "*" selects.
func (p Policy) Select(nodes Nodes, c Caller, all []Endpoint) []Endpoint {
	selected, _, _ := p.choose(nodes, c, all)
	return selected
}

// choose is Select with the reasons of ownCluster and of the rule; without ownCluster the former is unfiltered.
func (p Policy) choose(nodes Nodes, c Caller, all []Endpoint) (selected []Endpoint, cluster, rule reason) {
	switch {
	case !p.ownCluster:
	case c.Cluster == index.Symbol{}:
		cluster = unknownCluster
	default:
		own := slices.DeleteFunc(slices.Clone(all), func(e Endpoint) bool { return !c.inCluster(e.Slice) })
		if own, rule = p.byRule(nodes, c, own); len(own) > 0 {
			return append(all[:0], own...), byCluster, rule
		}
		cluster = noneInCluster
	}
	selected, rule = p.byRule(nodes, c, all)
	return selected, cluster, rule
}

// reason is the comparison that selects endpoints, or the reason why no comparison does. The comparisons of keys and of
// trafficDistribution are ranks: the endpoints of the lowest rank are selected.
type reason int

const (
	unfiltered reason = iota
	byCluster
	unknownCluster // the ID of the caller's cluster is unknown
	noneInCluster  // nothing is selected in the caller's cluster
	byNode
	byZone
	allOfZones       // no endpoint is in the caller's zone
	allOfUnknownZone // the caller's zone is unknown
	allOfUnknownNode // the caller's node is unknown
	byNodeHint
	byZoneHint
	allWithoutNodeHint // no endpoint has a hint for the caller's node
	allWithoutZoneHint // no endpoint has a hint for the caller's zone
	allWithoutHints    // endpoints lack hints
	allByAnyKey        // no endpoint matches a key before "*"
	noneOfUnknownNode  // the caller's node is unknown
	noneOfKeys         // the caller's node has no label of the keys
	byLabel            // byLabel+i is for the label i of Caller.labels
)

// excluded is the rank of an endpoint that the caller does not get, and of a selection without endpoints.
const excluded reason = math.MaxInt

func (p Policy) byRule(nodes Nodes, c Caller, all []Endpoint) ([]Endpoint, reason) {
	switch p.rule {
	case annotation, defaultKeys:
		return c.byKeys(p.keys, nodes, all)
	case local:
		if !c.Known() {
			return nil, noneOfUnknownNode
		}
		return slices.DeleteFunc(all, func(e Endpoint) bool { return c.nodeOf(e) != c.Name }), byNode
	case hints:
		return c.byHints(all)
	case preference:
		if slices.ContainsFunc(all, hasHints) {
			return c.byHints(all)
		}
		return c.byDistribution(p.distribution, all)
	}
	return all, unfiltered
}

// lowest returns the endpoints of the lowest rank, and that rank.
func lowest(all []Endpoint, rank func(Endpoint) reason) ([]Endpoint, reason) {
	minRank, selected := excluded, all[:0]
	for _, e := range all {
		r := rank(e)
		if r == excluded || r > minRank {
			continue
		}
		if r < minRank {
			minRank, selected = r, selected[:0]
		}
		selected = append(selected, e)
	}
	return selected, minRank
}

// byDistribution applies a trafficDistribution to EndpointSlices without hints.
func (c Caller) byDistribution(d index.Distribution, all []Endpoint) ([]Endpoint, reason) {
	if !c.Known() {
		return all, allOfUnknownNode
	}
	return lowest(all, func(e Endpoint) reason { return c.distance(d, e) })
}

// distance returns the rank of an endpoint for a known caller.
func (c Caller) distance(d index.Distribution, e Endpoint) reason {
	switch {
	case d == index.PreferSameNode && c.nodeOf(e) == c.Name:
		return byNode
	case c.Zone == index.Symbol{}:
		return allOfUnknownZone
	case e.Zone == c.Zone:
		return byZone
	}
	return allOfZones
}

func hasHints(e Endpoint) bool { return len(nodeHints(e))+len(zoneHints(e)) > 0 }

func nodeHints(e Endpoint) []index.Symbol {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Nodes
}

func zoneHints(e Endpoint) []index.Symbol {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Zones
}

// hintKind is a kind of hints, and the caller's location that they may name.
type hintKind struct {
	hints        func(Endpoint) []index.Symbol
	location     index.Symbol
	used, absent reason
}

// matches reports whether an endpoint has a hint for the caller. A hint for a node names a node of the endpoint's own cluster.
func (h hintKind) matches(c Caller, e Endpoint) bool {
	return slices.Contains(h.hints(e), h.location) && !(h.used == byNodeHint && c.inOtherCluster(e.Slice))
}

// byHints selects as kube-proxy does (KEP-2433, KEP-3015): the endpoints with a hint for the caller's node, else those with
// a hint for its zone, else all. Hints of a kind are used only if every endpoint has one: an endpoint without a hint may
// be meant for the caller.
func (c Caller) byHints(all []Endpoint) ([]Endpoint, reason) {
	if !c.Known() {
		return all, allOfUnknownNode
	}
	unused := allWithoutHints
	for _, h := range [...]hintKind{{nodeHints, c.Name, byNodeHint, allWithoutNodeHint}, {zoneHints, c.Zone, byZoneHint, allWithoutZoneHint}} {
		matches := func(e Endpoint) bool { return h.matches(c, e) }
		switch {
		case slices.ContainsFunc(all, func(e Endpoint) bool { return len(h.hints(e)) == 0 }):
		case h.location == index.Symbol{}:
			unused = allOfUnknownZone
		case slices.ContainsFunc(all, matches):
			return slices.DeleteFunc(all, func(e Endpoint) bool { return !matches(e) }), h.used
		default:
			unused = h.absent
		}
	}
	return all, unused
}

// ZoneLabel is the label of nodes with the name of their zone.
var ZoneLabel = index.NewSymbol("topology.kubernetes.io/zone")

// Other keys with a special meaning.
var (
	anyKey      = index.NewSymbol("*")
	hostnameKey = index.NewSymbol("kubernetes.io/hostname")
)

// byKeys applies topology keys (KEP-536): it selects the endpoints whose node has the caller's value of the first key that
// matches any endpoint.
func (c Caller) byKeys(keys []index.Symbol, nodes Nodes, all []Endpoint) ([]Endpoint, reason) {
	var room [maxKeys]index.Label
	wanted := c.labels(keys, room[:0])
	selected, r := lowest(all, func(e Endpoint) reason { return rank(c.nodeOf(e), e.Zone, nodes, wanted) })
	switch {
	case r < excluded && wanted[r-byLabel].Key == anyKey:
		r = allByAnyKey
	case r < excluded:
	case !c.Known():
		r = noneOfUnknownNode
	case len(wanted) == 0:
		r = noneOfKeys
	}
	return selected, r
}

// labels appends the labels of the caller's node with the given keys, in the order of the keys, and "*".
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

// rank returns byLabel+i for the first wanted label i that an endpoint's node has, given the node's name and zone; excluded if
// there is none.
func rank(node, zone index.Symbol, nodes Nodes, wanted []index.Label) reason {
	var n *index.Node
	if node != (index.Symbol{}) {
		n = nodes.Node(node)
	}
	for i, l := range wanted {
		if l.Key == anyKey {
			return byLabel + reason(i)
		}
		if value, ok := labelOf(n, node, zone, l.Key); ok && value == l.Value {
			return byLabel + reason(i)
		}
	}
	return excluded
}

// labelOf returns the value of a node's label, and whether the node has it. Without a record of the node, its name is the
// host name, and the zone is the given one.
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
