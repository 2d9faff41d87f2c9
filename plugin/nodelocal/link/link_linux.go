package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelWait bounds each answer of the kernel.
const kernelWait = 5 * time.Second

// genModeNone is IN6_ADDR_GEN_MODE_NONE of the kernel's if_link.h.
const genModeNone = 1

// maxLabel is the longest label of an IPv4 address, in bytes (IFNAMSIZ without its NUL).
const maxLabel = unix.IFNAMSIZ - 1

// Interface is the node-local interface.
type Interface struct {
	name string
	kind Kind // "" until Ensure has found or made it
}

// New returns the interface of that name. It touches nothing.
func New(name string) *Interface { return &Interface{name: name} }

// Kind returns what carries the addresses, "" before Ensure.
func (i *Interface) Kind() Kind { return i.kind }

// Device returns the name of the device that has the addresses.
func (i *Interface) Device() string {
	if i.kind == Loopback {
		return "lo"
	}
	return i.name
}

// Ensure brings the interface and its addresses to what they should be, and returns what it had to do.
// Addresses that it should not have are removed if exact. An address that another interface has is a
// *HeldError, and nothing is changed then.
func (i *Interface) Ensure(addrs []netip.Addr, exact bool) (r Repair, err error) {
	h, err := handle()
	if err != nil {
		return r, err
	}
	defer h.Close()
	if err := i.refuseHeld(h, addrs); err != nil {
		return r, err
	}
	dev, err := i.device(h, &r)
	if err == nil {
		err = i.refuseOnLoopback(h, dev, addrs, r.Created)
	}
	if held := (*HeldError)(nil); errors.As(err, &held) {
		return Repair{}, err
	}
	if err != nil {
		return r, fmt.Errorf("interface %s: %w", i.name, permission(err))
	}
	if err := i.addresses(h, dev, addrs, exact, &r); err != nil {
		return r, fmt.Errorf("interface %s: %w", i.name, permission(err))
	}
	return r, nil
}

func handle() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	if err := h.SetSocketTimeout(kernelWait); err != nil {
		h.Close()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}

// again lists once more while somebody changes what is listed, which makes the list incomplete. On a node
// where pods come and go that happens.
func again[T any](list func() ([]T, error)) (all []T, err error) {
	const most = 20
	for range most {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// addressesOf returns the addresses of a device, or of all with nil.
func addressesOf(h *netlink.Handle, dev netlink.Link) ([]netlink.Addr, error) {
	return again(func() ([]netlink.Addr, error) { return h.AddrList(dev, netlink.FAMILY_ALL) })
}

func permission(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (%w)", ErrNoPermission, err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (%w)", ErrNoIPv6, err)
	}
	return err
}

// device returns the device, made and set up if need be.
func (i *Interface) device(h *netlink.Handle, r *Repair) (netlink.Link, error) {
	dev, err := h.LinkByName(i.name)
	switch {
	case err == nil:
		if i.kind = Kind(dev.Type()); i.kind != Dummy && i.kind != Bridge {
			return nil, &KindError{Interface: i.name, Kind: dev.Type()}
		}
	case errors.As(err, &netlink.LinkNotFoundError{}):
		if dev, err = i.create(h, r); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	if dev.Attrs().Flags&net.FlagUp == 0 {
		r.Up = !r.Created
		if err := h.LinkSetUp(dev); err != nil {
			return nil, fmt.Errorf("set up: %w", err)
		}
	}
	return dev, nil
}

// create makes the device of the best kind that the kernel has.
func (i *Interface) create(h *netlink.Handle, r *Repair) (netlink.Link, error) {
	if i.kind == Loopback {
		return h.LinkByName("lo")
	}
	no := false
	attrs := netlink.NewLinkAttrs()
	attrs.Name = i.name
	for _, dev := range []netlink.Link{
		&netlink.Dummy{LinkAttrs: attrs},
		&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &no},
	} {
		err := h.LinkAdd(dev)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
			continue // no such driver
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("create a %s: %w", dev.Type(), err)
		}
		i.kind, r.Created = Kind(dev.Type()), true
		// No link-local address of its own: nobody asks it. Best effort, as kernels without IPv6 refuse.
		_ = h.LinkSetIP6AddrGenMode(dev, genModeNone)
		return h.LinkByName(i.name)
	}
	i.kind = Loopback
	return h.LinkByName("lo")
}

