package kernel

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// announcement makes known to the other processes in the network namespace that a program is nearside's. The kernel permits
// only processes with CAP_SYS_ADMIN to read the name of a program that they have not loaded. Two instances of nodecache run
// during an update.
type announcement io.Closer

// announcementName returns the name of a Unix socket in the abstract namespace, which has no files, and is separate for each
// network namespace. The socket ends with the process.
func announcementName(id ebpf.ProgramID) string { return fmt.Sprintf("@nearside/program/%d", id) }

// announce announces a program until the announcement is closed. A program may be announced more than once.
func announce(id ebpf.ProgramID) (announcement, error) {
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: announcementName(id), Net: "unixgram"})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return io.NopCloser(nil), nil
	case err != nil:
		return nil, &KernelError{fmt.Sprintf("announce program %d", id), err}
	}
	// No process sends to the socket. If one did, its datagrams would wait until the socket's limit.
	return c, nil
}

// isAnnounced reports whether a process announces a program.
func isAnnounced(id ebpf.ProgramID) bool {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: announcementName(id), Net: "unixgram"})
	if err != nil {
		return false // ECONNREFUSED: no such socket
	}
	_ = c.Close() // nothing was sent
	return true
}
