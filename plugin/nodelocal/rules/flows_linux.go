package rules

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/internal/nft"
)

// Constants of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h.
const (
	translatedFlow = 1 << 5 // IPS_DST_NAT
	statusMask     = 26     // CTA_STATUS_MASK, with CTA_STATUS a filter since Linux 5.15
	flowFilter     = 25     // CTA_FILTER, since Linux 5.8
	filteredFields = 1      // CTA_FILTER_ORIG_FLAGS

	// The fields of a filter. The kernel inverts the filter of the address for IPv6, at least up to Linux 6.18.
	destinationAddress         = 1 << 1
	protocolAndDestinationPort = 1<<3 | 1<<5
)

// ForgetFlows deletes the entries of connection tracking of flows to addresses with a fallback that were not translated:
// their first packet arrived while there was no table. NAT decides for a flow by its first packet. The rules rewrite each later
// packet, so that the fallback would receive it, and the replies would not be translated back. Entries in zones belong to other
// programs, such as virtual switches, and stay. On a node with 100,000s of flows it may take seconds.
func (c Config) ForgetFlows(ctx context.Context) (err error) {
	for _, a := range c.Addresses {
		if _, ok := c.fallback(a); !ok {
			continue
		}
		for _, p := range protocols {
			err = errors.Join(err, endpoint{a, p.number, c.Port}.forgetFlows(ctx))
		}
	}
	return err
}

// endpoint is the destination of a flow.
type endpoint struct {
	addr     netip.Addr
	protocol byte
	port     uint16
}

func (d endpoint) forgetFlows(ctx context.Context) error {
	family := byte(unix.NFPROTO_IPV4)
	if d.addr.Is6() {
		family = unix.NFPROTO_IPV6
	}
	filter, err := d.filter()
	if err != nil {
		return &KernelError{"filter flows", err}
	}
	var stale [][]byte
	err = nft.Request(ctx, unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, netlink.Dump, family, filter, func(_ byte, flow *netlink.AttributeDecoder) error {
		id, err := d.staleFlow(flow)
		if id != nil {
			stale = append(stale, id)
		}
		return err
	})
	if err != nil {
		return &KernelError{"list flows", err}
	}
	for _, id := range stale {
		deleted := nft.Request(ctx, unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, netlink.Acknowledge, family, id, nil)
		if deleted != nil && !errors.Is(deleted, unix.ENOENT) { // else it has expired
			err = deleted
		}
	}
	if err != nil {
		return &KernelError{"delete flows", err}
	}
	return nil
}

// staleFlow returns the attributes that identify a flow if it is to d, not translated, and in no zone; nil otherwise.
func (d endpoint) staleFlow(flow *netlink.AttributeDecoder) (id []byte, err error) {
	var number, tuple []byte
	to, stale := endpoint{}, true
	for flow.Next() {
		switch flow.Type() {
		case nl.CTA_TUPLE_ORIG:
			tuple = flow.Bytes()
			flow.Nested(to.read)
		case nl.CTA_ID:
			number = flow.Bytes()
		case nl.CTA_STATUS:
			stale = stale && flow.Uint32()&translatedFlow == 0
		case nl.CTA_ZONE:
			stale = false
		}
	}
	if to != d || !stale {
		return nil, nil
	}
	a := netlink.NewAttributeEncoder()
	a.Bytes(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, tuple)
	a.Bytes(nl.CTA_ID, number)
	return a.Encode()
}

// filter returns the attributes of a request for the untranslated flows to d. Older kernels ignore a part of them, or all.
func (d endpoint) filter() ([]byte, error) {
	fields := uint32(protocolAndDestinationPort)
	a := netlink.NewAttributeEncoder()
	a.Nested(nl.CTA_TUPLE_ORIG, func(a *netlink.AttributeEncoder) error {
		if d.addr.Is4() {
			fields |= destinationAddress
			a.Nested(nl.CTA_TUPLE_IP, func(a *netlink.AttributeEncoder) error {
				a.Bytes(nl.CTA_IP_V4_DST, d.addr.AsSlice())
				return nil
			})
		}
		a.Nested(nl.CTA_TUPLE_PROTO, func(a *netlink.AttributeEncoder) error {
			a.Uint8(nl.CTA_PROTO_NUM, d.protocol)
			a.Bytes(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, d.port))
			return nil
		})
		return nil
	})
	a.Bytes(nl.CTA_STATUS, make([]byte, 4))
	a.Bytes(statusMask, binary.BigEndian.AppendUint32(nil, translatedFlow))
	a.Nested(flowFilter, func(a *netlink.AttributeEncoder) error {
		a.Uint32(filteredFields, fields)
		return nil
	})
	return a.Encode()
}

// read reads the attributes of a tuple, which are nested.
func (d *endpoint) read(tuple *netlink.AttributeDecoder) error {
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
