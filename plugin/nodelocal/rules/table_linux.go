package rules

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// priority is the priority of a chain, as the kernel receives it and as nft prints it.
type priority struct {
	value nftables.ChainPriority
	text  string
}

// Priorities relative to the kernel's: raw -300, connection tracking -200, mangle -150, destination NAT -100,
// source NAT 100.
var (
	beforeRaw       = priority{-310, "raw - 10"}
	raw             = priority{-300, "raw"}
	mangle          = priority{-150, "mangle"}
	afterDNAT       = priority{-90, "dstnat + 10"}
	afterOutputDNAT = priority{-90, "-90"} // nft has no name for it in the hook output
	sourceNAT       = priority{100, "srcnat"}
	last            = priority{math.MaxInt32, "2147483647"}
)

// hooks are the netfilter hooks by their names in nft.
var hooks = map[string]*nftables.ChainHook{
	"prerouting":  nftables.ChainHookPrerouting,
	"input":       nftables.ChainHookInput,
	"output":      nftables.ChainHookOutput,
	"postrouting": nftables.ChainHookPostrouting,
}

// chain is a base chain of the table; its policy is accept.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     string
	priority priority
	rules    []rule
}

// leaseSize is the max. number of addresses in a lease set. The kernel requires a size for a set to which packets add elements.
const leaseSize = 64

// The names of the sets of leased addresses, by family.
const (
	lease4 = "lease4"
	lease6 = "lease6"
)

// leaseSet returns the name of the set for addresses of a's family.
func leaseSet(a netip.Addr) string {
	if a.Is4() {
		return lease4
	}
	return lease6
}

// leaseSets returns the sets of leased addresses of a table.
func leaseSets(table *nftables.Table) []*nftables.Set {
	set := func(name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, KeyType: key, HasTimeout: true, Dynamic: true, Size: leaseSize}
	}
	return []*nftables.Set{set(lease4, nftables.TypeIPAddr), set(lease6, nftables.TypeIP6Addr)}
}

// The names of the counters are a prefix and a flow: protocol and family, such as udp4.
const (
	letInPrefix   = "let-in-"
	arrivedPrefix = "arrived-"
)

func flow(p transport, four bool) string {
	if four {
		return p.name + "4"
	}
	return p.name + "6"
}

// counters returns the names of the counters of the table.
func (c Config) counters() (all []string) {
	if !c.counts() {
		return nil
	}
	for _, prefix := range []string{letInPrefix, arrivedPrefix} {
		for _, four := range []bool{true, false} {
			for _, p := range protocols {
				all = append(all, prefix+flow(p, four))
			}
		}
	}
	return all
}

// TableText returns the nftables table as nft prints and reads it, for golden files.
func (c Config) TableText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName(c.Interface))
	for _, name := range c.counters() {
		fmt.Fprintf(&b, "\tcounter %s {\n\t\tpackets 0 bytes 0\n\t}\n\n", name)
	}
	for _, s := range leaseSets(nil) {
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n\t\tsize %d\n\t\tflags dynamic,timeout\n\t}\n\n", s.Name, s.KeyType.Name, s.Size)
	}
	for i, ch := range c.chains() {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s hook %s priority %s; policy accept;\n", ch.name, ch.kind, ch.hook, ch.priority.text)
		for _, r := range ch.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r.text())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// chains returns the chains of the table with their rules.
func (c Config) chains() []chain {
	all := []chain{
		{"self", nftables.ChainTypeFilter, "output", beforeRaw, c.selfQueries()},
		{ChainPods, nftables.ChainTypeFilter, "prerouting", raw, c.leased(c.letIn)},
		{ChainNode, nftables.ChainTypeFilter, "output", raw, append(c.ownReplies(), c.leased(untrack)...)},
	}
	if arrivals, replies := c.pairQueries(); len(arrivals) > 0 {
		all = append(all,
			chain{"question", nftables.ChainTypeFilter, "prerouting", beforeRaw, arrivals},
			chain{"question-replies", nftables.ChainTypeRoute, "output", beforeRaw, replies},
		)
	}
	if rewrites := c.rewrites(); len(rewrites) > 0 {
		all = append(all,
			chain{ChainFallback, nftables.ChainTypeFilter, "prerouting", mangle, rewrites},
			chain{"fallback-output", nftables.ChainTypeRoute, "output", mangle, rewrites},
			chain{"nat-prerouting", nftables.ChainTypeNAT, "prerouting", afterDNAT, c.fallbackNAT()},
			chain{"nat-output", nftables.ChainTypeNAT, "output", afterOutputDNAT, c.fallbackNAT()},
		)
	}
	all = append(all, chain{"nat-postrouting", nftables.ChainTypeNAT, "postrouting", sourceNAT, c.masquerade()})
	if c.counts() {
		all = append(all, chain{"arrived", nftables.ChainTypeFilter, "input", last, c.leased(c.arrived)})
	}
	return all
}

