package fastpath

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spares are sockets with the address of a listener that only send: answers that do not fit into the send buffer of a sender. A
// datagram counts for the buffer of its socket until it leaves the machine, or the host's end of a pod's interface, so that a client
// behind a bandwidth limit can fill the buffer. It fills the buffers of two spares as well; of the other clients, one in 28 has the
// same two. Spares are opened when a buffer is full, since the kernel spends time to skip each of them when it looks for the socket
// of a query. Datagrams that a spare receives before it is detached, within microseconds, are lost.
type spares struct {
	mu    sync.Mutex
	fds   [8]int // or unopened, or -1 after an error
	users atomic.Int32
}

// unopened is the descriptor of a spare that was not used before.
const unopened = -2

// newSpares returns the spares of a number of sockets.
func newSpares(users int) *spares {
	s := new(spares)
	for i := range s.fds {
		s.fds[i] = unopened
	}
	s.users.Store(int32(users)) // #nosec G115 -- the number of readers
	return s
}

// fd returns the descriptor of spare i, negative after an error. It opens an unopened spare on the address of beside.
func (s *spares) fd(i int, beside *socket) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fds[i] == unopened {
		var err error
		if s.fds[i], err = beside.openSender(); err != nil {
			log.Warningf("%s: a client behind a bandwidth limit may cost others their answers: no spare socket: %v", beside.conn.LocalAddr(), err)
		}
	}
	return s.fds[i]
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

// send sends one datagram of a socket from a spare of its client, and returns EAGAIN if the buffers of both are full.
func (s *spares) send(from *socket, one []mmsghdr) unix.Errno {
	if s == nil {
		return unix.EAGAIN
	}
	first, second := s.choose(clientOf((*unix.RawSockaddrInet6)(unsafe.Pointer(one[0].header.Name))))
	for _, i := range []int{first, second} {
		fd := s.fd(i, from)
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
