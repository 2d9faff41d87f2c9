package firewall

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// matchOf evaluates a match of iptables that is a part of a rule of nftables.
func matchOf(e *expr.Match, v view) (match truth, depends string) {
	switch info := e.Info.(type) {
	case *xt.Comment:
		return yes, ""
	case *xt.Udp:
		return v.ports(info.SrcPorts, info.DstPorts, info.InvFlags&xt.UdpInvSrcPorts != 0, info.InvFlags&xt.UdpInvDestPorts != 0)
	case *xt.Tcp:
		match, depends = v.ports(info.SrcPorts, info.DstPorts, info.InvFlags&xt.TcpInvSrcPorts != 0, info.InvFlags&xt.TcpInvDestPorts != 0)
		flags := is(v.packet.flags()&info.FlagsMask == info.FlagsCmp)
		if info.InvFlags&xt.TcpInvFlags != 0 {
			flags = flags.not()
		}
		if info.Option != 0 {
			return min(match, flags, unknown), byHeader
		}
		return min(match, flags), depends
	case *xt.ConntrackMtinfo1:
		return v.conntrack(info.ConntrackMtinfoBase, uint16(info.StateMask))
	case *xt.ConntrackMtinfo2:
		return v.conntrack(info.ConntrackMtinfoBase, info.StateMask)
	case *xt.ConntrackMtinfo3:
		return v.conntrack(info.ConntrackMtinfoBase, info.StateMask)
	case *xt.AddrType:
		return v.addressType(info.Source, info.Dest, info.InvertSource, info.InvertDest, 0)
	case *xt.AddrTypeV1:
		const invertSource, invertDest = 1, 2
		return v.addressType(info.Source, info.Dest, info.Flags&invertSource != 0, info.Flags&invertDest != 0, uint32(info.Flags))
	case *xt.Unknown:
		return unknownMatch(e.Name, e.Rev, *info, v)
	}
	return unknown, dependsOnMatch(e.Name)
}

// dependsOnMatch returns what a match that is not evaluated depends on.
func dependsOnMatch(name string) string {
	switch name {
	case "mark", "connmark":
		return byMark
	case "limit", "hashlimit":
		return byRate
	case "iprange", "recent", "set":
		return bySource
	case "physdev":
		return byInterface
	}
	return "the match " + name + " of iptables, which is not evaluated"
}

// unknownMatch evaluates matches whose data the library does not read.
func unknownMatch(name string, revision uint32, data []byte, v view) (truth, string) {
	switch {
	case name == "comment":
		return yes, ""
	case name == "state" && len(data) >= 4:
		mask := uint16(binary.NativeEndian.Uint32(data))
		if mask&stateMatchUntracked != 0 {
			mask |= xtUntracked
		}
		return v.stateIn(mask)
	case name == "multiport" && revision == 1:
		return v.multiport(data)
	}
	return unknown, dependsOnMatch(name)
}

// Fields of the match multiport (linux/netfilter/xt_multiport.h): which ports, how many numbers, the
// numbers, which of them begin a range, and whether the match is inverted.
const (
	multiportPorts  = 15
	multiportSource = 0
	multiportTarget = 1
	multiportSize   = 2 + 2*multiportPorts + multiportPorts + 1
)

// multiport evaluates a list of ports.
func (v view) multiport(data []byte) (truth, string) {
	if len(data) < multiportSize || data[1] > multiportPorts {
		return unknown, byOther
	}
	which, count := data[0], int(data[1])
	known := byte(multiportTarget)
	if v.packet.Reply {
		known = multiportSource
	}
	in := false
	for i := 0; i < count; i++ {
		from := binary.NativeEndian.Uint16(data[2+2*i:])
		to := from
		if rangeBegins := data[2+2*multiportPorts+i] != 0; rangeBegins && i+1 < count {
			i++
			to = binary.NativeEndian.Uint16(data[2+2*i:])
		}
		in = in || from <= v.packet.Port && v.packet.Port <= to
	}
	match := is(in)
	switch {
	case which == known:
	case which == multiportSource || which == multiportTarget || !in:
		match = unknown
	}
	if data[multiportSize-1] != 0 {
		match = match.not()
	}
	return match, bySourcePort
}

// ports evaluates ranges of the source and the destination port.
func (v view) ports(source, target [2]uint16, notSource, notTarget bool) (truth, string) {
	local, remote, notLocal, notRemote := target, source, notTarget, notSource
	if v.packet.Reply {
		local, remote, notLocal, notRemote = source, target, notSource, notTarget
	}
	match := is(local[0] <= v.packet.Port && v.packet.Port <= local[1] != notLocal)
	if every := (remote == [2]uint16{0, 0xffff}); !every {
		return min(match, unknown), bySourcePort
	} else if notRemote {
		return no, ""
	}
	return match, ""
}

// State bits of the match conntrack (linux/netfilter/xt_conntrack.h), and of the match state where that
// differs (xt_state.h).
const (
	xtInvalid     = 1 << 0
	xtEstablished = 1 << 1
	xtRelated     = 1 << 2
	xtNew         = 1 << 3
	xtUntracked   = 1 << 8

	stateMatchUntracked = 1 << 6
)

// stateIn returns whether the state of the packet is one of a mask.
func (v view) stateIn(mask uint16) (truth, string) {
	state, known := v.state()
	if !known {
		return unknown, byState
	}
	bit := map[uint32]uint16{stateUntracked: xtUntracked, stateNew: xtNew, stateEstablished: xtEstablished}[state]
	return is(mask&bit != 0), ""
}

// conntrack evaluates the match conntrack, which compares nothing but the state of a packet that is
// not tracked.
func (v view) conntrack(info xt.ConntrackMtinfoBase, mask uint16) (truth, string) {
	byStateOnly := xt.ConntrackFlags(info.MatchFlags)&^(xt.ConntrackState|xt.ConntrackStateAlias) == 0
	if xt.ConntrackFlags(info.MatchFlags)&xt.ConntrackState == 0 {
		if state, known := v.state(); known && state == stateUntracked {
			return no, ""
		}
		return unknown, byState
	}
	match, depends := v.stateIn(mask)
	if xt.ConntrackFlags(info.InvertFlags)&xt.ConntrackState != 0 {
		match = match.not()
	}
	if state, known := v.state(); !byStateOnly && (!known || state != stateUntracked) {
		return min(match, unknown), byState
	}
	return match, depends
}

// addressType evaluates the match addrtype: the node-local address is one of the node.
func (v view) addressType(source, target uint16, notSource, notTarget bool, flags uint32) (truth, string) {
	const limits = 4 | 8 // to an interface
	if flags&limits != 0 {
		return unknown, byInterface
	}
	local, remote, invert := target, source, notTarget
	if v.packet.Reply {
		local, remote, invert = source, target, notSource
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

// Targets of iptables that let the packet go on to the next rule.
var continuing = []string{
	"AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DSCP", "ECN", "HL", "HMARK", "IDLETIMER", "LED", "LOG",
	"MARK", "NFLOG", "NOTRACK", "RATEEST", "SECMARK", "SET", "TCPMSS", "TCPOPTSTRIP", "TEE", "TOS", "TRACE", "TTL", "ULOG",
}

// targetOf returns what a target of iptables does.
func targetOf(name string) []outcome {
	switch {
	case name == "REJECT":
		return []outcome{{match: yes, action: rejected, verb: "rejects"}}
	case slices.Contains(continuing, name):
		return nil
	}
	return []outcome{{match: unknown, action: either, depends: []string{"the target " + name + " of iptables, which is not evaluated"}}}
}
