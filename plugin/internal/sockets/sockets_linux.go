// Package sockets finds the sockets on which this process listens, whichever package has opened them, and detaches them:
// the kernel gives them no new datagrams or connections. CoreDNS opens its sockets itself and does not export them. In
// go addresses; out come duplicates of descriptors.
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

	server int // the descriptor that FD duplicates
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
		s := Socket{FD: fd, server: number}
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

// Detach makes the kernel give new datagrams and connections to the other sockets on the address. A UDP socket is
// connected to itself, and gets a filter that drops datagrams whose source is forged to be the socket's own address; it
// can still send (Linux 5.4 and later). A listener stops listening; connections that it has not accepted move to another
// one where net.ipv4.tcp_migrate_req is set, and are reset otherwise. It cannot be undone: Linux keeps the peer of an
// IPv6 socket. A socket that was bound to all addresses has a loopback address afterwards.
func (s Socket) Detach() error {
	if s.Listener {
		return s.stopListening()
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
	if err != nil {
		return err
	}
	dropAll := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	return unix.SetsockoptSockFprog(s.FD, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &dropAll})
}

// Detached reports whether a UDP socket receives no new datagrams: Detach is the only one to connect a socket that
// answers queries.
func (s Socket) Detached() bool {
	_, err := unix.Getpeername(s.FD)
	return err == nil && !s.Listener
}

// Unread reports whether a datagram waits to be read.
func (s Socket) Unread() bool {
	n, err := unix.IoctlGetInt(s.FD, unix.SIOCINQ)
	return err == nil && n > 0 && !s.Listener
}

// Close closes the duplicate.
func (s Socket) Close() { _ = unix.Close(s.FD) }