// leased returns a rule for each family and protocol. The rule matches packets to leased addresses, and ends with the
// statements that end returns.
func (c Config) leased(end func(flow string) rule) (all []rule) {
	for _, four := range []bool{true, false} {
		i := slices.IndexFunc(c.Addresses, func(a netip.Addr) bool { return a.Is4() == four })
		if i < 0 {
			continue
		}
		for _, p := range protocols {
			r := rule{inLease(c.Addresses[i]), p.destination(c.Port)}
			all = append(all, append(r, end(flow(p, four))...))
		}
	}
	return all
}

// untrack excludes packets from connection tracking, and so from NAT: the node itself receives them.
func untrack(string) rule { return rule{notrack, accept} }

// letIn untracks and counts packets of pods. They must have a socket: a killed process loses its sockets at once, and
// its lease a second later. Packets of the node itself already have their client's socket, so that this match is useless
// for them. A packet with another route than to this host goes its way as without nodecache, through NAT.
func (c Config) letIn(flow string) (r rule) {
	if c.counts() {
		r = c.fromOthers()
	}
	if c.without&sockets == 0 {
		r = append(r, hasSocket)
	}
	if c.without&routes == 0 {
		r = append(r, deliveredHere)
	}
	if c.counts() {
		r = append(r, count(letInPrefix+flow))
	}
	return append(r, untrack(flow)...)
}

// arrived counts the packets that letIn has counted, after the filters of all other programs.
func (c Config) arrived(flow string) rule { return append(c.fromOthers(), count(arrivedPrefix+flow)) }

// fromOthers matches packets that are neither the node's own nor self-queries: both are untracked before chain
// prerouting.
func (c Config) fromOthers() rule {
	r := rule{notArrivedOn("lo")}
	if len(c.Question.Sources) > 0 {
		r = append(r, notArrivedOn(c.Question.In))
	}
	return r
}

// counts returns whether the rules count packets of pods.
func (c Config) counts() bool { return c.without&references == 0 }

// selfQueries are the rules for self-queries, which must reach the server without a lease, and for the datagrams that
// renew and acquire the lease. The renewal of an expired lease is delivered to the server, which ignores it, so
// that the process can distinguish it from one that was dropped. The priority is before raw, where network plugins
// clear marks.
func (c Config) selfQueries() (all []rule) {
	for _, a := range c.Addresses {
		if c.Question.Source(a).IsValid() {
			all = append(all, rule{source(a), destination(QuestionTarget(a)), notrack, accept})
		}
		all = append(all,
			rule{source(a), destination(a), inLease(a), udp.destination(c.Port), marked(RenewalMark), renew(a), drop},
			rule{source(a), destination(a), udp.destination(c.Port), marked(RenewalMark), notrack, accept},
			rule{source(a), destination(a), udp.destination(c.Port), marked(AcquireMark), renew(a), drop},
			rule{source(a), destination(a), udp.destination(c.Port), marked(SelfQueryMark), notrack, accept},
			rule{source(a), destination(a), tcp.destination(c.Port), marked(SelfQueryMark), notrack, accept},
		)
	}
	return all
}

// pairQueries are the rules of [Question]: for self-queries that arrive on its devices, and for the server's replies.
// Other packets may not pass the devices: pods could reach the server without a lease, and packets could loop.
func (c Config) pairQueries() (arrivals, replies []rule) {
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

// ownReplies are the rules for replies of the server, and for the health endpoint, which the kubelet of this node
// queries. A reply is never tracked: its entry in connection tracking would hide the client's next query from
// kube-proxy.
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

// rewrites send packets without a lease to cluster DNS. They rewrite each packet; NAT, which sees only the first
// packet of a connection, then finds the Service's address.
func (c Config) rewrites() (all []rule) {
	for _, a := range c.Addresses {
		to, ok := c.fallback(a)
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

// fallbackNAT translates packets that kube-proxy has not translated: the replies of a fallback that is no Service
// are translated back only with an entry of NAT, here to the address that the packet already has.
func (c Config) fallbackNAT() (all []rule) {
	for _, to := range c.Fallback {
		to = c.target(to)
		for _, p := range protocols {
			all = append(all, rule{destination(to), p.destination(c.Port), dnat(to)})
		}
	}
	return all
}

// masquerade replaces the source of packets of the node itself that leave it: the kernel had chosen the node-local
// address, to which other hosts can't reply. It also replaces the source of packets to a replica: network plugins that
// translate sockets deliver the replies of a replica to pods past this host's NAT.
func (c Config) masquerade() (all []rule) {
	for _, a := range c.Addresses {
		if !isLinkLocal6(a) {
			all = append(all, rule{source(a), notLoopback, masquerade})
		}
	}
	for _, r := range c.Replicas {
		for _, p := range protocols {
			all = append(all, rule{destination(r), p.destination(c.Port), translated, masquerade})
		}
	}
	return all
}
