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
}

// unknownUnread replaces unread if the content of a socket can't be examined.
func unknownUnread() (answer, failed bool) { return false, true }

// Send implements Carrier.
func (d *Datagrams) Send(call *Call) {
	if !call.prepare() {
		d.finish(call, nil, errQuery)
		return
	}
	go d.carry(call)
}

// carry sends a query and waits for the answer.
func (d *Datagrams) carry(call *Call) {
	s, reused, err := d.socketFor(call)
	if err != nil {
		d.finish(call, nil, err)
		return
	}
	reply, err := d.exchange(s, call)
	// On a reused socket a refusal may be of the query before.
	for ports := 1; ports < maxPorts && (reused && refused(err) || errors.Is(err, errGuessed)); ports++ {
		d.drop(s)
		reused = false
		if s, err = d.connect(call); err == nil {
			reply, err = d.exchange(s, call)
		}
	}
	switch {
	case s == nil:
	case err != nil, s.exposed: // a late answer must not be read as that of the next query
		d.drop(s)
	default:
		d.release(s)
	}
	d.finish(call, reply, err)
}

func (d *Datagrams) finish(call *Call, reply []byte, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	call.finish(reply, err)
}

// socketFor returns a socket for a call, and whether it was used before.
func (d *Datagrams) socketFor(call *Call) (s *socket, reused bool, err error) {
	for {
		s := d.nextIdle(call)
		if s == nil {
			s, err = d.connect(call)
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
func (d *Datagrams) connect(call *Call) (*socket, error) {
	d.Metrics.Misses.Inc()
	ctx, cancel := context.WithDeadline(context.Background(), call.Deadline)
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
	s := &socket{c: u, made: time.Now(), unread: unread(u)}
	d.mu.Lock()
	defer d.mu.Unlock()
	call.socket = s
	return s, nil
}

// nextIdle returns the socket with the longest idle time for a call, so that ports alternate, or nil.
func (d *Datagrams) nextIdle(call *Call) *socket {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeExpired(time.Now())
	if len(d.idle) == 0 {
		return nil
	}
	call.socket, d.idle = d.idle[0], d.idle[1:]
	return call.socket
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
func bufferFor(call *Call) *[]byte {
	opt := call.Query[call.question:]
	if len(opt) >= optLen && opt[0] == 0 && binary.BigEndian.Uint16(opt[1:]) == typeOPT {
		if size := int(binary.BigEndian.Uint16(opt[3:])); size >= bufferSize {
			b := make([]byte, size+1)
			return &b
		}
	}
	buf, _ := buffers.Get().(*[]byte)
	return buf
}

// exchange sends a query and receives the answer. Other datagrams are dropped: they may be forged.
func (d *Datagrams) exchange(s *socket, call *Call) ([]byte, error) {
	d.Metrics.InFlight.Inc()
	defer d.Metrics.InFlight.Dec()
	defer d.detach(call)
	query := append(make([]byte, 0, len(call.Query)), call.Query...)
	id := uint16(rand.Uint32()) // #nosec G404 G115 -- ChaCha8, seeded by the system
	setID(query, id)
	if err := d.setDeadline(s, call); err != nil {
		return nil, err
	}
	if _, err := s.c.Write(query); err != nil {
		return nil, err
	}
	d.Metrics.Sent.Inc()
	d.Metrics.Depth.Observe(1)
	return d.receive(s, call, id)
}

// receive waits for the answer to a query that was sent with an id.
func (d *Datagrams) receive(s *socket, call *Call, id uint16) ([]byte, error) {
	buf := bufferFor(call)
	if len(*buf) == bufferSize {
		defer buffers.Put(buf)
	}
	for guesses := 0; guesses < maxGuesses; {
		n, err := s.c.Read(*buf)
		if err != nil {
			return nil, err
		}
		d.Metrics.Received.Inc()
		reply := (*buf)[:n]
		reason := check(call.Query[:call.question], reply)
		if n >= headerLen && binary.BigEndian.Uint16(reply) != id {
			reason = WrongID
			guesses++
		}
		switch {
		case reason == "" && n == len(*buf): // the answer may be cut off
			return truncated(reply[:call.question]), nil
		case reason == "":
			return append([]byte(nil), reply...), nil
		}
		s.exposed = true
		d.Metrics.Dropped[reason].Inc()
	}
	return nil, errGuessed
}

// truncated returns a truncated answer with the header and question of another, RFC 1035 section 4.1.1.
func truncated(begin []byte) []byte {
	reply := append([]byte(nil), begin...)
	reply[flagsAt] |= truncationBit
	clear(reply[ancountAt:headerLen])
	return reply
}

// setDeadline limits the wait for an answer. It fails if the call is cancelled.
func (d *Datagrams) setDeadline(s *socket, call *Call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if call.ended {
		return errCancelled
	}
	return s.c.SetDeadline(call.Deadline)
}

// detach separates a socket from a call before another call uses it: Cancel of the first must not end the second.
func (d *Datagrams) detach(call *Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	call.socket = nil
}

// Cancel implements Carrier.
func (d *Datagrams) Cancel(call *Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	call.ended = true
	if call.socket != nil {
		_ = call.socket.c.SetDeadline(time.Unix(1, 0)) // the reader closes the socket
	}
}

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
