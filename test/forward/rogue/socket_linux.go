package rogue

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// ReservePort binds a TCP or UDP port without listening on it: until Close, connections and datagrams are refused, and no
// other process receives the port.
func ReservePort(where netip.AddrPort, udp bool) (io.Closer, error) {
	family, kind := syscall.AF_INET6, syscall.SOCK_STREAM
	if where.Addr().Is4() {
		family = syscall.AF_INET
	}
	if udp {
		kind = syscall.SOCK_DGRAM
	}
	fd, err := syscall.Socket(family, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	reserved := os.NewFile(uintptr(fd), where.String())
	if !udp { // earlier connections may still use the port; bind to port 0 never returns it
		if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
			return nil, errors.Join(os.NewSyscallError("setsockopt", err), reserved.Close())
		}
	}
	if err := syscall.Bind(fd, sockaddr(where)); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), reserved.Close())
	}
	if !udp {
		return reserved, nil
	}
	// A connected socket receives datagrams of its peer only: the kernel refuses all others.
	if err := syscall.Connect(fd, sockaddr(netip.AddrPortFrom(where.Addr(), 1))); err != nil {
		return nil, errors.Join(os.NewSyscallError("connect", err), reserved.Close())
	}
	return reserved, nil
}

func sockaddr(where netip.AddrPort) syscall.Sockaddr {
	if where.Addr().Is4() {
		return &syscall.SockaddrInet4{Port: int(where.Port()), Addr: where.Addr().As4()}
	}
	return &syscall.SockaddrInet6{Port: int(where.Port()), Addr: where.Addr().As16()}
}

// smallBuffer is a receive buffer that a few queries fill, in bytes. The kernel raises it to its minimum of 2304.
const smallBuffer = 1

// leaveNoQueue limits the accept queue of a listener to one connection.
func leaveNoQueue(l net.Listener) error {
	return control(l, func(fd int) error { return syscall.Listen(fd, 0) })
}

// usualBuffer is the receive buffer and window of connections that were accepted with a small buffer, after widenBuffer,
// in bytes.
const usualBuffer = 1 << 16

// limitBuffers sets the receive buffer of connections that a listener accepts from now on: small, or of the usual size.
func limitBuffers(l net.Listener, small bool) error {
	return control(l, func(fd int) error {
		if small {
			return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, smallBuffer)
		}
		return widen(fd)
	})
}

// widenBuffer sets the receive buffer of a connection to the usual size. With the small buffer of its listener it would
// drop segments of every burst, even if the server reads fast.
func widenBuffer(c net.Conn) error {
	return control(c, func(fd int) error {
		if err := widen(fd); err != nil {
			return err
		}
		clamp, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_WINDOW_CLAMP)
		if err != nil || clamp >= usualBuffer {
			return err
		}
		return syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_WINDOW_CLAMP, usualBuffer)
	})
}

func widen(fd int) error {
	size, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF)
	if err != nil || size > 1<<14 {
		return err // unchanged: with a set size the kernel would not let it grow
	}
	return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2*usualBuffer)
}

// control calls a function with the socket of a listener or a connection.
func control(socket any, do func(fd int) error) error {
	raw, err := socket.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var done error
	err = raw.Control(func(fd uintptr) { done = do(int(fd)) })
	return errors.Join(err, done)
}
