package nft

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// wait is the max. time for the kernel's reply.
const wait = 5 * time.Second

// Generation returns the number of the current rules of all tables, which each transaction of any program increases.
func Generation() (id uint32, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return 0, err
	}
	replies, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, err
	}
	const header = 4 // struct nfgenmsg
	for _, m := range replies {
		if len(m.Data) < header {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
		if err != nil {
			return 0, err
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return attributes.Uint32(), attributes.Err()
			}
		}
	}
	return 0, errors.New("reply without a generation")
}
