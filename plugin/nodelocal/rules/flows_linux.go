package rules

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h.
const (
	flowFilter       = 25          // CTA_FILTER, since Linux 5.8; older ones return all flows
	flowFilterFields = 1           // CTA_FILTER_ORIG_FLAGS
	protocolAndPort  = 1<<3 | 1<<5 // of the destination; the filter by IPv6 address is inverted at least up to Linux 6.18
	translatedFlow   = 1 << 5      // IPS_DST_NAT
)

// forgetFlows deletes the entries of connection tracking of flows to addresses with a fallback that were not translated:
// their first packet came while the table was missing. NAT translates a flow as its first packet: a fallback would receive
// the later packets, by the rules that rewrite each of them, and its replies would not be translated back.
func (c Config) forgetFlows(ctx context.Context) error {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		addresses := map[netip.Addr]bool{}
		for _, a := range c.Addresses {
			if _, ok := c.fallback(a); ok && a.Is4() == (family == nftables.TableFamilyIPv4) {
				addresses[a] = true
			}
		}
		for _, p := range protocols {
			if len(addresses) == 0 {
				break
			}
			if err := forgetFlows(ctx, family, p.number, c.Port, addresses); err != nil {
				return &KernelError{"delete flows", err}
			}
		}
	}
	return nil
}

func forgetFlows(ctx context.Context, family nftables.TableFamily, protocol byte, port uint16, addresses map[netip.Addr]bool) error {
	filter, err := flowsTo(protocol, port)
	if err != nil {
		return err
	}
	var found [][]byte
	err = request(ctx, unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, netlink.Dump, family, filter, func(flow *netlink.AttributeDecoder) error {
		id, to, status := netlink.NewAttributeEncoder(), destinationOfFlow{}, uint32(0)
		for flow.Next() {
			switch flow.Type() {
			case nl.CTA_TUPLE_ORIG:
				id.Bytes(flow.Type()|unix.NLA_F_NESTED, flow.Bytes())
				flow.Nested(to.read)
			case nl.CTA_ZONE, nl.CTA_ID:
				id.Bytes(flow.Type(), flow.Bytes())
			case nl.CTA_STATUS:
				status = flow.Uint32()
			}
		}
		if !addresses[to.addr] || to.protocol != protocol || to.port != port || status&translatedFlow != 0 {
			return nil
		}
		attributes, err := id.Encode()
		found = append(found, attributes)
		return err
	})
	for _, id := range found {
		if err == nil {
			err = request(ctx, unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, netlink.Acknowledge, family, id, nil)
		}
		if errors.Is(err, unix.ENOENT) { // the entry has expired
			err = nil
		}
	}
	return err
}

// flowsTo returns the attributes of a request for the flows to a port.
func flowsTo(protocol byte, port uint16) ([]byte, error) {
	a := netlink.NewAttributeEncoder()
	a.Nested(nl.CTA_TUPLE_ORIG, func(a *netlink.AttributeEncoder) error {
		a.Nested(nl.CTA_TUPLE_PROTO, func(a *netlink.AttributeEncoder) error {
			a.Uint8(nl.CTA_PROTO_NUM, protocol)
			a.Bytes(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, port))
			return nil
		})
		return nil
	})
	a.Nested(flowFilter, func(a *netlink.AttributeEncoder) error {
		a.Uint32(flowFilterFields, protocolAndPort)
		return nil
	})
	return a.Encode()
}

// destinationOfFlow is the destination of a flow.
type destinationOfFlow struct {
	addr     netip.Addr
	protocol byte
	port     uint16
}

// read reads the attributes of a tuple, which are nested.
func (d *destinationOfFlow) read(tuple *netlink.AttributeDecoder) error {
	for tuple.Next() {
		part := tuple.Type()
		tuple.Nested(func(a *netlink.AttributeDecoder) error {
			for a.Next() {
				switch {
				case part == nl.CTA_TUPLE_IP && (a.Type() == nl.CTA_IP_V4_DST || a.Type() == nl.CTA_IP_V6_DST):
					d.addr, _ = netip.AddrFromSlice(a.Bytes())
				case part == nl.CTA_TUPLE_PROTO && a.Type() == nl.CTA_PROTO_NUM:
					d.protocol = a.Uint8()
				case part == nl.CTA_TUPLE_PROTO && a.Type() == nl.CTA_PROTO_DST_PORT:
					d.port = a.Uint16()
				}
			}
			return nil
		})
	}
	return nil
}
