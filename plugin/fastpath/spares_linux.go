package fastpath

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spares are sockets with the address of a listener that only send: answers that do not fit into the send buffer of a sender. A
// datagram counts for the buffer of its socket until it leaves the machine, or the host's end of a pod's interface, so that a client
// behind a bandwidth limit can fill the buffer. It fills the buffers of two spares as well; of the other clients, one in 28 has the
// same two. More spares would cost each query the time in which the kernel skips them when it looks for its socket.
type spares struct {
	fds   [8]int // -1 without a socket
	users atomic.Int32
}

// spareSeed is random, so that clients cannot choose their spares.
var spareSeed = maphash.MakeSeed()

// choose returns the indices of the two spares of a client.
func (s *spares) choose(client netip.Addr) (first, second int) {
	const n = uint64(len(s.fds))
	h := maphash.Comparable(spareSeed, client)
	first = int(h % n)                                  // #nosec G115 -- below n
	return first, (first + 1 + int(h/n%(n-1))) % int(n) // #nosec G115
}

// send sends one datagram from a spare of its client, and returns EAGAIN if the buffers of both are full.
func (s *spares) send(one []mmsghdr) unix.Errno {
	if s == nil {
		return unix.EAGAIN
	}
	first, second := s.choose(clientOf((*unix.RawSockaddrInet6)(unsafe.Pointer(one[0].header.Name))))
	for _, fd := range []int{s.fds[first], s.fds[second]} {
		if fd < 0 {
			continue
		}
		if _, errno := sendFirst(uintptr(fd), one); errno != unix.EAGAIN {
			return errno
		}
	}
	return unix.EAGAIN
}

// release closes the sockets after their last user.
func (s *spares) release() {
	if s.users.Add(-1) > 0 {
		return
	}
	for _, fd := range s.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
