package nodelocal

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// drain has the server read what has arrived on its UDP sockets, for a time at most. The sockets are
// CoreDNS's, which closes them with what is unread. If another instance has sockets on the same
// addresses, the kernel shares what arrives out among all: ours are taken out of that first.
func drain(addrs []netip.Addr, port uint16, shared bool, most time.Duration) {
	sockets := ownSockets(addrs, port)
	defer func() {
		for _, s := range sockets {
			_ = unix.Close(s.fd)
		}
	}()
	if shared {
		for _, s := range sockets {
			s.detach()
		}
	}
	// At least one pause: a datagram may be between the rules and the socket.
	for end := time.Now().Add(most); ; {
		time.Sleep(50 * time.Millisecond)
		if time.Now().After(end) || !slices.ContainsFunc(sockets, server.unread) {
			return
		}
	}
}

// server is a duplicate of a socket that a server listens on.
type server struct {
	fd       int
	listener bool // of TCP
}

// detach has the kernel give what arrives to other sockets on the address. A UDP socket is connected to
// itself, which keeps it from new datagrams but not from answering (Linux 5.4 and later). A listener
// stops listening; connections that it has not accepted move on where net.ipv4.tcp_migrate_req is set,
// and are reset else. What fails here is lost at the end: nothing can be done about it.
func (s server) detach() {
	if s.listener {
		_ = unix.Shutdown(s.fd, unix.SHUT_RD)
		return
	}
	if self, err := unix.Getsockname(s.fd); err == nil {
		_ = unix.Connect(s.fd, self)
	}
}

// unread returns whether a datagram waits to be read.
func (s server) unread() bool {
	n, err := unix.IoctlGetInt(s.fd, unix.SIOCINQ)
	return err == nil && n > 0 && !s.listener
}

// ownSockets returns the sockets of this process that listen on one of the addresses.
func ownSockets(addrs []netip.Addr, port uint16) (all []server) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue // closed meanwhile
		}
		kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if (kind == unix.SOCK_DGRAM || listens == 1) && isBound(fd, addrs, port) {
			all = append(all, server{fd, listens == 1})
		} else {
			_ = unix.Close(fd)
		}
	}
	return all
}

// isBound returns whether a socket is bound to one of the addresses.
func isBound(fd int, addrs []netip.Addr, port uint16) bool {
	var local netip.AddrPort
	switch self, _ := unix.Getsockname(fd); s := self.(type) {
	case *unix.SockaddrInet4:
		local = netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		local = netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	default:
		return false
	}
	return local.Port() == port && slices.Contains(addrs, local.Addr())
}
