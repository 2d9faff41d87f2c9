package firewall

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers of nftables: one file of 64 bytes, addressed in words of 16 or of 4 bytes.
const (
	registerBytes  = 64
	wideRegister   = 16
	narrowRegister = 4
	firstWide      = unix.NFT_REG_1
	firstNarrow    = 8 // NFT_REG32_00
)

// machine evaluates the expressions of one rule.
type machine struct {
	view
	condition
	table     *table
	registers field
}

// outcomesOf returns what a rule of nftables does with a packet.
func (t *table) outcomesOf(expressions []expr.Any, v view) (all []outcome) {
	m := machine{view: v, condition: always, table: t, registers: unknownBytes(registerBytes, byOther)}
	for _, e := range expressions {
		found, more := m.expression(e)
		all = append(all, m.narrow(found)...)
		if m.match == no || !more {
			break
		}
	}
	return all
}

// offset returns where a register begins in the file.
func offset(register uint32) int {
	if register >= firstNarrow {
		return int(register-firstNarrow) * narrowRegister
	}
	return int(register-firstWide) * wideRegister
}

// words returns how many bytes the words have that n bytes need.
func words(n int) int { return (n + narrowRegister - 1) / narrowRegister * narrowRegister }

// load writes a field into a register; the rest of the last word is 0.
func (m *machine) load(register uint32, b field) {
	at, n := offset(register), words(len(b.value))
	if register == unix.NFT_REG_VERDICT || at < 0 || at+n > registerBytes {
		m.require(unknown, byOther)
		return
	}
	m.registers.set(at, knownBytes(make([]byte, n)...))
	m.registers.set(at, b)
}

// unknownLoad makes a register unknown, and those after it that the same load may have written.
func (m *machine) unknownLoad(register uint32, part string) {
	if at := offset(register); at >= 0 && at < registerBytes {
		m.load(register, unknownBytes(min(wideRegister, registerBytes-at), part))
	}
}

// read returns n bytes from a register.
func (m *machine) read(register uint32, n int) (b field, ok bool) {
	at := offset(register)
	if register == unix.NFT_REG_VERDICT || at < 0 || n == 0 || at+n > registerBytes {
		return b, false
	}
	return m.registers.sub(at, n), true
}

// expression evaluates one expression, and returns what the rule may do there, and whether the next one is
// reached.
func (m *machine) expression(e expr.Any) (found []outcome, more bool) {
	switch e := e.(type) {
	case *expr.Verdict:
		o, ends := verdictOf(e.Kind, e.Chain)
		if !ends {
			return nil, e.Kind != expr.VerdictBreak
		}
		return []outcome{o}, false
	case *expr.Reject:
		return []outcome{{condition: always, action: rejected, verb: "rejects"}}, false
	case *expr.Lookup:
		return m.lookup(e)
	case *expr.Match:
		m.require(m.xtMatch(e))
	case *expr.Target:
		return targetOf(e.Name), true // one that ends the rule is unknown, so that the rest counts too
	case *expr.Counter, *expr.Log, *expr.Notrack, *expr.Dup: // without effect on the verdict
	case *expr.Objref:
		if e.Type != unix.NFT_OBJECT_COUNTER {
			m.require(unknown, byOther)
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadWrite {
			return uncertain(byOther), true // the packet is another one after it
		}
		m.payload(e)
	case *expr.Queue, *expr.TProxy, *expr.SynProxy, *expr.NAT, *expr.Redir, *expr.Masq, *expr.FlowOffload:
		return uncertain(byOther), false
	default:
		m.data(e)
	}
	return nil, true
}

// data evaluates expressions that load, change and compare registers.
func (m *machine) data(e expr.Any) {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			m.meta(e)
		}
	case *expr.Ct:
		if !e.SourceRegister {
			m.ct(e)
		}
	case *expr.Immediate:
		m.load(e.Register, knownBytes(e.Data...))
	case *expr.Bitwise:
		b, ok := m.read(e.SourceRegister, int(e.Len))
		if !ok || len(e.Mask) != len(b.value) || len(e.Xor) != len(b.value) {
			m.unknownLoad(e.DestRegister, byOther)
			return
		}
		m.load(e.DestRegister, b.masked(e.Mask, e.Xor))
	case *expr.Cmp:
		b, ok := m.read(e.Register, len(e.Data))
		if !ok {
			m.require(unknown, byOther)
			return
		}
		m.require(compare(b, e.Op, e.Data), b.depends()...)
	case *expr.Range:
		b, ok := m.read(e.Register, len(e.FromData))
		if !ok || len(e.FromData) != len(e.ToData) {
			m.require(unknown, byOther)
			return
		}
		in := b.within(e.FromData, e.ToData)
		if e.Op == expr.CmpOpNeq {
			in = in.not()
		}
		m.require(in, b.depends()...)
	case *expr.Fib:
		m.fib(e)
	case *expr.Limit:
		m.require(unknown, byRate)
	default: // it may load or compare anything
		m.require(unknown, byOther)
		m.registers = unknownBytes(registerBytes, byOther)
	}
}

