// Package sockets finds the sockets on which this process listens and detaches them, so that the kernel delivers new
// datagrams and connections to other sockets. CoreDNS opens its sockets itself and does not export them. Input is a
// choice of addresses; output is duplicates of descriptors. It imports neither CoreDNS nor package dns.
package sockets

import (
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Socket is a socket of this process that listens.
type Socket struct {
	// FD is a descriptor; from Own, a duplicate of the server's.
	FD int
	// TCP is set for a TCP listener; otherwise it is a UDP socket.
	TCP bool
	// Local is the address to which the socket is bound; its zone is the index of the interface.
	Local netip.AddrPort

	server int // the descriptor that FD duplicates
}

// Own returns the sockets on which this process listens, of the wanted addresses. The caller closes each.
func Own(wanted func(netip.AddrPort) bool) (all []Socket) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	duplicates := map[int]bool{} // a duplicate may get the number of the directory's descriptor, which is listed
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil || duplicates[number] {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue // closed since the listing
		}
		duplicates[fd] = true
		s := Socket{FD: fd, server: number}
		kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		s.TCP = listens == 1
		if kind == unix.SOCK_DGRAM || s.TCP {
			s.Local = local(fd)
		}
		if s.Local.IsValid() && s.Local.Port() != 0 && wanted(s.Local) {
			all = append(all, s)
		} else {
			s.Close()
			delete(duplicates, fd)
		}
	}
	return all
}

func local(fd int) netip.AddrPort {
	switch self, _ := unix.Getsockname(fd); s := self.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port)) // #nosec G115 -- a port
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(s.Addr)
		if s.ZoneId != 0 {
			a = a.WithZone(strconv.Itoa(int(s.ZoneId)))
		}
		return netip.AddrPortFrom(a, uint16(s.Port)) // #nosec G115
	default:
		return netip.AddrPort{}
	}
}

// Unread reports whether a UDP socket has a datagram that is not read yet.
func (s Socket) Unread() bool {
	n, err := unix.IoctlGetInt(s.FD, unix.SIOCINQ)
	return err == nil && n > 0 && !s.TCP
}

// Close closes FD.
func (s Socket) Close() { _ = unix.Close(s.FD) }
