package nodelocal

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/sockets"
)

// drain waits until the server has read its UDP sockets. They are CoreDNS's, which closes them with unread queries, and
// the fast path's. If another instance has sockets on the same addresses (shared), the kernel distributes queries to all:
// ours are excluded first. Errors are ignored: only the queries that are still unread are lost.
func drain(addrs []netip.Addr, port uint16, shared bool, wait time.Duration) {
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
	// At least one pause: a datagram may have passed the rules and not yet reached the socket.
	for end := time.Now().Add(wait); ; {
		time.Sleep(50 * time.Millisecond)
		if time.Now().After(end) || !slices.ContainsFunc(own, sockets.Socket.Unread) {
			return
		}
	}
}
