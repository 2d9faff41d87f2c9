// Package topology chooses which endpoints of a headless Service a caller gets, by where the two are. In go
// records of the index and what is known of the caller; out comes a part of the endpoints, in their order.
//
// Its functions are pure. Beside the index it imports what reads the annotation, a YAML parser and the rules
// for label keys of k8s.io/apimachinery, and neither client-go nor dns packages nor CoreDNS.
package topology

import "github.com/nearside-dns/nearside/plugin/kubernetes/index"

// rule says by what endpoints are chosen.
type rule uint8

const (
	noRule rule = iota
	annotation
	local
	hints
	preference
	defaultKeys
)

var ruleNames = [...]string{
	noRule: "none", annotation: "annotation", local: "local", hints: "hints", preference: "preference", defaultKeys: "default",
}

// Policy says which endpoints of a Service a caller is to get. The zero Policy gives everybody all.
type Policy struct {
	rule         rule
	distribution index.Distribution // of preference
	keys         []index.Symbol     // of annotation and defaultKeys
	ownCluster   bool               // the endpoints of the caller's cluster come first
}

// Of returns the policy of a Service or ServiceImport: the first of what it says itself, in the order of authority, and else the
// default keys of the Corefile. Only headless Services are filtered.
func Of(s *index.Service, defaults []index.Symbol) Policy {
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

// OwnClusterFirst returns the policy that gives of the endpoints of the caller's cluster what p gives, and what p gives
// of all if that is nothing.
func (p Policy) OwnClusterFirst() Policy {
	p.ownCluster = true
	return p
}

// Filters reports whether somebody may not get all endpoints.
func (p Policy) Filters() bool { return p.rule != noRule || p.ownCluster }

// ByCaller reports whether callers of one cluster may get different endpoints.
func (p Policy) ByCaller() bool { return p.rule != noRule }

// String returns by what the policy chooses: "annotation" and "default" by keys, "local" by
// internalTrafficPolicy, "hints" by topology-mode Auto, "preference" by trafficDistribution, or "none".
func (p Policy) String() string { return ruleNames[p.rule] }
