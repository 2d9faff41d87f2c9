package fastpath

import (
	"hash/maphash"
	"sync"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// sender sends answers over a socket in batches, to queries that had no stored answer when they were received. It
// implements batch.Flusher.
type sender struct {
	socket  *socket
	headers [batchLen]mmsghdr
	vectors [batchLen]unix.Iovec
	peers   [batchLen]peer
	hits    [batchLen]hit
	arrived [batchLen]time.Duration
	server  *server // of the pending answers; referenced until they are sent
	pending int
	arena   []byte
	random  random
}

var senders = sync.Pool{New: func() any {
	s := &sender{arena: make([]byte, 0, senderArena+maxHitLen), random: newRandom()}
	for i := range s.headers {
		h := &s.headers[i].header
		h.Name, h.Iov = (*byte)(unsafe.Pointer(&s.peers[i].name)), &s.vectors[i]
		h.SetIovlen(1)
	}
	return s
}}

// senderArena is the number of bytes of answers that a sender sends by a system call.
const senderArena = 16 << 10

// senderOf returns the sender of a batch for a socket.
func senderOf(b *batch.Batch, socket *socket) *sender {
	for _, f := range b.Pending() {
		if s, ok := f.(*sender); ok && s.socket == socket {
			return s
		}
	}
	s, _ := senders.Get().(*sender)
	s.socket = socket
	b.Add(s)
	return s
}

// answer implements destination.
func (d *datagram) answer(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) bool {
	q, s := &r.Query, senderOf(b, d.socket)
	form := formOf(r.route, e, q, p, min(q.Limit(), maxHitLen), fragmentOf(r.Client), &s.random)
	if form == nil {
		return false
	}
	if s.pending == batchLen || len(s.arena)+form.ReplyLen(q, p) > senderArena || s.server != r.server {
		s.send()
		s.server = r.server
		s.server.references.Add(1)
	}
	i, start := s.pending, len(s.arena)
	s.arena = form.AppendReply(s.arena, r.Packed, q, p)
	s.peers[i], s.arrived[i] = d.peer, r.received
	s.hits[i].set(r.route.counters, e, q, form.Rcode(), r.Client, len(r.Packed))
	s.hits[i].counted = r.wire != nil
	s.vectors[i].Base = &s.arena[start]
	s.vectors[i].SetLen(len(s.arena) - start)
	h := &s.headers[i].header
	h.Namelen, h.Control = d.peer.nameLen, nil
	if d.peer.controlLen > 0 {
		h.Control = &s.peers[i].control[0]
	}
	h.SetControllen(d.peer.controlLen)
	s.pending++
	return true
}

// Flush implements batch.Flusher.
func (s *sender) Flush() {
	s.send()
	s.socket = nil
	senders.Put(s)
}

// send sends and counts the pending answers.
func (s *sender) send() {
	if s.pending == 0 {
		return
	}
	unsent := s.pending
	_ = s.socket.raw.Control(func(fd uintptr) { // it fails after the socket was closed
		unsent = s.socket.sendAll(fd, s.headers[:s.pending], func(i int, _ unix.Errno) { s.hits[i].rcode = dns.RcodeServerFailure })
	})
	s.server.metrics.droppedSend.Add(float64(unsent))
	now := validity.Now()
	for i := range s.pending {
		s.hits[i].count(now - s.arrived[i])
	}
	s.server.release()
	s.server, s.pending, s.arena = nil, 0, s.arena[:0]
}

// sendAll sends datagrams, given the descriptor of conn. It calls failed for each one that cannot be sent, and returns their number.
// It never waits: when the send buffer is full, as the datagrams to one client can make it, the rest leave by the spare sockets.
func (s *socket) sendAll(fd uintptr, all []mmsghdr, failed func(i int, errno unix.Errno)) (unsent int) {
	fd = s.senderOr(fd)
	for sent, full := 0, false; sent < len(all); {
		n, errno := 1, unix.EAGAIN
		if !full {
			n, errno = sendFirst(fd, all[sent:])
		}
		if full = full || errno == unix.EAGAIN; full {
			n, errno = 1, s.spares.send(s, all[sent:sent+1])
		}
		switch errno {
		case 0:
			sent += n
		case unix.EINTR:
		default: // the first of the rest cannot be sent
			failed(sent, errno)
			sent++
			unsent++
		}
	}
	return unsent
}

// sendFirst sends the first datagrams, and returns their number. At low rates most batches have one datagram, for which the
// kernel copies fewer structures with sendto.
func sendFirst(fd uintptr, all []mmsghdr) (n int, errno unix.Errno) {
	if h := &all[0].header; len(all) == 1 && h.Control == nil {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(h.Iov.Base)), uintptr(h.Iov.Len), unix.MSG_DONTWAIT,
			uintptr(unsafe.Pointer(h.Name)), uintptr(h.Namelen))
		return 1, errno
	}
	sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&all[0])), uintptr(len(all)), unix.MSG_DONTWAIT, 0, 0)
	return int(sent), errno // #nosec G115 -- at most len(all)
}

// random is a generator of random numbers other than 0: Marsaglia's xorshift.
type random uint64

func newRandom() random { return random(new(maphash.Hash).Sum64() | 1) }

func (r *random) next() uint64 {
	*r ^= *r << 13
	*r ^= *r >> 7
	*r ^= *r << 17
	return uint64(*r)
}
