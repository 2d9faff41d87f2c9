// Package firewall evaluates the packet filters of the node for DNS packets of pods. In go packets and
// the filter rules of the kernel, of nftables and of both kinds of iptables; out come the chains that
// drop or reject such a packet. It changes nothing, and may not import CoreDNS.
//
// The evaluation has three values, since not all of a packet is known: neither its source address nor
// its interface, other than that it is not lo. A rule that tests something unknown may match or not.
// A packet is rejected for certain if no choice for such rules accepts it, and accepted if none
// rejects it. Anything else depends on the packet, and the default is what happens where no such rule
// matches.
package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is a packet of DNS between a pod and a node-local address.
type Packet struct {
	// Address is the node-local address; Port is its port.
	Address netip.Addr
	Port    uint16
	// Protocol is the IP protocol number of UDP or TCP. Of TCP it is the first segment.
	Protocol uint8
	// Reply is false for packets of the pod, true for the answers.
	Reply bool
	// Tracked is true where connection tracking sees the packet, since the node has no rules of
	// nodecache. A query is then new, an answer established.
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

// Queries returns the packets that carry queries to addresses, over UDP and TCP.
func Queries(addresses []netip.Addr, port uint16, tracked bool) (all []Packet) {
	for _, a := range addresses {
		for _, protocol := range []uint8{UDP, TCP} {
			all = append(all, Packet{Address: a, Port: port, Protocol: protocol, Tracked: tracked})
		}
	}
	return all
}

// Replies returns the packets that carry the answers to Queries.
func Replies(addresses []netip.Addr, port uint16, tracked bool) []Packet {
	all := Queries(addresses, port, tracked)
	for i := range all {
		all[i].Reply = true
	}
	return all
}

// Packets returns those of Queries and of Replies.
func Packets(addresses []netip.Addr, port uint16, tracked bool) []Packet {
	return append(Queries(addresses, port, tracked), Replies(addresses, port, tracked)...)
}

// Verdict is what happens to a packet.
type Verdict int

// The verdicts of an evaluation.
const (
	// Accepted: no chain can drop or reject the packet.
	Accepted Verdict = iota
	// Depends: what happens depends on what is not known of the packet.
	Depends
	// Rejected: a chain drops or rejects the packet for certain.
	Rejected
)

// Chain is a chain that a hook of the kernel calls.
type Chain struct {
	// Legacy is true for a chain of iptables-legacy, false for one of nftables.
	Legacy bool
	// Family is ip, ip6 or inet; Table and Name are as nft and iptables print them.
	Family, Table, Name string
	// Hook is prerouting, input, output or postrouting.
	Hook string
}

// String names the chain.
func (c Chain) String() string {
	text := fmt.Sprintf("chain %s %s %s", c.Family, c.Table, c.Name)
	if c.Legacy {
		return "iptables-legacy, " + text
	}
	return text
}

// Finding is a chain that drops or rejects packets, unless a rule matches that depends on what is not
// known of them.
type Finding struct {
	// Chain is the chain of the hook.
	Chain Chain
	// Rule is what drops or rejects them: the policy of the chain, or a rule of it or of a chain that
	// it calls.
	Rule string
	// Packets are the packets concerned.
	Packets []Packet
	// Unless are the rules that accept some of the packets, with what they depend on. Without any, the
	// packets are rejected for certain.
	Unless []string
}

// Certain returns whether no such packet is accepted.
func (f Finding) Certain() bool { return len(f.Unless) == 0 }

// Addresses returns the node-local addresses of the packets.
func (f Finding) Addresses() (all []netip.Addr) {
	for _, p := range f.Packets {
		if !slices.Contains(all, p.Address) {
			all = append(all, p.Address)
		}
	}
	return all
}

// Traffic returns the packets in a few words, such as "UDP and TCP to 169.254.20.10".
func (f Finding) Traffic() string {
	var parts, both []string
	for _, p := range f.Packets {
		text := p.String()
		protocol, rest, _ := strings.Cut(text, " ")
		if protocol == "TCP" && slices.Contains(parts, "UDP "+rest) {
			parts = slices.DeleteFunc(parts, func(s string) bool { return s == "UDP "+rest })
			both = append(both, rest)
			continue
		}
		parts = append(parts, text)
	}
	for i, rest := range both {
		if i > 0 {
			_, rest, _ = strings.Cut(rest, " ")
		}
		both[i] = rest
	}
	if len(both) > 0 {
		parts = append([]string{"UDP and TCP " + strings.Join(both, ", ")}, parts...)
	}
	return strings.Join(parts, "; ")
}

// maxUnless bounds the rules that a finding names.
const maxUnless = 3

// evaluate returns what the chains do with the packets, and the verdict on each packet.
func evaluate(bases []base, packets []Packet) (findings []Finding, verdicts []Verdict, err error) {
	verdicts = make([]Verdict, len(packets))
	for _, b := range bases {
		for i, p := range packets {
			if !b.sees(p) {
				continue
			}
			r := b.walk(p)
			if r.err != nil && err == nil {
				err = fmt.Errorf("%s: %w", b.chain, r.err)
			}
			switch {
			case !r.may.reject:
			case !r.may.accept:
				verdicts[i] = Rejected
			default:
				verdicts[i] = max(verdicts[i], Depends)
			}
			if r.always == rejected {
				findings = addFinding(findings, Finding{Chain: b.chain, Rule: r.place, Packets: []Packet{p}, Unless: r.texts()})
			}
		}
	}
	return findings, verdicts, err
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
