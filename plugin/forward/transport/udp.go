package transport

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

const (
	// maxIdleSockets is the default limit of idle sockets.
	maxIdleSockets = 64
	// bufferSize is the size of a receive buffer, unless the query allows longer answers. An answer that fills the
	// buffer may be cut off.
	bufferSize = 4097
	// maxGuesses bounds the answers with wrong ids that a query receives on one port: their sender may know the port.
	maxGuesses = 16
	// maxPorts bounds the ports that one query is sent from.
	maxPorts = 3
	// maxUses bounds the queries sent from one port, since an attacker may learn the port.
	maxUses = 100
)

var (
	errCancelled = errors.New("cancelled")
	errGuessed   = errors.New("many answers with wrong ids")
)

// Datagrams sends queries over UDP. Each query has its own socket while it is in flight, with a random port and id,
// RFC 5452 section 4.
type Datagrams struct {
	// Address is the server's host:port.
	Address string
	// Source is the local address; nil leaves the choice to the kernel.
	Source net.IP
	// Expire limits the idle time of a socket, MaxAge its age (0 is no limit), and MaxIdle the idle sockets (0 is
	// 64).
	Expire, MaxAge time.Duration
	MaxIdle        int
	Metrics        *Metrics

	tasks    tasks
	mu       sync.Mutex
	idle     []*socket // the one with the longest idle time first
	closing  bool
	sweeping bool
}

// socket is connected to the server.
type socket struct {
	c          *net.UDPConn
	made, used time.Time
	uses       int
	exposed    bool // received a datagram that is not the answer: its sender may know the port
	unread     func() (answer, failed bool)
	interrupt  func() // ends a read
}

// unknownUnread replaces unread if the content of a socket can't be examined.
func unknownUnread() (answer, failed bool) { return false, true }

// Send implements Carrier.
func (d *Datagrams) Send(_ *batch.Batch, call *Call) error {
	if !call.prepare() {
		call.ended = true
		return errQuery
	}
	go d.carry(datagram{task: d.tasks.begin(call), question: call.question, deadline: call.Deadline})
	return nil
}

// datagram is a query over UDP.
type datagram struct {
	*task
	question int // length of header and question in bytes
	deadline time.Time
}

// carry sends a query and waits for the answer.
func (d *Datagrams) carry(q datagram) {
	s, reused, err := d.socketFor(q)
	if err != nil {
		d.tasks.end(q.task, nil, err)
		return
	}
	buf, reply, err := d.exchange(s, q)
	// On a reused socket a refusal may be of the query before.
	for ports := 1; ports < maxPorts && (reused && refused(err) || errors.Is(err, errGuessed)); ports++ {
		d.drop(s)
		reused = false
		if s, err = d.connect(q); err == nil {
			buf, reply, err = d.exchange(s, q)
		}
	}
	switch {
	case s == nil:
	case err != nil, s.exposed: // a late answer must not be read as that of the next query
		d.drop(s)
	default:
		d.release(s)
	}
	d.tasks.end(q.task, reply, err)
	if buf != nil {
		releaseBuffer(buf)
	}
}

// socketFor returns a socket for a call, and whether it was used before.
func (d *Datagrams) socketFor(q datagram) (s *socket, reused bool, err error) {
	for {
		s := d.nextIdle()
		if s == nil {
			s, err = d.connect(q)
			return s, false, err
		}
		answer, failed := s.unread()
		if !answer && !failed {
			d.Metrics.Hits.Inc()
			return s, true, nil
		}
		if answer {
			d.Metrics.Dropped[Early].Inc()
		}
		d.drop(s)
	}
}

// connect opens a socket for a call.
func (d *Datagrams) connect(q datagram) (*socket, error) {
	d.Metrics.Misses.Inc()
	ctx, cancel := context.WithDeadline(context.Background(), q.deadline)
	defer cancel()
	c, err := Dialer("udp", d.Source).DialContext(ctx, "udp", d.Address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("connect: a %T for UDP", c)
	}
	d.Metrics.Connections.Inc()
	return &socket{
		c: u, made: time.Now(), unread: unread(u),
		interrupt: func() { _ = u.SetDeadline(time.Unix(1, 0)) }, // the reader closes the socket
	}, nil
}

// nextIdle returns the socket with the longest idle time, so that ports alternate, or nil.
func (d *Datagrams) nextIdle() (s *socket) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeExpired(time.Now())
	if len(d.idle) == 0 {
		return nil
	}
	s, d.idle = d.idle[0], d.idle[1:]
	return s
}