func compare(b field, op expr.CmpOp, data []byte) truth {
	switch op {
	case expr.CmpOpEq:
		return b.equal(data)
	case expr.CmpOpNeq:
		return b.equal(data).not()
	case expr.CmpOpLt:
		return b.below(data, false)
	case expr.CmpOpLte:
		return b.below(data, true)
	case expr.CmpOpGt:
		return b.below(data, true).not()
	case expr.CmpOpGte:
		return b.below(data, false).not()
	}
	return unknown
}

// meta loads metadata of a packet.
func (m *machine) meta(e *expr.Meta) {
	if b, unknownPart := m.metadata(e.Key); unknownPart == "" {
		m.load(e.Register, b)
	} else {
		m.unknownLoad(e.Register, unknownPart)
	}
}

// Values of the kernel in metadata.
const (
	ethernet4, ethernet6 = 0x0800, 0x86dd
	toThisHost           = 0 // PACKET_HOST
	loopbackType         = 772
	loopbackIndex        = 1
	localAddress         = 2 // RTN_LOCAL
)

// metadata returns metadata that the kernel has of a packet, such as its interface, or the part of the packet
// that it belongs to if nothing is known of it.
func (p Packet) metadata(key expr.MetaKey) (b field, unknownPart string) {
	family, ethertype := byte(unix.NFPROTO_IPV4), uint16(ethernet4)
	if p.Address.Is6() {
		family, ethertype = unix.NFPROTO_IPV6, ethernet6
	}
	index, name, kind := expr.MetaKeyIIF, expr.MetaKeyIIFNAME, expr.MetaKeyIIFTYPE
	if p.Reply {
		index, name, kind = expr.MetaKeyOIF, expr.MetaKeyOIFNAME, expr.MetaKeyOIFTYPE
	}
	switch key {
	case expr.MetaKeyNFPROTO:
		return knownBytes(family), ""
	case expr.MetaKeyL4PROTO:
		return knownBytes(p.Protocol), ""
	case expr.MetaKeyPROTOCOL:
		return knownBytes(binary.BigEndian.AppendUint16(nil, ethertype)...), ""
	case index:
		return notLoopback(binary.NativeEndian.AppendUint32(nil, loopbackIndex)), ""
	case kind:
		return notLoopback(binary.NativeEndian.AppendUint16(nil, loopbackType)), ""
	case name:
		lo := make([]byte, unix.IFNAMSIZ)
		copy(lo, "lo")
		return notLoopback(lo), ""
	case expr.MetaKeyPKTTYPE:
		if !p.Reply {
			return knownBytes(toThisHost), ""
		}
	case expr.MetaKeyMARK:
		return b, byMark
	case expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP:
		return b, byInterface
	}
	return b, byOther
}

// notLoopback returns an unknown property of the interface that does not have this value, which is that of lo.
func notLoopback(value []byte) field {
	b := unknownBytes(len(value), byInterface)
	b.not = []exclusion{{0, value}}
	return b
}

// ct loads a field of connection tracking. An untracked packet has only the state; a rule that tests
// another field does not match it.
func (m *machine) ct(e *expr.Ct) {
	state, known := m.state()
	switch {
	case !known:
		m.unknownLoad(e.Register, byState)
	case e.Key == expr.CtKeySTATE:
		m.load(e.Register, knownBytes(binary.NativeEndian.AppendUint32(nil, uint32(state))...))
	case state == stateUntracked:
		m.require(no)
	default:
		m.unknownLoad(e.Register, byState)
	}
}

// payload loads a part of a header.
func (m *machine) payload(e *expr.Payload) {
	var header field
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		header = m.networkHeader()
	case expr.PayloadBaseTransportHeader:
		header = m.transportHeader()
	}
	if int(e.Offset+e.Len) > len(header.value) {
		m.require(unknown, byOther) // it may not be there, which ends the rule
		m.unknownLoad(e.DestRegister, byOther)
		return
	}
	m.load(e.DestRegister, header.sub(int(e.Offset), int(e.Len)))
}

// fib loads the result of a lookup in the routing tables: the node-local address is one of the node.
func (m *machine) fib(e *expr.Fib) {
	own := e.FlagDADDR && !m.Reply || e.FlagSADDR && m.Reply
	if e.ResultADDRTYPE && own && e.FlagDADDR != e.FlagSADDR && !e.FlagIIF && !e.FlagOIF && !e.FlagMARK {
		m.load(e.Register, knownBytes(binary.NativeEndian.AppendUint32(nil, localAddress)...))
		return
	}
	m.require(unknown, byOther) // without a route it ends the rule
	m.unknownLoad(e.Register, bySource)
}

// verdictOf returns the outcome of a verdict; ends is false if the next rule follows.
func verdictOf(kind expr.VerdictKind, chain string) (o outcome, ends bool) {
	o = outcome{condition: always, chain: chain}
	const code = 0xff // a queue has its number in the bits above
	if kind > 0 {
		kind &= code
	}
	switch kind {
	case expr.VerdictContinue, expr.VerdictBreak:
		return o, false
	case expr.VerdictAccept:
		o.action = accepts
	case expr.VerdictDrop:
		o.action, o.verb = rejected, "drops"
	case expr.VerdictJump:
		o.action = jumps
	case expr.VerdictGoto:
		o.action = goes
	case expr.VerdictReturn:
		o.action = returns
	default:
		o.action = either
	}
	return o, true
}
