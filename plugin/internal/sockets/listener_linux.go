package sockets

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// inFlight is more than an accept4 takes that has begun before the descriptor was replaced. It never waits.
const inFlight = time.Millisecond

// stopListening closes a listener for new connections. The server that accepts from it must not see that:
// accept4 would fail with EINVAL, which ends its loop, and caddy logs it as an error. So the server's
// descriptor gets a listener to which no client connects, until the server closes it as usual.
func (s Socket) stopListening() error {
	err := s.replace()
	if err != nil {
		err = fmt.Errorf("replace the listener on %v: %w", s.Local, err)
	}
	time.Sleep(inFlight)
	return errors.Join(err, unix.Shutdown(s.FD, unix.SHUT_RD))
}

// replace puts an idle listener in the place of the server's descriptor. FD keeps the socket open. Go
// waits for the socket that was there; when that is shut down, it wakes up, and finds nothing to accept.
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
