package transport

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unacknowledged limits the time for which sent data may be unacknowledged (tcp(7), TCP_USER_TIMEOUT): three
// retransmissions, and short enough for a second try.
const unacknowledged = time.Second

// setUserTimeout makes the kernel close a connection whose peer does not acknowledge data. It is set after the handshake,
// which the option would end after one lost segment.
func setUserTimeout(c net.Conn) {
	raw := rawConn(c)
	if raw == nil {
		return
	}
	// If it fails, the connection is closed, or the system's timeout applies.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	})
}

// rawConn returns access to the socket of a TCP, TLS or UDP connection, or nil.
func rawConn(c net.Conn) syscall.RawConn {
	if wrapped, is := c.(interface{ NetConn() net.Conn }); is { // TLS
		c = wrapped.NetConn()
	}
	sc, is := c.(syscall.Conn)
	if !is {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// countsSegments reports whether segments is supported.
const countsSegments = true

// segments returns the segments of a connection, RFC 4898's tcpEStatsPerfSegsOut and -In.
func segments(c net.Conn) (p packets, ok bool) {
	raw := rawConn(c)
	if raw == nil {
		return p, false
	}
	err := raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			p, ok = packets{sent: info.Segs_out, received: info.Segs_in}, true
		}
	})
	return p, ok && err == nil
}

// stream is the socket of a plain TCP connection, for writes and reads without blocking. One goroutine writes at a time,
// and one reads.
type stream struct {
	raw     syscall.RawConn
	control func(fd uintptr)
	b       []byte // to be written
	n       int    // written
	errno   syscall.Errno
}

// newStream returns the socket of a connection, or nil if it is not plain TCP.
func newStream(c net.Conn) *stream {
	t, is := c.(*net.TCPConn)
	if !is {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	s := &stream{raw: raw}
	s.control = func(fd uintptr) {
		s.n, s.errno = sendTo(fd, s.b)
	}
	return s
}

// sendTo sends b, which is not empty, without waiting.
func sendTo(fd uintptr, b []byte) (n int, errno syscall.Errno) {
	// RawSyscall6, since the call does not wait: Syscall6 would wake the scheduler's monitor, a thread.
	sent, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0) // #nosec G103
	return int(sent), errno
}

// receiveFrom receives into b, which is not empty, without waiting.
func receiveFrom(fd uintptr, b []byte) (n int, errno syscall.Errno) {
	received, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0) // #nosec G103
	return int(received), errno
}

// write writes as much of b, which is not empty, as the kernel accepts at once.
func (s *stream) write(b []byte) (n int, err error) {
	for {
		s.b = b
		err := s.raw.Control(s.control)
		s.b = nil
		switch {
		case err != nil:
			return 0, err
		case s.errno == 0:
			return s.n, nil
		case s.errno == unix.EAGAIN:
			return 0, nil
		case s.errno != unix.EINTR:
			return 0, os.NewSyscallError("sendto", s.errno)
		}
	}
}

// read reads into a connection until its end.
func (s *stream) read(c *conn) error {
	var end error
	err := s.raw.Read(func(fd uintptr) (ended bool) {
		for {
			n, errno := receiveFrom(fd, c.room())
			switch {
			case errno == unix.EAGAIN:
				return false
			case errno == unix.EINTR:
			case errno != 0:
				end = os.NewSyscallError("recvfrom", errno)
				return true
			case n == 0:
				end = io.EOF
				return true
			default:
				c.received(n)
			}
		}
	})
	if err != nil {
		return err
	}
	return end
}
