package rules

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// register is the only register that rules need: each statement loads and uses it at once.
const register = 1

// Where addresses and ports are in their headers, in bytes (RFC 791, RFC 8200, RFC 768, RFC 9293).
const (
	ip4Source, ip4Destination   = 12, 16
	ip4Checksum                 = 10
	ip6Source, ip6Destination   = 8, 24
	portSource, portDestination = 0, 2
	portLength                  = 2
)

// expressions returns what the kernel is given for a rule. A match of a header is preceded by a match
// of the protocol that has the header, once per rule.
func (r rule) expressions() []expr.Any {
	b := builder{}
	for _, s := range r {
		b.add(s)
	}
	return b.all
}

// builder collects the expressions of one rule.
type builder struct {
	all       []expr.Any
	family    bool // the address family is matched
	transport bool // the transport protocol is matched
}

func (b *builder) add(s statement) {
	switch s.kind {
	case kindSource:
		b.load(s.addr, ip4Source, ip6Source)
		b.equal(s.addr.AsSlice())
	case kindDestination:
		b.load(s.addr, ip4Destination, ip6Destination)
		b.equal(s.addr.AsSlice())
	case kindInLease:
		b.load(s.addr, ip4Destination, ip6Destination)
		b.append(&expr.Lookup{SourceRegister: register, SetName: leaseSet(s.addr)})
	case kindRenew:
		b.load(s.addr, ip4Destination, ip6Destination)
		b.append(&expr.Dynset{SrcRegKey: register, SetName: leaseSet(s.addr), Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: Lease})
	case kindUDPTCPSource:
		b.port(s, portSource)
	case kindUDPTCPDestination:
		b.port(s, portDestination)
	case kindRewrite:
		b.rewrite(s.addr, ip4Destination, ip6Destination)
	case kindRewriteSource:
		b.rewrite(s.addr, ip4Source, ip6Source)
	case kindDNAT:
		b.append(
			&expr.Immediate{Register: register, Data: s.addr.AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfproto(s.addr)), RegAddrMin: register},
		)
	default:
		b.simple(s)
	}
}

// simple adds a statement that looks at no header.
func (b *builder) simple(s statement) {
	switch s.kind {
	case kindMarked:
		b.append(&expr.Meta{Key: expr.MetaKeyMARK, Register: register})
		b.equal(binaryutil.NativeEndian.PutUint32(s.mark))
	case kindUntracked:
		b.append(
			&expr.Ct{Key: expr.CtKeySTATE, Register: register},
			&expr.Bitwise{
				SourceRegister: register, DestRegister: register, Len: 4,
				Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitUNTRACKED), Xor: make([]byte, 4),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)},
		)
	case kindHasSocket:
		b.append(&expr.Socket{Key: expr.SocketKeyTransparent, Register: register})
		b.equal([]byte{0})
	case kindNotLoopback:
		b.append(
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: interfaceName("lo")},
		)
	case kindArrivedOn:
		b.append(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register})
		b.equal(interfaceName(s.name))
	case kindMasquerade:
		b.append(&expr.Masq{})
	case kindNotrack:
		b.append(&expr.Notrack{})
	case kindAccept:
		b.append(&expr.Verdict{Kind: expr.VerdictAccept})
	case kindDrop:
		b.append(&expr.Verdict{Kind: expr.VerdictDrop})
	}
}

// interfaceName is a name as the kernel compares it: with its NUL bytes.
func interfaceName(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

func (b *builder) append(e ...expr.Any) { b.all = append(b.all, e...) }

func (b *builder) equal(data []byte) {
	b.append(&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data})
}

// load loads an address of a's family from the packet.
func (b *builder) load(a netip.Addr, offset4, offset6 uint32) {
	if !b.family {
		b.append(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register})
		b.equal([]byte{nfproto(a)})
		b.family = true
	}
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset4, Len: 4}
	if a.Is6() {
		p.Offset, p.Len = offset6, 16
	}
	b.append(p)
}

func (b *builder) port(s statement, offset uint32) {
	if !b.transport {
		b.append(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register})
		b.equal([]byte{s.l4})
		b.transport = true
	}
	b.append(&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: portLength})
	b.equal(binaryutil.BigEndian.PutUint16(s.port))
}

// rewrite writes an address of the header, and mends the checksums that cover it: that of the IPv4
// header and, through the pseudo header, that of UDP or TCP.
func (b *builder) rewrite(to netip.Addr, offset4, offset6 uint32) {
	p := &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: register, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset4, Len: 4,
		CsumType: expr.CsumTypeInet, CsumOffset: ip4Checksum, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
	}
	if to.Is6() {
		p.Offset, p.Len = offset6, 16
		p.CsumType, p.CsumOffset = expr.CsumTypeNone, 0
	}
	b.append(&expr.Immediate{Register: register, Data: to.AsSlice()}, p)
}

func nfproto(a netip.Addr) byte {
	if a.Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// hooks are the netfilter hooks by the names that nft has for them.
var hooks = map[string]*nftables.ChainHook{
	"prerouting":  nftables.ChainHookPrerouting,
	"input":       nftables.ChainHookInput,
	"output":      nftables.ChainHookOutput,
	"postrouting": nftables.ChainHookPostrouting,
}
