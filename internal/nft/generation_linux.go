package nft

import (
	"context"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Generation returns the generation of the nftables ruleset of all tables, which each transaction of any program increases.
func Generation() (id uint32, err error) {
	found := false
	err = Request(context.Background(), unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(_ byte, a *netlink.AttributeDecoder) error {
		for a.Next() {
			if a.Type() == unix.NFTA_GEN_ID {
				id, found = a.Uint32(), true
			}
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New("reply without a generation")
	}
	return id, err
}
