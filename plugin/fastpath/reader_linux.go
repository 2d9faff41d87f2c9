package fastpath

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

const (
	batchLen    = 64       // datagrams received or sent by a system call
	arenaLen    = 64 << 10 // bytes of answers sent by a system call
	maxHitLen   = 16 << 10 // bytes of an answer; longer ones are handed to the chain
	maxFailures = 10       // of receiving in a row, before the reader waits until the socket is readable
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
}

// The size of the kernel's structure: a Msghdr and a number, padded to a pointer.
var _ [unsafe.Sizeof(unix.Msghdr{}) + unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(mmsghdr{})]byte{}

// reader receives the datagrams of a socket in a goroutine, in batches whose memory is allocated once.
type reader struct {
	listener *listener
	socket   *socket
	ended    chan struct{}

	received [batchLen]mmsghdr
	vectors  [batchLen]unix.Iovec
	names    [batchLen]unix.RawSockaddrInet6
	controls [batchLen][controlLen]byte
	queries  [batchLen][datagramLen]byte

	answers       [batchLen]mmsghdr
	answerVectors [batchLen]unix.Iovec
	hits          [batchLen]hit
	pending       int // answers that are not sent yet
	arena         []byte

	lookup
	kernel *kernelListener // of the batch
	patch  store.Patch
	random random
	output batch.Batch

	failures int // of receiving in a row
}

func newReader(l *listener, s *socket) *reader {
	r := &reader{
		listener: l, socket: s, ended: make(chan struct{}),
		arena:  make([]byte, 0, arenaLen+maxHitLen), // with room for a copy of the last answer's records to shuffle them
		random: newRandom(),
	}
	for i := range r.received {
		r.vectors[i].Base = &r.queries[i][0]
		r.vectors[i].SetLen(datagramLen)
		h := &r.received[i].header
		h.Name, h.Iov = (*byte)(unsafe.Pointer(&r.names[i])), &r.vectors[i]
		h.SetIovlen(1)
		if s.wildcard {
			h.Control = &r.controls[i][0]
		}
		r.resetLengths(i)
		a := &r.answers[i].header
		a.Iov = &r.answerVectors[i]
		a.SetIovlen(1)
	}
	return r
}

// resetLengths sets the sizes of the buffers for addresses, which the kernel overwrites with the lengths of the addresses.
func (r *reader) resetLengths(i int) {
	h := &r.received[i].header
	h.Namelen = unix.SizeofSockaddrInet6
	if r.socket.wildcard {
		h.SetControllen(controlLen)
	}
}

// run reads until the deadline of the socket.
func (r *reader) run() {
	defer close(r.ended)
	if sender := r.socket.sender; sender >= 0 {
		r.step(uintptr(sender)) // datagrams that it received before it was detached
	}
	for {
		err := r.socket.raw.Read(r.step)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return
		}
		log.Errorf("%s: a reader cannot wait for datagrams, and retries in a second: %v", r.listener.address, err)
		time.Sleep(time.Second)
	}
}

// finish ends run, and answers the remaining datagrams of the socket.
func (r *reader) finish() {
	if err := r.socket.conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		log.Errorf("%s: a reader does not end, its queries are lost: %v", r.listener.address, err)
		return
	}
	<-r.ended
	_ = r.socket.raw.Control(func(fd uintptr) { r.step(fd) }) // the socket is open
}

// step answers all datagrams of the socket. It returns false, so that syscall.RawConn waits for more.
func (r *reader) step(fd uintptr) bool {
	for r.batch(fd) {
	}
	return false
}

// batch receives and answers a batch, and reports whether there may be more.
func (r *reader) batch(fd uintptr) bool {
	// RawSyscall6, since the call does not wait and takes microseconds: Syscall6 would let the scheduler give the
	// goroutine's processor to another one meanwhile.
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.received[0])), batchLen, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
		r.failures = 0
		r.serve(fd, int(n))     // #nosec G115 -- at most batchLen
		for i := range int(n) { // #nosec G115
			r.resetLengths(i)
		}
		return n > 1 // after several, more have probably arrived: polling for them costs more than a system call
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		return false
	default: // the error of an earlier answer, such as ECONNREFUSED, or the kernel lacks memory
		r.failures++
		time.Sleep(time.Millisecond)
		return r.failures < maxFailures
	}
}

