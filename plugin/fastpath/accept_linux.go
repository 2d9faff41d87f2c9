package fastpath

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/sockets"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// acceptPause is the pause after a failure to accept a connection, for example at the limit of open files.
const acceptPause = 100 * time.Millisecond

// acceptor accepts the connections of a listening socket in a goroutine.
type acceptor struct {
	listener *listener
	socket   *os.File
	raw      syscall.RawConn
	ended    chan struct{}
}

// takeOver moves CoreDNS's TCP listener to the fast path, unless an earlier configuration has done so. A listener that was
// taken over stays with the fast path: it hands all queries to the chain if the configuration prevents the fast path.
func (l *listener) takeOver(own syscall.Conn) error {
	if own == nil {
		return errors.New("CoreDNS's own TCP listener is not found")
	}
	if err := l.process.streams.start(); err != nil {
		return err
	}
	if sockets.IsIdle(own) {
		if len(l.acceptors) > 0 {
			return nil
		}
		opened, err := reuseport.Listen("tcp", strings.TrimPrefix(l.address, transport.DNS+"://"))
		if err != nil {
			return err
		}
		defer func() { _ = opened.Close() }()
		own, _ = opened.(*net.TCPListener)
	}
	taken, err := sockets.TakeOver(own)
	if err != nil {
		return err
	}
	raw, err := taken.SyscallConn()
	if err != nil {
		return errors.Join(err, taken.Close())
	}
	_ = raw.Control(func(fd uintptr) { // accepted connections inherit TCP_NODELAY
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // #nosec G115 -- a descriptor
	})
	if err != nil {
		log.Warningf("%s: answers over TCP may be delayed: TCP_NODELAY: %v", l.address, err)
	}
	a := &acceptor{listener: l, socket: taken, raw: raw, ended: make(chan struct{})}
	l.acceptors = append(l.acceptors, a)
	go a.run()
	return nil
}

// run accepts connections until the deadline of the socket.
func (a *acceptor) run() {
	defer close(a.ended)
	for {
		err := a.raw.Read(a.acceptAll)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			log.Errorf("%s: cannot wait for connections, and retries in a second: %v", a.listener.address, err)
			time.Sleep(time.Second)
		}
	}
}

// acceptAll accepts all connections of the socket. It then returns false, so that syscall.RawConn waits for more.
func (a *acceptor) acceptAll(fd uintptr) bool {
	for {
		accepted, from, err := unix.Accept4(int(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) // #nosec G115 -- a descriptor
		switch {
		case err == nil:
			a.listener.process.streams.add(newConnection(a.listener, accepted, addressOf(from)))
		case err == unix.EAGAIN:
			return false
		case err == unix.EINTR || err == unix.ECONNABORTED:
		case !a.isPending(fd): // at the limit of open files, accept4 fails also if no connection waits
			return false
		default:
			a.fail(err)
			return true // acceptAll is called again, unless the deadline has passed
		}
	}
}

// isPending reports whether a connection waits to be accepted.
func (a *acceptor) isPending(fd uintptr) bool {
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // #nosec G115 -- a descriptor
	return err == nil && ready == 1
}

// fail counts and logs a failure to accept a connection, and waits. At the limit of open files, it closes a connection.
func (a *acceptor) fail(err error) {
	a.listener.server.Load().metrics.acceptFailures.Inc()
	streams := a.listener.process.streams
	streams.warn(fmt.Sprintf("%s: a connection over TCP has to wait: accept: %v (logged once a minute)", a.listener.address, err))
	if err == unix.EMFILE || err == unix.ENFILE {
		streams.closeOldest()
	}
	time.Sleep(acceptPause)
}

// warn logs a line, unless the last one was less than a minute ago.
func (t *streamTable) warn(line string) {
	now := int64(validity.Now())
	if last := t.lastLogged.Load(); (last == 0 || now-last >= int64(time.Minute)) && t.lastLogged.CompareAndSwap(last, max(now, 1)) {
		log.Warning(line)
	}
}

// closeOldest closes the connection that has been idle for the longest time.
func (t *streamTable) closeOldest() {
	t.mu.Lock()
	c := t.oldest()
	t.mu.Unlock()
	if c != nil {
		c.abort(closedForProcess)
	}
}

// finish accepts the remaining connections, and closes the socket. A connection that the kernel establishes meanwhile
// moves to another process on the address with net.ipv4.tcp_migrate_req, and is reset otherwise.
func (a *acceptor) finish() {
	if err := a.socket.SetDeadline(time.Unix(1, 0)); err == nil {
		<-a.ended
		_ = a.raw.Control(func(fd uintptr) { a.acceptAll(fd) }) // the socket is open
	}
	_ = a.socket.Close()
}

// drainStreams answers the queries that the connections of a listener have received, and closes the connections.
func (l *listener) drainStreams() {
	for _, a := range l.acceptors {
		a.finish()
	}
	for _, c := range l.process.streams.connectionsOf(l) {
		c.drain()
	}
	awaitUntilTimeout(func() bool { return l.connections.Load() == 0 })
	for _, c := range l.process.streams.connectionsOf(l) {
		c.abort(closedByServer)
	}
}
