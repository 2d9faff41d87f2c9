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
	selected, cluster, rule := p.choose(nodes, c, slices.Clone(all))
	x := &choice{Caller: c, nodes: nodes, all: all, cluster: cluster, rule: rule, wanted: c.labels(p.keys, nil)}
	if byLabel <= rule && rule < excluded {
		x.wanted = x.wanted[rule-byLabel:][:1]
	}
	var in, out []Verdict
	for _, e := range all {
		if len(selected) > 0 && selected[0] == e { // selected has the order of all
			selected = selected[1:]
			in = append(in, Verdict{e, true, x.reason(e)})
		} else {
			out = append(out, Verdict{e, false, x.reason(e)})
		}
	}
	return append(in, out...)
}

// choice is the result of choose with its arguments.
type choice struct {
	Caller
	nodes         Nodes
	all           []Endpoint
	cluster, rule reason
	wanted        []index.Label // the label that selects endpoints, or all labels if none does
}

// reason returns the reason why an endpoint is selected, or is left out.
func (x *choice) reason(e Endpoint) string {
	cluster, rule := reasonTexts[x.cluster](x, e), reasonTexts[min(x.rule, byLabel)](x, e)
	switch {
	case x.cluster == unfiltered, x.cluster == byCluster && x.inCluster(e.Slice) && x.rule != unfiltered:
		return rule
	case x.cluster == byCluster:
		return cluster
	case x.rule == unfiltered:
		return fallback(cluster)
	}
	return cluster + "; " + rule
}

// reasonTexts put each reason in words for an endpoint.
var reasonTexts = [...]func(*choice, Endpoint) string{
	unfiltered:         always(""),
	byCluster:          (*choice).clusterText,
	unknownCluster:     always("the ID of the caller's cluster is unknown"),
	noneInCluster:      with("no endpoint of cluster %s is selected", clusterOf),
	byNode:             (*choice).nodeText,
	byZone:             (*choice).zoneText,
	allOfZones:         with(fallback("no endpoint is in %s"), zoneOf),
	allOfUnknownZone:   always(fallback("the caller's zone is unknown")),
	allOfUnknownNode:   always(fallback("the caller's node is unknown")),
	byNodeHint:         (*choice).nodeHintText,
	byZoneHint:         (*choice).zoneHintText,
	allWithoutNodeHint: with(fallback("no endpoint has a hint for %s"), nameOf),
	allWithoutZoneHint: with(fallback("no endpoint has a hint for %s"), zoneOf),
	allWithoutHints:    (*choice).hintlessText,
	allByAnyKey:        always(fallback("no endpoint matches a key before *")),
	noneOfUnknownNode:  always("the caller's node is unknown"),
	noneOfKeys:         always("the caller's node has no label of the keys"),
	byLabel:            (*choice).labelText,
}

// fallback returns the text of policies that select all endpoints if they would select none.
func fallback(text string) string { return "fallback: " + text + ", all are selected" }

// always returns the same text for every endpoint.
func always(text string) func(*choice, Endpoint) string {
	return func(*choice, Endpoint) string { return text }
}

// with returns a text with a location of the caller.
func with(format string, location func(Caller) index.Symbol) func(*choice, Endpoint) string {
	return func(x *choice, _ Endpoint) string { return fmt.Sprintf(format, location(x.Caller)) }
}

func clusterOf(c Caller) index.Symbol { return c.Cluster }
func zoneOf(c Caller) index.Symbol    { return c.Zone }
func nameOf(c Caller) index.Symbol    { return c.Name }

func (x *choice) clusterText(e Endpoint) string {
	switch {
	case e.Slice.Cluster == index.Symbol{}:
		return fmt.Sprintf("its cluster is unknown, the caller is in %s", x.Cluster)
	case !x.inCluster(e.Slice):
		return fmt.Sprintf("cluster %s, the caller is in %s", e.Slice.Cluster, x.Cluster)
	}
	return fmt.Sprintf("in the caller's cluster %s", x.Cluster)
}

func (x *choice) nodeText(e Endpoint) string {
	switch {
	case x.inOtherCluster(e.Slice):
		return fmt.Sprintf("its node is in cluster %s", e.Slice.Cluster)
	case e.Node == index.Symbol{}:
		return "its node is unknown"
	case e.Node == x.Name:
		return "on the caller's node"
	}
	return fmt.Sprintf("node %s is not the caller's, %s", e.Node, x.Name)
}

func (x *choice) zoneText(e Endpoint) string {
	switch e.Zone {
	case index.Symbol{}:
		return fmt.Sprintf("its zone is unknown, the caller is in %s", x.Zone)
	case x.Zone:
		return "in the caller's zone"
	}
	return fmt.Sprintf("zone %s, the caller is in %s", e.Zone, x.Zone)
}

func (x *choice) nodeHintText(e Endpoint) string {
	if x.inOtherCluster(e.Slice) {
		return fmt.Sprintf("hint for a node of cluster %s", e.Slice.Cluster)
	}
	return fmt.Sprintf("hint %s, the caller is on %s", joined(nodeHints(e)), x.Name)
}

func (x *choice) zoneHintText(e Endpoint) string {
	return fmt.Sprintf("hint %s, the caller is in %s", joined(zoneHints(e)), x.Zone)
}

// hintlessText counts the endpoints without a hint for a zone.
func (x *choice) hintlessText(Endpoint) string {
	n, all := 0, 0
	for _, e := range x.all {
		if x.cluster != byCluster || x.inCluster(e.Slice) {
			all++
			if len(zoneHints(e)) == 0 {
				n++
			}
		}
	}
	return fallback(fmt.Sprintf("%d of %d endpoints have no hint for a zone", n, all))
}

// labelText compares the labels of an endpoint's node with those of the caller's.
func (x *choice) labelText(e Endpoint) string {
	node := x.nodeOf(e)
	var n *index.Node
	if node != (index.Symbol{}) {
		n = x.nodes.Node(node)
	}
	all := make([]string, len(x.wanted))
	for i, l := range x.wanted {
		switch value, ok := labelOf(n, node, e.Zone, l.Key); {
		case !ok:
			all[i] = fmt.Sprintf("its node has no known label %s, the caller's is %s", l.Key, l.Value)
		case value == l.Value:
			all[i] = fmt.Sprintf("label %s is %s, as the caller's", l.Key, value)
		default:
			all[i] = fmt.Sprintf("label %s is %s, the caller's is %s", l.Key, value, l.Value)
		}
	}
	return strings.Join(all, "; ")
}

func joined(all []index.Symbol) string {
	texts := make([]string, 0, len(all))
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ", ")
}
