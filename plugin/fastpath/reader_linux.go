package fastpath

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// batch is how many datagrams are received and sent at a time.
const batch = 64

// arenaLen is how many bytes of answers are sent at a time; longer answers are the chain's.
const (
	arenaLen   = 64 << 10
	longestHit = 16 << 10
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
}

// The kernel's structure is as long: a Msghdr and a number, padded to a pointer.
var _ [unsafe.Sizeof(unix.Msghdr{}) + unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(mmsghdr{})]byte{}

// reader reads the datagrams of one socket. What it needs for a batch it has from the start.
type reader struct {
	listener *listener
	socket   *socket
	ended    chan struct{}

	received [batch]mmsghdr
	vectors  [batch]unix.Iovec
	names    [batch]unix.RawSockaddrInet6
	controls [batch][controlLen]byte
	queries  [batch][datagramLen]byte

	answers       [batch]mmsghdr
	answerVectors [batch]unix.Iovec
	given         [batch]given
	pending       int // answers that are not sent yet
	arena         []byte

	query   answers.Query
	patch   answers.Patch
	key     [answers.MaxKey]byte
	pathKey [answers.MaxKey]byte
	random  uint64

	failures int // of receiving, one after the other
}

func newReader(l *listener, s *socket) *reader {
	r := &reader{
		listener: l, socket: s, ended: make(chan struct{}),
		arena:  make([]byte, 0, arenaLen+longestHit), // room for a copy of the last answer's records while they change places
		random: new(maphash.Hash).Sum64() | 1,
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
		r.makeRoom(i)
		a := &r.answers[i].header
		a.Iov = &r.answerVectors[i]
		a.SetIovlen(1)
	}
	return r
}

// makeRoom says how long the addresses of a datagram may be, where the kernel says how long they are.
func (r *reader) makeRoom(i int) {
	h := &r.received[i].header
	h.Namelen = unix.SizeofSockaddrInet6
	if r.socket.wildcard {
		h.SetControllen(controlLen)
	}
}

// run reads until the deadline of the socket has come.
func (r *reader) run() {
	defer close(r.ended)
	for {
		err := r.socket.raw.Read(r.step)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
			return
		}
		log.Errorf("Cannot wait for datagrams on %s, trying again: %v", r.listener.address, err)
		time.Sleep(time.Second)
	}
}

// finish ends run, and answers what is left.
func (r *reader) finish() {
	if err := r.socket.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		log.Errorf("Cannot end reading from %s: %v", r.listener.address, err)
		return
	}
	<-r.ended
	_ = r.socket.raw.Control(func(fd uintptr) { r.step(fd) }) // it is open
}

// step answers what has arrived. It never reports that it is done, so that the caller waits for more.
func (r *reader) step(fd uintptr) bool {
	for r.batch(fd) {
	}
	return false
}

// batch receives once, and reports whether there may be more.
func (r *reader) batch(fd uintptr) bool {
	// Neither call waits, and a batch takes microseconds. Told of them, the scheduler would give this
	// goroutine's processor away meanwhile, and take it back.
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.received[0])), batch, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
		r.failures = 0
		r.serve(fd, int(n))     // #nosec G115 -- at most batch
		for i := range int(n) { // #nosec G115
			r.makeRoom(i)
		}
		return n > 1 // where there were several, more have come meanwhile: waiting for them costs more than a look
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		return false
	default: // it belongs to an answer, such as ECONNREFUSED, or the kernel lacks memory
		r.failures++
		time.Sleep(time.Millisecond)
		return r.failures < mostFailures
	}
}

// mostFailures is after how many failures the next datagram is waited for.
const mostFailures = 10

// try receives and sends nothing, to see whether the process may.
func (r *reader) try() error {
	var receive, send unix.Errno
	if err := r.socket.raw.Control(func(fd uintptr) {
		_, _, receive = unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.received[0])), 0, unix.MSG_DONTWAIT, 0, 0)
		_, _, send = unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&r.answers[0])), 0, unix.MSG_DONTWAIT, 0, 0)
	}); err != nil {
		return err
	}
	for _, tried := range []struct {
		call  string
		errno unix.Errno
	}{{"recvmmsg", receive}, {"sendmmsg", send}} {
		if tried.errno != 0 && tried.errno != unix.EAGAIN && tried.errno != unix.EINTR {
			return fmt.Errorf("%s: %w", tried.call, tried.errno)
		}
	}
	return nil
}

// serve answers the first datagrams of a batch, or hands them over.
func (r *reader) serve(fd uintptr, n int) {
	s := r.listener.acquire()
	now := answers.Now()
	for i := range n {
		if !r.answer(fd, s, i, now) {
			r.handOver(s, i)
		}
	}
	r.flush(fd, s, now)
	s.release()
}

