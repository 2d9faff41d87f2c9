package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// upstream is a DNS server, over TCP and UDP, that answers each query upstreamDelay after its arrival. It shares its
// core with the load, so it is one thread that waits for sockets and for the next answer's time in one system call.
type upstream struct {
	near                       bool
	epoll, listener, datagrams int
	streams                    map[int]*stream // by file descriptor
	waiting                    []pending       // by time, as the delay is the same for all
	first                      int             // index of the first unsent one
	written                    []*stream       // with answers that are due
	buffer                     [1 << 16]byte
	counts                     upstreamCounts
	now                        func() time.Time
}

// stream is a TCP connection.
type stream struct {
	fd      int
	in, out []byte // an incomplete frame; answers that are due
	blocked bool   // the send buffer is full; epoll reports when it has room
	closed  bool
}

// pending is an answer that is not due yet: a frame for a stream, otherwise a datagram for an address.
type pending struct {
	due    time.Time
	stream *stream
	to     unix.Sockaddr
	answer []byte
}

// serveUpstream serves an IPv4 address and port until the process is killed. With near, it acknowledges segments at
// once.
func serveUpstream(address string, near bool) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	u := upstream{near: near, streams: map[int]*stream{}, now: time.Now}
	if err := u.open(&unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		return fmt.Errorf("upstream: %s: %w", at, err)
	}
	var events [256]unix.EpollEvent
	for {
		n, err := u.wait(events[:])
		if err != nil {
			return fmt.Errorf("upstream: epoll_pwait2: %w", err)
		}
		for _, e := range events[:n] {
			if err := u.handle(int(e.Fd)); err != nil {
				return fmt.Errorf("upstream: %w", err)
			}
		}
		u.sendDue()
	}
}

// backlog is the maximum number of connections that wait to be accepted.
const backlog = 4096

func (u *upstream) open(at *unix.SockaddrInet4) (err error) {
	if u.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if u.listener, err = bound(unix.SOCK_STREAM, at); err != nil {
		return err
	}
	if u.datagrams, err = bound(unix.SOCK_DGRAM, at); err != nil {
		return err
	}
	if err := unix.Listen(u.listener, backlog); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for _, fd := range []int{u.listener, u.datagrams} {
		if err := u.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
			return err
		}
	}
	return nil
}

func bound(kind int, at *unix.SockaddrInet4) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Bind(fd, at); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	return fd, nil
}

