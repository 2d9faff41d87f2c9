package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long data may go unacknowledged before the kernel takes the connection for dead
// (tcp(7), TCP_USER_TIMEOUT): three retransmissions, and short enough for a second try.
const unacknowledged = time.Second

// control sets what a connection needs before it is made: for UDP, that errors of the network arrive at once
// (ip(7), IP_RECVERR).
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

// unread returns a function that reports whether an answer lies in an idle socket, and whether an error does (poll(2)):
// neither belongs to the query that is sent next. The function allocates nothing; only one call may run at a time.
func unread(c *net.UDPConn) func() (answer, failed bool) {
	raw := rawConn(c)
	if raw == nil {
		return noSecondUse
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

// endSoon sees that a connection does not stay when nobody is there. It is for one that is made: the kernel
// would end the making of it as soon, when the first segment was lost.
func endSoon(c net.Conn) {
	raw := rawConn(c)
	if raw == nil {
		return
	}
	// One that fails has been closed, or stays for as long as the system has it.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	})
}

// rawConn returns what gives access to the socket, or nil if there is none.
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

// segments returns how many segments a connection has had, RFC 4898's tcpEStatsPerfSegsOut and -In.
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
