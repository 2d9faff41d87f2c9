// Package firewall names the packet filters of other programs that may drop or reject queries of pods: the chains of
// nftables and of both kinds of iptables that the hooks ingress, prerouting and input call. It reads them from the kernel and
// changes nothing, and may not import CoreDNS.
//
// A chain is named if its policy drops, or if a rule of it or of a chain that it calls drops or rejects. Of a rule only
// the plain tests are read: protocol, node-local address, port, and states of connection tracking that no query of a pod
// has. A rule whose plain tests exclude the query is left out. A rule that has only plain tests and accepts the query ends
// the chain. Other tests, such as those of interfaces and sources, may be true or not, so that a named chain is only
// suspected. Plugin nodelocal proves by packets whether queries arrive.
package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Packet is a packet of a pod's query to a node-local address.
type Packet struct {
	Protocol uint8 // UDP or TCP
	To       netip.AddrPort
}

// Protocol numbers of packets.
const (
	UDP = 17
	TCP = 6
)

// Packets returns the packets of queries to addresses, over UDP and TCP.
func Packets(addresses []netip.Addr, port uint16) (all []Packet) {
	for _, a := range addresses {
		all = append(all, Packet{UDP, netip.AddrPortFrom(a, port)}, Packet{TCP, netip.AddrPortFrom(a, port)})
	}
	return all
}

// Chain is a chain that a hook of the kernel calls.
type Chain struct {
	Legacy      bool   // a chain of iptables-legacy, not of nftables
	Family      string // ip, ip6 or inet; netdev at the hook ingress
	Table, Name string // as nft and iptables print them
	Hook        string // prerouting, input or ingress
}

// String names the chain.
func (c Chain) String() string {
	text := fmt.Sprintf("chain %s %s %s", c.Family, c.Table, c.Name)
	if c.Legacy {
		return "iptables-legacy, " + text
	}
	return text
}

// Suspect is a chain that may drop or reject packets.
type Suspect struct {
	Chain   Chain
	Rule    string   // its policy, or rules of it or of chains that it calls, with their verdicts
	Packets []Packet // that it may drop
}

// Traffic returns the packets in a few words, such as "UDP and TCP to 169.254.20.10, fd00::a".
func (s Suspect) Traffic() string {
	to := map[uint8][]string{}
	for _, p := range s.Packets {
		to[p.Protocol] = append(to[p.Protocol], p.To.Addr().String())
	}
	if slices.Equal(to[UDP], to[TCP]) {
		return "UDP and TCP to " + strings.Join(to[UDP], ", ")
	}
	var parts []string
	for _, protocol := range []struct {
		number uint8
		name   string
	}{{UDP, "UDP"}, {TCP, "TCP"}} {
		if addresses := to[protocol.number]; len(addresses) > 0 {
			parts = append(parts, protocol.name+" to "+strings.Join(addresses, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// match is whether a rule applies to a packet, as far as its plain tests show.
type match int

const (
	never match = iota
	maybe       // the rule has other tests as well
	always
)

// is returns always or never.
func is(b bool) match {
	if b {
		return always
	}
	return never
}

// action is the effect of a rule on a packet.
type action int

const (
	passes action = iota // to the next rule
	accepts
	drops
	rejects
	jumps
	goes // a jump that does not return here
	returns
)

// verdict is an action, with the chain of jumps and goes.
type verdict struct {
	action action
	chain  string
}

// rule is one rule of a chain.
type rule struct {
	text string                          // names the rule in its chain, such as "rule with handle 7"
	read func(Packet) (match, []verdict) // several verdicts are those of a map
}

// base is a chain that a hook calls.
type base struct {
	Chain
	drops bool                               // its policy
	rules func(chain string) ([]rule, error) // of its table
}

// suspects returns the chains that may drop or reject packets.
func suspects(bases []base, packets []Packet) (all []Suspect, err error) {
	for _, b := range bases {
		for _, p := range packets {
			if b.Hook != "prerouting" && b.Hook != "input" || b.Family != "inet" && (b.Family == "ip") != p.To.Addr().Is4() {
				continue
			}
			rule, unread := b.dropping(p)
			if err == nil && unread != nil {
				err = fmt.Errorf("%s: %w", b.Chain, unread)
			}
			i := slices.IndexFunc(all, func(s Suspect) bool { return s.Chain == b.Chain && s.Rule == rule })
			switch {
			case rule == "":
			case i >= 0:
				all[i].Packets = append(all[i].Packets, p)
			default:
				all = append(all, Suspect{b.Chain, rule, []Packet{p}})
			}
		}
	}
	return all, err
}

// maxPartly is the max. number of rules that are named for a chain.
const maxPartly = 3

// dropping names the rule or the policy that drops a packet, or else the rules that drop some such packets; "" for none.
func (b base) dropping(p Packet) (text string, err error) {
	r := reader{b, p, map[string]result{}, &err}
	found := r.chain(b.Name)
	switch {
	case found.end == drops:
		return found.rule, err
	case found.end != accepts && b.drops:
		return "its policy drops", err
	}
	return strings.Join(found.partly[:min(len(found.partly), maxPartly)], ", "), err
}

// result is the effect of a chain on a packet.
type result struct {
	end    action   // of its plain rules: accepts, drops, or passes at the end of the chain
	rule   string   // that drops, with its verdict
	partly []string // the rules that drop some such packets
}

// reader reads the chains of one base for one packet.
type reader struct {
	base   base
	packet Packet
	done   map[string]result
	err    *error
}

// proxyChains are those of kube-proxy and the kubelet in iptables, which drop only marked packets and those to Services.
var proxyChains = []string{"KUBE-FIREWALL", "KUBE-PROXY-FIREWALL"}

// chain returns the result of a chain, which it reads once.
func (r reader) chain(name string) (found result) {
	if known, ok := r.done[name]; ok || slices.Contains(proxyChains, name) {
		return known
	}
	r.done[name] = result{} // a loop, which the kernel refuses, ends here
	defer func() { r.done[name] = found }()
	rules, err := r.base.rules(name)
	*r.err = errors.Join(*r.err, err)
	left := false // some such packets have returned to the calling chain
	for _, next := range rules {
		m, verdicts := next.read(r.packet)
		if m == never {
			continue
		}
		text := next.text
		if name != r.base.Name {
			text += " of chain " + name
		}
		for _, v := range verdicts {
			called := r.follow(v, text)
			switch {
			case called.end == drops && (m == maybe || left):
				called = result{partly: append(called.partly, called.rule+" some packets")}
			case left:
				called.end = passes
			}
			for _, rule := range called.partly {
				if !slices.Contains(found.partly, rule) {
					found.partly = append(found.partly, rule)
				}
			}
			left = left || v.action == returns || v.action == goes && called.end == passes
			if m == always && (called.end != passes || v.action != passes && v.action != jumps) {
				found.end, found.rule = called.end, called.rule
				return found
			}
		}
	}
	return found
}

// follow returns the result of a verdict.
func (r reader) follow(v verdict, rule string) result {
	switch v.action {
	case accepts:
		return result{end: accepts}
	case drops:
		return result{end: drops, rule: rule + " drops"}
	case rejects:
		return result{end: drops, rule: rule + " rejects"}
	case jumps, goes:
		return r.chain(v.chain)
	}
	return result{}
}
