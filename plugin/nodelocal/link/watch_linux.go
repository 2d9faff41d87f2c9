package link

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Watch calls changed after every change of the interface or its pair and every removal of one of these addresses, also
// from another interface, until done is closed. It ignores other addresses, which are removed with each pod that ends. If
// notifications of the kernel were lost, it calls failed and ends: the caller must verify the interface and call Watch again.
func (i *Interface) Watch(addrs []netip.Addr, done <-chan struct{}, changed func(), failed func(error)) error {
	links, changes := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate)
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
	if err := netlink.AddrSubscribeWithOptions(changes, done, netlink.AddrSubscribeOptions{ErrorCallback: failed}); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	go func() {
		for a := range changes {
			if ip, _ := netip.AddrFromSlice(a.LinkAddress.IP); !a.NewAddr && slices.Contains(addrs, ip.Unmap()) {
				changed()
			}
		}
	}()
	return nil
}
