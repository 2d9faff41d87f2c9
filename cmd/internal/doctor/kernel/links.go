//go:build linux

package kernel

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
)

// Link is a network interface.
type Link struct {
	// Name is its name, such as nodelocaldns.
	Name string
	// Kind is the driver's name, such as dummy, bridge or veth; "device" for a real one.
	Kind string
	// Index is its number; Master is that of the bridge that it is a port of, or 0.
	Index, Master int
	// Up says whether it has been set up.
	Up bool
	// Addresses are those that it holds.
	Addresses []Address
}

// Address is an address of a link.
type Address struct {
	// Prefix is the address and the length of its prefix.
	Prefix netip.Prefix
	// Label is that of an IPv4 address; nodecache marks its addresses on lo with it.
	Label string
	// Tentative: duplicate address detection is not done yet, or has found a duplicate, and nothing
	// can be bound to the address.
	Tentative bool
}

// Loopback says whether it is lo.
func (l Link) Loopback() bool { return l.Name == "lo" }

// Holds says whether the link has the address, and how.
func (l Link) Holds(a netip.Addr) (Address, bool) {
	for _, held := range l.Addresses {
		if held.Prefix.Addr() == a {
			return held, true
		}
	}
	return Address{}, false
}

// Links returns the network interfaces.
func Links(ctx context.Context) ([]Link, error) {
	return within(ctx, "list interfaces", links)
}

// attempts is how often a listing is repeated that somebody else's change has cut through.
const attempts = 5

// links lists interfaces and addresses, and again if somebody has changed them meanwhile.
func links() (all []Link, err error) {
	for range attempts {
		if all, err = linksOnce(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func linksOnce() ([]Link, error) {
	found, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	of := make(map[int][]Address)
	for _, a := range addresses {
		if prefix, ok := prefixOf(a.IPNet); ok {
			tentative := a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
			of[a.LinkIndex] = append(of[a.LinkIndex], Address{Prefix: prefix, Label: a.Label, Tentative: tentative})
		}
	}
	all := make([]Link, 0, len(found))
	for _, l := range found {
		a := l.Attrs()
		all = append(all, Link{
			Name: a.Name, Kind: l.Type(), Index: a.Index, Master: a.MasterIndex,
			Up: a.Flags&net.FlagUp != 0, Addresses: of[a.Index],
		})
	}
	return all, nil
}

// prefixOf keeps the address beside the length: the prefix is not masked.
func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(n.IP)
	length, _ := n.Mask.Size()
	return netip.PrefixFrom(address.Unmap(), length), ok
}

// RemoveInterface removes the interface of nodecache with that name, the addresses on lo that it has
// marked with it, and the given ones from lo. It is no error if they are gone, and one if the
// interface is somebody else's.
func RemoveInterface(ctx context.Context, name string, onLoopback []netip.Addr) error {
	_, err := within(ctx, "remove interface "+name, func() (bool, error) { return link.Remove(name, onLoopback) })
	return err
}

// RemovePair removes the devices of a pair. It is no error if they are gone.
func RemovePair(ctx context.Context, pair link.Pair) error {
	_, err := within(ctx, "remove interfaces "+pair.Out+" and "+pair.In, pair.Remove)
	return err
}
