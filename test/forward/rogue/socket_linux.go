package rogue

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// KeepPort takes a port of TCP, or of UDP, that nobody answers on until it is closed: connections and datagrams are
// refused as if it was free.
func KeepPort(where netip.AddrPort, udp bool) (io.Closer, error) {
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
	kept := os.NewFile(uintptr(fd), where.String())
	if !udp { // connections of before may still have the port; the kernel gives it to nobody who asks for any
		if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
			return nil, errors.Join(os.NewSyscallError("setsockopt", err), kept.Close())
		}
	}
	if err := syscall.Bind(fd, sockaddr(where)); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), kept.Close())
	}
	if !udp {
		return kept, nil
	}
	// What does not come from where it is connected to is none of its datagrams.
	if err := syscall.Connect(fd, sockaddr(netip.AddrPortFrom(where.Addr(), 1))); err != nil {
		return nil, errors.Join(os.NewSyscallError("connect", err), kept.Close())
	}
	return kept, nil
}

func sockaddr(where netip.AddrPort) syscall.Sockaddr {
	if where.Addr().Is4() {
		return &syscall.SockaddrInet4{Port: int(where.Port()), Addr: where.Addr().As4()}
	}
	return &syscall.SockaddrInet6{Port: int(where.Port()), Addr: where.Addr().As16()}
}

// smallBuffer is so small that a few queries fill it. The kernel makes at least 2304 bytes of it.
const smallBuffer = 1

// leaveNoQueue lets one connection at most wait to be accepted.
func leaveNoQueue(l net.Listener) error {
	return control(l, func(fd int) error { return syscall.Listen(fd, 0) })
}

// usualBuffer is the receive buffer of connections that were made with a small one, and the window that they offer, in
// bytes.
const usualBuffer = 1 << 16

// limitBuffers gives the connections that a listener accepts from now on a small receive buffer, or one of the usual size.
func limitBuffers(l net.Listener, small bool) error {
	return control(l, func(fd int) error {
		if small {
			return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, smallBuffer)
		}
		return widen(fd)
	})
}

// widenBuffer gives a connection a receive buffer of the usual size. One that was accepted with a small buffer keeps it
// else, and drops segments of every burst, however fast the server reads.
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
		return err // it stays as it was: setting a size would keep it from growing
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
