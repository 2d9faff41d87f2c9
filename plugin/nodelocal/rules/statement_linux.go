package rules

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rule is a list of statements.
type rule []statement

// statement is one match or action of a rule: as nft prints it, and as expressions for the kernel.
type statement struct {
	text string
	add  func(*expressions)
}

// text returns the rule as nft prints it.
func (r rule) text() string {
	parts := make([]string, len(r))
	for i, s := range r {
		parts[i] = s.text
	}
	return strings.Join(parts, " ")
}

// expressions returns the rule as the kernel receives it.
func (r rule) expressions() []expr.Any {
	var e expressions
	for _, s := range r {
		s.add(&e)
	}
	return e.all
}

// register is the only register that rules need: each statement loads and uses it at once.
const register = 1

// expressions are the expressions of one rule. Before it loads fields of a header, a rule must match the header's
// protocol once.
type expressions struct {
	all       []expr.Any
	family    bool // the address family is matched
	transport bool // the transport protocol is matched
}

func (e *expressions) append(all ...expr.Any) { e.all = append(e.all, all...) }

// equal appends a comparison of the register.
func (e *expressions) equal(data []byte) { e.append(compare(expr.CmpOpEq, data)) }

// load loads a field of the IP header with the address family of a.
func (e *expressions) load(f field, a netip.Addr) {
	if !e.family {
		e.append(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register})
		e.equal([]byte{nfproto(a)})
		e.family = true
	}
	p := f.payload(a)
	p.DestRegister = register
	e.append(p)
}

// statusDNAT is IPS_DST_NAT of the kernel: NAT has changed the destination of the connection.
const statusDNAT = 1 << 5

func compare(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: register, Data: data}
}

// fixed returns a statement without parameters.
func fixed(text string, all ...expr.Any) statement {
	return statement{text, func(e *expressions) { e.append(all...) }}
}

var (
	notrack    = fixed("notrack", &expr.Notrack{})
	accept     = fixed("accept", &expr.Verdict{Kind: expr.VerdictAccept})
	drop       = fixed("drop", &expr.Verdict{Kind: expr.VerdictDrop})
	masquerade = fixed("masquerade", &expr.Masq{})
	untracked  = fixed("ct state untracked",
		&expr.Ct{Key: expr.CtKeySTATE, Register: register},
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitUNTRACKED), Xor: make([]byte, 4),
		},
		compare(expr.CmpOpNeq, make([]byte, 4)))
	translated = fixed("ct status dnat",
		&expr.Ct{Key: expr.CtKeySTATUS, Register: register},
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(statusDNAT), Xor: make([]byte, 4),
		},
		compare(expr.CmpOpNeq, make([]byte, 4)))
	notLoopback = fixed(`oifname != "lo"`,
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register}, compare(expr.CmpOpNeq, interfaceName("lo")))
	// deliveredHere matches packets whose route, by destination, source and mark, is to this host: for any other route the
	// lookup returns an interface. A lookup in table local only (fib daddr type) would miss the rules of policy routing
	// that precede that table. The lookup considers neither the packet's interface nor its ports.
	deliveredHere = fixed("fib daddr . mark oif missing",
		&expr.Fib{Register: register, ResultOIF: true, FlagDADDR: true, FlagMARK: true, FlagPRESENT: true},
		compare(expr.CmpOpEq, make([]byte, 4)))
	// hasSocket matches packets to a socket of this host, except sockets of transparent proxies.
	hasSocket = fixed("socket transparent 0",
		&expr.Socket{Key: expr.SocketKeyTransparent, Register: register}, compare(expr.CmpOpEq, []byte{0}))
)

// marked matches packets with a mark.
func marked(mark uint32) statement {
	return fixed(fmt.Sprintf("meta mark %#08x", mark),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register}, compare(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(mark)))
}

// arrivedOn matches packets that an interface has received.
func arrivedOn(name string) statement {
	return fixed(fmt.Sprintf("iifname %q", name),
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}, compare(expr.CmpOpEq, interfaceName(name)))
}

