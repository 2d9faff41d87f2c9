package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Verdict is the decision of a policy about an endpoint.
type Verdict struct {
	Endpoint
	Selected bool
	Reason   string // "" if the policy does not filter
}

// Explain returns the endpoints with the decision of Select about each of them, and its reason, the selected endpoints first.
func (p Policy) Explain(nodes Nodes, c Caller, all []Endpoint) []Verdict {
	selected := p.Select(nodes, c, slices.Clone(all))
	reason := p.reasons(nodes, c, all)
	var in, out []Verdict
	for _, e := range all {
		if len(selected) > 0 && selected[0] == e { // in the order of all
			selected = selected[1:]
			in = append(in, Verdict{e, true, reason(e)})
		} else {
			out = append(out, Verdict{e, false, reason(e)})
		}
	}
	return append(in, out...)
}

// reasonOf returns the reason why an endpoint is selected, or is left out.
type reasonOf func(e Endpoint) string

// always returns a reason for every endpoint.
func always(format string, args ...any) reasonOf {
	text := fmt.Sprintf(format, args...)
	return func(Endpoint) string { return text }
}

// fallback returns the reason of policies that select all endpoints if they would select none.
func fallback(format string, args ...any) reasonOf {
	return always("fallback: "+format+", all are selected", args...)
}

// reasons returns the reasons for the decisions about endpoints.
func (p Policy) reasons(nodes Nodes, c Caller, all []Endpoint) reasonOf {
	if !p.ownCluster {
		return p.reasonsByRule(nodes, c, all)
	}
	own := slices.DeleteFunc(slices.Clone(all), func(e Endpoint) bool { return !c.inCluster(e.Slice) })
	if c.Cluster == (index.Symbol{}) || len(p.byRule(nodes, c, slices.Clone(own))) == 0 {
		text := fmt.Sprintf("no endpoint of cluster %s is selected", c.Cluster)
		if c.Cluster == (index.Symbol{}) {
			text = "the ID of the caller's cluster is unknown"
		}
		if p.rule == noRule {
			return fallback("%s", text)
		}
		byRule := p.reasonsByRule(nodes, c, all)
		return func(e Endpoint) string { return text + "; " + byRule(e) }
	}
	byRule := p.reasonsByRule(nodes, c, own)
	return func(e Endpoint) string {
		switch {
		case e.Slice.Cluster == index.Symbol{}:
			return fmt.Sprintf("its cluster is unknown, the caller is in %s", c.Cluster)
		case !c.inCluster(e.Slice):
			return fmt.Sprintf("cluster %s, the caller is in %s", e.Slice.Cluster, c.Cluster)
		case p.rule == noRule:
			return fmt.Sprintf("in the caller's cluster %s", c.Cluster)
		}
		return byRule(e)
	}
}

func (p Policy) reasonsByRule(nodes Nodes, c Caller, all []Endpoint) reasonOf {
	switch p.rule {
	case annotation, defaultKeys:
		return c.keyReasons(p.keys, nodes, all)
	case local:
		if !c.Known() {
			return always("the caller's node is unknown")
		}
		return c.nodeReason
	case hints:
		return c.hintReasons(all)
	case preference:
		if slices.ContainsFunc(all, hasHints) {
			return c.hintReasons(all)
		}
		return c.distributionReasons(p.distribution, all)
	}
	return always("")
}

// nodeReason compares the node of an endpoint with that of the caller.
func (c Caller) nodeReason(e Endpoint) string {
	switch {
	case c.inOtherCluster(e.Slice):
		return fmt.Sprintf("its node is in cluster %s", e.Slice.Cluster)
	case e.Node == index.Symbol{}:
		return "its node is unknown"
	case e.Node == c.Name:
		return "on the caller's node"
	}
	return fmt.Sprintf("node %s is not the caller's, %s", e.Node, c.Name)
}

