package firewall

import (
	"bytes"
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// States of connection tracking that a query has, with nodecache's rules and without them. In the match conntrack of
// iptables, untracked has another bit (linux/netfilter/xt_conntrack.h).
const (
	stateNew         = 1 << 3
	stateUntracked   = 1 << 6
	xtStateUntracked = 1 << 8
)

// read reads the expressions of a rule. A register has the packet's field that was loaded last, nil if it is unknown.
func (p Packet) read(expressions []expr.Any) (m match, verdicts []verdict) {
	m = always
	registers := map[uint32][]byte{}
	var previous expr.Any
	for _, e := range expressions {
		switch e := e.(type) {
		case *expr.Verdict:
			verdicts = append(verdicts, verdict{actions[e.Kind], e.Chain})
		case *expr.Reject:
			verdicts = append(verdicts, verdict{action: rejects})
		case *expr.Target:
			if e.Name == "REJECT" {
				verdicts = append(verdicts, verdict{action: rejects})
			}
		case *expr.Meta:
			registers[e.Register] = p.metadata(e.Key)
		case *expr.Payload:
			registers[e.DestRegister] = p.field(e)
		case *expr.Ct:
			registers[e.Register] = nil
		case *expr.Bitwise:
			value := registers[e.SourceRegister]
			if ct, ok := previous.(*expr.Ct); ok && ct.Key == expr.CtKeySTATE && len(e.Mask) == 4 && binary.NativeEndian.Uint32(e.Mask)&(stateNew|stateUntracked) == 0 {
				value = make([]byte, len(e.Mask)) // the query has none of these states
			}
			registers[e.DestRegister] = masked(value, e)
		case *expr.Cmp:
			m = min(m, compare(registers[e.Register], e))
		case *expr.Match:
			m = min(m, p.xtMatch(e))
		case *expr.Immediate, *expr.Counter, *expr.Log, *expr.Notrack: // they test nothing
		default:
			m = min(m, maybe)
		}
		previous = e
	}
	return m, verdicts
}

// compare returns whether a comparison is true for a value; maybe for an unknown value, or an operator other than == and !=.
func compare(value []byte, e *expr.Cmp) match {
	if len(value) != len(e.Data) || e.Op != expr.CmpOpEq && e.Op != expr.CmpOpNeq {
		return maybe
	}
	return is(bytes.Equal(value, e.Data) == (e.Op == expr.CmpOpEq))
}

// masked returns a value after a bitwise operation.
func masked(value []byte, e *expr.Bitwise) []byte {
	if len(e.Mask) != len(value) || len(e.Xor) != len(value) {
		return nil
	}
	out := make([]byte, len(value))
	for i := range value {
		out[i] = value[i]&e.Mask[i] ^ e.Xor[i]
	}
	return out
}

// metadata returns the protocols of a packet; other metadata is not known.
func (p Packet) metadata(key expr.MetaKey) []byte {
	family, ethertype := byte(unix.NFPROTO_IPV4), uint16(unix.ETH_P_IP)
	if p.To.Addr().Is6() {
		family, ethertype = unix.NFPROTO_IPV6, unix.ETH_P_IPV6
	}
	switch key {
	case expr.MetaKeyL4PROTO:
		return []byte{p.Protocol}
	case expr.MetaKeyNFPROTO:
		return []byte{family}
	case expr.MetaKeyPROTOCOL:
		return binary.BigEndian.AppendUint16(nil, ethertype)
	}
	return nil
}

// field returns the part of a header that an expression loads: of the protocol, the node-local address or its port.
func (p Packet) field(e *expr.Payload) []byte {
	const protocol4, protocol6, target4, target6, targetPort, portBytes = 9, 6, 16, 24, 2, 2 // offsets (RFC 791, 8200, 768)
	protocol, target := protocol4, target4
	if p.To.Addr().Is6() {
		protocol, target = protocol6, target6
	}
	address, from, to := p.To.Addr().AsSlice(), int(e.Offset)-target, int(e.Offset+e.Len)-target
	switch {
	case e.OperationType == expr.PayloadWrite:
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == targetPort && e.Len == portBytes:
		return binary.BigEndian.AppendUint16(nil, p.To.Port())
	case e.Base != expr.PayloadBaseNetworkHeader:
	case int(e.Offset) == protocol && e.Len == 1:
		return []byte{p.Protocol}
	case 0 <= from && from < to && to <= len(address):
		return address[from:to]
	}
	return nil
}

// xtMatch returns whether a match of iptables that is a part of a rule of nftables applies to a packet.
func (p Packet) xtMatch(e *expr.Match) match {
	ports := func(source, target [2]uint16, plain bool) match {
		if plain && source == [2]uint16{0, 0xffff} {
			return is(target[0] <= p.To.Port() && p.To.Port() <= target[1])
		}
		return maybe
	}
	switch info := e.Info.(type) {
	case *xt.Comment:
		return always
	case *xt.Udp:
		return ports(info.SrcPorts, info.DstPorts, info.InvFlags == 0)
	case *xt.Tcp:
		return ports(info.SrcPorts, info.DstPorts, info.InvFlags == 0 && info.FlagsMask == 0 && info.Option == 0)
	case *xt.ConntrackMtinfo3:
		if xt.ConntrackFlags(info.MatchFlags)&xt.ConntrackState != 0 && info.InvertFlags == 0 && info.StateMask&(stateNew|xtStateUntracked) == 0 {
			return never
		}
	}
	return maybe
}
