package nodelocal

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/sockets"
)

// drain has the server read what has arrived on its UDP sockets, for a time at most. The sockets are
// CoreDNS's, which closes them with what is unread, and the fast path's. If another instance has sockets
// on the same addresses, the kernel shares what arrives out among all: ours are taken out of that first.
// What fails there is lost at the end: nothing can be done about it.
func drain(addrs []netip.Addr, port uint16, shared bool, most time.Duration) {
	own := sockets.Own(func(local netip.AddrPort) bool {
		return local.Port() == port && slices.Contains(addrs, local.Addr().WithZone(""))
	})
	defer func() {
		for _, s := range own {
			s.Close()
		}
	}()
	if shared {
		for _, s := range own {
			_ = s.Detach()
		}
	}
	// At least one pause: a datagram may be between the rules and the socket.
	for end := time.Now().Add(most); ; {
		time.Sleep(50 * time.Millisecond)
		if time.Now().After(end) || !slices.ContainsFunc(own, sockets.Socket.Unread) {
			return
		}
	}
}