// answer puts the answer to a datagram among those that are to be sent, and reports whether there is
// one.
func (r *reader) answer(fd uintptr, s *service, i int, now time.Duration) bool {
	q := &r.query
	in := r.queries[i][:min(int(r.received[i].length), datagramLen)]
	// A question for DS goes to the block of a parent zone, where there is one.
	if !q.Parse(in) || q.Type == dns.TypeDS {
		return false
	}
	key := q.AppendKey(r.key[:0], 0, in)
	to := s.routes.find(answers.KeyName(key))
	if to == nil || to.space == 0 {
		return false
	}
	answers.SetKeyspace(key, to.space)
	var search block.Search
	if to.search != nil && q.Search == nil {
		search = to.search.Search(clientOf(&r.names[i]), answers.KeyName(key))
	}
	e, counts := r.find(to, key, &search, i, in, now)
	if e == nil || q.Upper && !e.AnyCase || !e.Fresh(now) {
		return false
	}
	if e.Popularity != nil && e.Popularity.Count(now) && !e.Popularity.Refreshing.Load() {
		return false // the chain fetches it again
	}
	r.patch = e.Patch(now)
	fragment := fragmentIPv6
	family := uint8(1)
	if isIPv4(&r.names[i]) {
		fragment, family = fragmentIPv4, 0
	}
	form := e.Form(q, &r.patch, min(q.Limit(), longestHit), fragment)
	if form == nil {
		return false
	}
	if to.shuffle {
		if form.Ordered() {
			return false
		}
		r.patch.Shuffle = r.nextRandom()
	}
	if len(r.arena)+form.ReplyLen(q, &r.patch) > arenaLen {
		r.flush(fd, s, now)
	}
	for _, c := range counts {
		if c != nil {
			c.Inc()
		}
	}
	start := len(r.arena)
	r.arena = form.AppendReply(r.arena, in, q, &r.patch)
	r.enqueue(i, r.arena[start:])
	g := &r.given[r.pending-1]
	*g = given{
		counters: to.counters, family: family, do: q.DO, cached: e.Cached, ahead: e.Count != nil, kind: e.Kind,
		rcode: uint8(form.Rcode()), qtype: q.Type, // #nosec G115 -- a code of four bits
		requestSize: uint16(len(in)), responseSize: uint16(e.CountedLen()), // #nosec G115 -- at most 64 KiB
	}
	if q.EDNS && len(e.Options) > 0 {
		g.responseSize += answers.OptLen + uint16(len(e.Options)) // #nosec G115
	}
	return true
}

// find returns the entry for a query, nil if there is none, and what counts that it is given. There is room for a
// view behind the key.
func (r *reader) find(to *route, key []byte, search *block.Search, i int, in []byte, now time.Duration) (e *answers.Entry, counts [3]answers.Counter) {
	if search.List != 0 {
		path := answers.AppendKeyPath(append(r.pathKey[:0], key...), search.List)
		if e = answers.Shared.Get(path); e != nil && e.Fresh(now) {
			return e, [3]answers.Counter{e.Count.On(to.counters.server), search.Client}
		}
	}
	e = answers.Shared.Get(key)
	var view answers.View
	if e != nil && e.Views != nil {
		e, view = answers.Shared.GetView(e, key, now, clientOf(&r.names[i]), r.query.CallerData(in))
	}
	switch {
	case e == nil:
		return nil, counts
	case search.List != 0 && !e.Plain.HasData():
		return nil, counts
	case e.Count != nil: // who keeps it comes before who knows search lists
		return e, [3]answers.Counter{e.Count.On(to.counters.server), view.Callers}
	}
	return e, [3]answers.Counter{search.Count, search.Client, view.Callers}
}

// Lengths in bytes from which CoreDNS compresses names to avoid fragments, as NSD does.
const (
	fragmentIPv4 = 1480
	fragmentIPv6 = 1220
)

func (r *reader) nextRandom() uint64 {
	// Marsaglia's xorshift; it never comes to 0.
	r.random ^= r.random << 13
	r.random ^= r.random >> 7
	r.random ^= r.random << 17
	return r.random
}

// enqueue puts an answer to a datagram among those that are to be sent.
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

// flush sends the answers, and counts them.
func (r *reader) flush(fd uintptr, s *service, start time.Duration) {
	if r.pending == 0 {
		return
	}
	unsent := 0
	for sent, waits := 0, true; sent < r.pending; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&r.answers[sent])), uintptr(r.pending-sent), unix.MSG_DONTWAIT, 0, 0) // #nosec G115
		switch {
		case errno == 0:
			sent += int(n) // #nosec G115 -- at most batch
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && waits:
			waits = waitWritable(int(fd)) // #nosec G115 -- a descriptor
		default: // the first of them can't be sent
			s.metrics.droppedSend.Inc()
			r.given[sent].rcode = dns.RcodeServerFailure // as prometheus counts a plugin that can't write its reply
			sent++
			unsent++
		}
	}
	took := answers.Now() - start
	for i := range r.pending {
		r.given[i].count(took)
	}
	s.metrics.answered.Add(float64(r.pending - unsent))
	r.pending, r.arena = 0, r.arena[:0]
}

// sendWait is how long a full queue of the network is waited for, in milliseconds.
const sendWait = 100

func waitWritable(fd int) bool {
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, sendWait) // #nosec G115 -- a descriptor
	return err == nil && ready == 1 || err == syscall.EINTR
}

// handOver gives a datagram to the chain.
func (r *reader) handOver(s *service, i int) {
	in := &r.received[i]
	d, _ := datagrams.Get().(*datagram)
	s.held.Add(1)
	s.metrics.inFlight.Inc()
	d.service, d.socket = s, r.socket
	d.query = append(d.buf[:0], r.queries[i][:min(int(in.length), datagramLen)]...)
	d.peer.name, d.peer.nameLen, d.peer.controlLen = r.names[i], in.header.Namelen, 0
	if r.socket.wildcard {
		control := r.controls[i][:in.header.Controllen]
		clearInterface(control)
		d.peer.controlLen = copy(d.peer.control[:], control)
	}
	s.metrics.handedOver.Inc()
	s.chainOf(r.key[:0], d.query).put(d, clientOf(&r.names[i]))
}

// chainOf returns the chain of the server block that a query is for, so that none has to wait for what
// another one waits for. What no block has a say in waits for none: the probes of a kubelet are such, and must not
// fail because an upstream is dead. There is room for a name in buf.
func (s *service) chainOf(buf, query []byte) *chain {
	if answers.HasOtherVersion(query) {
		return s.chain
	}
	if name, ok := answers.AppendName(buf, query); ok {
		if to := s.routes.find(name); to != nil {
			return to.chain
		}
	}
	return s.chain
}
