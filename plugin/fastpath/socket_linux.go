package fastpath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/sockets"
)

// receiveBuffer is the size of a socket's receive buffer in bytes: some thousand queries. Without CAP_NET_ADMIN, the limit
// is net.core.rmem_max.
const receiveBuffer = 4 << 20

// sendBuffer is the size of the send buffer of a socket that is bound to all addresses, in bytes: it has no spares.
const sendBuffer = 4 << 20

// controlLen is the size in bytes of the control message with the destination address of a query.
const controlLen = 64

// peer is the source address and the destination address of a query, in the kernel's form.
type peer struct {
	name       unix.RawSockaddrInet6 // or a RawSockaddrInet4
	nameLen    uint32
	control    [controlLen]byte
	controlLen int
}

// datagram is the destination of the reply to a query over UDP.
type datagram struct {
	socket *socket
	peer   peer
}

func (d *datagram) send(reply []byte, _ bool) error { return d.socket.send(&d.peer, reply) }
func (d *datagram) localAddr() net.Addr             { return d.socket.conn.LocalAddr() }
func (d *datagram) remoteAddr() net.Addr            { return d.peer.udpAddr() }
func (d *datagram) close()                          {}
func (d *datagram) ended([]byte)                    {}

// dropped implements destination: the client repeats a query without an answer.
func (d *datagram) dropped(*batch.Batch, []byte) {}

// udpAddr returns the source address.
func (p *peer) udpAddr() *net.UDPAddr {
	a := net.UDPAddrFromAddrPort(netip.AddrPortFrom(clientOf(&p.name), p.name.Port>>8|p.name.Port<<8))
	if p.name.Family == unix.AF_INET6 && p.name.Scope_id != 0 {
		if i, err := net.InterfaceByIndex(int(p.name.Scope_id)); err == nil {
			a.Zone = i.Name
		}
	}
	return a
}

// clientOf returns the source address of a query; a mapped IPv4 address is unmapped.
func clientOf(name *unix.RawSockaddrInet6) netip.Addr {
	if name.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrFrom4(v4.Addr)
	}
	return netip.AddrFrom16(name.Addr).Unmap()
}

// socket is a socket of a listener.
type socket struct {
	conn     *net.UDPConn
	raw      syscall.RawConn
	wildcard bool // the destination address of each query is the source address of its answer
	// sender is the descriptor of a socket with the same address that only sends; -1 without one. Go also polls whether conn is
	// writable, so that each answer that leaves by conn wakes the poll up: this costs 0.5 us for a single answer, 0.14 us in a batch.
	sender int
	spares *spares // nil for none
}

// openSockets opens a number of sockets with openBeside, and their senders. On an error, it returns those that are open.
//
// The senders are opened after all sockets. A sender is connected, and in recent kernels (seen with Linux 6.18) a connected socket
// divides the sockets that were bound before it from those after it: the kernel delivers all datagrams to the last group.
func openSockets(own *net.UDPConn, wildcard bool, number int) (all []*socket, err error) {
	for range number {
		s, err := openBeside(own, wildcard)
		if err != nil {
			s.close()
			return all, err
		}
		all = append(all, s)
	}
	if wildcard { // a sender is detached, and such a socket has one address
		return all, nil
	}
	spares := newSpares(len(all))
	for _, s := range all {
		if s.sender, err = s.openSender(); err != nil {
			log.Warningf("%s: no socket of their own for answers, which costs more CPU time: %v", s.conn.LocalAddr(), err)
		}
		s.spares = spares
	}
	return all, nil
}

