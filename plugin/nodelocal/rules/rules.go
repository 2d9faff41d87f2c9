// Package rules excludes packets to the node-local addresses from connection tracking while the server answers,
// and leaves or sends them to cluster DNS while it does not. Input is the addresses; output is a table of nftables,
// as text or in the kernel, or rules of iptables. Of DNS it knows only the port, and it may not import CoreDNS.
// The README of nodelocal describes lease and fallback.
package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Lease is the time from a renewal until the lease expires.
const Lease = time.Second

// Marks (SO_MARK) of packets that the server sends to itself, from the address to which it sends them. Self-queries with
// SelfQueryMark reach the server with and without a lease. Datagrams with RenewalMark renew the lease of the address,
// those with AcquireMark acquire it; neither is delivered. The loopback address can't be the source: the kubelet and
// kube-proxy drop untracked packets to it. 0x35 had another meaning in earlier versions, which may run beside this one.
const (
	SelfQueryMark = 0x34
	RenewalMark   = 0x36
	AcquireMark   = 0x37
)

// Names of chains that other packages read: ChainPods has the packets of pods, ChainNode those of the node
// itself, and ChainFallback, if an address has a fallback, the rules that send packets to it. The last two match
// each address by itself.
const (
	ChainPods     = "prerouting"
	ChainNode     = "output"
	ChainFallback = "fallback-prerouting"
)

// Config is the configuration of the rules.
type Config struct {
	Interface string       // the name of the node-local interface, after which the table is named
	Addresses []netip.Addr // the node-local addresses, of both families
	Port      uint16       // of DNS
	Health    uint16       // the TCP port of the health endpoint on the addresses; 0 is none
	// Fallback are the addresses that packets are rewritten to without a lease, max. one per family:
	// the address of cluster DNS as a Service, or of one server.
	Fallback []netip.Addr
	// Replicas replace addresses of Fallback that are translated only for sockets, max. one per family: one replica of
	// cluster DNS each. The source of packets to a replica is replaced, so that its replies return through this host.
	Replicas []netip.Addr
	Services []netip.Addr // those of the addresses that kube-proxy knows: they need no fallback
	Question Question     // the path of self-queries; the zero value is lo

	without feature // the features that the kernel lacks
}

// feature is a set of parts of nftables that a kernel may lack. The rules work without them.
type feature uint8

const (
	sockets    feature = 1 << iota // the match of a packet's socket
	routes                         // the lookup of a packet's route
	references                     // named counters in rules
)

// Question describes the path of self-queries, the server's queries to itself, on which they arrive as queries of pods
// do: a pair of devices and the addresses used on it. A self-query is sent from a node-local address to
// [QuestionTarget], which is routed to the device Out. It arrives on In, where rules rewrite it, before other tables
// see it, to look like the query of a pod: from the address in Sources to the node-local one. The server's reply is
// rewritten to one from QuestionTarget to the node-local address, and is delivered over lo.
type Question struct {
	Out, In string       // the names of the sending and the receiving device
	Sources []netip.Addr // the source addresses of the arriving queries, max. one per family, which are routed to In
}

// QuestionTarget returns the address that stands for the server in self-queries from a node-local address of the
// same family: a link-local address, and one of the dummy prefix of RFC 9780. Neither leaves the node.
func QuestionTarget(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{169, 254, 253, 53})
	}
	return netip.AddrFrom16([16]byte{0: 0x01, 7: 0x01, 15: 0x53})
}

// Source returns the source address of arriving self-queries to a node-local address. It is invalid if they are
// delivered over lo, as those to a link-local IPv6 address, which is bound to its interface, always are.
func (q Question) Source(a netip.Addr) netip.Addr {
	for _, s := range q.Sources {
		if s.Is4() == a.Is4() && !isLinkLocal6(a) {
			return s
		}
	}
	return netip.Addr{}
}

// tablePrefix is the prefix of the name of each of our tables.
const tablePrefix = "nearside-"

// TableName returns the name of the nftables table, of family inet, for an interface.
func TableName(iface string) string { return tablePrefix + iface }

// fallback returns where packets to an address are sent without a lease. A link-local IPv6 address has no
// fallback, as packets to it are never forwarded, and one that kube-proxy knows needs none.
func (c Config) fallback(a netip.Addr) (to netip.Addr, ok bool) {
	if isLinkLocal6(a) || slices.Contains(c.Services, a) {
		return netip.Addr{}, false
	}
	i := slices.IndexFunc(c.Fallback, func(to netip.Addr) bool { return to.Is4() == a.Is4() && to != a })
	if i < 0 {
		return netip.Addr{}, false
	}
	return c.target(c.Fallback[i]), true
}

// target returns the replica that replaces an address of Fallback, else the address.
func (c Config) target(to netip.Addr) netip.Addr {
	if i := slices.IndexFunc(c.Replicas, func(r netip.Addr) bool { return r.Is4() == to.Is4() }); i >= 0 {
		return c.Replicas[i]
	}
	return to
}

// isLinkLocal6 returns whether packets to an address are never forwarded.
func isLinkLocal6(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// WithoutFallback returns the addresses that have no fallback and are not known to be of Services: without a lease
// they are answered only if kube-proxy has rules for them.
func (c Config) WithoutFallback() (all []netip.Addr) {
	for _, a := range c.Addresses {
		if _, ok := c.fallback(a); !ok && !slices.Contains(c.Services, a) {
			all = append(all, a)
		}
	}
	return all
}

// FallbackAdvice returns how to configure a fallback of an address.
func FallbackAdvice(a netip.Addr) string {
	if isLinkLocal6(a) {
		return "packets to a link-local IPv6 address are never forwarded: use another address, such as fd00:53::10"
	}
	family := "IPv4"
	if a.Is6() {
		family = "IPv6"
	}
	return fmt.Sprintf("set fallback of nodelocal, or -fallback, to the %s address of cluster DNS, or its Service to both families", family)
}
