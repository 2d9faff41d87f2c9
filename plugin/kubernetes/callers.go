package kubernetes

import (
	"net/netip"
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

// places are where addresses and nodes are found: those of an index.Index, which describes the methods.
type places interface {
	EndpointNode(a netip.Addr) index.Symbol
	PodNode(a netip.Addr) index.Symbol
	Node(name index.Symbol) *index.Node
	NodeNamed(name string) *index.Node
	NodeByIP(a netip.Addr) *index.Node
}

// callers tells who asks, and implements store.Views.
type callers struct {
	index places
	trust []netip.Prefix // whose option is believed
	said  sync.Once      // that somebody is not
}

// privateRanges are those from which the option is believed if nothing else is said: addresses of machines and
// pods, which no packet of the internet has (RFC 1918, RFC 4193, RFC 6598, loopback and link-local).
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

// evidence is how the caller is known, or why not.
type evidence int

const (
	byOption evidence = iota
	byPod
	byEndpoint
	byPodCIDR
	byNodeAddress
	unknownNode    // the option names a node that has not been read
	unknownAddress // nothing is known of the address
	untrusted      // there is an option, from where it is not believed, and nothing is known of the address
	malformed      // there is an option that can't be read, and nothing is known of the address
	evidences
	nowhere = evidences // a query of a plugin's own; nobody counts it
)

// callersTotal counts answers that depend on who asks, by evidence.
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

// find returns who asks, given the address and the data of the option, or nil if there is none.
func (c *callers) find(from netip.Addr, option []byte) (who topology.Caller, why evidence) {
	from = from.WithZone("").Unmap()
	failed := unknownAddress
	if option != nil {
		node, zone, ok := caller.Parse(option)
		switch {
		case !c.trusts(from):
			failed = untrusted
			c.said.Do(func() {
				log.Warningf("%s says for which node it asks, and is not believed: add its range to trust if it is a node's; others that are not believed are only counted", from)
			})
		case !ok:
			failed = malformed
		default:
			return c.named(node, zone)
		}
	}
	if who, why = c.addressed(from); why == unknownAddress {
		why = failed
	}
	return who, why
}

func (c *callers) trusts(from netip.Addr) bool {
	for _, p := range c.trust {
		if p.Contains(from) {
			return true
		}
	}
	return false
}

// named returns the caller on a node that an option names.
func (c *callers) named(node, zone []byte) (topology.Caller, evidence) {
	if n := c.index.NodeNamed(unsafe.String(&node[0], len(node))); n != nil { // nobody holds on to the text
		return on(n), byOption
	}
	return topology.Caller{Name: index.NewSymbol(string(node)), Zone: index.NewSymbol(string(zone))}, unknownNode
}

// on returns the caller on a node. Of its zone nobody knows more than the node's labels.
func on(n *index.Node) topology.Caller {
	zone, _ := n.Label(topology.ZoneLabel)
	return topology.Caller{Name: n.Name, Zone: zone, Node: n}
}

// addressed returns the caller with an address. Pods, where they are watched, are what is most certain: anyone who
// may write EndpointSlices can say something of endpoints, and many networks give out addresses without regard to
// the ranges of Nodes.
func (c *callers) addressed(from netip.Addr) (who topology.Caller, why evidence) {
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
			return on(n), byNodeAddress
		}
	}
	return on(n), byPodCIDR
}

// onNode returns the caller on the node of a name, which may not have been read.
func (c *callers) onNode(name index.Symbol) topology.Caller {
	if n := c.index.Node(name); n != nil {
		return on(n)
	}
	return topology.Caller{Name: name}
}

// View implements store.Views.
func (c *callers) View(from netip.Addr, option []byte) answers.View {
	who, why := c.find(from, option)
	return viewOf(who, why)
}

// unknownCaller is the number of the view of those of whom nothing is known; nodes have theirs from 1.
const unknownCaller = 0

// viewOf returns the view of a caller. What one on a node that is not read is answered is not kept: there may
// be any number of them.
func viewOf(who topology.Caller, why evidence) answers.View {
	v := answers.View{Number: unknownCaller, Callers: callersTotal[why]}
	switch {
	case who.Node != nil:
		v.Number = who.Node.Number()
	case who.Known():
		v.Private = true
	}
	return v
}

// optionOf returns the data of the option that names the caller, nil if there is none. Of several none can be
// believed: an empty one can't be read.
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
