package kubernetes

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
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

// callers locates the callers of queries by address and by the caller option. It implements store.Views.
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
		Namespace: metricNamespace, Subsystem: pluginName, Name: "topology_answers_total",
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

// location is a caller as a query or the index identifies it.
type location struct {
	node       *index.Node // nil without a record of the node
	name, zone string      // without a record: the names of node and zone, which may be in the memory of the option; empty if unknown
}

// find returns the caller with an address and the data of the option, nil without an option. If trusted, the option counts
// from any address.
func (c *callers) find(from netip.Addr, option []byte, trusted bool) (topology.Caller, evidence) {
	l, by := c.locate(from, option, trusted)
	if l.node != nil {
		return callerOn(l.node), by
	}
	return topology.Caller{Name: index.NewSymbol(strings.Clone(l.name)), Zone: index.NewSymbol(strings.Clone(l.zone))}, by
}

// locate is find without allocations.
func (c *callers) locate(from netip.Addr, option []byte, trusted bool) (l location, by evidence) {
	from = from.WithZone("").Unmap()
	failed := unknownAddress
	if option != nil {
		node, zone, ok := caller.Parse(option)
		switch {
		case !trusted && !c.trusts(from):
			failed = untrusted
			c.warnOnce.Do(func() {
				log.Warningf("caller option of %s ignored: the address is in no range of trust; add it if it is a node's (further senders are only counted)", from)
			})
		case !ok:
			failed = malformed
		default:
			return c.named(textOf(node), textOf(zone))
		}
	}
	if l, by = c.byAddress(from); by == unknownAddress {
		by = failed
	}
	return l, by
}

// textOf returns a string with the memory of b, which must not be retained.
func textOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (c *callers) trusts(from netip.Addr) bool {
	return slices.ContainsFunc(c.trust, func(p netip.Prefix) bool { return p.Contains(from) })
}

// named returns the caller on the node in an option.
func (c *callers) named(node, zone string) (location, evidence) {
	if n := c.index.NodeNamed(node); n != nil {
		return location{node: n}, byOption
	}
	return location{name: node, zone: zone}, unknownNode
}

// callerOn returns the caller on a node. Its zone is that of the node's labels, also if an option has another one.
func callerOn(n *index.Node) topology.Caller {
	zone, _ := n.Label(topology.ZoneLabel)
	return topology.Caller{Name: n.Name, Zone: zone, Node: n}
}

// byAddress returns the caller with an address. Watched pods are the most reliable source: endpoints are in EndpointSlices,
// which users may write, and many networks assign addresses outside of the ranges of Nodes.
func (c *callers) byAddress(from netip.Addr) (location, evidence) {
	if name := c.index.PodNode(from); name != (index.Symbol{}) {
		return c.onNode(name), byPod
	}
	if name := c.index.EndpointNode(from); name != (index.Symbol{}) {
		return c.onNode(name), byEndpoint
	}
	n := c.index.NodeByIP(from)
	if n == nil {
		return location{}, unknownAddress
	}
	for _, p := range n.CIDRs {
		if p.IsSingleIP() && p.Addr() == from {
			return location{node: n}, byNodeAddress
		}
	}
	return location{node: n}, byPodCIDR
}

// onNode returns the caller on a node that may have no record.
func (c *callers) onNode(name index.Symbol) location {
	return location{node: c.index.Node(name), name: name.String()}
}

// View implements store.Views.
func (c *callers) View(from netip.Addr, option []byte) store.View {
	return viewOf(c.locate(from, option, false))
}

// unknownCaller is the number of the view of unknown callers, and of the views of nodes without a record; the numbers of
// other nodes start at 1.
const unknownCaller = 0

// viewOf returns the view of a caller. A node without a record has a view by the names of node and zone; its answers end when
// the Node is created, since every answer for a caller depends on the Generation of the Nodes. Clients can send any number of
// such names, as of queried names and search lists: the budget of the store limits all of them.
func viewOf(l location, by evidence) store.View {
	v := store.View{Number: unknownCaller, Named: by == byOption || by == unknownNode}
	if by < evidences {
		v.Callers = callersTotal[by]
	}
	if l.node != nil {
		v.Number = l.node.Number()
		return v
	}
	v.Node, v.Zone = l.name, l.zone
	v.Private = len(v.Node) > caller.MaxNode || len(v.Zone) > caller.MaxZone // longer than names in Kubernetes, so from a manifest
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
		if !ok || local.Code != wire.OptionCaller {
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
