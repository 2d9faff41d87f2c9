package firewall

import (
	"encoding/binary"
)

// What the result of an evaluation may depend on, in words.
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
	noFragment           = 0x3f // of the first byte of the fragment offset: all but two flags
	ethernet4, ethernet6 = 0x0800, 0x86dd
	toThisHost           = 0 // PACKET_HOST
	loopbackType         = 772
	loopbackIndex        = 1
	localAddress         = 2 // RTN_LOCAL
)

// States of connection tracking, as the kernel numbers them for nftables.
const (
	stateEstablished = 2
	stateNew         = 8
	stateUntracked   = 64
)

// networkHeader returns the bits of the IP header that are the same in every such packet; the others are unknown.
func (p Packet) networkHeader() bits {
	size, protocol, local, remote := header4, protocol4, target4, source4
	if p.Address.Is6() {
		size, protocol, local, remote = header6, protocol6, target6, source6
	}
	if p.Reply {
		local, remote = remote, local
	}
	b := unknownBits(size)
	set := func(offset int, value ...byte) {
		copy(b.value[offset:], value)
		copy(b.known[offset:], knownBits(value...).known)
	}
	set(protocol, p.Protocol)
	set(local, p.Address.AsSlice()...)
	if p.Address.Is4() {
		set(0, version4)
		set(fragment4, 0, 0)
		b.known[fragment4] = noFragment
	} else {
		set(0, version6)
		b.known[0] = 0xf0
	}
	return b
}

// remote is where the address of the pod is in the IP header.
func (p Packet) remote() (offset, size int) {
	switch {
	case p.Address.Is4() && p.Reply:
		return target4, 4
	case p.Address.Is4():
		return source4, 4
	case p.Reply:
		return target6, 16
	}
	return source6, 16
}

// transportHeader returns the bits of the UDP or TCP header that are the same in every such packet; the others are
// unknown.
func (p Packet) transportHeader() bits {
	size := headerUDP
	if p.Protocol == TCP {
		size = headerTCP
	}
	b := unknownBits(size)
	offset := 2
	if p.Reply {
		offset = 0
	}
	binary.BigEndian.PutUint16(b.value[offset:], p.Port)
	b.known[offset], b.known[offset+1] = 0xff, 0xff
	if p.Protocol == TCP {
		b.value[flagsTCP], b.known[flagsTCP] = p.flags(), 0xff
	}
	return b
}

// flags are those of the first segment of TCP.
func (p Packet) flags() byte {
	if p.Reply {
		return flagSYN | flagACK
	}
	return flagSYN
}

// state is the state of connection tracking, if it is known.
func (v view) state() (state uint32, known bool) {
	switch {
	case v.stateUnknown:
		return 0, false
	case !v.packet.Tracked:
		return stateUntracked, true
	case v.packet.Reply:
		return stateEstablished, true
	}
	return stateNew, true
}