// zoneReason compares the zone of an endpoint with that of the caller, which is known.
func (c Caller) zoneReason(e Endpoint) string {
	switch e.Zone {
	case index.Symbol{}:
		return fmt.Sprintf("its zone is unknown, the caller is in %s", c.Zone)
	case c.Zone:
		return "in the caller's zone"
	}
	return fmt.Sprintf("zone %s, the caller is in %s", e.Zone, c.Zone)
}

// hintReasons are those of byHints.
func (c Caller) hintReasons(all []Endpoint) reasonOf {
	h, used := c.usedHints(all)
	if !used {
		return c.hintFallback(all)
	}
	location := "in " + h.location.String()
	if h.isNode {
		location = "on " + h.location.String()
	}
	return func(e Endpoint) string {
		if h.isNode && c.inOtherCluster(e.Slice) {
			return fmt.Sprintf("hint for a node of cluster %s", e.Slice.Cluster)
		}
		return fmt.Sprintf("hint %s, the caller is %s", joined(h.hints(e)), location)
	}
}

// hintFallback returns the reason why hints are not used.
func (c Caller) hintFallback(all []Endpoint) reasonOf {
	without := func(hints func(Endpoint) []index.Symbol) (n int) {
		for _, e := range all {
			if len(hints(e)) == 0 {
				n++
			}
		}
		return n
	}
	switch zones, nodes := without(zoneHints), without(nodeHints); {
	case !c.Known():
		return fallback("the caller's node is unknown")
	case zones == 0 && c.Zone == index.Symbol{}:
		return fallback("the caller's zone is unknown")
	case zones == 0:
		return fallback("no endpoint has a hint for %s", c.Zone)
	case nodes == 0:
		return fallback("no endpoint has a hint for %s", c.Name)
	default:
		return fallback("%d of %d endpoints have no hint for a zone", zones, len(all))
	}
}

// distributionReasons are those of byDistribution.
func (c Caller) distributionReasons(d index.Distribution, all []Endpoint) reasonOf {
	if !c.Known() {
		return fallback("the caller's node is unknown")
	}
	lowest := farAway
	for _, e := range all {
		lowest = min(lowest, c.distance(d, e))
	}
	switch {
	case lowest == sameNode:
		return c.nodeReason
	case lowest == sameZone:
		return c.zoneReason
	case c.Zone == index.Symbol{}:
		return fallback("the caller's zone is unknown")
	}
	return fallback("no endpoint is in %s", c.Zone)
}

// keyReasons are those of byKeys.
func (c Caller) keyReasons(keys []index.Symbol, nodes Nodes, all []Endpoint) reasonOf {
	wanted := c.labels(keys, nil)
	lowest := excluded
	for _, e := range all {
		lowest = min(lowest, rank(c.nodeOf(e), e.Zone, nodes, wanted))
	}
	switch {
	case lowest < excluded && wanted[lowest].Key == anyKey:
		return fallback("no endpoint matches a key before *")
	case lowest < excluded:
		wanted = wanted[lowest : lowest+1]
	case !c.Known():
		return always("the caller's node is unknown")
	case len(wanted) == 0:
		return always("the caller's node has no label of the keys")
	}
	return func(e Endpoint) string {
		texts := make([]string, 0, len(wanted))
		for _, l := range wanted {
			texts = append(texts, c.labelReason(nodes, e, l))
		}
		return strings.Join(texts, "; ")
	}
}

// labelReason compares a label of an endpoint's node with that of the caller's.
func (c Caller) labelReason(nodes Nodes, e Endpoint, l index.Label) string {
	node := c.nodeOf(e)
	var n *index.Node
	if node != (index.Symbol{}) {
		n = nodes.Node(node)
	}
	switch value, ok := labelOf(n, node, e.Zone, l.Key); {
	case !ok:
		return fmt.Sprintf("its node has no known label %s, the caller's is %s", l.Key, l.Value)
	case value == l.Value:
		return fmt.Sprintf("label %s is %s, as the caller's", l.Key, value)
	default:
		return fmt.Sprintf("label %s is %s, the caller's is %s", l.Key, value, l.Value)
	}
}

func joined(all []index.Symbol) string {
	texts := make([]string, 0, len(all))
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ", ")
}
