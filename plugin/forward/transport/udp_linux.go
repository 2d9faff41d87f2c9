package transport

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/epoll"
)

// handle is the kernel's part of a UDP socket: it is registered with the poller.
type handle struct {
	fd         int
	generation int32 // of the number fd, which the kernel reuses
}

// open opens a socket that is connected to an address.
func (s *socket) open(address string, source net.IP) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	family, to := unix.AF_INET6, netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := connectFrom(s.fd, family, to, source); err != nil {
		_ = unix.Close(s.fd) // it was not used
		return err
	}
	if err := sockets.add(s); err != nil {
		_ = unix.Close(s.fd)
		return err
	}
	return nil
}

// connectFrom connects a socket from a local address, which may be nil. Network errors are reported at once (ip(7),
// IP_RECVERR).
func connectFrom(fd, family int, to netip.AddrPort, source net.IP) error {
	level, option := unix.SOL_IP, unix.IP_RECVERR
	if family == unix.AF_INET6 {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if from, ok := netip.AddrFromSlice(source); ok {
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from.Unmap(), 0))); err != nil {
			return fmt.Errorf("from %s: %w", source, os.NewSyscallError("bind", err))
		}
	}
	return os.NewSyscallError("connect", unix.Connect(fd, sockaddr(to)))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	to := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if zone := a.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			to.ZoneId = uint32(i.Index) // #nosec G115 -- the kernel's are int32
		} else if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			to.ZoneId = uint32(n)
		}
	}
	return to
}

func (h *handle) write(b []byte) error {
	for {
		switch _, errno := sendTo(uintptr(h.fd), b); errno { // #nosec G115 -- not negative
		case 0:
			return nil
		case unix.EINTR:
		default:
			return os.NewSyscallError("sendto", errno)
		}
	}
}

// receive returns a datagram in a buffer.
func (h *handle) receive(buf []byte) ([]byte, error) {
	for {
		switch n, errno := receiveFrom(uintptr(h.fd), buf); errno { // #nosec G115 -- not negative
		case 0:
			return buf[:n], nil
		case unix.EAGAIN:
			return nil, errNothing
		case unix.EINTR:
		default:
			return nil, os.NewSyscallError("recvfrom", errno)
		}
	}
}

// unread reports whether an idle socket has received an answer or an error (poll(2)): neither belongs to the next query.
func (h *handle) unread() (answer, failed bool) {
	one := [1]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}} // #nosec G115 -- the kernel's are int32
	if _, err := unix.Poll(one[:], 0); err != nil {
		return false, true
	}
	return one[0].Revents&unix.POLLIN != 0, one[0].Revents&^unix.POLLIN != 0
}

// watch makes the poller call readable once when the socket has a datagram or an error.
func (s *socket) watch() { sockets.arm(s) }

func (s *socket) close() { sockets.remove(s) }

// sockets are the UDP sockets of the process.
var sockets poller

// poller waits for datagrams of many sockets (epoll(7)) in one goroutine, which runs while there are sockets.
type poller struct {
	mu         sync.Mutex
	file       *os.File // of the epoll instance; nil without sockets
	fd         int
	byFD       map[int32]*socket
	generation int32
}

// add registers a socket, which is not watched yet.
func (p *poller) add(s *socket) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.byFD) >= socketLimit() {
		return ErrBusy
	}
	if p.file == nil {
		if err := p.start(); err != nil {
			return err
		}
	}
	p.generation++
	s.generation = p.generation
	event := s.event(0)
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, s.fd, &event); err != nil {
		if len(p.byFD) == 0 {
			p.stop()
		}
		return os.NewSyscallError("epoll_ctl", err)
	}
	p.byFD[event.Fd] = s
	return nil
}

// event returns the registration of a socket for one event, with the socket's identity.
func (s *socket) event(events uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(s.fd), Pad: s.generation} // #nosec G115 -- the kernel's are int32
}

// start starts the goroutine.
func (p *poller) start() error {
	file, fd, err := epoll.New()
	if err != nil {
		return err
	}
	p.fd, p.file, p.byFD = fd, file, map[int32]*socket{}
	go p.run(p.file)
	return nil
}

// stop ends the goroutine.
func (p *poller) stop() {
	file := p.file
	p.file, p.byFD = nil, nil
	go func() { _ = file.Close() }() // it waits for run, which may be the caller
}

// arm waits for the next datagram or error of a socket.
func (p *poller) arm(s *socket) {
	event := s.event(unix.EPOLLIN)
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, s.fd, &event) // the socket is registered
}

// remove closes a socket, which ends its registration.
func (p *poller) remove(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byFD, int32(s.fd)) // #nosec G115 -- the kernel's are int32
	_ = unix.Close(s.fd)        // no data is lost
	if len(p.byFD) == 0 {
		p.stop()
	}
}

// find returns the socket of an event, or nil if it was closed.
func (p *poller) find(event *unix.EpollEvent) *socket {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.byFD[event.Fd]; s != nil && s.generation == event.Pad {
		return s
	}
	return nil
}

// run processes events until the file is closed.
func (p *poller) run(file *os.File) {
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	events, buf := make([]unix.EpollEvent, 64), make([]byte, maxMessage+1)
	read := func(s *socket) ([]byte, error) { return s.receive(buf) }
	var b batch.Batch
	_ = raw.Read(func(fd uintptr) bool { // the error is the end of the file
		for {
			n, errno := epoll.Ready(fd, events)
			if errno != 0 || n == 0 {
				return errno != 0
			}
			for i := range events[:n] {
				for s := p.find(&events[i]); s != nil && s.readable(&b, read); {
				}
			}
			b.Flush()
		}
	})
}

// openFiles returns the number of files that the process may have open.
var openFiles = sync.OnceValue(func() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // the usual minimum
	}
	return int(min(limit.Cur, math.MaxInt32)) // #nosec G115
})
