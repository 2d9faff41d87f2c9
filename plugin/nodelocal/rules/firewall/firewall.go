// Package firewall evaluates the packet filters of the node for DNS packets of pods. It reads the filter
// rules of nftables and of both kinds of iptables from the kernel, and returns the chains that drop or
// reject such a packet. It changes nothing, and may not import CoreDNS.
//
// The evaluation has three values, since not all of a packet is known: neither its source address nor
// its interface, other than that it is not lo. A rule that tests something unknown may match or not.
// A packet is rejected for certain if no choice for such rules accepts it, and accepted if none
// rejects it. Otherwise the verdict depends on the packet, and the default is that of a packet which no
// such rule matches.
package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is a packet of DNS between a pod and a node-local address.
type Packet struct {
	Address  netip.Addr // the node-local one
	Port     uint16     // of that address
	Protocol uint8      // UDP or TCP; of TCP the packet is the first segment
	Reply    bool       // the packet is an answer
	// Tracked is true if connection tracking processes the packet, since the node has no rules of nodecache. A query is
	// then new, an answer established.
	Tracked bool
}

// Protocol numbers of packets.
const (
	UDP = 17
	TCP = 6
)

// String returns the packet in a few words, such as "UDP to 169.254.20.10".
func (p Packet) String() string {
	protocol, direction := "UDP", "to"
	if p.Protocol == TCP {
		protocol = "TCP"
	}
	if p.Reply {
		direction = "from"
	}
	return fmt.Sprintf("%s %s %s", protocol, direction, p.Address)
}

// Packets returns the packets of queries to addresses, over UDP and TCP, and then those of the answers.
func Packets(addresses []netip.Addr, port uint16, tracked bool) (all []Packet) {
	for _, reply := range []bool{false, true} {
		for _, a := range addresses {
			for _, protocol := range []uint8{UDP, TCP} {
				all = append(all, Packet{a, port, protocol, reply, tracked})
			}
		}
	}
	return all
}

// Chain is a chain that a hook of the kernel calls.
type Chain struct {
	Legacy      bool   // a chain of iptables-legacy, not of nftables
	Family      string // ip, ip6 or inet
	Table, Name string // as nft and iptables print them
	Hook        string // prerouting, input, output or postrouting
}

// String names the chain.
func (c Chain) String() string {
	text := fmt.Sprintf("chain %s %s %s", c.Family, c.Table, c.Name)
	if c.Legacy {
		return "iptables-legacy, " + text
	}
	return text
}

// Finding is a chain that drops or rejects packets, unless a rule matches that depends on unknown parts
// of them.
type Finding struct {
	Chain   Chain    // of the hook
	Rule    string   // the policy of the chain, or a rule of it or of a chain that it calls, with its verdict
	Packets []Packet // the rejected ones
	// Unless are the rules that accept some of the packets, with the unknown parts that they test.
	// Without any, the packets are rejected for certain.
	Unless []string
}

// Certain returns whether no such packet is accepted.
func (f Finding) Certain() bool { return len(f.Unless) == 0 }

// addresses returns the node-local addresses of the packets.
func (f Finding) addresses() (all []netip.Addr) {
	for _, p := range f.Packets {
		if !slices.Contains(all, p.Address) {
			all = append(all, p.Address)
		}
	}
	return all
}

// Traffic returns the packets in a few words, such as "UDP and TCP to 169.254.20.10, fd00::a". They have
// the direction of the hook.
func (f Finding) Traffic() string {
	var both, parts []string
	for _, a := range f.addresses() {
		var packets []Packet
		for _, p := range f.Packets {
			if p.Address == a {
				packets = append(packets, p)
			}
		}
		switch {
		case len(packets) == 1:
			parts = append(parts, packets[0].String())
		case len(both) == 0:
			both = append(both, strings.Replace(packets[0].String(), "UDP", "UDP and TCP", 1))
		default:
			both = append(both, a.String())
		}
	}
	if len(both) > 0 {
		parts = append([]string{strings.Join(both, ", ")}, parts...)
	}
	return strings.Join(parts, "; ")
}

// maxUnless limits the rules that a finding names.
const maxUnless = 3

// evaluate returns the chains that reject packets.
func evaluate(bases []base, packets []Packet) (findings []Finding, err error) {
	for _, b := range bases {
		for _, p := range packets {
			if !b.sees(p) {
				continue
			}
			r := b.walk(p)
			if r.err != nil && err == nil {
				err = fmt.Errorf("%s: %w", b.chain, r.err)
			}
			if r.byDefault == rejected {
				findings = addFinding(findings, Finding{Chain: b.chain, Rule: r.place, Packets: []Packet{p}, Unless: r.texts()})
			}
		}
	}
	return findings, err
}

// addFinding adds a finding, or its packets to a finding of the same rule.
func addFinding(all []Finding, f Finding) []Finding {
	for i := range all {
		if have := &all[i]; have.Chain == f.Chain && have.Rule == f.Rule && slices.Equal(have.Unless, f.Unless) {
			have.Packets = append(have.Packets, f.Packets...)
			return all
		}
	}
	return append(all, f)
}
