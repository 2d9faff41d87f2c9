package fastpath

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reusePort sets SO_REUSEPORT, as CoreDNS does.
func reusePort(_, _ string, c syscall.RawConn) (err error) {
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) // #nosec G115 -- a descriptor
	}); cerr != nil {
		return cerr
	}
	return err
}

// unsafeIPv4 returns the memory of the IPv4 address in a socket address.
func unsafeIPv4(name *unix.RawSockaddrInet6) []byte {
	return (*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr[:]
}
