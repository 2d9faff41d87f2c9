package nodelocal

import "golang.org/x/sys/unix"

// setMark sets the mark of a socket's packets. It needs the capability NET_ADMIN.
func setMark(fd, value int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, value)
}