// addresses adds what the device lacks and, if exact, removes what it should not have.
func (i *Interface) addresses(h *netlink.Handle, dev netlink.Link, wanted []netip.Addr, exact bool, r *Repair) error {
	there, err := addressesOf(h, dev)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	has := make([]netip.Addr, 0, len(there))
	for _, t := range there {
		a := address(t)
		has = append(has, a)
		if exact && !slices.Contains(wanted, a) && i.owns(t) {
			if err := h.AddrDel(dev, &t); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s: %w", a, err)
			}
			r.Removed = append(r.Removed, a)
		}
	}
	for _, a := range wanted {
		if slices.Contains(has, a) {
			continue
		}
		if err := h.AddrAdd(dev, i.netlinkAddress(a)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %s: %w", a, err)
		}
		r.Added = append(r.Added, a)
	}
	return nil
}

// owns returns whether an address of the device may be removed: any of our device but the link-local
// one that the kernel makes, and on lo those with our label.
func (i *Interface) owns(a netlink.Addr) bool {
	if i.kind == Loopback {
		return a.Label != "" && a.Label == i.label()
	}
	return !(a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_NODAD == 0)
}

// label marks IPv4 addresses on lo as ours; IPv6 has no labels. It is "" if the name is too long.
func (i *Interface) label() string {
	if label := "lo:" + i.name; len(label) <= maxLabel {
		return label
	}
	return ""
}

// netlinkAddress returns a host address. An IPv6 one is used at once: nobody else is on the link that
// duplicate address detection could find.
func (i *Interface) netlinkAddress(a netip.Addr) *netlink.Addr {
	n := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	switch {
	case a.Is6():
		n.Flags = unix.IFA_F_NODAD
	case i.kind == Loopback:
		n.Label = i.label()
	}
	return n
}

func address(a netlink.Addr) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.IP)
	return ip.Unmap()
}

// refuseHeld returns a *HeldError if another interface has one of the addresses.
func (i *Interface) refuseHeld(h *netlink.Handle, addrs []netip.Addr) error {
	held, err := holders(h)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if name := held[a]; name != "" && name != i.name && name != "lo" {
			return &HeldError{a, name}
		}
	}
	return nil
}

// refuseOnLoopback returns a *HeldError if lo has one of the addresses and the interface is another: only
// then is it known that no earlier run has put it there. A device that was made for nothing is removed.
func (i *Interface) refuseOnLoopback(h *netlink.Handle, dev netlink.Link, addrs []netip.Addr, created bool) error {
	if i.kind == Loopback {
		return nil
	}
	held, err := holders(h)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if held[a] != "lo" {
			continue
		}
		if created {
			if err := h.LinkDel(dev); err != nil {
				return fmt.Errorf("remove it again: %w", err)
			}
		}
		return &HeldError{a, "lo"}
	}
	return nil
}

// holders returns the interface of each address of the node.
func holders(h *netlink.Handle) (map[netip.Addr]string, error) {
	all, err := list(h)
	if err != nil {
		return nil, err
	}
	held := map[netip.Addr]string{}
	for _, l := range all {
		for _, a := range l.Addresses {
			held[a.Prefix.Addr()] = l.Name
		}
	}
	return held, nil
}

// Holders returns the name of the interface of each address of the node.
func Holders() (map[netip.Addr]string, error) {
	h, err := handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return holders(h)
}

// Remove removes the interface with its pair, or the addresses where they are on lo, and returns whether there
// was anything. An interface of the name that is no dummy and no bridge is a *KindError and stays.
func Remove(name string, addrs []netip.Addr) (bool, error) {
	h, err := handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	gone, err := removeFromLoopback(h, name, addrs)
	if err != nil {
		return gone, err
	}
	pair, err := PairOf(name).remove(h)
	gone = gone || pair
	if err != nil {
		return gone, err
	}
	dev, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return gone, nil
	}
	if err != nil {
		return gone, fmt.Errorf("interface %s: %w", name, err)
	}
	if kind := Kind(dev.Type()); kind != Dummy && kind != Bridge {
		return gone, &KindError{Interface: name, Kind: dev.Type()}
	}
	if err := h.LinkDel(dev); err != nil && !errors.Is(err, unix.ENODEV) {
		return gone, fmt.Errorf("remove interface %s: %w", name, permission(err))
	}
	return true, nil
}

// removeFromLoopback removes from lo the addresses given and those with the interface's label.
func removeFromLoopback(h *netlink.Handle, name string, addrs []netip.Addr) (bool, error) {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return false, fmt.Errorf("interface lo: %w", err)
	}
	there, err := addressesOf(h, lo)
	if err != nil {
		return false, fmt.Errorf("interface lo: %w", err)
	}
	i, gone := Interface{name: name, kind: Loopback}, false
	for _, t := range there {
		if !i.owns(t) && !slices.Contains(addrs, address(t)) || t.IP.IsLoopback() {
			continue
		}
		if err := h.AddrDel(lo, &t); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return gone, fmt.Errorf("remove address %s from lo: %w", address(t), permission(err))
		}
		gone = true
	}
	return gone, nil
}
