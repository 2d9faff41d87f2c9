// Package rules keeps packets to the node-local addresses out of connection tracking while the server
// answers, and sends them the way that they went before when it does not. In go the addresses; out
// come a table of nftables, as text or in the kernel, or the rules of iptables. It knows nothing of
// DNS but the port, and may not import CoreDNS.
//
// # The lease
//
// The rules that take traffic match only addresses in a set whose elements expire. After each answer of the
// server to itself, the process sends a datagram with [RenewalMark] from the address to itself: a rule of the
// table updates the set and drops the datagram. A renewal is no netlink transaction, which would interrupt
// programs that list rules at that moment, and a process that hangs, starves or is dead renews nothing.
// RenewalMark renews only an element that has not expired, so that a process that was stopped before the
// datagram was sent can't bring an expired lease back; a lease is taken with [TakeMark]. The process learns
// the result from the system call: EPERM is a datagram that the rule has dropped.
//
// # The fallback
//
// While the lease is out, an address that kube-proxy knows is treated by kube-proxy as ever. Any other
// is rewritten to the address of cluster DNS after connection tracking has seen the packet and before
// NAT has: kube-proxy then chooses an endpoint, and connection tracking turns the replies back by
// itself, since it knows the packet under its first address. Nothing of this has to be kept current by
// a process.
package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Lease is how long an address takes traffic after a renewal.
const Lease = time.Second

// Marks (SO_MARK) of packets that the server sends to itself, from the address that it queries to the same.
// Queries with AskMark reach it whatever the lease. Datagrams with RenewalMark renew the lease of the address,
// those with TakeMark take it; neither is delivered. 0x35 was the mark of queries that renewed the lease before
// their answer: instances of such a version may run beside this one, and must not lose these queries.
// Setting a mark needs the capability NET_ADMIN or, since Linux 5.17, NET_RAW, in the
// network namespace of the node. The bits are not among those that kube-proxy, Calico, Cilium and other
// network plugins use. The loopback address would not do as a source: the kubelet and kube-proxy have a
// firewall rule that drops untracked packets to it.
const (
	AskMark     = 0x34
	RenewalMark = 0x36
	TakeMark    = 0x37
)

// Priorities of chains. Those of the kernel: raw -300, connection tracking -200, mangle -150,
// destination NAT -100, source NAT 100.
const (
	priorityBeforeRaw = -310
	priorityRaw       = -300
	priorityMangle    = -150
	priorityAfterDNAT = -90
	prioritySNAT      = 100
)

// The names of the sets of leased addresses, by family.
const (
	lease4 = "lease4"
	lease6 = "lease6"
)

// The chains that others look at: one takes the packets that pods send, one those of the node itself, and
// one, which is there if anything has a fallback, sends them to it. The last two name each address.
const (
	ChainPods     = "prerouting"
	ChainNode     = "output"
	ChainFallback = "fallback-prerouting"
)

// leaseSize bounds each lease set, in addresses. A set that packets may add to needs a bound.
const leaseSize = 64

// Config is what the rules depend on.
type Config struct {
	// Interface is the name of the node-local interface; the table is named after it.
	Interface string
	// Addresses are the node-local addresses, of both families.
	Addresses []netip.Addr
	// Port is that of DNS.
	Port uint16
	// Health is the TCP port of the health endpoint on the addresses; 0 is none.
	Health uint16
	// Fallback is where packets to the addresses go while the lease is out, at most one per family:
	// the address of cluster DNS as a Service, or of one server.
	Fallback []netip.Addr
	// Services are those of the addresses that kube-proxy knows: they need no fallback.
	Services []netip.Addr

	// Question is the way of the server's queries to itself; the zero value is lo.
	Question Question

	withoutSocket bool // the kernel can't match sockets
}

// Question describes two devices of which one receives what the other sends, and the addresses of the server's
// queries to itself on this way. A query is sent from a node-local address to [QuestionTarget], which is routed
// to the device Out. Where it arrives, on In, rules rewrite it to what a pod's query looks like, before other
// tables see it: from the address in Sources to the node-local one. The server's reply is rewritten to one from
// QuestionTarget to the node-local address, and takes lo.
type Question struct {
	Out, In string
	// Sources are the addresses that queries come from, at most one per family. They are routed to In.
	Sources []netip.Addr
}

