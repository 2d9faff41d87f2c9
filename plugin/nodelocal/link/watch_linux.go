package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Watch calls changed after every change of the interface or its pair and every removal of an address, until done
// is closed. If notifications of the kernel were lost, it calls failed and ends: the caller must verify the
// interface and call Watch again.
func (i *Interface) Watch(done <-chan struct{}, changed func(), failed func(error)) error {
	links, addrs := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate)
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: failed}); err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	go func() {
		for l := range links {
			if pair := PairOf(i.name); slices.Contains([]string{i.name, pair.Out, pair.In}, l.Attrs().Name) {
				changed()
			}
		}
	}()
	if err := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{ErrorCallback: failed}); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	go func() {
		for a := range addrs {
			if !a.NewAddr {
				changed()
			}
		}
	}()
	return nil
}

// State is the state of an interface in the kernel.
type State struct {
	// Kind is "" if no interface has the name.
	Kind string
	// Up is whether it is set up.
	Up bool
	// Addresses are its addresses.
	Addresses []netip.Addr
}

// Read returns the state of an interface.
func Read(name string) (s State, err error) {
	h, err := handle()
	if err != nil {
		return s, err
	}
	defer h.Close()
	dev, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("interface %s: %w", name, err)
	}
	s.Kind, s.Up = dev.Type(), dev.Attrs().Flags&unix.IFF_UP != 0
	present, err := addressesOf(h, dev)
	if err != nil {
		return s, fmt.Errorf("interface %s: %w", name, err)
	}
	for _, a := range present {
		s.Addresses = append(s.Addresses, address(a))
	}
	return s, nil
}
