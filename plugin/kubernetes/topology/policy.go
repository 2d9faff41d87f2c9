// Package topology selects the endpoints of a headless Service for a caller, by the locations of endpoints and caller. Input
// is records of the index and the caller's location; output is a part of the endpoints, in their order.
//
// Its functions are pure. Besides the index it imports the parsers of the annotation, a YAML parser and the rules for label
// keys of k8s.io/apimachinery, and neither client-go nor dns packages nor CoreDNS.
package topology

import "github.com/nearside-dns/nearside/plugin/kubernetes/index"

// rule is a way to select endpoints.
type rule uint8

const (
	noRule rule = iota
	annotation
	local
	hints
	preference
	defaultKeys
)

// Policy decides which endpoints of a Service a caller gets. The zero Policy returns all endpoints to every caller.
type Policy struct {
	rule         rule
	distribution index.Distribution // for preference
	keys         []index.Symbol     // for annotation and defaultKeys
	ownCluster   bool               // prefer endpoints of the caller's cluster
}

// PolicyOf returns the policy of a Service or ServiceImport: the first of its own settings in order of precedence, or else
// the default keys of the Corefile. Only headless Services are filtered.
func PolicyOf(s *index.Service, defaults []index.Symbol) Policy {
	if s.Kind != index.Headless {
		return Policy{}
	}
	if t := s.Topology; t != nil {
		switch {
		case len(t.Keys) > 0:
			return Policy{rule: annotation, keys: t.Keys}
		case t.Local:
			return Policy{rule: local}
		case t.Auto: // before trafficDistribution, as in the EndpointSlice controller
			return Policy{rule: hints}
		case t.Distribution != index.NoDistribution:
			return Policy{rule: preference, distribution: t.Distribution}
		}
	}
	if len(defaults) > 0 {
		return Policy{rule: defaultKeys, keys: defaults}
	}
	return Policy{}
}

// OwnClusterFirst returns a policy that applies p to the endpoints of the caller's cluster, and to all endpoints only if
// that selects none.
func (p Policy) OwnClusterFirst() Policy {
	p.ownCluster = true
	return p
}

// Filters reports whether a caller may get less than all endpoints.
func (p Policy) Filters() bool { return p.rule != noRule || p.ownCluster }

// ByCaller reports whether callers in one cluster may get different endpoints.
func (p Policy) ByCaller() bool { return p.rule != noRule }

// Describe returns the policy in words, with the setting that it is from.
func (p Policy) Describe() string {
	distribution := "PreferSameZone"
	if p.distribution == index.PreferSameNode {
		distribution = "PreferSameNode"
	}
	text := map[rule]string{
		noRule:      "all endpoints",
		annotation:  "topology keys " + joined(p.keys) + " (annotation nearside.dev/topology-keys)",
		local:       "endpoints on the caller's node (internalTrafficPolicy: Local)",
		hints:       "hints of the EndpointSlices (service.kubernetes.io/topology-mode)",
		preference:  "trafficDistribution: " + distribution,
		defaultKeys: "topology keys " + joined(p.keys) + " (option topology)",
	}[p.rule]
	if p.ownCluster {
		text += ", of the caller's cluster first"
	}
	return text
}