// QuestionTarget returns the address that stands for the server in queries from a node-local address of the same
// family: a link-local address, and one of the dummy prefix of RFC 9780. Neither ever leaves the node.
func QuestionTarget(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{169, 254, 253, 53})
	}
	return netip.AddrFrom16([16]byte{0: 0x01, 7: 0x01, 15: 0x53})
}

// Source returns the address that queries to a node-local address come from. It is invalid where they take lo, as
// those to a link-local IPv6 address do: such an address is bound to its interface.
func (q Question) Source(a netip.Addr) netip.Addr {
	for _, s := range q.Sources {
		if s.Is4() == a.Is4() && !isLinkLocal6(a) {
			return s
		}
	}
	return netip.Addr{}
}

// tablePrefix begins the name of each of our tables.
const tablePrefix = "nearside-"

// TableName returns the name of the nftables table, of family inet, for an interface.
func TableName(iface string) string { return tablePrefix + iface }

// TableText returns the nftables table as nft prints and reads it. Golden files hold it.
func (c Config) TableText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName(c.Interface))
	for _, set := range []struct{ name, kind string }{{lease4, "ipv4_addr"}, {lease6, "ipv6_addr"}} {
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n\t\tsize %d\n\t\tflags dynamic,timeout\n\t}\n\n", set.name, set.kind, leaseSize)
	}
	for i, chain := range c.chains() {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s hook %s priority %s; policy accept;\n", chain.name, chain.kind, chain.hook, chain.priorityName())
		for _, r := range chain.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r.text())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// chain is a base chain of the table; its policy is accept.
type chain struct {
	name, kind, hook string
	priority         int
	rules            []rule
}

// priorityName is the priority as nft prints it, which differs by hook.
func (c chain) priorityName() string {
	names := map[int]string{priorityBeforeRaw: "raw - 10", priorityRaw: "raw", priorityMangle: "mangle"}
	switch c.hook {
	case "prerouting":
		names[priorityAfterDNAT] = "dstnat + 10"
	case "postrouting":
		names[prioritySNAT] = "srcnat"
	}
	if name, ok := names[c.priority]; ok {
		return name
	}
	return fmt.Sprint(c.priority)
}

// chains are the chains of the table with their rules.
func (c Config) chains() []chain {
	all := []chain{
		{"self", "filter", "output", priorityBeforeRaw, c.ownQueries()},
		{ChainPods, "filter", "prerouting", priorityRaw, c.leased(!c.withoutSocket)},
		{ChainNode, "filter", "output", priorityRaw, append(c.ownReplies(), c.leased(false)...)},
	}
	if arrivals, replies := c.questions(); len(arrivals) > 0 {
		all = append(all,
			chain{"question", "filter", "prerouting", priorityBeforeRaw, arrivals},
			chain{"question-replies", "route", "output", priorityBeforeRaw, replies},
		)
	}
	if rewrites := c.rewrites(); len(rewrites) > 0 {
		all = append(all,
			chain{ChainFallback, "filter", "prerouting", priorityMangle, rewrites},
			chain{"fallback-output", "route", "output", priorityMangle, rewrites},
			chain{"nat-prerouting", "nat", "prerouting", priorityAfterDNAT, c.fallbackNAT()},
			chain{"nat-output", "nat", "output", priorityAfterDNAT, c.fallbackNAT()},
		)
	}
	return append(all, chain{"nat-postrouting", "nat", "postrouting", prioritySNAT, c.masquerade()})
}

// leased takes packets to leased addresses out of connection tracking, and so out of NAT: they are
// for the node itself. If asked to, only while somebody has a socket for them: a process that is killed
// loses its sockets at once, and its lease a second later. Packets of the node itself come with the
// client's socket, so that there the question makes no sense.
func (c Config) leased(withSocket bool) (all []rule) {
	for _, f := range families(c.Addresses) {
		for _, p := range protocols {
			r := rule{inLease(f), p.destination(c.Port)}
			if withSocket {
				r = append(r, hasSocket)
			}
			all = append(all, append(r, notrack, accept))
		}
	}
	return all
}

