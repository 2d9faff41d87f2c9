package kubernetes

import (
	"net/netip"
	"slices"
	"sync"
	"unsafe"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/topology"
)

// locations finds nodes by address and by name. An index.Index implements it, and describes the methods.
type locations interface {
	EndpointNode(a netip.Addr) index.Symbol
	PodNode(a netip.Addr) index.Symbol
	Node(name index.Symbol) *index.Node
	NodeNamed(name string) *index.Node
	NodeByIP(a netip.Addr) *index.Node
}

// callers locates the callers of queries by address and by the caller option. It implements answers.Views.
type callers struct {
	index    locations
	trust    []netip.Prefix // ranges of trusted senders of the option
	warnOnce sync.Once      // about an untrusted option
}

// privateRanges are the senders of the caller option that are trusted by default: addresses of machines and pods that no
// packet from the internet has (RFC 1918, RFC 4193, RFC 6598, loopback and link-local).
var privateRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fc00::/7"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("::1/128"),
}

// evidence is the source of a caller's location, or the reason why the location is unknown.
type evidence int

const (
	byOption evidence = iota
	byPod
	byEndpoint
	byPodCIDR
	byNodeAddress
	unknownNode    // the option names a node without a record
	unknownAddress // the address is unknown
	untrusted      // the option is from an untrusted sender, and the address is unknown
	malformed      // the option is malformed, and the address is unknown
	evidences      // number of values that are counted
	noAddress      // a plugin's own query, which is not counted
)

// callersTotal counts answers that depend on the caller, by evidence.
var callersTotal = func() (counters [evidences]prometheus.Counter) {
	vec := promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: "nearside", Subsystem: "kubernetes", Name: "topology_answers_total",
		Help: "Answers that depend on the caller's node, by how that is known (option, pod, endpoint, pod_cidr, node_address), or why it is not (unknown_node, unknown_address, untrusted_option, malformed_option).",
	}, []string{"caller"})
	for e, label := range map[evidence]string{
		byOption: "option", byPod: "pod", byEndpoint: "endpoint", byPodCIDR: "pod_cidr", byNodeAddress: "node_address",
		unknownNode: "unknown_node", unknownAddress: "unknown_address", untrusted: "untrusted_option", malformed: "malformed_option",
	} {
		counters[e] = vec.WithLabelValues(label)
	}
	return counters
}()

// find returns the caller with an address and the data of the option, nil without an option.
func (c *callers) find(from netip.Addr, option []byte) (found topology.Caller, by evidence) {
	from = from.WithZone("").Unmap()
	failed := unknownAddress
	if option != nil {
		node, zone, ok := caller.Parse(option)
		switch {
		case !c.trusts(from):
			failed = untrusted
			c.warnOnce.Do(func() {
				log.Warningf("caller option of %s ignored: the address is in no range of trust; add it if it is a node's (further senders are only counted)", from)
			})
		case !ok:
			failed = malformed
		default:
			return c.named(node, zone)
		}
	}
	if found, by = c.byAddress(from); by == unknownAddress {
		by = failed
	}
	return found, by
}

func (c *callers) trusts(from netip.Addr) bool {
	return slices.ContainsFunc(c.trust, func(p netip.Prefix) bool { return p.Contains(from) })
}

// named returns the caller on the node in an option.
func (c *callers) named(node, zone []byte) (topology.Caller, evidence) {
	if n := c.index.NodeNamed(unsafe.String(&node[0], len(node))); n != nil { // the index does not retain the text
		return callerOn(n), byOption
	}
	return topology.Caller{Name: index.NewSymbol(string(node)), Zone: index.NewSymbol(string(zone))}, unknownNode
}

// callerOn returns the caller on a node. Its zone is that of the node's labels, also if an option has another one.
func callerOn(n *index.Node) topology.Caller {
	zone, _ := n.Label(topology.ZoneLabel)
	return topology.Caller{Name: n.Name, Zone: zone, Node: n}
}

// byAddress returns the caller with an address. Watched pods are the most reliable source: endpoints are in EndpointSlices,
// which users may write, and many networks assign addresses outside of the ranges of Nodes.
func (c *callers) byAddress(from netip.Addr) (topology.Caller, evidence) {
	if name := c.index.PodNode(from); name != (index.Symbol{}) {
		return c.onNode(name), byPod
	}
	if name := c.index.EndpointNode(from); name != (index.Symbol{}) {
		return c.onNode(name), byEndpoint
	}
	n := c.index.NodeByIP(from)
	if n == nil {
		return topology.Caller{}, unknownAddress
	}
	for _, p := range n.CIDRs {
		if p.IsSingleIP() && p.Addr() == from {
			return callerOn(n), byNodeAddress
		}
	}
	return callerOn(n), byPodCIDR
}

// onNode returns the caller on a node that may have no record.
func (c *callers) onNode(name index.Symbol) topology.Caller {
	if n := c.index.Node(name); n != nil {
		return callerOn(n)
	}
	return topology.Caller{Name: name}
}

// View implements answers.Views.
func (c *callers) View(from netip.Addr, option []byte) answers.View {
	return viewOf(c.find(from, option))
}

// unknownCaller is the number of the view of unknown callers; those of nodes start at 1.
const unknownCaller = 0

// viewOf returns the view of a caller. Answers for a node without a record are not stored, since the number of such names is
// unbounded.
func viewOf(caller topology.Caller, by evidence) answers.View {
	v := answers.View{Number: unknownCaller, Callers: callersTotal[by]}
	switch {
	case caller.Node != nil:
		v.Number = caller.Node.Number()
	case caller.Known():
		v.Private = true
	}
	return v
}

// optionOf returns the data of the caller option, nil if there is none, and malformed (empty) data if there are several.
func optionOf(r *dns.Msg) (data []byte) {
	opt := r.IsEdns0()
	if opt == nil {
		return nil
	}
	for _, o := range opt.Option {
		local, ok := o.(*dns.EDNS0_LOCAL)
		if !ok || local.Code != caller.Code {
			continue
		}
		if data != nil {
			return []byte{}
		}
		data = local.Data
		if data == nil {
			data = []byte{}
		}
	}
	return data
}
