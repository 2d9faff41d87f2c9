package kubernetes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

// explainedEndpoints is the maximum number of endpoints with a step of their own.
const explainedEndpoints = 20

// kindTexts describe results.
var kindTexts = map[resultKind]string{
	fixedName: "exists in every cluster, without records of its own", emptyName: "exists, without records", schemaVersion: "is that of the version of the specification",
	nameServer: "is that of this server", clusterIPs: "is a Service with cluster IPs", endpoints: "is of endpoints", alias: "is an ExternalName Service",
	pod: "is the address of a pod", reverseName: "is the name of an address",
}

// explain adds the result of a lookup, and for endpoints those that the caller gets.
func (k *Kubernetes) explain(t *explain.Trace, q *query, f *result, name, zone string) {
	if _, stale := k.state(k.isClusterset(zone)); stale {
		t.Add(k.Name(), "the API server has not responded since the start: records are those of a snapshot")
	}
	if f.kind == notFound {
		t.Add(k.Name(), "%s does not exist: %s", name, k.whyNot(name, zone))
		if n, err := parseName(name, zone, k.grammar(false)); err == nil && n.object != "" && n.in(k.index) != nil {
			k.explainNotReady(t, q, n.namespace, n.object)
		}
		return
	}
	t.Add(k.Name(), "%s %s", name, kindTexts[f.kind])
	switch f.kind {
	case clusterIPs:
		t.Add(k.Name(), "Service %s/%s has %s", f.entry.Service.Namespace, f.entry.Service.Name, textsOf(f.entry.Service.IPs))
	case alias:
		t.Add(k.Name(), "Service %s/%s is an alias of %s", f.entry.Service.Namespace, f.entry.Service.Name, f.entry.Service.Target)
	case endpoints:
		k.explainEndpoints(t, q, f)
		if !f.name.imported {
			k.explainNotReady(t, q, f.name.namespace, f.name.object)
		}
	}
}

func textsOf[T fmt.Stringer](all []T) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.String()
	}
	return strings.Join(texts, ", ")
}

// whyNot returns the reason why a name does not exist.
func (k *Kubernetes) whyNot(name, zone string) string {
	n, err := parseName(name, zone, k.grammar(k.isClusterset(zone)))
	switch {
	case err != nil:
		return err.Error()
	case !k.selects(n.namespace):
		return fmt.Sprintf("namespace %s is not one of those of the option namespaces", n.namespace)
	case n.kind == labelPod && k.pods == podsDisabled:
		return "option pods is disabled"
	case !k.index.HasNamespace(n.namespace):
		return fmt.Sprintf("there is no namespace %s", n.namespace)
	case n.kind == labelPod && k.pods == podsVerified:
		return fmt.Sprintf("no pod of namespace %s has the address %s", n.namespace, n.object)
	case n.kind == labelPod:
		return fmt.Sprintf("%s is not an address with dashes", n.object)
	}
	object := "Service"
	if n.imported {
		object = "ServiceImport"
	}
	e := n.in(k.index)
	switch {
	case e == nil:
		return fmt.Sprintf("there is no %s %s/%s", object, n.namespace, n.object)
	case k.ignoreEmpty && e.Service.Kind == index.ClusterIP && e.Ready() == 0:
		return "the Service has no ready endpoint (ignore empty_service)"
	case n.endpoint != "":
		return fmt.Sprintf("%s %s/%s has no ready endpoint with the name or address %s", object, n.namespace, n.object, n.endpoint)
	case e.Service.Kind == index.Headless && e.Ready() == 0:
		return fmt.Sprintf("headless %s %s/%s has no ready endpoint", object, n.namespace, n.object)
	case n.port != "" || n.protocol != "":
		return fmt.Sprintf("%s %s/%s has no port _%s._%s", object, n.namespace, n.object, n.port, n.protocol)
	}
	return fmt.Sprintf("%s %s/%s has no records for such a name", object, n.namespace, n.object)
}

// explainEndpoints adds the caller, the policy, and the endpoints of each family with the reason for those that are left out.
func (k *Kubernetes) explainEndpoints(t *explain.Trace, q *query, f *result) {
	var caller topology.Caller
	if f.policy.ByCaller() && k.callers != nil {
		var by evidence
		caller, by = k.callerOf(q.state.IP(), optionOf(q.state.Req))
		t.Add(k.Name(), "caller %s: node %q, zone %q, known %s", q.state.IP(), caller.Name, caller.Zone, evidenceTexts[by])
	}
	caller.Cluster = k.ownCluster()
	t.Add(k.Name(), "policy: %s", f.policy.Describe())
	explained := 0
	for _, family := range families(q.qtype, f.name.imported) {
		var all []topology.Endpoint
		for e, slice := range f.endpoints() {
			if family == bothFamilies || family == addressType(e.Addr) {
				all = append(all, topology.Endpoint{Endpoint: e, Slice: slice})
			}
		}
		selected := f.policy.Select(k.index, caller, slices.Clone(all))
		t.Add(k.Name(), "%d of %d ready endpoints selected (%s)", len(selected), len(all), dns.TypeToString[family])
		for _, e := range all {
			if explained++; explained > explainedEndpoints {
				break
			}
			verdict := "left out by the policy"
			if slices.ContainsFunc(selected, func(s topology.Endpoint) bool { return s.Addr == e.Addr && s.Slice == e.Slice }) {
				verdict = "selected"
			}
			t.Add(k.Name(), "endpoint %s on node %q in zone %q: %s", e.Addr, e.Node, e.Zone, verdict)
		}
	}
}

// explainNotReady adds the endpoints of a Service that are left out because they are not ready.
func (k *Kubernetes) explainNotReady(t *explain.Trace, q *query, namespace, service string) {
	if k.notReady == nil {
		return
	}
	addresses, err := k.notReady(q.ctx, namespace, service)
	switch {
	case errors.Is(err, source.ErrNotInspected):
	case err != nil:
		t.Add(k.Name(), "endpoints that are not ready are unknown: %v", err)
	case len(addresses) > 0:
		t.Add(k.Name(), "endpoints left out, not ready: %s", strings.Join(addresses[:min(len(addresses), explainedEndpoints)], ", "))
	}
}

// evidenceTexts describe how a caller is known, or why not.
var evidenceTexts = map[evidence]string{
	byOption: "by the caller option of a node cache", byPod: "by its pod", byEndpoint: "by an endpoint with its address", byPodCIDR: "by the pod CIDR of the node",
	byNodeAddress: "as the address of the node", unknownNode: "not: the option names a node without a record", unknownAddress: "not: the address is unknown",
	untrusted: "not: the option is from an address that is not in trust", malformed: "not: the option is malformed", noAddress: "not: the query has no address",
}
