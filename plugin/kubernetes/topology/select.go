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
// An unknown caller gets all endpoints by preference and by hints, none by internalTrafficPolicy: Local, and by topology
// keys those that "*" selects.
func (p Policy) Select(nodes Nodes, c Caller, all []Endpoint) []Endpoint {
	if p.ownCluster && c.Cluster != (index.Symbol{}) {
		own := slices.DeleteFunc(slices.Clone(all), func(e Endpoint) bool { return !c.inCluster(e.Slice) })
		if own = p.byRule(nodes, c, own); len(own) > 0 {
			return append(all[:0], own...)
		}
	}
	return p.byRule(nodes, c, all)
}

func (p Policy) byRule(nodes Nodes, c Caller, all []Endpoint) []Endpoint {
	switch p.rule {
	case annotation, defaultKeys:
		return c.byKeys(p.keys, nodes, all)
	case local:
		return filter(all, func(e Endpoint) bool { return c.Known() && c.nodeOf(e) == c.Name })
	case hints:
		return c.byHints(all)
	case preference:
		if slices.ContainsFunc(all, hasHints) {
			return c.byHints(all)
		}
		return c.byDistribution(p.distribution, all)
	}
	return all
}

// excluded is the rank of an endpoint that the caller does not get.
const excluded = math.MaxInt

// lowest returns the endpoints of the lowest rank.
func lowest(all []Endpoint, rank func(Endpoint) int) []Endpoint {
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
	return selected
}

// filter returns the endpoints that match.
func filter(all []Endpoint, match func(Endpoint) bool) []Endpoint {
	return lowest(all, func(e Endpoint) int {
		if match(e) {
			return 0
		}
		return excluded
	})
}

// byDistribution applies a trafficDistribution to EndpointSlices without hints.
func (c Caller) byDistribution(d index.Distribution, all []Endpoint) []Endpoint {
	if !c.Known() {
		return all
	}
	return lowest(all, func(e Endpoint) int { return c.distance(d, e) })
}

// Distances of endpoints, the ranks of trafficDistribution.
const (
	sameNode = iota
	sameZone
	farAway
)

// distance returns the distance of an endpoint from a known caller.
func (c Caller) distance(d index.Distribution, e Endpoint) int {
	switch {
	case d == index.PreferSameNode && c.nodeOf(e) == c.Name:
		return sameNode
	case c.Zone != index.Symbol{} && e.Zone == c.Zone:
		return sameZone
	}
	return farAway
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

// byHints selects as kube-proxy does (KEP-2433, KEP-3015): the endpoints with a hint for the caller's node, else those with
// a hint for its zone, else all. Hints of a kind are used only if every endpoint has one, since an endpoint without may be
// the one for the caller.
func (c Caller) byHints(all []Endpoint) []Endpoint {
	if h, used := c.usedHints(all); used {
		return filter(all, func(e Endpoint) bool { return h.matches(c, e) })
	}
	return all
}

// hintKind is a kind of hints, and the caller's location that they may have.
type hintKind struct {
	hints    func(Endpoint) []index.Symbol
	location index.Symbol
	isNode   bool // the hint names a node of the endpoint's own cluster
}

func (h hintKind) matches(c Caller, e Endpoint) bool {
	return slices.Contains(h.hints(e), h.location) && !(h.isNode && c.inOtherCluster(e.Slice))
}

// usedHints returns the kind of hints by which endpoints are selected, if any.
func (c Caller) usedHints(all []Endpoint) (h hintKind, used bool) {
	if !c.Known() {
		return h, false
	}
	for _, h := range [...]hintKind{{nodeHints, c.Name, true}, {zoneHints, c.Zone, false}} {
		lacks := func(e Endpoint) bool { return len(h.hints(e)) == 0 }
		matches := func(e Endpoint) bool { return h.matches(c, e) }
		if h.location != (index.Symbol{}) && !slices.ContainsFunc(all, lacks) && slices.ContainsFunc(all, matches) {
			return h, true
		}
	}
	return h, false
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
func (c Caller) byKeys(keys []index.Symbol, nodes Nodes, all []Endpoint) []Endpoint {
	var room [maxKeys]index.Label
	wanted := c.labels(keys, room[:0])
	return lowest(all, func(e Endpoint) int { return rank(c.nodeOf(e), e.Zone, nodes, wanted) })
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

// rank returns the index of the first wanted label of an endpoint's node, given the node's name and zone.
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