// ownQueries are the server's queries to itself, which have to reach it without a lease, and the datagrams
// that renew and take the lease. A renewal of an expired lease is delivered to the server, which ignores it,
// so that the process can tell it from one that was dropped. The priority is before raw, where network
// plugins clear marks.
func (c Config) ownQueries() (all []rule) {
	for _, a := range c.Addresses {
		if c.Question.Source(a).IsValid() {
			all = append(all, rule{source(a), destination(QuestionTarget(a)), notrack, accept})
		}
		all = append(all,
			rule{source(a), destination(a), inLease(a), udp.destination(c.Port), marked(RenewalMark), renew(a), drop},
			rule{source(a), destination(a), udp.destination(c.Port), marked(RenewalMark), notrack, accept},
			rule{source(a), destination(a), udp.destination(c.Port), marked(TakeMark), renew(a), drop},
			rule{source(a), destination(a), udp.destination(c.Port), marked(AskMark), notrack, accept},
			rule{source(a), destination(a), tcp.destination(c.Port), marked(AskMark), notrack, accept},
		)
	}
	return all
}

// questions are the rules of [Question], for what arrives on its devices and for the server's replies. Nothing
// else may pass the devices: pods could reach the server past the lease, and packets would go round.
func (c Config) questions() (arrivals, replies []rule) {
	for _, a := range c.Addresses {
		from, target := c.Question.Source(a), QuestionTarget(a)
		if !from.IsValid() {
			continue
		}
		arrivals = append(arrivals, rule{arrivedOn(c.Question.In), source(a), destination(target), rewriteSource(from), rewriteDestination(a), notrack, accept})
		for _, p := range protocols {
			replies = append(replies, rule{source(a), destination(from), p.source(c.Port), rewriteSource(target), rewriteDestination(a), notrack, accept})
		}
	}
	if len(arrivals) > 0 {
		arrivals = append(arrivals, rule{arrivedOn(c.Question.In), drop}, rule{arrivedOn(c.Question.Out), drop})
	}
	return arrivals, replies
}

// ownReplies are what the node-local server sends, and the health endpoint, which the kubelet of this
// node asks. A reply is never tracked: tracked, it would make an entry that hides the client's next
// query from kube-proxy.
func (c Config) ownReplies() (all []rule) {
	for _, a := range c.Addresses {
		for _, p := range protocols {
			all = append(all, rule{source(a), p.source(c.Port), notrack, accept})
		}
		if c.Health != 0 {
			all = append(all,
				rule{destination(a), tcp.destination(c.Health), notrack, accept},
				rule{source(a), tcp.source(c.Health), notrack, accept},
			)
		}
	}
	return all
}

// rewrites send packets to cluster DNS that the lease did not take. Each packet is rewritten, and NAT,
// which looks at the first one only, sees the Service's address.
func (c Config) rewrites() (all []rule) {
	for _, a := range c.Addresses {
		to, ok := c.fallbackOf(a)
		if !ok {
			continue
		}
		for _, p := range protocols {
			all = append(all, rule{destination(a), p.destination(c.Port), rewriteDestination(to)})
		}
	}
	if len(all) > 0 {
		all = append([]rule{{untracked, accept}}, all...)
	}
	return all
}

// fallbackNAT translates what kube-proxy did not: a fallback that is no Service needs connection
// tracking to turn its replies back, and gets it by NAT to the address that the packet has.
func (c Config) fallbackNAT() (all []rule) {
	for _, to := range c.Fallback {
		for _, p := range protocols {
			all = append(all, rule{destination(to), p.destination(c.Port), dnat(to)})
		}
	}
	return all
}

// masquerade gives packets of the node itself a source that can be answered: the kernel had chosen the
// node-local address as their source before they were sent elsewhere.
func (c Config) masquerade() (all []rule) {
	for _, a := range c.Addresses {
		if !isLinkLocal6(a) {
			all = append(all, rule{source(a), notLoopback, masquerade})
		}
	}
	return all
}

// fallbackOf returns where packets to an address go while the lease is out. Those to a link-local IPv6
// address go nowhere: such packets are never forwarded.
func (c Config) fallbackOf(a netip.Addr) (netip.Addr, bool) {
	if isLinkLocal6(a) {
		return netip.Addr{}, false
	}
	for _, s := range c.Services {
		if s == a {
			return netip.Addr{}, false
		}
	}
	for _, to := range c.Fallback {
		if to.Is4() == a.Is4() && to != a {
			return to, true
		}
	}
	return netip.Addr{}, false
}

// families returns for each family one of its addresses.
func families(addrs []netip.Addr) (all []netip.Addr) {
	for _, four := range []bool{true, false} {
		for _, a := range addrs {
			if a.Is4() == four {
				all = append(all, a)
				break
			}
		}
	}
	return all
}

// isLinkLocal6 returns whether packets to an address are never forwarded.
func isLinkLocal6(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }
