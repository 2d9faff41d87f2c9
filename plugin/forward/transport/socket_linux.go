package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged limits the time for which sent data may be unacknowledged (tcp(7), TCP_USER_TIMEOUT): three
// retransmissions, and short enough for a second try.
const unacknowledged = time.Second

// control sets socket options before connecting: over UDP, network errors are reported at once (ip(7), IP_RECVERR).
func control(network, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		switch network {
		case "udp4":
			failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_RECVERR, 1)
		case "udp6":
			failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVERR, 1)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// unread returns a function that reports whether an idle socket has received an answer or an error (poll(2)): neither
// belongs to the next query. The function allocates nothing; calls must not be concurrent.
func unread(c *net.UDPConn) func() (answer, failed bool) {
	raw := rawConn(c)
	if raw == nil {
		return unknownUnread
	}
	sockets := []unix.PollFd{{Events: unix.POLLIN}}
	var err error
	poll := func(fd uintptr) {
		sockets[0].Fd = int32(fd) // #nosec G115 -- the kernel's are int32
		_, err = unix.Poll(sockets, 0)
	}
	return func() (answer, failed bool) {
		if raw.Control(poll) != nil || err != nil {
			return false, true
		}
		events := sockets[0].Revents
		return events&unix.POLLIN != 0, events&^unix.POLLIN != 0
	}
}

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
