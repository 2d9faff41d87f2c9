package fastpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/sockets"
)

// receiveBuffer is how much the kernel keeps of what has arrived and is not read, in bytes: some
// thousand queries. Without the right to have that much, it is what net.core.rmem_max allows.
const receiveBuffer = 4 << 20

// controlLen has room for the address that a query came to.
const controlLen = 64

// peer is where a query came from, and which address it came to, in the form in which the kernel gives
// and takes both.
type peer struct {
	name       unix.RawSockaddrInet6 // or an IPv4 one
	nameLen    uint32
	control    [controlLen]byte
	controlLen int
}

// udpAddr returns where the query came from.
func (p *peer) udpAddr() *net.UDPAddr {
	a := &net.UDPAddr{Port: int(p.name.Port>>8 | p.name.Port<<8)}
	if p.name.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&p.name))
		a.IP = net.IPv4(v4.Addr[0], v4.Addr[1], v4.Addr[2], v4.Addr[3]).To4()
		return a
	}
	a.IP = append(net.IP(nil), p.name.Addr[:]...)
	if p.name.Scope_id != 0 {
		if i, err := net.InterfaceByIndex(int(p.name.Scope_id)); err == nil {
			a.Zone = i.Name
		}
	}
	return a
}

// isIPv4 reports whether a query came over IPv4, be it to a socket of both families.
func isIPv4(name *unix.RawSockaddrInet6) bool {
	return name.Family == unix.AF_INET || netip.AddrFrom16(name.Addr).Is4In6()
}

// clientOf returns the address that a query came from, one of IPv4 as such.
func clientOf(name *unix.RawSockaddrInet6) netip.Addr {
	if name.Family == unix.AF_INET {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrFrom4(four.Addr)
	}
	return netip.AddrFrom16(name.Addr).Unmap()
}

// duplicate returns a duplicate of CoreDNS's socket, which has to be closed, or nil without one.
func duplicate(conn *net.UDPConn) *sockets.Socket {
	if conn == nil {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	s := &sockets.Socket{}
	if cerr := raw.Control(func(fd uintptr) { s.FD, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil || err != nil {
		return nil
	}
	return s
}

// socket is one of the sockets of a listener.
type socket struct {
	file     *os.File
	raw      syscall.RawConn
	local    *net.UDPAddr
	wildcard bool // every query has an address of its own that the answer has to come from
}

// open opens a socket at the address of another one, beside it: both have SO_REUSEPORT. A wildcard is an address that is
// not specified; a detached socket does not show it any more.
func open(beside int, wildcard bool) (s *socket, err error) {
	self, err := unix.Getsockname(beside)
	if err != nil {
		return nil, fmt.Errorf("ask for the address of the server's socket: %w", err)
	}
	family := unix.AF_INET
	s = &socket{wildcard: wildcard}
	switch a := self.(type) {
	case *unix.SockaddrInet4:
		if wildcard {
			clear(a.Addr[:])
		}
		s.local = &net.UDPAddr{IP: append(net.IP(nil), a.Addr[:]...), Port: a.Port}
	case *unix.SockaddrInet6:
		family = unix.AF_INET6
		if wildcard {
			clear(a.Addr[:])
		}
		s.local = &net.UDPAddr{IP: append(net.IP(nil), a.Addr[:]...), Port: a.Port}
		if a.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(a.ZoneId)); err == nil {
				s.local.Zone = i.Name
			}
		}
	default:
		return nil, fmt.Errorf("the server's socket has an address of an unknown family: %T", self)
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	if err = s.configure(fd, family, beside); err != nil {
		err = fmt.Errorf("configure a socket: %w", err)
	} else if err = unix.Bind(fd, self); err != nil {
		err = fmt.Errorf("bind a socket to %v: %w", s.local, err)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s.file = os.NewFile(uintptr(fd), "udp "+s.local.String()) // #nosec G115 -- a descriptor
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// configure makes the socket like the one beside which it is opened.
func (s *socket) configure(fd, family, beside int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if family == unix.AF_INET6 {
		only, err := unix.GetsockoptInt(beside, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return err
		}
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if !s.wildcard {
		return nil
	}
	if family == unix.AF_INET6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// clearInterface takes the interface out of the address that a query came to, so that the answer may
// take another way back than the query came.
func clearInterface(control []byte) {
	if len(control) < unix.SizeofCmsghdr {
		return
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	data := control[unix.CmsgLen(0):]
	switch {
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		(*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0])).Ifindex = 0
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0]))
		if a := netip.AddrFrom16(info.Addr); a.Is4In6() || !a.IsLinkLocalUnicast() { // one without its interface is nowhere
			info.Ifindex = 0
		}
	}
}

// send sends one answer, and waits while the kernel has no room for it.
func (s *socket) send(to *peer, answer []byte) error {
	vector := unix.Iovec{Base: &answer[0]}
	vector.SetLen(len(answer))
	h := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&to.name)), Namelen: to.nameLen, Iov: &vector}
	h.SetIovlen(1)
	if to.controlLen > 0 {
		h.Control = &to.control[0]
		h.SetControllen(to.controlLen)
	}
	var errno syscall.Errno
	err := s.raw.Write(func(fd uintptr) bool {
		for {
			_, _, errno = unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&h)), unix.MSG_DONTWAIT)
			if errno != unix.EINTR {
				return errno != unix.EAGAIN
			}
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return fmt.Errorf("send an answer: %w", err)
	}
	return nil
}

// detach has the kernel give new datagrams to other sockets on the address. Where it fails, datagrams go
// on arriving until the socket is closed.
func (s *socket) detach() {
	_ = s.raw.Control(func(fd uintptr) { _ = sockets.Socket{FD: int(fd)}.Detach() }) // #nosec G115 -- a descriptor
}
