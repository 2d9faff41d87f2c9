// Package sockets finds the sockets that this process listens on, whoever has opened them, and tells the
// kernel to give them no more. CoreDNS opens its sockets itself and shows them to nobody. In go
// addresses; out come duplicates of descriptors.
package sockets

import (
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Socket is a duplicate of the descriptor of a socket that listens.
type Socket struct {
	FD int
	// Listener tells that it is one of TCP; else it is one of UDP.
	Listener bool
	// Local is the address that it is bound to; a zone is the number of the interface.
	Local netip.AddrPort
}

// Own returns the sockets of this process that listen on an address that is asked for. Each has to be
// closed.
func Own(wanted func(netip.AddrPort) bool) (all []Socket) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	duplicates := map[int]bool{} // one may have the number of the folder, which was in the list
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil || duplicates[number] {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue // closed meanwhile
		}
		duplicates[fd] = true
		s := Socket{FD: fd}
		kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		s.Listener = listens == 1
		if kind == unix.SOCK_DGRAM || s.Listener {
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

// Detach has the kernel give what arrives to other sockets on the address. A UDP socket is connected to
// itself, which keeps it from new datagrams but not from answering (Linux 5.4 and later). A listener
// stops listening; connections that it has not accepted move on where net.ipv4.tcp_migrate_req is set,
// and are reset else. There is no way back: Linux keeps the peer of an IPv6 socket.
func (s Socket) Detach() error {
	if s.Listener {
		return unix.Shutdown(s.FD, unix.SHUT_RD)
	}
	self, err := unix.Getsockname(s.FD)
	if err != nil {
		return err
	}
	err = unix.Connect(s.FD, self)
	if a, ok := self.(*unix.SockaddrInet6); ok && err == unix.EADDRNOTAVAIL && a.Addr == [16]byte{} {
		// Where IPv6 is disabled, all addresses are those of IPv4.
		a.Addr = netip.MustParseAddr("::ffff:127.0.0.1").As16()
		err = unix.Connect(s.FD, a)
	}
	return err
}

// Inode returns the number that the socket has among all open ones, 0 if it is not known.
func (s Socket) Inode() uint64 {
	var stat unix.Stat_t
	if unix.Fstat(s.FD, &stat) != nil {
		return 0
	}
	return stat.Ino
}

// Unread reports whether a datagram waits to be read.
func (s Socket) Unread() bool {
	n, err := unix.IoctlGetInt(s.FD, unix.SIOCINQ)
	return err == nil && n > 0 && !s.Listener
}

// Close closes the duplicate.
func (s Socket) Close() { _ = unix.Close(s.FD) }
