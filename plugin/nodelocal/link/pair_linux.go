package link

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pairKind is the kind of both devices of a pair.
const pairKind = "veth"

// pairAddress is the MAC address of both devices of a pair. Without ARP the kernel sends frames to the address
// of the sending device, so the receiving device needs the same one.
var pairAddress = net.HardwareAddr{0x02, 0x00, 0x00, 0x00, 0x00, 0x35}

// Pair is two connected devices in one network namespace. A packet sent through them arrives as a pod's does:
// on an interface other than lo.
type Pair struct {
	Out, In string // the names of the sending and the receiving device
}

// PairOf returns the pair of the interface of a name. It changes nothing in the kernel.
func PairOf(name string) Pair {
	const digits = 6
	if suffix := len("-q0"); len(name)+suffix > unix.IFNAMSIZ-1 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name)) // never fails
		name = name[:unix.IFNAMSIZ-1-suffix-digits] + fmt.Sprintf("%08x", h.Sum32())[:digits]
	}
	return Pair{Out: name + "-q0", In: name + "-q1"}
}

// Ensure creates or repairs the pair, and returns whether a repair was necessary. Packets to the addresses of out
// are routed to the device Out, packets to the addresses of in to the device In; no interface may have any of these
// addresses. Surplus host routes of the devices are removed if exact.
func (p Pair) Ensure(out, in []netip.Addr, exact bool) (repaired bool, err error) {
	h, err := handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	held, err := holders(h)
	if err == nil {
		err = refuseHeld(held, slices.Concat(out, in))
	}
	if err != nil {
		return false, err
	}
	if repaired, err = p.create(h); err != nil {
		return repaired, fmt.Errorf("interfaces %s and %s: %w", p.Out, p.In, permission(err))
	}
	for name, addrs := range map[string][]netip.Addr{p.Out: out, p.In: in} {
		changed, err := ensureDevice(h, name, addrs, exact)
		repaired = repaired || changed
		if err != nil {
			return repaired, fmt.Errorf("interface %s: %w", name, permission(err))
		}
	}
	return repaired, nil
}

// create creates the pair if one of its devices is missing.
func (p Pair) create(h *netlink.Handle) (created bool, err error) {
	present := 0
	for _, name := range []string{p.Out, p.In} {
		dev, err := h.LinkByName(name)
		switch {
		case errors.As(err, &netlink.LinkNotFoundError{}):
		case err != nil:
			return false, err
		case dev.Type() != pairKind:
			return false, &KindError{name, dev.Type(), "a " + pairKind}
		default:
			present++
		}
	}
	if present == 2 {
		return false, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = p.Out, pairAddress
	err = h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: p.In, PeerHardwareAddr: pairAddress})
	if errors.Is(err, unix.EEXIST) && present == 0 {
		err = nil // another instance has created it meanwhile
	}
	return true, err
}

// ensureDevice sets a device of the pair up, without ARP and with host routes to these addresses.
func ensureDevice(h *netlink.Handle, name string, addrs []netip.Addr, exact bool) (changed bool, err error) {
	dev, err := h.LinkByName(name)
	if err != nil {
		return false, err
	}
	if flags := dev.Attrs().RawFlags; flags&unix.IFF_NOARP == 0 || flags&unix.IFF_UP == 0 {
		changed = true
		// The device needs no link-local address. An error is ignored: kernels without IPv6 return one.
		_ = h.LinkSetIP6AddrGenMode(dev, genModeNone)
		if err := errors.Join(h.LinkSetARPOff(dev), h.LinkSetUp(dev)); err != nil {
			return changed, fmt.Errorf("set up: %w", err)
		}
	}
	routes, err := hostRoutes(h, dev)
	if err != nil {
		return changed, err
	}
	for _, route := range routes {
		a := destination(route)
		if !exact || slices.Contains(addrs, a) {
			continue
		}
		changed = true
		if err := h.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			return changed, fmt.Errorf("remove the route to %s: %w", a, err)
		}
	}
	for _, a := range addrs {
		if hasRoute(routes, a) {
			continue
		}
		changed = true
		if err := addHostRoute(h, dev, a); err != nil {
			return changed, fmt.Errorf("add a route to %s: %w", a, err)
		}
	}
	return changed, nil
}

// addHostRoute routes an address to a device. It is no error if another instance has done so meanwhile.
func addHostRoute(h *netlink.Handle, dev netlink.Link, a netip.Addr) error {
	err := h.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: netlink.NewIPNet(a.AsSlice()), Scope: netlink.SCOPE_LINK})
	if errors.Is(err, unix.EEXIST) {
		if routes, e := hostRoutes(h, dev); e == nil && hasRoute(routes, a) {
			return nil
		}
	}
	return err
}

// hostRoutes returns the routes to single addresses through a device.
func hostRoutes(h *netlink.Handle, dev netlink.Link) ([]netlink.Route, error) {
	all, err := again(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: dev.Attrs().Index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(all, func(r netlink.Route) bool {
		if r.Dst == nil {
			return true
		}
		ones, bits := r.Dst.Mask.Size()
		return ones != bits
	}), nil
}

// destination returns the address of a host route.
func destination(r netlink.Route) netip.Addr {
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	return a.Unmap()
}

// hasRoute returns whether one of the host routes is to an address.
func hasRoute(routes []netlink.Route, a netip.Addr) bool {
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return destination(r) == a })
}

// Remove removes the pair. It is no error if it is missing. Interfaces of its names that are not veth devices stay.
func (p Pair) Remove() error {
	h, err := handle()
	if err != nil {
		return err
	}
	defer h.Close()
	return p.remove(h)
}

func (p Pair) remove(h *netlink.Handle) error {
	for _, name := range []string{p.Out, p.In} { // the kernel removes the second device with the first
		dev, err := h.LinkByName(name)
		switch {
		case errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && dev.Type() != pairKind:
			continue
		case err != nil:
			return fmt.Errorf("interface %s: %w", name, permission(err))
		}
		if err := removeDevice(h, dev); err != nil {
			return err
		}
	}
	return nil
}
