package link

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
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
