package firewall

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// xtMatch evaluates a match of iptables that is a part of a rule of nftables. iptables uses the highest revision of a
// match that the kernel has; every kernel with nftables has these.
func (v view) xtMatch(e *expr.Match) (match truth, depends string) {
	switch info := e.Info.(type) {
	case *xt.Comment:
		return yes, ""
	case *xt.Udp:
		return v.ports(info.SrcPorts, info.DstPorts, info.InvFlags&xt.UdpInvSrcPorts != 0, info.InvFlags&xt.UdpInvDestPorts != 0)
	case *xt.Tcp:
		match, depends = v.ports(info.SrcPorts, info.DstPorts, info.InvFlags&xt.TcpInvSrcPorts != 0, info.InvFlags&xt.TcpInvDestPorts != 0)
		flags := is(v.flags()&info.FlagsMask == info.FlagsCmp)
		if info.InvFlags&xt.TcpInvFlags != 0 {
			flags = flags.not()
		}
		if info.Option != 0 {
			return min(match, flags, unknown), byHeader
		}
		return min(match, flags), depends
	case *xt.ConntrackMtinfo3:
		return v.conntrack(info)
	case *xt.AddrTypeV1:
		return v.addressType(info)
	case *xt.Unknown:
		if e.Name == "multiport" && e.Rev == 1 {
			return v.multiport(*info)
		}
	}
	return unknownMatch(e.Name)
}

// matchParts are the unknown parts of a packet that matches depend on which are not evaluated.
var matchParts = map[string]string{
	"mark": byMark, "connmark": byMark, "limit": byRate, "hashlimit": byRate,
	"iprange": bySource, "recent": bySource, "set": bySource, "physdev": byInterface,
}

// unknownMatch returns the result of a match that is not evaluated.
func unknownMatch(name string) (truth, string) {
	if part, ok := matchParts[name]; ok {
		return unknown, part
	}
	return unknown, "the match " + name + " of iptables, which is not evaluated"
}

// maxPorts is the size of the lists in the match multiport, multiportSize that of its data
// (linux/netfilter/xt_multiport.h): which ports, how many numbers, the numbers, which of them begin a range,
// and whether the match is inverted.
const (
	maxPorts      = 15
	multiportSize = 2 + 2*maxPorts + maxPorts + 1
)

// multiport evaluates a list of ports.
func (v view) multiport(data []byte) (truth, string) {
	options := []string{"--sports", "--dports", "--ports"}
	if len(data) < multiportSize || data[1] > maxPorts || int(data[0]) >= len(options) {
		return unknown, byOther
	}
	var list strings.Builder
	for i := range int(data[1]) {
		fmt.Fprint(&list, binary.NativeEndian.Uint16(data[2+2*i:]))
		switch beginsRange := data[2+2*maxPorts+i] != 0; {
		case i+1 == int(data[1]):
		case beginsRange:
			list.WriteByte(':')
		default:
			list.WriteByte(',')
		}
	}
	match, depends := v.portIn(options[data[0]], list.String())
	if data[multiportSize-1] != 0 {
		match = match.not()
	}
	return match, depends
}

// ports evaluates ranges of the source and the destination port.
func (v view) ports(source, target [2]uint16, notSource, notTarget bool) (truth, string) {
	local, remote, notLocal, notRemote := target, source, notTarget, notSource
	if v.Reply {
		local, remote, notLocal, notRemote = source, target, notSource, notTarget
	}
	match := is(local[0] <= v.Port && v.Port <= local[1] != notLocal)
	if every := (remote == [2]uint16{0, 0xffff}); !every {
		return min(match, unknown), bySourcePort
	} else if notRemote {
		return no, ""
	}
	return match, ""
}

// stateIn returns whether the state of the packet is one of the mask.
func (v view) stateIn(mask uint16) (truth, string) {
	state, known := v.state()
	if !known {
		return unknown, byState
	}
	return is(mask&state != 0), ""
}

// conntrack evaluates the matches conntrack and state. Of a packet that is not tracked they compare only the state.
func (v view) conntrack(info *xt.ConntrackMtinfo3) (truth, string) {
	state, known := v.state()
	untracked := known && state == stateUntracked
	fields := xt.ConntrackFlags(info.MatchFlags)
	switch {
	case fields&xt.ConntrackState == 0 && untracked:
		return no, ""
	case fields&xt.ConntrackState == 0:
		return unknown, byState
	}
	const xtUntracked = 1 << 8 // linux/netfilter/xt_conntrack.h, where stateUntracked is another bit
	mask := info.StateMask &^ stateUntracked
	if mask&xtUntracked != 0 {
		mask |= stateUntracked
	}
	match, depends := v.stateIn(mask)
	if xt.ConntrackFlags(info.InvertFlags)&xt.ConntrackState != 0 {
		match = match.not()
	}
	if fields&^(xt.ConntrackState|xt.ConntrackStateAlias) != 0 && !untracked {
		return min(match, unknown), byState
	}
	return match, depends
}

// addressType evaluates the match addrtype: the node-local address is one of the node.
func (v view) addressType(info *xt.AddrTypeV1) (truth, string) {
	const invertSource, invertTarget, limits = 1, 2, 4 | 8 // flags; limits to an interface
	if info.Flags&limits != 0 {
		return unknown, byInterface
	}
	local, remote, invert := info.Dest, info.Source, info.Flags&invertTarget != 0
	if v.Reply {
		local, remote, invert = info.Source, info.Dest, info.Flags&invertSource != 0
	}
	match := yes
	if local != 0 {
		match = is(local&(1<<localAddress) != 0 != invert)
	}
	if remote != 0 {
		return min(match, unknown), bySource
	}
	return match, ""
}

// continuing are the targets of iptables after which the next rule follows.
var continuing = []string{
	"AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DSCP", "ECN", "HL", "HMARK", "IDLETIMER", "LED", "LOG",
	"MARK", "NFLOG", "NOTRACK", "RATEEST", "SECMARK", "SET", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS", "TRACE", "TTL", "ULOG",
}

// targetOf returns what a target of iptables does.
func targetOf(name string) []outcome {
	switch {
	case name == "REJECT":
		return []outcome{{condition: always, action: rejected, verb: "rejects"}}
	case slices.Contains(continuing, name):
		return nil
	}
	return uncertain("the target " + name + " of iptables, which is not evaluated")
}
