package fastpath

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// reusePort has a socket share its address, as CoreDNS's do.
func reusePort(_, _ string, c syscall.RawConn) (err error) {
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) // #nosec G115 -- a descriptor
	}); cerr != nil {
		return cerr
	}
	return err
}
