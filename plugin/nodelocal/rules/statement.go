package rules

import (
	"fmt"
	"net/netip"
	"strings"
)

// rule is a list of statements.
type rule []statement

// text is the rule as nft prints it.
func (r rule) text() string {
	parts := make([]string, len(r))
	for i, s := range r {
		parts[i] = s.text
	}
	return strings.Join(parts, " ")
}

// statement is one match or action of a rule, in both forms: as nft prints it, and as what the kernel
// is given (see nftables_linux.go).
type statement struct {
	text string
	kind kind
	addr netip.Addr
	name string // of an interface
	port uint16
	mark uint32
	l4   uint8 // protocol number
}

type kind int

const (
	kindSource kind = iota
	kindDestination
	kindInLease
	kindUDPTCPSource
	kindUDPTCPDestination
	kindMarked
	kindUntracked
	kindNotLoopback
	kindHasSocket
	kindRenew
	kindRewriteSource
	kindRewrite
	kindArrivedOn
	kindDNAT
	kindMasquerade
	kindNotrack
	kindAccept
	kindDrop
)

// Statements without parameters.
var (
	notrack     = statement{text: "notrack", kind: kindNotrack}
	accept      = statement{text: "accept", kind: kindAccept}
	drop        = statement{text: "drop", kind: kindDrop}
	untracked   = statement{text: "ct state untracked", kind: kindUntracked}
	notLoopback = statement{text: `oifname != "lo"`, kind: kindNotLoopback}
	// hasSocket matches packets for which there is a socket, of those that are not transparent proxies'.
	hasSocket  = statement{text: "socket transparent 0", kind: kindHasSocket}
	masquerade = statement{text: "masquerade", kind: kindMasquerade}
)

func source(a netip.Addr) statement {
	return statement{text: fmt.Sprintf("%s saddr %s", family(a), a), kind: kindSource, addr: a}
}

func destination(a netip.Addr) statement {
	return statement{text: fmt.Sprintf("%s daddr %s", family(a), a), kind: kindDestination, addr: a}
}

// inLease matches packets to leased addresses of a's family.
func inLease(a netip.Addr) statement {
	return statement{text: fmt.Sprintf("%s daddr @%s", family(a), leaseSet(a)), kind: kindInLease, addr: a}
}

func marked(mark uint32) statement {
	return statement{text: fmt.Sprintf("meta mark %#08x", mark), kind: kindMarked, mark: mark}
}

// renew puts the packet's destination, of a's family, into the lease set for another [Lease].
func renew(a netip.Addr) statement {
	text := fmt.Sprintf("update @%s { %s daddr timeout %s }", leaseSet(a), family(a), Lease)
	return statement{text: text, kind: kindRenew, addr: a}
}

// arrivedOn matches packets that an interface has received.
func arrivedOn(name string) statement {
	return statement{text: fmt.Sprintf("iifname %q", name), kind: kindArrivedOn, name: name}
}

func rewriteSource(to netip.Addr) statement {
	return statement{text: fmt.Sprintf("%s saddr set %s", family(to), to), kind: kindRewriteSource, addr: to}
}

func rewriteDestination(to netip.Addr) statement {
	return statement{text: fmt.Sprintf("%s daddr set %s", family(to), to), kind: kindRewrite, addr: to}
}

func dnat(to netip.Addr) statement {
	return statement{text: fmt.Sprintf("dnat %s to %s", family(to), to), kind: kindDNAT, addr: to}
}

// transport is UDP or TCP.
type transport struct {
	name   string
	number uint8
}

var (
	udp       = transport{"udp", 17}
	tcp       = transport{"tcp", 6}
	protocols = []transport{udp, tcp}
)

func (t transport) source(port uint16) statement {
	return statement{text: fmt.Sprintf("%s sport %d", t.name, port), kind: kindUDPTCPSource, l4: t.number, port: port}
}

func (t transport) destination(port uint16) statement {
	return statement{text: fmt.Sprintf("%s dport %d", t.name, port), kind: kindUDPTCPDestination, l4: t.number, port: port}
}

// family is the address family as nft names it.
func family(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

func leaseSet(a netip.Addr) string {
	if a.Is4() {
		return lease4
	}
	return lease6
}
