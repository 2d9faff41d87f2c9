package firewall

import "encoding/binary"

// Unknown parts of a packet, as findings name them.
const (
	bySource      = "the address of the pod"
	bySourcePort  = "the port of the pod"
	byInterface   = "the interface"
	byMark        = "the packet's mark"
	byState       = "the state of connection tracking"
	byRate        = "a rate limit"
	byOther       = "a match that is not evaluated"
	byHeader      = "other parts of the packet"
	bySetContents = "a set that cannot be evaluated"
)

// Offsets and lengths of headers in bytes, and flags (RFC 791, 8200, 768, 9293).
const (
	header4, header6     = 20, 40
	protocol4, protocol6 = 9, 6
	fragment4            = 6
	source4, source6     = 12, 8
	target4, target6     = 16, 24
	headerTCP, headerUDP = 20, 8
	flagsTCP             = 13
	flagSYN, flagACK     = 0x02, 0x10
	version4, version6   = 0x45, 0x60
)

// States of connection tracking, as the kernel numbers them for nftables and the match state of iptables.
const (
	stateInvalid     = 1
	stateEstablished = 2
	stateRelated     = 4
	stateNew         = 8
	stateUntracked   = 64
)

// view is a packet as the chains of a hook see it.
type view struct {
	Packet
	// stateUnknown is whether the chain is called before the state of the packet is decided.
	stateUnknown bool
}

// state returns the state of connection tracking, if it is known.
func (v view) state() (state uint16, known bool) {
	switch {
	case v.stateUnknown:
		return 0, false
	case !v.Tracked:
		return stateUntracked, true
	case v.Reply:
		return stateEstablished, true
	}
	return stateNew, true
}

// networkHeader returns the IP header: the bytes that are the same in every such packet; the others are
// unknown. The packet has no fragments, and IPv6 no traffic class.
func (p Packet) networkHeader() field {
	size, protocol, local, remote := header4, protocol4, target4, source4
	if p.Address.Is6() {
		size, protocol, local, remote = header6, protocol6, target6, source6
	}
	if p.Reply {
		local, remote = remote, local
	}
	b, address := unknownBytes(size, byHeader), p.Address.AsSlice()
	b.set(protocol, knownBytes(p.Protocol))
	b.set(local, knownBytes(address...))
	b.set(remote, unknownBytes(len(address), bySource))
	if p.Address.Is4() {
		b.set(0, knownBytes(version4))
		b.set(fragment4, knownBytes(0, 0))
	} else {
		b.set(0, knownBytes(version6))
	}
	return b
}

// transportHeader returns the UDP or TCP header: the bytes that are the same in every such packet; the others
// are unknown.
func (p Packet) transportHeader() field {
	local, remote := 2, 0
	if p.Reply {
		local, remote = remote, local
	}
	b := unknownBytes(headerUDP, byHeader)
	if p.Protocol == TCP {
		b = unknownBytes(headerTCP, byHeader)
		b.set(flagsTCP, knownBytes(p.flags()))
	}
	b.set(local, knownBytes(binary.BigEndian.AppendUint16(nil, p.Port)...))
	b.set(remote, unknownBytes(2, bySourcePort))
	return b
}

// flags are those of the first segment of TCP.
func (p Packet) flags() byte {
	if p.Reply {
		return flagSYN | flagACK
	}
	return flagSYN
}