// try finds out whether the process may use these system calls: it receives and sends zero datagrams, and sends one to no address.
func (r *reader) try() error {
	var receive, send, sendOne unix.Errno
	if err := r.socket.raw.Control(func(fd uintptr) {
		_, _, receive = unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.received[0])), 0, unix.MSG_DONTWAIT, 0, 0)
		_, _, send = unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&r.answers[0])), 0, unix.MSG_DONTWAIT, 0, 0)
		_, _, sendOne = unix.RawSyscall6(unix.SYS_SENDTO, fd, 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}); err != nil {
		return err
	}
	for _, tried := range []struct {
		call  string
		errno unix.Errno
	}{{"recvmmsg", receive}, {"sendmmsg", send}, {"sendto", sendOne}} {
		if tried.errno != 0 && tried.errno != unix.EDESTADDRREQ && tried.errno != unix.EAGAIN && tried.errno != unix.EINTR {
			return fmt.Errorf("%s: %w", tried.call, tried.errno)
		}
	}
	return nil
}

// serve answers the first n datagrams of a batch from the store, or hands them over.
func (r *reader) serve(fd uintptr, n int) {
	r.kernel = r.listener.kernel.Load() // before the server: a reload replaces the server first
	s := r.listener.acquire()
	now := validity.Now()
	for i := range n {
		if !r.answer(fd, s, i, now) {
			r.handOver(s, i, now)
		}
	}
	r.flush(fd, s, now)
	r.output.Flush()
	s.release()
}

// answer appends the answer to a datagram to the pending ones, and reports whether there is one.
func (r *reader) answer(fd uintptr, s *server, i int, now time.Duration) bool {
	q := &r.query
	in := r.queries[i][:min(int(r.received[i].length), datagramLen)]
	client := clientOf(&r.names[i])
	if !r.find(s, in, client, now) {
		return false
	}
	r.patch = r.entry.Patch(now)
	form := formOf(r.route, r.entry, q, &r.patch, min(q.Limit(), maxHitLen), fragmentOf(client), &r.random)
	if form == nil {
		r.wire = false // the answer has to be truncated or reordered
		return false
	}
	if len(r.arena)+form.ReplyLen(q, &r.patch) > arenaLen {
		r.flush(fd, s, now)
	}
	r.count()
	start := len(r.arena)
	r.arena = form.AppendReply(r.arena, in, q, &r.patch)
	r.hits[r.pending].set(r.route.counters, r.entry, q, form.Rcode(), client, len(in))
	if r.kernel != nil {
		r.offer(r.kernel, client)
	}
	r.enqueue(i, r.arena[start:])
	return true
}

// enqueue appends an answer to the pending ones.
func (r *reader) enqueue(i int, answer []byte) {
	j := r.pending
	r.answerVectors[j].Base = &answer[0]
	r.answerVectors[j].SetLen(len(answer))
	h, in := &r.answers[j].header, &r.received[i].header
	h.Name, h.Namelen = in.Name, in.Namelen
	h.Control = nil
	h.SetControllen(0)
	if r.socket.wildcard && in.Controllen > 0 {
		control := r.controls[i][:in.Controllen]
		clearInterface(control)
		h.Control = &control[0]
		h.SetControllen(len(control))
	}
	r.pending++
}

// flush sends and counts the pending answers.
func (r *reader) flush(fd uintptr, s *server, start time.Duration) {
	if r.pending == 0 {
		return
	}
	unsent := r.socket.sendAll(fd, r.answers[:r.pending], func(i int, _ unix.Errno) {
		r.hits[i].rcode = dns.RcodeServerFailure // as prometheus counts a plugin that cannot write its reply
	})
	s.metrics.droppedSend.Add(float64(unsent))
	took := validity.Now() - start
	for i := range r.pending {
		r.hits[i].count(took)
	}
	s.metrics.answered.Add(float64(r.pending - unsent))
	r.pending, r.arena = 0, r.arena[:0]
}

// handOver hands a datagram to the wire handlers or to the plugin chain.
func (r *reader) handOver(s *server, i int, now time.Duration) {
	in := &r.received[i]
	d := newRequest(s, r.queries[i][:min(int(in.length), datagramLen)])
	o := &d.origin
	d.to, o.socket = o, r.socket
	o.peer.name, o.peer.nameLen, o.peer.controlLen = r.names[i], in.header.Namelen, 0
	if r.socket.wildcard {
		control := r.controls[i][:in.header.Controllen]
		clearInterface(control)
		o.peer.controlLen = copy(o.peer.control[:], control)
	}
	r.pass(&r.output, d, clientOf(&r.names[i]), now)
}
