// Package epoll waits in one goroutine for many sockets (epoll(7)). Input is an epoll instance; output is the events of its
// sockets. The package is a leaf: it imports nothing of this project.
package epoll

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// New returns an epoll instance, as a file for which the runtime can wait, and its descriptor.
func New() (file *os.File, fd int, err error) {
	fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, 0, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for the runtime's poller
		return nil, 0, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	file = os.NewFile(uintptr(fd), "epoll")               // #nosec G115 -- not negative
	if err := file.SetDeadline(time.Time{}); err != nil { // the runtime cannot wait for it
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, fd, nil
}

// Ready receives the events that have occurred, without waiting, and returns their number. It uses RawSyscall6: during a
// Syscall6, the scheduler may give the goroutine's processor to another goroutine.
func Ready(fd uintptr, events []unix.EpollEvent) (n int, errno unix.Errno) {
	for {
		ready, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0) // #nosec G103
		if errno != unix.EINTR {
			return int(ready), errno // #nosec G115 -- at most len(events)
		}
	}
}
