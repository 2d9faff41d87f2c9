package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

const (
	// explainedEndpoints is the maximum number of endpoints of a family with a step of their own.
	explainedEndpoints = 20
	// inspectTimeout bounds the requests for endpoints that are not ready.
	inspectTimeout = time.Second
)

// explanation adds the steps of a query in this plugin to its trace. It is nil for an ordinary query: the methods that are
// called for each query then do nothing, and allocate nothing.
type explanation struct {
	k          *Kubernetes
	trace      *explain.Trace
	synced     bool
	inspection []inspection
}

// inspection is a name whose unready endpoints are to be explained.
type inspection struct {
	name  objectName
	qtype uint16
}

// explanationOf returns the explanation of a query, nil for an ordinary one.
func (k *Kubernetes) explanationOf(ctx context.Context) *explanation {
	if t := explain.From(ctx); t != nil {
		return &explanation{k: k, trace: t}
	}
	return nil
}

func (x *explanation) add(format string, args ...any) { x.trace.Add(x.k.Name(), format, args...) }

// addOnce adds a step that begins with a text, unless another step does: queries with a search list pass the plugin more than
// once. It reports whether the step was added.
func (x *explanation) addOnce(text, format string, args ...any) bool {
	for _, s := range x.trace.Steps() {
		if s.Plugin == x.k.Name() && strings.HasPrefix(s.Text, text) {
			return false
		}
	}
	x.add("%s%s", text, fmt.Sprintf(format, args...))
	return true
}

// elsewhere explains a name in none of the zones.
func (x *explanation) elsewhere() {
	if x != nil {
		x.add("the name is in no zone of %s: the next plugin gets the query", strings.Join(x.k.Zones, ", "))
	}
}

// begin adds the caller, and the state of the records.
func (x *explanation) begin(q *query, synced bool) {
	x.synced = synced
	q.trusted = x.trace.Query().Node != "" // which an operator of this machine has set
	x.addCaller(q)
	switch {
	case !synced:
		x.add("records are not read yet: %s", x.unread(q.zone))
	case q.stale:
		x.add("the API server has not responded since the start: records are those of a snapshot")
	}
}

