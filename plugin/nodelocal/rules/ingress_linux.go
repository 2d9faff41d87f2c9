package rules

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	links "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Ingress is a chain at the hook ingress of devices, with what in it drops or rejects packets. It comes before
// nodecache's rules, which neither untrack nor count what it drops.
type Ingress struct {
	Family, Table, Chain string
	Devices              []string
	Reason               string // such as "its policy drops", or the handle of a rule
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

// Ingresses returns the chains at the hook ingress that may drop or reject packets, without those of only the devices of
// default routes, which receive no queries of pods. Maps of verdicts are not read.
func Ingresses(ctx context.Context) (all []Ingress, err error) {
	uplinks, err := uplinks()
	if err != nil {
		return nil, err
	}
	for family, f := range ingressFamilies {
		err := request(ctx, unix.NFT_MSG_GETCHAIN, netlink.Dump, family, nil, func(reply *netlink.AttributeDecoder) error {
			i, hook, drops, is := Ingress{Family: f.name}, uint32(0), false, false
			for reply.Next() {
				switch reply.Type() {
				case unix.NFTA_CHAIN_TABLE:
					i.Table = reply.String()
				case unix.NFTA_CHAIN_NAME:
					i.Chain = reply.String()
				case unix.NFTA_CHAIN_POLICY:
					drops = reply.Uint32() == uint32(nftables.ChainPolicyDrop)
				case unix.NFTA_CHAIN_HOOK:
					is = true
					reply.Nested(func(a *netlink.AttributeDecoder) error { return readHook(a, &hook, &i.Devices) })
				}
			}
			i.Devices = slices.DeleteFunc(i.Devices, func(d string) bool { return slices.Contains(uplinks, d) })
			if is && hook == f.hook && len(i.Devices) > 0 {
				if drops {
					i.Reason = "its policy drops"
				}
				all = append(all, i)
			}
			return nil
		})
		if err != nil {
			return nil, &KernelError{"list chains", err}
		}
	}
	found := all[:0]
	for _, i := range all {
		if i.Reason == "" {
			if i.Reason, err = i.dropping(ctx, i.Chain, map[string]bool{}); err != nil {
				return nil, err
			}
		}
		if i.Reason != "" {
			found = append(found, i)
		}
	}
	return found, nil
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

// dropping returns the first rule of a chain, or of one that it calls, that drops or rejects; "" for none.
func (i Ingress) dropping(ctx context.Context, chain string, seen map[string]bool) (reason string, err error) {
	if seen[chain] {
		return "", nil
	}
	seen[chain] = true
	family := nftables.TableFamilyINet
	if i.Family == "netdev" {
		family = nftables.TableFamilyNetdev
	}
	listed, err := ReadChain(ctx, family, i.Table, chain, verdictExpression)
	for _, r := range listed {
		for _, e := range r.Exprs {
			v, is := e.(*expr.Verdict)
			_, rejects := e.(*expr.Reject)
			switch {
			case rejects, is && v.Kind == expr.VerdictDrop:
				return fmt.Sprintf("rule with handle %d drops or rejects", r.Handle), nil
			case is && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto):
				if reason, err := i.dropping(ctx, v.Chain, seen); reason != "" || err != nil {
					return reason, err
				}
			}
		}
	}
	return "", err
}

// verdictExpression returns an empty expression of the kinds that end the evaluation of a packet.
func verdictExpression(name string) expr.Any {
	switch name {
	case "immediate":
		return &expr.Immediate{}
	case "reject":
		return &expr.Reject{}
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