// closeExpired closes idle sockets that have reached Expire or MaxAge, up to the first that has not.
func (d *Datagrams) closeExpired(now time.Time) {
	for len(d.idle) > 0 {
		s := d.idle[0]
		if now.Sub(s.used) < d.Expire && (d.MaxAge == 0 || now.Sub(s.made) < d.MaxAge) {
			return
		}
		d.drop(s)
		d.idle = d.idle[1:]
	}
}

// release makes a socket idle, or closes it.
func (d *Datagrams) release(s *socket) {
	s.used = time.Now()
	s.uses++
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing || d.Expire <= 0 || s.uses >= maxUses || len(d.idle) >= cmp.Or(d.MaxIdle, maxIdleSockets) {
		d.drop(s)
		return
	}
	d.idle = append(d.idle, s)
	if !d.sweeping {
		d.sweeping = true
		time.AfterFunc(d.Expire, d.sweep)
	}
}

// sweep closes expired sockets, periodically while idle ones exist.
func (d *Datagrams) sweep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeExpired(time.Now())
	if d.sweeping = len(d.idle) > 0; d.sweeping {
		time.AfterFunc(d.Expire/2, d.sweep)
	}
}

func (d *Datagrams) drop(s *socket) {
	_ = s.c.Close() // no data is lost
	d.Metrics.Connections.Dec()
}

// buffers are receive buffers of bufferSize.
var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// bufferFor returns a buffer for the longest answer that the OPT record of a query allows, RFC 6891 section 6.2.3.
func bufferFor(q datagram) *[]byte {
	opt := q.query[q.question:]
	if len(opt) >= optLen && opt[0] == 0 && binary.BigEndian.Uint16(opt[1:]) == typeOPT {
		if size := int(binary.BigEndian.Uint16(opt[3:])); size >= bufferSize {
			b := make([]byte, size+1)
			return &b
		}
	}
	buf, _ := buffers.Get().(*[]byte)
	return buf
}

// releaseBuffer returns a buffer to the pool, unless it is one for long answers.
func releaseBuffer(buf *[]byte) {
	if len(*buf) == bufferSize {
		buffers.Put(buf)
	}
}

// exchange sends a query and receives the answer, which is in the buffer. Other datagrams are dropped: they may be forged.
func (d *Datagrams) exchange(s *socket, q datagram) (buf *[]byte, reply []byte, err error) {
	d.Metrics.InFlight.Inc()
	defer d.Metrics.InFlight.Dec()
	defer d.tasks.onCancel(q.task, nil) // before another call uses the socket
	id := uint16(rand.Uint32())         // #nosec G404 G115 -- ChaCha8, seeded by the system
	setID(q.query, id)
	if err := s.c.SetDeadline(q.deadline); err != nil {
		return nil, nil, err
	}
	if !d.tasks.onCancel(q.task, s.interrupt) {
		return nil, nil, errCancelled
	}
	if _, err := s.c.Write(q.query); err != nil {
		return nil, nil, err
	}
	d.Metrics.Sent.Inc()
	d.Metrics.Depth.Observe(1)
	return d.receive(s, q, id)
}

// receive waits for the answer to a query that was sent with an id.
func (d *Datagrams) receive(s *socket, q datagram, id uint16) (buf *[]byte, reply []byte, err error) {
	for guesses := 0; guesses < maxGuesses; {
		buf, n, err := s.receive(q)
		if err != nil {
			return nil, nil, err
		}
		d.Metrics.Received.Inc()
		reply := (*buf)[:n]
		reason := check(q.query[:q.question], reply)
		if n >= headerLen && binary.BigEndian.Uint16(reply) != id {
			reason = WrongID
			guesses++
		}
		switch {
		case reason == "" && n == len(*buf): // the answer may be cut off
			return buf, truncated(reply[:q.question]), nil
		case reason == "":
			return buf, reply, nil
		}
		releaseBuffer(buf)
		s.exposed = true
		d.Metrics.Dropped[reason].Inc()
	}
	return nil, nil, errGuessed
}

// truncated returns a truncated answer with the header and question of another, RFC 1035 section 4.1.1.
func truncated(begin []byte) []byte {
	reply := append([]byte(nil), begin...)
	reply[flagsAt] |= truncationBit
	clear(reply[ancountAt:headerLen])
	return reply
}

// Cancel implements Carrier.
func (d *Datagrams) Cancel(call *Call) bool { return d.tasks.cancel(call) }

// Late implements Carrier.
func (d *Datagrams) Late(*Call) {}

// Close implements Carrier.
func (d *Datagrams) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.idle {
		d.drop(s)
	}
	d.idle, d.closing = nil, true
}

// refused reports whether an error means that the server is unreachable, rather than silent.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, os.ErrPermission)
}