// notArrivedOn matches packets that any interface but this one has received.
func notArrivedOn(name string) statement {
	return fixed(fmt.Sprintf("iifname != %q", name),
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}, compare(expr.CmpOpNeq, interfaceName(name)))
}

// count adds the packet to a counter of the table.
func count(name string) statement {
	return fixed(fmt.Sprintf("counter name %q", name), &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name})
}

// interfaceName returns a name as the kernel compares it: padded with NUL bytes.
func interfaceName(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// dnat translates the destination of a connection.
func dnat(to netip.Addr) statement {
	return fixed(fmt.Sprintf("dnat %s to %s", family(to), to),
		&expr.Immediate{Register: register, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfproto(to)), RegAddrMin: register})
}

// field is an address in the IP header.
type field struct {
	name             string
	offset4, offset6 uint32 // in bytes (RFC 791, RFC 8200)
}

var (
	sourceField      = field{"saddr", 12, 8}
	destinationField = field{"daddr", 16, 24}
)

// text returns the field of the address family of a as nft prints it.
func (f field) text(a netip.Addr) string { return family(a) + " " + f.name }

func (f field) payload(a netip.Addr) *expr.Payload {
	p := &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.offset4, Len: 4}
	if a.Is6() {
		p.Offset, p.Len = f.offset6, 16
	}
	return p
}

func (f field) is(a netip.Addr) statement {
	return statement{f.text(a) + " " + a.String(), func(e *expressions) {
		e.load(f, a)
		e.equal(a.AsSlice())
	}}
}

// set rewrites the field, and the checksums that cover it: of the IPv4 header and, through the pseudo header,
// of UDP or TCP.
func (f field) set(to netip.Addr) statement {
	const ip4Checksum = 10 // offset in bytes (RFC 791)
	p := f.payload(to)
	p.OperationType, p.SourceRegister, p.CsumFlags = expr.PayloadWrite, register, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR
	if to.Is4() {
		p.CsumType, p.CsumOffset = expr.CsumTypeInet, ip4Checksum
	}
	return fixed(f.text(to)+" set "+to.String(), &expr.Immediate{Register: register, Data: to.AsSlice()}, p)
}

func source(a netip.Addr) statement              { return sourceField.is(a) }
func destination(a netip.Addr) statement         { return destinationField.is(a) }
func rewriteSource(to netip.Addr) statement      { return sourceField.set(to) }
func rewriteDestination(to netip.Addr) statement { return destinationField.set(to) }

// inLease matches packets to leased addresses of a's family.
func inLease(a netip.Addr) statement {
	return statement{destinationField.text(a) + " @" + leaseSet(a), func(e *expressions) {
		e.load(destinationField, a)
		e.append(&expr.Lookup{SourceRegister: register, SetName: leaseSet(a)})
	}}
}

// renew adds the packet's destination, of a's family, to the lease set for another [Lease].
func renew(a netip.Addr) statement {
	text := fmt.Sprintf("update @%s { %s timeout %s }", leaseSet(a), destinationField.text(a), Lease)
	return statement{text, func(e *expressions) {
		e.load(destinationField, a)
		e.append(&expr.Dynset{SrcRegKey: register, SetName: leaseSet(a), Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: Lease})
	}}
}

// transport is UDP or TCP.
type transport struct {
	name   string
	number byte
}

var (
	udp       = transport{"udp", unix.IPPROTO_UDP}
	tcp       = transport{"tcp", unix.IPPROTO_TCP}
	protocols = []transport{udp, tcp}
)

func (t transport) source(port uint16) statement      { return t.port("sport", 0, port) }
func (t transport) destination(port uint16) statement { return t.port("dport", 2, port) }

// port matches a port at an offset in bytes of the header (RFC 768, RFC 9293).
func (t transport) port(name string, offset uint32, port uint16) statement {
	return statement{fmt.Sprintf("%s %s %d", t.name, name, port), func(e *expressions) {
		if !e.transport {
			e.append(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register})
			e.equal([]byte{t.number})
			e.transport = true
		}
		e.append(&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
		e.equal(binaryutil.BigEndian.PutUint16(port))
	}}
}

// family returns the address family as nft names it.
func family(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

func nfproto(a netip.Addr) byte {
	if a.Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
