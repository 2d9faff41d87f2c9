package kernel

import (
	"encoding/binary"
	"errors"
	"time"

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
	c, err := mdlayher.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return Engine{}, &KernelError{"list chains of nftables", err}
	}
	if err = c.SetDeadline(time.Now().Add(kernelWait)); err == nil {
		found, err = findChain(c)
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return Engine{}, &KernelError{"list chains of nftables", err}
	}
	return found, nil
}

// findChain lists the chains until it finds one of a policy engine. The kernel sends them in parts, between which the rules may
// change: the list may lack chains then, also at its end, where no part has the mark of such a change. So the list counts only if
// the generation of the rules is the same before and after.
func findChain(c *mdlayher.Conn) (Engine, error) {
	const tries = 5
	for range tries {
		before, err := nft.Generation()
		if err != nil {
			return Engine{}, err
		}
		replies, err := c.Execute(mdlayher.Message{
			Header: mdlayher.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Flags: mdlayher.Request | mdlayher.Dump},
			Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0},
		})
		if err != nil {
			return Engine{}, err
		}
		for _, m := range replies {
			if found, err := chainEngine(m.Data); err != nil || found != (Engine{}) {
				return found, err
			}
		}
		if after, err := nft.Generation(); err != nil || after == before {
			return Engine{}, err
		}
	}
	return Engine{}, errors.New("the chains changed during each of their listings")
}

// chainEngine returns the engine of a chain in a message of the kernel.
func chainEngine(data []byte) (Engine, error) {
	const header = 4 // struct nfgenmsg
	if len(data) < header {
		return Engine{}, nil // the end of the list
	}
	attributes, err := mdlayher.NewAttributeDecoder(data[header:])
	if err != nil {
		return Engine{}, err
	}
	attributes.ByteOrder = binary.BigEndian
	var table, chain string
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_CHAIN_TABLE:
			table = attributes.String()
		case unix.NFTA_CHAIN_NAME:
			chain = attributes.String()
		}
	}
	return engineOf(tableFamilies[data[0]], table, chain), attributes.Err()
}