func (u *upstream) watch(operation, fd int, events uint32) error {
	if err := unix.EpollCtl(u.epoll, operation, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// wait waits for sockets, at most until the next answer is due. epoll_wait(2) has a resolution of milliseconds.
func (u *upstream) wait(events []unix.EpollEvent) (int, error) {
	var timeout *unix.Timespec // no timeout
	if u.first < len(u.waiting) {
		t := unix.NsecToTimespec(max(0, u.waiting[u.first].due.Sub(u.now()).Nanoseconds()))
		timeout = &t
	}
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(u.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(unsafe.Pointer(timeout)), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	}
	return 0, errno
}

// handle processes the events of a socket. An error of a connection closes that connection.
func (u *upstream) handle(fd int) error {
	switch fd {
	case u.listener:
		return u.accept()
	case u.datagrams:
		return u.receive()
	}
	s := u.streams[fd]
	if s == nil {
		return nil // closed, by an event before this one
	}
	if s.blocked {
		u.flush(s)
	}
	if !s.closed {
		u.read(s)
	}
	return nil
}

func (u *upstream) accept() error {
	for {
		fd, _, err := unix.Accept4(u.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("accept4: %w", err)
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return fmt.Errorf("TCP_NODELAY: %w", err)
		}
		if err := u.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
			return err
		}
		u.streams[fd] = &stream{fd: fd}
		u.counts.open++
		u.counts.maxOpen = max(u.counts.maxOpen, u.counts.open)
	}
}

func (u *upstream) close(s *stream) {
	s.closed = true
	delete(u.streams, s.fd)
	u.counts.open--
	_ = unix.Close(s.fd) // its remaining queries are dropped
}

// read reads queries from a connection, and closes it at its end or after other data.
func (u *upstream) read(s *stream) {
	n, err := unix.Read(s.fd, u.buffer[:])
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	if err != nil || n == 0 {
		u.close(s)
		return
	}
	if u.near {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // which refers to the received data
	}
	in := u.buffer[:n]
	if len(s.in) > 0 {
		s.in = append(s.in, in...)
		in = s.in
	}
	now := u.now()
	for len(in) >= 2 && len(in)-2 >= int(binary.BigEndian.Uint16(in)) {
		query := in[2 : 2+binary.BigEndian.Uint16(in)]
		in = in[2+len(query):]
		answer, _, err := u.answer(query, make([]byte, 2, 128))
		if err != nil {
			u.close(s)
			return
		}
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
		u.waiting = append(u.waiting, pending{due: now.Add(upstreamDelay), stream: s, answer: answer})
	}
	s.in = append(s.in[:0], in...)
}

// receive reads queries from the UDP socket. Datagrams that are no queries are dropped.
func (u *upstream) receive() error {
	for {
		n, from, err := unix.Recvfrom(u.datagrams, u.buffer[:], 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("recvfrom: %w", err)
		}
		answer, atOnce, err := u.answer(u.buffer[:n], nil)
		if err != nil {
			continue
		}
		p := pending{due: u.now().Add(upstreamDelay), to: from, answer: answer}
		if atOnce {
			u.send(p)
			continue
		}
		u.waiting = append(u.waiting, p)
	}
}

// answer appends the answer to a query. Answers with the counts are due at once.
func (u *upstream) answer(query, to []byte) (answer []byte, atOnce bool, err error) {
	q, err := readQuestion(query)
	if err != nil {
		return nil, false, err
	}
	if q.class == dns.ClassCHAOS {
		return appendAnswer(to, query, q, 0, u.countsOf(string(q.owner))), true, nil
	}
	u.counts.queries++
	return answerTo(to, query, q), false, nil
}

// countsOf returns the data of a TXT record with the counts, nil for another name.
func (u *upstream) countsOf(owner string) []byte {
	counts := u.counts.String()
	switch owner {
	case "\x06counts\x00":
	case "\x05reset\x00":
		u.counts.maxOpen, u.counts.queries = u.counts.open, 0
	default:
		return nil
	}
	return append([]byte{byte(len(counts))}, counts...)
}

// sendDue sends the answers that are due: those of one connection with one system call.
func (u *upstream) sendDue() {
	now := u.now()
	for ; u.first < len(u.waiting) && !u.waiting[u.first].due.After(now); u.first++ {
		p := &u.waiting[u.first]
		switch {
		case p.stream == nil:
			u.send(*p)
		case !p.stream.closed:
			if len(p.stream.out) == 0 {
				u.written = append(u.written, p.stream)
			}
			p.stream.out = append(p.stream.out, p.answer...)
		}
		*p = pending{} // which frees the memory
	}
	if u.first > len(u.waiting)/2 {
		u.waiting, u.first = u.waiting[:copy(u.waiting, u.waiting[u.first:])], 0
	}
	for _, s := range u.written {
		if !s.blocked {
			u.flush(s)
		}
	}
	u.written = u.written[:0]
}

func (u *upstream) send(p pending) {
	_ = unix.Sendto(u.datagrams, p.answer, 0, p.to) // a datagram may be lost
}

// flush sends the due answers of a connection, until its send buffer is full.
func (u *upstream) flush(s *stream) {
	n, err := unix.Write(s.fd, s.out)
	if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		u.close(s)
		return
	}
	s.out = s.out[:copy(s.out, s.out[max(n, 0):])]
	if blocked := len(s.out) > 0; blocked != s.blocked {
		s.blocked = blocked
		events := uint32(unix.EPOLLIN)
		if blocked {
			events |= unix.EPOLLOUT
		}
		if err := u.watch(unix.EPOLL_CTL_MOD, s.fd, events); err != nil {
			u.close(s)
		}
	}
}
