package link

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network interface of the node.
type Link struct {
	Name      string
	Kind      string // the driver's name, such as dummy, bridge or veth; "device" for hardware
	Index     int
	Master    int // the index of the bridge that it is a port of, or 0
	Up        bool
	Addresses []Address
}

// Address is an address of a network interface.
type Address struct {
	Prefix    netip.Prefix
	Label     string // of an IPv4 address; nodecache marks its addresses on lo with it
	Tentative bool   // duplicate address detection has not finished or found a duplicate: no socket can be bound to it
}

// Address returns the address of the interface that equals a.
func (l Link) Address(a netip.Addr) (Address, bool) {
	for _, assigned := range l.Addresses {
		if assigned.Prefix.Addr() == a {
			return assigned, true
		}
	}
	return Address{}, false
}

// Foreign returns the reason why nodecache can't have made the interface, "" if it can. all are the
// interfaces of the node.
func (l Link) Foreign(all []Link) string {
	if l.Kind != string(Dummy) && l.Kind != string(Bridge) {
		return "a " + l.Kind + ", not a dummy or bridge"
	}
	for _, port := range all {
		if l.Kind == string(Bridge) && port.Master == l.Index {
			return "a bridge with the port " + port.Name
		}
	}
	return ""
}

// List returns the network interfaces of the node.
func List() ([]Link, error) {
	h, err := handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return list(h)
}

func list(h *netlink.Handle) ([]Link, error) {
	links, err := again(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	addresses, err := addressesOf(h, nil)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	byIndex := make(map[int][]Address)
	for _, a := range addresses {
		length, _ := a.Mask.Size()
		byIndex[a.LinkIndex] = append(byIndex[a.LinkIndex], Address{
			Prefix: netip.PrefixFrom(address(a), length), Label: a.Label,
			Tentative: a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0,
		})
	}
	all := make([]Link, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		all = append(all, Link{
			Name: a.Name, Kind: l.Type(), Index: a.Index, Master: a.MasterIndex,
			Up: a.Flags&net.FlagUp != 0, Addresses: byIndex[a.Index],
		})
	}
	return all, nil
}