// unread lists the resources that are not read and that answers in a zone need.
func (x *explanation) unread(zone string) string {
	var texts []string
	for _, s := range x.k.status() {
		if s.Synced || s.Restored || !needed(s) && !(imports(s) && x.k.isClusterset(zone)) {
			continue
		}
		text := s.Resource
		if s.Denied {
			text += " (the API server refuses requests with 401 or 403)"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// evidenceTexts describe how a caller is known, or why not.
var evidenceTexts = map[evidence]string{
	byOption:       "by the caller option of a node cache",
	byPod:          "by its pod",
	byEndpoint:     "by an endpoint with its address",
	byPodCIDR:      "by the pod CIDR of the node",
	byNodeAddress:  "as the address of the node",
	unknownNode:    "by the caller option of a node cache; there is no Node of this name",
	unknownAddress: "no pod, endpoint or Node has the address",
	untrusted:      "no pod, endpoint or Node has the address, and the caller option from an address that is not in trust is ignored",
	malformed:      "no pod, endpoint or Node has the address, and the caller option is malformed",
	noAddress:      "the query has no address",
}

// addCaller adds the caller, as callerOf finds it.
func (x *explanation) addCaller(q *query) {
	k, ip := x.k, q.state.IP()
	text := "caller " + ip
	p := k.client(ip)
	if p != nil {
		text += fmt.Sprintf(", pod %s/%s", p.Namespace, p.Name)
	}
	switch {
	case k.callers == nil && p == nil:
		x.addOnce(text, " unknown: option topology is not set, so that every caller gets the same answer")
		return
	case k.callers == nil:
		x.addOnce(text, ": every caller gets the same answer, since option topology is not set")
		return
	}
	c, by := k.callerOf(ip, optionOf(q.state.Req), q.trusted)
	switch by {
	case unknownAddress, untrusted, malformed, noAddress:
		reason := evidenceTexts[by]
		if p != nil {
			x.addOnce(text, ": its node is unknown")
			return
		}
		if !k.hasNodes() {
			reason += "; Nodes are not read yet"
		}
		x.addOnce(text, " unknown: %s", reason)
	default:
		x.addOnce(text, ": node %q, zone %q, known %s", c.Name, c.Zone, evidenceTexts[by])
	}
}

// kindTexts describe results.
var kindTexts = map[resultKind]string{
	fixedName: "exists in every cluster, without records of its own", emptyName: "exists, without records", schemaVersion: "is that of the version of the specification",
	nameServer: "is that of this server", clusterIPs: "is a Service with cluster IPs", endpoints: "is of endpoints", alias: "is an ExternalName Service",
	pod: "is the address of a pod", reverseName: "is the name of an address",
}

// found adds the result of a lookup, and for a name of endpoints the selection for the caller.
func (x *explanation) found(q *query, f *result, name, zone string) {
	if x == nil {
		return
	}
	x.inspectLater(q.qtype, f, name, zone)
	switch {
	case f.kind == notFound && !x.synced:
		x.add("%s is not in the records that have been read", name)
		return
	case f.kind == notFound:
		x.add("%s does not exist: %s", name, x.k.whyNot(name, zone))
		if f.waits {
			x.add("queries wait for the name (annotation nearside.dev/wait-for-names); explained ones do not")
		}
		return
	}
	x.add("%s %s", name, kindTexts[f.kind])
	switch f.kind {
	case clusterIPs:
		x.add("Service %s/%s has %s", f.entry.Service.Namespace, f.entry.Service.Name, textsOf(f.entry.Service.IPs))
	case alias:
		x.add("Service %s/%s is an alias of %s", f.entry.Service.Namespace, f.entry.Service.Name, f.entry.Service.Target)
	case endpoints:
		x.addEndpoints(q, f)
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
	if dnsutil.IsReverse(name) > 0 {
		return "no Service or endpoint has the address"
	}
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

// describePolicy returns the policy of a name in words.
func (k *Kubernetes) describePolicy(f *result) string {
	switch {
	case f.policy.Filters():
		return f.policy.Describe()
	case f.name.endpoint != "":
		return "all endpoints of this name"
	case f.name.zone != "":
		return "all endpoints in the zone of the name"
	case !k.source.Topology:
		return "all endpoints, since option topology is not set"
	}
	return f.policy.Describe()
}

// addEndpoints adds the policy, and the endpoints of each family with the reasons of the policy.
func (x *explanation) addEndpoints(q *query, f *result) {
	k := x.k
	var caller topology.Caller
	if f.policy.ByCaller() {
		caller, _ = k.callerOf(q.state.IP(), optionOf(q.state.Req), q.trusted)
	}
	caller.Cluster = k.ownCluster()
	x.add("policy: %s", k.describePolicy(f))
	for _, family := range families(q.qtype, f.name.imported) {
		all := f.selectable(family)
		verdicts := f.policy.Explain(k.index, caller, all)
		selected := 0
		for _, v := range verdicts {
			if v.Selected {
				selected++
			}
		}
		x.add("%d of %d ready endpoints selected (%s)", selected, len(all), familyTexts[family])
		for i, v := range verdicts {
			if i == explainedEndpoints {
				x.add("%d more: %d selected, %d left out", len(all)-i, max(0, selected-i), len(all)-max(selected, i))
				break
			}
			x.add("%s: %s", describe(v.Endpoint.Endpoint, v.Slice), verdictText(v))
		}
	}
}

var familyTexts = map[uint16]string{dns.TypeA: "A", dns.TypeAAAA: "AAAA", bothFamilies: "A and AAAA"}

func verdictText(v topology.Verdict) string {
	text := "left out"
	if v.Selected {
		text = "selected"
	}
	if v.Reason != "" {
		text += ": " + v.Reason
	}
	return text
}

// describe returns the address of an endpoint, and its location as far as it is known.
func describe(e index.Endpoint, s *index.Slice) string {
	text := "endpoint " + e.Addr.String()
	if e.Node != (index.Symbol{}) {
		text += fmt.Sprintf(" on node %q", e.Node)
	}
	if e.Zone != (index.Symbol{}) {
		text += fmt.Sprintf(" in zone %q", e.Zone)
	}
	if s.Cluster != (index.Symbol{}) {
		text += fmt.Sprintf(" of cluster %q", s.Cluster)
	}
	return text
}

// external explains the lookup of the target of an alias outside of the zone.
func (x *explanation) external(target string) {
	if x != nil {
		x.add("the server looks up %s", target)
	}
}

// passedOn explains the option fallthrough.
func (x *explanation) passedOn() {
	if x == nil {
		return
	}
	next := "which there is not: SERVFAIL"
	if x.k.Next != nil {
		next = x.k.Next.Name()
	}
	x.add("option fallthrough: the next plugin gets the query, %s", next)
}

// replied explains a reply without records.
func (x *explanation) replied(q *query, name string, m *dns.Msg) {
	switch {
	case x == nil:
	case q.caller.needsNodes():
		x.add("SERVFAIL: no endpoint is selected for the caller, which may change when Nodes are read")
	case m.Rcode == dns.RcodeServerFailure:
		x.add("SERVFAIL: the answer needs records that are not read yet")
	case m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 && q.caller.isUsed():
		x.add("NODATA: %s has no records of type %s for the caller", name, dns.TypeToString[q.qtype])
	case m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0:
		x.add("NODATA: %s has no records of type %s", name, dns.TypeToString[q.qtype])
	}
}

// withoutList adds the reason why the search list in a query is not used, "" without a list.
func (x *explanation) withoutList(reason string) {
	if x != nil && reason != "" {
		x.add("search list of the query: not used, %s", reason)
	}
}

// expanded adds the result of a search list; found is false if no candidate ends the search.
func (x *explanation) expanded(owner string, m *dns.Msg, found bool) {
	switch {
	case x == nil:
	case !found:
		x.add("search list of the query: no candidate has records of the type")
	case len(m.Answer) == 0:
		x.add("search list of the query: NODATA, candidate %s has addresses, but no records of the type", owner)
	default:
		x.add("search list of the query: answered with the records of candidate %s", owner)
	}
}

// inspectLater notes a name whose answer depends on the readiness of endpoints.
func (x *explanation) inspectLater(qtype uint16, f *result, name, zone string) {
	n, depends := f.name, f.kind == endpoints
	if f.kind == notFound || f.kind == emptyName {
		n, depends = x.k.lacksEndpoints(name, zone)
	}
	if depends {
		x.inspection = append(x.inspection, inspection{n, qtype})
	}
}

// lacksEndpoints returns a parsed name, and whether it may lack records because its Service has no ready endpoint for it.
func (k *Kubernetes) lacksEndpoints(name, zone string) (objectName, bool) {
	n, err := parseName(name, zone, k.grammar(k.isClusterset(zone)))
	if err != nil || n.object == "" || n.kind == labelPod || !k.selects(n.namespace) {
		return n, false
	}
	e := n.in(k.index)
	return n, e != nil && (e.Service.Kind == index.Headless || n.endpoint != "" || k.ignoreEmpty)
}

// inspect adds the endpoints that are not ready. It is called after the reply, since it may have to request them.
func (x *explanation) inspect(ctx context.Context) {
	if x.k.notReady == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	for _, i := range x.inspection {
		x.addNotReady(ctx, i)
	}
}

// addNotReady adds the endpoints of a name that are not ready, once for an explained query.
func (x *explanation) addNotReady(ctx context.Context, i inspection) {
	subject := fmt.Sprintf("endpoints of %s/%s that are not ready: ", i.name.namespace, i.name.object)
	if !x.addOnce(subject, "requested after the reply") {
		return
	}
	found, err := x.k.notReady(ctx, i.name.namespace, i.name.object, i.name.imported)
	if err != nil {
		x.add("%sunknown, %v", subject, err)
		return
	}
	var lines []string
	for _, group := range []struct {
		slices []*index.Slice
		reason string
	}{{found.Others, "not ready"}, {found.Terminating, "terminating"}} {
		f := result{entry: &index.Entry{Slices: group.slices}, name: i.name}
		for e, s := range f.endpoints() {
			if slices.ContainsFunc(families(i.qtype, i.name.imported), func(family uint16) bool { return isOf(family, e) }) {
				lines = append(lines, fmt.Sprintf("%s: left out: %s", describe(e, s), group.reason))
			}
		}
	}
	if len(lines) == 0 {
		x.add("%snone", subject)
	}
	for n, line := range lines {
		if n == explainedEndpoints {
			x.add("%d more that are not ready", len(lines)-n)
			break
		}
		x.add("%s", line)
	}
	if found.Partial {
		x.add("%sonly the first EndpointSlices were read", subject)
	}
}

// notReadyFunc is the type of the method NotReady of a source.Inspector.
type notReadyFunc func(ctx context.Context, namespace, name string, imported bool) (source.NotReady, error)
