package fastpath

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/epoll"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

const (
	eventsLen = 64 // connections that are ready, received by a system call

	// A sweep handles sweepAtOnce connections at a time. It takes sweepPause, or up to maxSweep if there are many connections.
	sweepPause  = 250 * time.Millisecond
	maxSweep    = time.Second
	sweepAtOnce = 256
	sweepStep   = 16 * time.Millisecond // pause before each sweepAtOnce connections, within these limits
)

// interest has the events of a connection. They are edge-triggered: an event that is not handled does not occur again until
// the connection is armed again.
const interest = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// poller waits in one goroutine for many connections, and handles those that are ready together. A goroutine for each
// connection would take 4 to 16 KB, and could not share a batch with others.
type poller struct {
	epoll  *os.File
	raw    syscall.RawConn
	fd     int
	events [eventsLen]unix.EpollEvent
	frames

	mu       sync.Mutex
	byFD     map[int32]*connection
	ring     connection // newer is the connection whose last event is the oldest, older the one with the newest
	sessions connection // the ring of the connections with sessions
	sweeping bool
}

func newPoller() (*poller, error) {
	file, fd, err := epoll.New()
	if err != nil {
		return nil, err
	}
	p := &poller{epoll: file, fd: fd, byFD: map[int32]*connection{}}
	p.ring.newer, p.ring.older = &p.ring, &p.ring
	p.sessions.newer, p.sessions.older = &p.sessions, &p.sessions
	p.frames.init()
	p.raw, err = p.epoll.SyscallConn()
	return p, err
}

// run handles connections. It does not end.
func (p *poller) run() {
	for {
		err := p.raw.Read(p.step)
		log.Errorf("A reader cannot wait for queries over TCP, and retries in a second: %v", err)
		time.Sleep(time.Second)
	}
}

// step handles all connections that are ready. It returns false, so that syscall.RawConn waits for more.
func (p *poller) step(fd uintptr) bool {
	for {
		n, errno := epoll.Ready(fd, p.events[:])
		if errno != 0 || n == 0 {
			return false
		}
		for i := range p.events[:n] {
			p.handle(&p.events[i])
		}
		p.output.Flush()
		if n < eventsLen {
			return false
		}
	}
}

// handle handles a connection that is ready.
func (p *poller) handle(e *unix.EpollEvent) {
	p.mu.Lock()
	c := p.byFD[e.Fd]
	if c != nil && c.number != e.Pad { // the event is of an earlier connection
		c = nil
	}
	if c != nil {
		c.unlink()
		p.link(c)
	}
	p.mu.Unlock()
	if c == nil {
		return
	}
	if e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.abort(closedByClient)
		return
	}
	p.serve(c, e.Events)
}

// add adds a connection. Its events may occur at once.
func (p *poller) add(c *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 { // another acceptor has closed it, since there are too many
		return
	}
	p.mu.Lock()
	p.byFD[int32(c.fd)] = c // #nosec G115 -- a descriptor
	p.link(c)
	if !p.sweeping {
		p.sweeping = true
		go p.sweep()
	}
	p.mu.Unlock()
	if err := p.control(unix.EPOLL_CTL_ADD, c); err != nil {
		c.end(closedByServer)
	}
}

// rearm has the present events of a connection occur again. The connection's mutex is locked, and its socket is open.
func (p *poller) rearm(c *connection) {
	if p.control(unix.EPOLL_CTL_MOD, c) != nil { // the kernel lacks memory
		c.end(closedByServer)
	}
}

// remove removes a connection with its descriptor. The connection's mutex is locked.
func (p *poller) remove(c *connection, fd int) {
	_ = p.control(unix.EPOLL_CTL_DEL, c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byFD[int32(fd)] == c { // #nosec G115 -- a descriptor
		delete(p.byFD, int32(fd)) // #nosec G115
		c.unlink()
	}
}

// control changes the kernel's registration of a connection, whose socket is open. The number distinguishes its events
// from those of an earlier connection with the same descriptor.
func (p *poller) control(operation int, c *connection) error {
	return unix.EpollCtl(p.fd, operation, c.fd, &unix.EpollEvent{Events: interest, Fd: int32(c.fd), Pad: c.number}) // #nosec G115 -- a descriptor
}

// link appends a connection to its ring. The poller's mutex is locked.
func (p *poller) link(c *connection) {
	ring := &p.ring
	if c.session.notifies() {
		ring = &p.sessions
	}
	c.older, c.newer = ring.older, ring
	c.older.newer, ring.older = c, c
}

// relink moves a connection to the ring of those with sessions.
func (p *poller) relink(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.newer != nil {
		c.unlink()
		p.link(c)
	}
}

// unlink removes a connection from the ring. The poller's mutex is locked.
func (c *connection) unlink() {
	c.older.newer, c.newer.older = c.newer, c.older
	c.older, c.newer = nil, nil
}

// oldest returns the connection that has been idle for the longest time, of those whose last events are the oldest; nil
// without any. One with a session is returned if there is no other.
func (p *poller) oldest() (oldest *connection) {
	const candidates = 32
	p.mu.Lock()
	defer p.mu.Unlock()
	ring := &p.ring
	if ring.newer == ring {
		ring = &p.sessions
	}
	c := ring.newer
	for i := 0; i < candidates && c != ring; i++ {
		if oldest == nil || c.idleSince() < oldest.idleSince() {
			oldest = c
		}
		c = c.newer
	}
	return oldest
}

// sweep closes connections whose timeouts have passed, until the poller has no connection. It pauses often: 15,000 connections
// take milliseconds, in which no query is answered if the process has one processor.
func (p *poller) sweep() {
	var all []*connection
	for {
		if all = p.list(all[:0]); len(all) == 0 {
			return
		}
		pause := sweepPauseOf(len(all))
		for some := range slices.Chunk(all, sweepAtOnce) {
			time.Sleep(pause)
			now := validity.Now()
			for _, c := range some {
				c.expire(now)
			}
		}
		clear(all)
	}
}

// sweepPauseOf returns the pause before each part of a sweep.
func sweepPauseOf(connections int) time.Duration {
	parts := time.Duration((connections + sweepAtOnce - 1) / sweepAtOnce)
	return min(max(sweepPause, parts*sweepStep), maxSweep) / parts
}

// list appends all connections. Without any, the sweep is to end.
func (p *poller) list(all []*connection) []*connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ring := range []*connection{&p.ring, &p.sessions} {
		for c := ring.newer; c != ring; c = c.newer {
			all = append(all, c)
		}
	}
	p.sweeping = len(all) > 0
	return all
}
