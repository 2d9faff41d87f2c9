#!/usr/bin/env bash
# Linux, from 5.8 (which added CTA_FILTER) to at least 6.18: a listing of connection tracking that the kernel filters by an IPv6 address
# returns the flows that do NOT have it. For IPv4 the same request returns the flows that have it.
#
# A program that asks for the flows to one IPv6 address, for example to delete those of a Service's endpoint, gets all others and not
# the one, without an error. The conntrack tool (1.4.7) does not show this: it reads all flows and compares the addresses itself. The
# filters by protocol and port are right for both families, so that a program can filter by those and compare addresses.
#
# Needs Go, nft (Debian: nftables), iproute2 and root. It works in a network namespace of its own, and exits with 0 while the kernel
# behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd -- "$work"
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/mdlayher/netlink v1.8.0
MOD
cat >main.go <<'GO'
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
)

// check stops the program with an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// flowsTo returns how many flows to UDP port 4000 the kernel lists, of all or of those to one destination.
func flowsTo(family byte, destination netip.Addr) int {
	const tuple, address, protocol, filter = 1, 1, 2, 25 // CTA_TUPLE_ORIG, CTA_TUPLE_IP, CTA_TUPLE_PROTO, CTA_FILTER
	fields := uint32(1<<3 | 1<<5)                        // protocol and destination port
	a := netlink.NewAttributeEncoder()
	a.Nested(tuple, func(a *netlink.AttributeEncoder) error {
		if destination.IsValid() {
			fields |= 1 << 1
			a.Nested(address, func(a *netlink.AttributeEncoder) error {
				kind := uint16(2) // CTA_IP_V4_DST
				if destination.Is6() {
					kind = 4
				}
				a.Bytes(kind, destination.AsSlice())
				return nil
			})
		}
		a.Nested(protocol, func(a *netlink.AttributeEncoder) error {
			a.Uint8(1, 17)
			a.Bytes(3, binary.BigEndian.AppendUint16(nil, 4000))
			return nil
		})
		return nil
	})
	a.Nested(filter, func(a *netlink.AttributeEncoder) error {
		a.Uint32(1, fields)
		return nil
	})
	data, err := a.Encode()
	check(err)
	c, err := netlink.Dial(12, nil) // NETLINK_NETFILTER
	check(err)
	flows, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: 1<<8 | 1, Flags: netlink.Request | netlink.Dump}, // IPCTNL_MSG_CT_GET
		Data:   append([]byte{family, 0, 0, 0}, data...),
	})
	check(err)
	check(c.Close())
	return len(flows)
}

func main() {
	for _, f := range []struct {
		family    byte
		addresses []string
	}{
		{2, []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}},
		{10, []string{"fd00::1", "fd00::2", "fd00::3"}},
	} {
		for _, text := range f.addresses {
			c, err := net.Dial("udp", net.JoinHostPort(text, "4000"))
			check(err)
			_, err = c.Write([]byte("x"))
			check(err)
		}
		fmt.Printf("%d flows, one to each of %v:", flowsTo(f.family, netip.Addr{}), f.addresses)
		for _, text := range f.addresses {
			fmt.Printf(" %s lists %d", text, flowsTo(f.family, netip.MustParseAddr(text)))
		}
		fmt.Println()
	}
}
GO
go mod tidy 2>tidy || { cat tidy; exit 1; }
go build -o flows .
unshare --net bash -euo pipefail -c '
	ip link set lo up
	for a in fd00::1 fd00::2 fd00::3; do ip address add "$a/128" dev lo nodad; done
	nft "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c ct state new counter"
	./flows
' | tee seen
echo "mdlayher/netlink $(go list -m -f '{{.Version}}' github.com/mdlayher/netlink), Linux $(uname -r)"
grep -qx '3 flows, one to each of \[127.0.0.1 127.0.0.2 127.0.0.3\]: 127.0.0.1 lists 1 127.0.0.2 lists 1 127.0.0.3 lists 1' seen
grep -qx '3 flows, one to each of \[fd00::1 fd00::2 fd00::3\]: fd00::1 lists 2 fd00::2 lists 2 fd00::3 lists 2' seen
