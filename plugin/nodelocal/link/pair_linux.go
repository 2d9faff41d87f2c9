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

// pairAddress is the MAC address of both devices of a pair. Without ARP the kernel sends frames to the address of the
// sending device, so that the other one has to have it too.
var pairAddress = net.HardwareAddr{0x02, 0x00, 0x00, 0x00, 0x00, 0x35}

// Pair is two devices in one network namespace, of which one receives what the other sends. A packet that takes this
// way arrives as a pod's does: on an interface that is not lo.
type Pair struct {
	// Out is the name of the device that sends, In of the one that receives.
	Out, In string
}

// PairOf returns the pair that belongs to the interface of a name. It touches nothing.
func PairOf(name string) Pair {
	const digits = 6
	if suffix := len("-q0"); len(name)+suffix > unix.IFNAMSIZ-1 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name)) // never fails
		name = name[:unix.IFNAMSIZ-1-suffix-digits] + fmt.Sprintf("%08x", h.Sum32())[:digits]
	}
	return Pair{Out: name + "-q0", In: name + "-q1"}
}

// Ensure brings the pair to what it should be, and returns whether anything had to be repaired. Packets to the
// addresses in out are routed to the device that sends, those to the addresses in in to the one that receives; no
// interface has any of them. Other routes of the devices are removed if exact.
func (p Pair) Ensure(out, in []netip.Addr, exact bool) (repaired bool, err error) {
	h, err := handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	held, err := holders(h)
	if err != nil {
		return false, err
	}
	for _, a := range slices.Concat(out, in) {
		if name := held[a]; name != "" {
			return false, &HeldError{a, name}
		}
	}
	if repaired, err = p.create(h); err != nil {
		return repaired, fmt.Errorf("interfaces %s and %s: %w", p.Out, p.In, permission(err))
	}
	for name, addrs := range map[string][]netip.Addr{p.Out: out, p.In: in} {
		changed, err := setUp(h, name, addrs, exact)
		repaired = repaired || changed
		if err != nil {
			return repaired, fmt.Errorf("interface %s: %w", name, permission(err))
		}
	}
	return repaired, nil
}

// create makes the devices if they are not there.
func (p Pair) create(h *netlink.Handle) (created bool, err error) {
	there := 0
	for _, name := range []string{p.Out, p.In} {
		dev, err := h.LinkByName(name)
		switch {
		case errors.As(err, &netlink.LinkNotFoundError{}):
		case err != nil:
			return false, err
		case dev.Type() != pairKind:
			return false, &KindError{Interface: name, Kind: dev.Type(), want: "a " + pairKind}
		default:
			there++
		}
	}
	if there == 2 {
		return false, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = p.Out, pairAddress
	err = h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: p.In, PeerHardwareAddr: pairAddress})
	if errors.Is(err, unix.EEXIST) && there == 0 {
		err = nil // another instance was faster
	}
	return true, err
}

// setUp sets a device of the pair up, without ARP and with these routes.
func setUp(h *netlink.Handle, name string, addrs []netip.Addr, exact bool) (changed bool, err error) {
	dev, err := h.LinkByName(name)
	if err != nil {
		return false, err
	}
	if flags := dev.Attrs().RawFlags; flags&unix.IFF_NOARP == 0 || flags&unix.IFF_UP == 0 {
		changed = true
		// No link-local address. Best effort, as kernels without IPv6 refuse.
		_ = h.LinkSetIP6AddrGenMode(dev, genModeNone)
		if err := errors.Join(h.LinkSetARPOff(dev), h.LinkSetUp(dev)); err != nil {
			return changed, fmt.Errorf("set up: %w", err)
		}
	}
	there, err := routesOf(h, dev)
	if err != nil {
		return changed, err
	}
	var has []netip.Addr
	for _, r := range there {
		a, single := routed(r)
		has = append(has, a)
		if exact && single && !slices.Contains(addrs, a) {
			changed = true
			if err := h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return changed, fmt.Errorf("remove the route to %s: %w", a, err)
			}
		}
	}
	for _, a := range addrs {
		if slices.Contains(has, a) {
			continue
		}
		changed = true
		to := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		err := h.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK})
		if errors.Is(err, unix.EEXIST) && hasRoute(h, dev, a) {
			err = nil // another instance was faster
		}
		if err != nil {
			return changed, fmt.Errorf("add a route to %s: %w", a, err)
		}
	}
	return changed, nil
}

func routesOf(h *netlink.Handle, dev netlink.Link) ([]netlink.Route, error) {
	all, err := again(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: dev.Attrs().Index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return all, nil
}

// hasRoute returns whether an address is routed to a device.
func hasRoute(h *netlink.Handle, dev netlink.Link, a netip.Addr) bool {
	all, err := routesOf(h, dev)
	return err == nil && slices.ContainsFunc(all, func(r netlink.Route) bool {
		to, single := routed(r)
		return single && to == a
	})
}

// routed returns the address that a route of one address goes to.
func routed(r netlink.Route) (netip.Addr, bool) {
	if r.Dst == nil {
		return netip.Addr{}, false
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	ones, bits := r.Dst.Mask.Size()
	return a.Unmap(), ones == bits
}

// Remove removes the pair, and returns whether it was there. Interfaces of the names that are no veth stay.
func (p Pair) Remove() (gone bool, err error) {
	h, err := handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	return p.remove(h)
}

func (p Pair) remove(h *netlink.Handle) (gone bool, err error) {
	for _, name := range []string{p.Out, p.In} { // with one goes the other
		dev, err := h.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && dev.Type() != pairKind {
			continue
		}
		if err == nil {
			err = h.LinkDel(dev)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return gone, fmt.Errorf("remove interface %s: %w", name, permission(err))
		}
		gone = true
	}
	return gone, nil
}
