package rules

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/internal/nft"
)

// Ingress is a chain at the hook ingress of devices. It comes before nodecache's rules, which neither untrack nor count the
// packets that it drops.
type Ingress struct {
	Family, Table, Chain string
	Devices              []string
	Drops                bool   // its policy
	Reason               string // why it may drop packets, which package firewall finds
}

// String names the chain with its devices.
func (i Ingress) String() string {
	return fmt.Sprintf("chain %s %s %s, hook ingress of %s, %s", i.Family, i.Table, i.Chain, strings.Join(i.Devices, " "), i.Reason)
}

// ingressFamilies are the families with a hook ingress, and its number in each.
var ingressFamilies = map[nftables.TableFamily]struct {
	name string
	hook uint32
}{nftables.TableFamilyNetdev: {"netdev", unix.NF_NETDEV_INGRESS}, nftables.TableFamilyINet: {"inet", 5}}

// Ingresses returns the chains at the hook ingress, except chains with no other devices than those of default routes: these
// devices receive no queries of pods.
func Ingresses(ctx context.Context) (all []Ingress, err error) {
	uplinks, err := uplinks()
	if err != nil {
		return nil, err
	}
	for family, f := range ingressFamilies {
		err := nft.Request(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, netlink.Dump, byte(family), nil, func(_ byte, reply *netlink.AttributeDecoder) error {
			i, hook, is := Ingress{Family: f.name}, uint32(0), false
			for reply.Next() {
				switch reply.Type() {
				case unix.NFTA_CHAIN_TABLE:
					i.Table = reply.String()
				case unix.NFTA_CHAIN_NAME:
					i.Chain = reply.String()
				case unix.NFTA_CHAIN_POLICY:
					i.Drops = reply.Uint32() == uint32(nftables.ChainPolicyDrop)
				case unix.NFTA_CHAIN_HOOK:
					is = true
					reply.Nested(func(a *netlink.AttributeDecoder) error { return readHook(a, &hook, &i.Devices) })
				}
			}
			i.Devices = slices.DeleteFunc(i.Devices, func(d string) bool { return slices.Contains(uplinks, d) })
			if is && hook == f.hook && len(i.Devices) > 0 {
				all = append(all, i)
			}
			return nil
		})
		if err != nil {
			return nil, &KernelError{"list chains", err}
		}
	}
	return all, nil
}

// hookDevices is NFTA_HOOK_DEVS, the list of a hook's devices.
const hookDevices = 4

// readHook reads the number of a hook and its devices. The kernel sends the list, and a single device by itself as well.
func readHook(a *netlink.AttributeDecoder, hook *uint32, devices *[]string) error {
	for a.Next() {
		switch a.Type() {
		case unix.NFTA_HOOK_HOOKNUM:
			*hook = a.Uint32()
		case unix.NFTA_HOOK_DEV:
			*devices = []string{a.String()} // before Linux 5.5 there is no list
		case hookDevices:
			*devices = nil
			a.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					*devices = append(*devices, list.String())
				}
				return nil
			})
		}
	}
	return nil
}

// uplinks returns the devices of default routes.
func uplinks() (names []string, err error) {
	routes, err := links.RouteListFiltered(links.FAMILY_ALL, &links.Route{Table: unix.RT_TABLE_MAIN}, links.RT_FILTER_TABLE)
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		if l, e := links.LinkByIndex(r.LinkIndex); e == nil { // a route with several devices has none here
			names = append(names, l.Attrs().Name)
		}
	}
	return names, err
}
