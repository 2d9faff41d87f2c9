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

// kernelWait is the max. wait for one reply of the kernel.
const kernelWait = 5 * time.Second

// genModeNone is IN6_ADDR_GEN_MODE_NONE of the kernel's if_link.h.
const genModeNone = 1

// maxLabel is the max. length of the label of an IPv4 address, in bytes (IFNAMSIZ without its NUL).
const maxLabel = unix.IFNAMSIZ - 1

// Interface is the node-local interface.
type Interface struct {
	name string
	kind Kind // "" until Ensure has found or created it
}

// New returns the interface of that name. It changes nothing in the kernel.
func New(name string) *Interface { return &Interface{name: name} }

// Kind returns the kind of the device with the addresses, "" before Ensure.
func (i *Interface) Kind() Kind { return i.kind }

// Device returns the name of the device with the addresses.
func (i *Interface) Device() string {
	if i.kind == Loopback {
		return "lo"
	}
	return i.name
}

// Ensure creates or repairs the interface and its addresses, and returns the repairs. Surplus addresses are
// removed if exact. If another interface has one of the addresses, Ensure returns a *HeldError and changes
// nothing.
func (i *Interface) Ensure(addrs []netip.Addr, exact bool) (r Repair, err error) {
	h, err := handle()
	if err != nil {
		return r, err
	}
	defer h.Close()
	held, err := holders(h)
	if err == nil {
		err = refuseHeld(held, addrs, i.name, "lo")
	}
	if err != nil {
		return r, err
	}
	dev, err := i.device(h, &r)
	if err == nil && i.kind != Loopback {
		// Only now is it known that an address on lo is not from an earlier run without dummy and bridge.
		if err = refuseHeld(held, addrs, i.name); err != nil && r.Created {
			err = errors.Join(err, h.LinkDel(dev))
		}
	}
	if held := (*HeldError)(nil); errors.As(err, &held) {
		return Repair{}, err
	}
	if err == nil {
		err = i.ensureAddresses(h, dev, addrs, exact, &r)
	}
	if err != nil {
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

// again repeats a listing that a concurrent change has made incomplete, as happens on a node where pods
// start and end.
func again[T any](list func() ([]T, error)) (all []T, err error) {
	const tries = 20
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// addressesOf returns the addresses of a device, or of all devices with nil.
func addressesOf(h *netlink.Handle, dev netlink.Link) ([]netlink.Addr, error) {
	return again(func() ([]netlink.Addr, error) { return h.AddrList(dev, netlink.FAMILY_ALL) })
}

// permission adds the cause to an error for lack of a capability or of IPv6.
func permission(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (%w)", ErrNoPermission, err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (%w)", ErrNoIPv6, err)
	}
	return err
}

// device returns the device, which it creates and sets up if necessary.
func (i *Interface) device(h *netlink.Handle, r *Repair) (netlink.Link, error) {
	dev, err := h.LinkByName(i.name)
	switch {
	case err == nil:
		if i.kind = Kind(dev.Type()); i.kind != Dummy && i.kind != Bridge {
			return nil, &KindError{i.name, dev.Type(), wantDevice}
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

// create creates a device of the first kind that the kernel supports.
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
		// The device needs no link-local address. An error is ignored: kernels without IPv6 return one.
		_ = h.LinkSetIP6AddrGenMode(dev, genModeNone)
		return h.LinkByName(i.name)
	}
	i.kind = Loopback
	return h.LinkByName("lo")
}

// ensureAddresses adds missing addresses to the device and, if exact, removes surplus ones.
func (i *Interface) ensureAddresses(h *netlink.Handle, dev netlink.Link, wanted []netip.Addr, exact bool, r *Repair) error {
	present, err := addressesOf(h, dev)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	has := make([]netip.Addr, 0, len(present))
	for _, p := range present {
		a := address(p)
		has = append(has, a)
		if !exact || slices.Contains(wanted, a) || !i.owns(p) {
			continue
		}
		if err := removeAddress(h, dev, p); err != nil {
			return err
		}
		r.Removed = append(r.Removed, a)
	}
	for _, a := range wanted {
		if slices.Contains(has, a) {
			continue
		}
		if e := h.AddrAdd(dev, i.netlinkAddress(a)); e != nil && !errors.Is(e, unix.EEXIST) {
			if err == nil {
				err = fmt.Errorf("add address %s: %w", a, e)
			}
			continue // with IPv6 disabled, IPv4 addresses can be added
		}
		r.Added = append(r.Added, a)
	}
	if err != nil {
		return err
	}
	return awaitLocal(h, dev, r.Added)
}

// awaitLocal waits until the kernel has the local routes of new IPv6 addresses. A process can bind an address before that. If
// it connects the socket to the same address, as the fast path does, the socket keeps the route to the device: its answers to
// the node itself are lost. It does not wait for an address that another program removes meanwhile: Watch reports that.
func awaitLocal(h *netlink.Handle, dev netlink.Link, added []netip.Addr) error {
	for _, a := range added {
		for end := time.Now().Add(kernelWait); a.Is6(); time.Sleep(time.Millisecond) {
			if local, err := isLocal(h, a); err != nil {
				return fmt.Errorf("list local routes: %w", err)
			} else if local {
				break
			}
			present, err := addressesOf(h, dev)
			if err != nil {
				return fmt.Errorf("list addresses: %w", err)
			}
			if !slices.ContainsFunc(present, func(p netlink.Addr) bool { return address(p) == a }) {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("add address %s: no local route after %v", a, kernelWait)
			}
		}
	}
	return nil
}

// isLocal reports whether the node has a local route to an IPv6 address.
func isLocal(h *netlink.Handle, a netip.Addr) (bool, error) {
	routes, err := again(func() ([]netlink.Route, error) {
		wanted := netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Dst: netlink.NewIPNet(a.AsSlice())}
		return h.RouteListFiltered(netlink.FAMILY_V6, &wanted, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_DST)
	})
	return len(routes) > 0, err
}

// removeAddress removes an address, which another process may have removed already.
func removeAddress(h *netlink.Handle, dev netlink.Link, a netlink.Addr) error {
	if err := h.AddrDel(dev, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove address %s: %w", address(a), err)
	}
	return nil
}

// owns returns whether an address of the device may be removed: any except the kernel's own link-local
// address, and on lo those with the interface's label.
func (i *Interface) owns(a netlink.Addr) bool {
	if i.kind == Loopback {
		return a.Label != "" && a.Label == i.label()
	}
	return !(a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_NODAD == 0)
}

// label marks the interface's IPv4 addresses on lo; IPv6 addresses have no labels. It is "" if the name is
// too long.
func (i *Interface) label() string {
	if label := "lo:" + i.name; len(label) <= maxLabel {
		return label
	}
	return ""
}

// netlinkAddress returns an address with the prefix length of a host. An IPv6 address skips duplicate address
// detection, which would delay it: the link has no other host.
func (i *Interface) netlinkAddress(a netip.Addr) *netlink.Addr {
	n := &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}
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

// refuseHeld returns a *HeldError if an interface other than the permitted ones has one of the addresses.
func refuseHeld(held map[netip.Addr]string, addrs []netip.Addr, permitted ...string) error {
	for _, a := range addrs {
		if name := held[a]; name != "" && !slices.Contains(permitted, name) {
			return &HeldError{a, name}
		}
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

// Missing returns whether no interface has the name.
func Missing(name string) (bool, error) {
	h, err := handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	_, err = h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("interface %s: %w", name, err)
	}
	return false, nil
}

// Remove removes the interface with its pair, or the addresses on lo. It is no error if they are missing. An interface of
// the name that is neither a dummy nor a bridge stays, and Remove returns a *KindError.
func Remove(name string, addrs []netip.Addr) error {
	h, err := handle()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := removeFromLoopback(h, name, addrs); err != nil {
		return fmt.Errorf("interface lo: %w", permission(err))
	}
	if err := PairOf(name).remove(h); err != nil {
		return err
	}
	dev, err := h.LinkByName(name)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		return nil
	case err != nil:
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if kind := Kind(dev.Type()); kind != Dummy && kind != Bridge {
		return &KindError{name, dev.Type(), wantDevice}
	}
	return removeDevice(h, dev)
}

// removeDevice removes a device, which another process may have removed already.
func removeDevice(h *netlink.Handle, dev netlink.Link) error {
	if err := h.LinkDel(dev); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", dev.Attrs().Name, permission(err))
	}
	return nil
}

// removeFromLoopback removes the addresses, and those with the interface's label, from lo.
func removeFromLoopback(h *netlink.Handle, name string, addrs []netip.Addr) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	present, err := addressesOf(h, lo)
	if err != nil {
		return err
	}
	i := Interface{name: name, kind: Loopback}
	for _, p := range present {
		if !i.owns(p) && !slices.Contains(addrs, address(p)) || p.IP.IsLoopback() {
			continue
		}
		if err := removeAddress(h, lo, p); err != nil {
			return err
		}
	}
	return nil
}
