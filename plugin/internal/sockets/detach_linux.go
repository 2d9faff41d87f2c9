package sockets

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Detach makes the kernel deliver new datagrams and connections to the other sockets on the address. It cannot be undone:
// Linux keeps the peer of an IPv6 socket.
//
// A UDP socket is connected to itself, and a filter drops datagrams whose source is forged to be the socket's own
// address; the socket can still send (Linux 5.4 and later). A socket that was bound to all addresses has a loopback
// address afterwards. A TCP listener stops listening; connections that it has not accepted move to another listener
// if net.ipv4.tcp_migrate_req is set, and are reset otherwise.
func (s Socket) Detach() error {
	if s.TCP {
		return s.stopListening()
	}
	self, err := unix.Getsockname(s.FD)
	if err != nil {
		return err
	}
	err = unix.Connect(s.FD, self)
	if a, ok := self.(*unix.SockaddrInet6); ok && err == unix.EADDRNOTAVAIL && a.Addr == [16]byte{} {
		// IPv6 is disabled, and all addresses are IPv4 ones.
		a.Addr = netip.MustParseAddr("::ffff:127.0.0.1").As16()
		err = unix.Connect(s.FD, a)
	}
	if err != nil {
		return err
	}
	dropAll := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	return unix.SetsockoptSockFprog(s.FD, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &dropAll})
}

// Detached reports whether a UDP socket is detached. Only Detach connects a socket on which a server listens.
func (s Socket) Detached() bool {
	_, err := unix.Getpeername(s.FD)
	return err == nil && !s.TCP
}

// acceptTime is longer than an accept4 call in progress can take, since the socket does not block.
const acceptTime = time.Millisecond

// stopListening closes a listener for new connections without an error in the server that accepts from it: on a socket
// that was shut down, accept4 fails with EINVAL, which ends the server's loop, and which caddy logs as an error. The
// server's descriptor refers to an idle listener until the server closes it as usual.
func (s Socket) stopListening() error {
	err := s.replace()
	if err != nil {
		err = fmt.Errorf("replace the listener on %v: %w", s.Local, err)
	}
	time.Sleep(acceptTime)
	return errors.Join(err, unix.Shutdown(s.FD, unix.SHUT_RD))
}

// replace makes the server's descriptor refer to an idle listener. FD keeps the former socket open. Go polls the former
// socket; its shutdown wakes Go up, which finds nothing to accept.
func (s Socket) replace() error {
	if n := inode(s.server); n == 0 || n != inode(s.FD) {
		return unix.EBADF // the server has closed it
	}
	idle, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(idle) }()
	if err := unix.Bind(idle, &unix.SockaddrUnix{}); err != nil { // the kernel chooses an abstract name
		return err
	}
	if err := unix.Listen(idle, 0); err != nil {
		return err
	}
	// The kernel refuses connections of other processes, and accept4 returns EAGAIN as for any idle listener.
	if err := unix.Shutdown(idle, unix.SHUT_RD); err != nil {
		return err
	}
	return unix.Dup3(idle, s.server, unix.O_CLOEXEC)
}

// inode returns the inode of a descriptor, 0 if it is closed.
func inode(fd int) uint64 {
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) != nil {
		return 0
	}
	return stat.Ino
}
