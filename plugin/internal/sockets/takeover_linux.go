package sockets

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errIdle is the error of TakeOver for a listener that was taken over before.
var errIdle = errors.New("the listener is idle")

// TakeOver moves the TCP listener of a server to the caller, with the connections that the server has not accepted: none is
// lost. The server's descriptor refers to an idle listener afterwards. It cannot be undone.
func TakeOver(server syscall.Conn) (listener *os.File, err error) {
	err = Use(server, func(own Socket) error {
		if isIdle(own.FD) {
			return errIdle
		}
		file, duplicate, err := own.duplicate()
		if err != nil {
			return err
		}
		if err := (Socket{FD: duplicate, server: own.FD}).replace(); err != nil {
			return errors.Join(err, file.Close())
		}
		listener = file
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take over a listener: %w", err)
	}
	return listener, nil
}

// duplicate returns a duplicate of a socket, as a file for which the runtime can wait, and its descriptor. The runtime only
// waits for sockets that do not block, and caddy lets the same socket block for a moment when it passes a listener on to the
// next configuration.
func (s Socket) duplicate() (file *os.File, fd int, err error) {
	const tries = 100
	for range tries {
		if fd, err = unix.FcntlInt(uintptr(s.FD), unix.F_DUPFD_CLOEXEC, 0); err != nil { // #nosec G115 -- a descriptor
			return nil, 0, err
		}
		if err = unix.SetNonblock(fd, true); err != nil {
			return nil, 0, errors.Join(err, unix.Close(fd))
		}
		file = os.NewFile(uintptr(fd), "listener") // #nosec G115 -- a descriptor
		if err = file.SetDeadline(time.Time{}); err == nil {
			return file, fd, nil
		}
		err = errors.Join(err, file.Close())
		time.Sleep(time.Millisecond)
	}
	return nil, 0, err
}

// IsIdle reports whether a server's listener was taken over, also if it was an earlier server's that passed its descriptor on.
func IsIdle(server syscall.Conn) (idle bool) {
	_ = Use(server, func(own Socket) error { // an error means that the server has closed it
		idle = isIdle(own.FD)
		return nil
	})
	return idle
}

func isIdle(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_UNIX
}

// Use calls f with a socket, which is not closed meanwhile.
func Use(c syscall.Conn, f func(Socket) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = f(Socket{FD: int(fd)}) }); cerr != nil { // #nosec G115 -- a descriptor
		return cerr
	}
	return err
}
