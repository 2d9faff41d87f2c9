package kernel

import (
	"context"
	"errors"

	mdlayher "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/internal/nft"
)

// tableFamilies are the names of nftables' families of IP packets and of frames.
var tableFamilies = map[byte]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// tablesEngine returns the policy engine with chains in nftables, of which iptables-nft is a part.
func tablesEngine() (found Engine, err error) {
	if !nft.Loaded() {
		return Engine{}, nil
	}
	if found, err = findChain(); err != nil {
		return Engine{}, &KernelError{"list chains of nftables", err}
	}
	return found, nil
}

// findChain lists the chains until it finds one of a policy engine. The kernel sends the chains in parts, between which the rules
// may change. The list may lack chains then, and no part is marked as interrupted if they are missing at its end. So the list counts
// only if the generation of the rules is the same before and after.
func findChain() (found Engine, err error) {
	const tries = 5
	for range tries {
		before, err := nft.Generation()
		if err != nil {
			return Engine{}, err
		}
		err = nft.Request(context.Background(), unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, mdlayher.Dump, unix.NFPROTO_UNSPEC, nil, func(family byte, a *mdlayher.AttributeDecoder) error {
			if engine := chainEngine(family, a); found == (Engine{}) {
				found = engine
			}
			return nil
		})
		if err != nil || found != (Engine{}) {
			return found, err
		}
		if after, err := nft.Generation(); err != nil || after == before {
			return Engine{}, err
		}
	}
	return Engine{}, errors.New("the chains changed during each of their listings")
}

// chainEngine returns the engine of a chain.
func chainEngine(family byte, attributes *mdlayher.AttributeDecoder) Engine {
	var table, chain string
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_CHAIN_TABLE:
			table = attributes.String()
		case unix.NFTA_CHAIN_NAME:
			chain = attributes.String()
		}
	}
	return engineOf(tableFamilies[family], table, chain)
}