// openBeside opens a socket on the address of CoreDNS's own socket, which has SO_REUSEPORT as well. For a wildcard
// address, the own socket has a loopback address if it is detached. The caller closes the socket also after an error.
func openBeside(own *net.UDPConn, wildcard bool) (*socket, error) {
	s := &socket{wildcard: wildcard, sender: -1}
	address, _ := own.LocalAddr().(*net.UDPAddr)
	network, v6only := "udp4", 0
	_ = sockets.Use(own, func(o sockets.Socket) error { // an error means that CoreDNS has closed it
		network, v6only = networkOf(o.FD)
		return nil
	})
	if wildcard {
		address = &net.UDPAddr{Port: address.Port}
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = s.configure(int(fd), network, v6only) }); cerr != nil { // #nosec G115 -- a descriptor
			return cerr
		}
		return err
	}}
	conn, err := config.ListenPacket(context.Background(), network, address.String())
	if err != nil {
		return s, fmt.Errorf("open a socket beside CoreDNS's: %w", err)
	}
	s.conn, _ = conn.(*net.UDPConn)
	s.raw, err = s.conn.SyscallConn()
	return s, err
}

// networkOf returns the network of a UDP socket, as package net calls it, and the option IPV6_V6ONLY, which IPv4 sockets lack.
func networkOf(fd int) (network string, v6only int) {
	v6only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	if err != nil {
		return "udp4", 0
	}
	return "udp6", v6only
}

// openSender opens a socket on the address of conn that only sends. It returns its descriptor, -1 with an error.
func (s *socket) openSender() (fd int, err error) {
	fd = -1
	err = sockets.Use(s.conn, func(beside sockets.Socket) (err error) {
		fd, err = s.openSenderBeside(beside)
		return err
	})
	return fd, err
}

// openSenderBeside is openSender, given the socket of conn.
func (s *socket) openSenderBeside(beside sockets.Socket) (fd int, err error) {
	local, err := unix.Getsockname(beside.FD)
	if err != nil {
		return -1, err
	}
	family := unix.AF_INET
	network, v6only := networkOf(beside.FD)
	if network == "udp6" {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = s.configure(fd, network, v6only); err == nil {
		err = unix.Bind(fd, local)
	}
	if err == nil {
		err = sockets.Socket{FD: fd}.Detach()
	}
	if err != nil {
		_ = unix.Close(fd) // else it would receive a share of the queries
		return -1, err
	}
	return fd, nil
}

// senderOr returns the descriptor for answers, given that of conn.
func (s *socket) senderOr(fd uintptr) uintptr {
	if s.sender >= 0 {
		return uintptr(s.sender)
	}
	return fd
}

// close closes the sockets. The close of conn waits for its users, so that none sends to another file with the descriptor of the
// sender or of a spare.
func (s *socket) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.sender >= 0 {
		_ = unix.Close(s.sender)
	}
	if s.spares != nil {
		s.spares.release()
	}
}

// configure sets the options of a socket before it is bound.
func (s *socket) configure(fd int, network string, v6only int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if s.wildcard && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	sockets.SkipPathMTUDiscovery(fd)
	if network == "udp6" {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, v6only); err != nil {
			return err
		}
	}
	switch {
	case !s.wildcard:
		return nil
	case network == "udp6":
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	default:
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
}

// clearInterface removes the interface from the destination address of a query, so that the answer is routed
// independently of the query's interface.
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
		if a := netip.AddrFrom16(info.Addr); a.Is4In6() || !a.IsLinkLocalUnicast() { // a link-local address needs its interface
			info.Ifindex = 0
		}
	}
}

// send sends an answer, without waiting.
func (s *socket) send(to *peer, answer []byte) error {
	vector := unix.Iovec{Base: &answer[0]}
	vector.SetLen(len(answer))
	h := mmsghdr{header: unix.Msghdr{Name: (*byte)(unsafe.Pointer(&to.name)), Namelen: to.nameLen, Iov: &vector}}
	h.header.SetIovlen(1)
	if to.controlLen > 0 {
		h.header.Control = &to.control[0]
		h.header.SetControllen(to.controlLen)
	}
	var errno unix.Errno
	err := s.raw.Control(func(fd uintptr) {
		s.sendAll(fd, []mmsghdr{h}, func(_ int, failed unix.Errno) { errno = failed })
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return fmt.Errorf("send an answer: %w", err)
	}
	return nil
}
