package source

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

// AnnotationTopologyKeys is the annotation of a Service or ServiceImport that lists node labels: endpoints on nodes with
// the caller's value of the first label are preferred, then those of the second (KEP-536).
const AnnotationTopologyKeys = "nearside.dev/topology-keys"

// topology returns the policy by which a headless Service or ServiceImport selects endpoints for a caller, nil for none.
func (s Stripper) topology(annotations map[string]string, policy *corev1.ServiceInternalTrafficPolicy, distributed *string, skip skippedObject) *index.Topology {
	if !s.Topology {
		return nil
	}
	t := &index.Topology{
		Keys:         topologyKeys(annotations, skip),
		Local:        policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal,
		Auto:         topologyAuto(annotations),
		Distribution: distribution(distributed, skip),
	}
	if t.Equal(&index.Topology{}) {
		return nil
	}
	return t
}

func topologyKeys(annotations map[string]string, skip skippedObject) []index.Symbol {
	text := annotations[AnnotationTopologyKeys]
	if strings.TrimSpace(text) == "" {
		return nil
	}
	keys, err := topology.ParseKeys(text)
	if err != nil {
		skip.part("topology keys", err.Error())
		return nil
	}
	return keys
}

// topologyAuto reports whether the annotations request hints. If there are both, the EndpointSlice controller reads only the
// older one.
func topologyAuto(annotations map[string]string) bool {
	mode, ok := annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		mode = annotations[corev1.AnnotationTopologyMode]
	}
	return mode == "Auto" || mode == "auto"
}

func distribution(text *string, skip skippedObject) index.Distribution {
	if text == nil {
		return index.NoDistribution
	}
	switch *text {
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
		return index.PreferSameZone
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return index.PreferSameNode
	default:
		skip.part("traffic distribution", fmt.Sprintf("%q is not known", *text))
		return index.NoDistribution
	}
}

// hintsLookedBack is the number of earlier endpoints with which an endpoint may share its hints: zones are few, and
// hints for nodes differ from endpoint to endpoint.
const hintsLookedBack = 16

// hints returns the hints of an endpoint, or nil. before are the earlier endpoints of its slice.
func (s Stripper) hints(e *discoveryv1.Endpoint, before []index.Endpoint) *index.Hints {
	if !s.Topology || e.Hints == nil || len(e.Hints.ForNodes)+len(e.Hints.ForZones) == 0 {
		return nil
	}
	h := &index.Hints{}
	for _, n := range e.Hints.ForNodes {
		h.Nodes = append(h.Nodes, index.NewSymbol(n.Name))
	}
	for _, z := range e.Hints.ForZones {
		h.Zones = append(h.Zones, index.NewSymbol(z.Name))
	}
	for _, b := range before[max(0, len(before)-hintsLookedBack):] {
		if b.Hints.Equal(h) {
			return b.Hints
		}
	}
	return h
}

// Node returns the record of a node. Without ranges its CIDRs are nil: the index retains those that it has.
func (s Stripper) Node(labels map[string]string, name, uid string, ranges ...string) *index.Node {
	skip := s.skipped.object(Nodes, "", name)
	n := &index.Node{Name: index.NewSymbol(name), UID: index.NewUID(uid), Labels: nodeLabels(labels)}
	for _, text := range ranges {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			skip.part("pod address range", fmt.Sprintf("%q is not a range of IP addresses", text))
			continue
		}
		n.CIDRs = append(n.CIDRs, p.Masked())
	}
	return n
}

// NodeRanges returns the ranges of a node's pods, at most one of each family, and the node's own addresses as ranges,
// which its cache and pods in the host network use. whole is true if there are both.
func NodeRanges(o *corev1.Node) (all []string, whole bool) {
	all = slices.Clone(o.Spec.PodCIDRs)
	if len(all) == 0 && o.Spec.PodCIDR != "" {
		all = []string{o.Spec.PodCIDR}
	}
	ofPods := len(all)
	for _, a := range o.Status.Addresses {
		if ip, ok := parseAddress(a.Address); ok && a.Type == corev1.NodeInternalIP {
			all = append(all, netip.PrefixFrom(ip, ip.BitLen()).String())
		}
	}
	return all, ofPods > 0 && len(all) > ofPods
}

// nodeLabels returns labels ordered by key.
func nodeLabels(labels map[string]string) []index.Label {
	all := make([]index.Label, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, index.Label{Key: index.NewSymbol(key), Value: index.NewSymbol(labels[key])})
	}
	return all
}
