package transport

import (
	"cmp"
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
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const (
	// maxIdleSockets is the default limit of idle sockets.
	maxIdleSockets = 64
	// maxReply is the length in bytes from which an answer counts as cut off, unless the query allows longer ones.
	maxReply = 4097
	// maxGuesses bounds the answers with wrong ids that a query receives on one port: their sender may know the port.
	maxGuesses = 16
	// maxPorts bounds the ports that one query is sent from.
	maxPorts = 3
	// maxSockets bounds the sockets of the process, as half of its limit of open files does. An upstream may have half of
	// them.
	maxSockets = 16384
	// maxUses bounds the queries sent from one port, since an attacker may learn the port.
	maxUses = 100
)

var (
	errGuessed = errors.New("many answers with wrong ids")
	errCase    = errors.New("answer in another case")
)

// Datagrams sends queries over UDP. Each query has its own socket while it is in flight, with a random port and id,
// RFC 5452 section 4. No goroutine waits for its answer.
type Datagrams struct {
	// Address is the server's IP address and port.
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

// socket is connected to the server. The mutex of its Datagrams guards it while it has a call.
type socket struct {
	handle
	d          *Datagrams
	made, used time.Time
	uses       int
	exposed    bool // received a datagram that is not the answer: its sender may know the port

	call    *Call // in flight
	id      uint16
	reused  bool // the call is not its first
	guesses int  // answers with wrong ids
	ports   int  // number of ports that the call was sent from, with this one
	limit   wheel.Deadline
}

// Send implements Carrier.
func (d *Datagrams) Send(_ *batch.Batch, call *Call) error {
	if !call.prepare() {
		call.ended = true
		return errQuery
	}
	s, err := d.start(call, d.reusable(), 1)
	if err != nil {
		call.ended = true
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attach(s, call)
	return nil
}

// Capacity implements Carrier.
func (d *Datagrams) Capacity() int { return socketLimit() / 2 }

// socketLimit returns the maximum number of sockets of the process.
func socketLimit() int { return min(maxSockets, openFiles()/2) }

// start sends a query from a socket, or from a new one if s is nil or has an old error. ports counts the ports used, with this one.
func (d *Datagrams) start(call *Call, s *socket, ports int) (*socket, error) {
	for reused := s != nil; ; reused = false {
		if s == nil {
			var err error
			if s, err = d.connect(); err != nil {
				return nil, err
			}
		}
		err := d.write(s, call)
		if err == nil {
			s.reused, s.ports, s.guesses = reused, ports, 0
			return s, nil
		}
		d.drop(s)
		if s = nil; !reused || !refused(err) || ports >= maxPorts {
			return nil, err
		}
		ports++
	}
}

// write sends a query with a random id.
func (d *Datagrams) write(s *socket, call *Call) error {
	buf, _ := queryBuffers.Get().(*[]byte)
	defer queryBuffers.Put(buf)
	*buf = append((*buf)[:0], call.Query...)
	if call.AnyCase && !call.Signed {
		wire.LowerName((*buf)[wire.HeaderLen : call.question-wire.TypeClassLen])
	}
	s.id = uint16(rand.Uint32()) // #nosec G404 G115 -- ChaCha8, seeded by the system
	setID(*buf, s.id)
	if err := s.handle.write(*buf); err != nil {
		return err
	}
	d.Metrics.Sent.Inc()
	d.Metrics.Depth.Observe(1)
	return nil
}

var queryBuffers = sync.Pool{New: func() any { return new([]byte) }}

// attach makes a call wait for a datagram of a socket. The caller holds the mutex.
func (d *Datagrams) attach(s *socket, call *Call) {
	d.Metrics.InFlight.Inc()
	s.call, call.socket = call, s
	if !call.Deadline.IsZero() {
		wheel.Process.Set(&s.limit, call.Deadline)
	}
	s.watch()
}

// detach separates a socket from its call. The caller holds the mutex.
func (d *Datagrams) detach(s *socket) {
	d.Metrics.InFlight.Dec()
	s.call.socket, s.call = nil, nil
	wheel.Process.Stop(&s.limit)
}

// reusable returns an idle socket, or nil.
func (d *Datagrams) reusable() *socket {
	for s := d.nextIdle(); s != nil; s = d.nextIdle() {
		answer, failed := s.unread()
		if !answer && !failed {
			d.Metrics.Hits.Inc()
			return s
		}
		if answer {
			d.Metrics.Dropped[Early].Inc()
		}
		d.drop(s)
	}
	return nil
}

// connect opens a socket.
func (d *Datagrams) connect() (*socket, error) {
	d.Metrics.Misses.Inc()
	s := &socket{d: d, made: time.Now()}
	s.limit.Owner = s
	if err := s.open(d.Address, d.Source); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	d.Metrics.Connections.Inc()
	return s, nil
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

// release makes a socket idle, or closes it, also if it has received other datagrams: a late one must not be read as the answer to
// the next query. The caller holds the mutex.
func (d *Datagrams) release(s *socket) {
	s.used = time.Now()
	s.uses++
	if s.exposed || d.closing || d.Expire <= 0 || s.uses >= maxUses || len(d.idle) >= cmp.Or(d.MaxIdle, maxIdleSockets) {
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
	s.close()
	d.Metrics.Connections.Dec()
}

// readable processes a datagram of a socket, or its error. Other datagrams than the answer are dropped: they may be forged. It
// returns true if there may be more. read returns errNothing without a datagram, and is called while the socket is open.
func (s *socket) readable(b *batch.Batch, read func(*socket) ([]byte, error)) (more bool) {
	d := s.d
	d.mu.Lock()
	call := s.call
	if call == nil {
		d.mu.Unlock()
		return false
	}
	reply, err := read(s)
	switch {
	case errors.Is(err, errNothing):
		s.watch()
		d.mu.Unlock()
		return false
	case err == nil:
		if reply, err = s.examine(reply); reply == nil && err == nil {
			d.mu.Unlock()
			return true
		}
	}
	d.detach(s)
	if err == nil {
		d.release(s)
	} else if d.drop(s); d.repeat(s, call, err) {
		d.mu.Unlock()
		return false
	}
	ended := call.end(reply, err)
	d.mu.Unlock()
	if ended {
		call.Owner.Ended(b, call)
	}
	return false
}

// errNothing reports that a socket has no datagram.
var errNothing = errors.New("no datagram")

// examine returns the answer to the call, or nil if the datagram is another one. The caller holds the mutex.
func (s *socket) examine(reply []byte) ([]byte, error) {
	d, call := s.d, s.call
	d.Metrics.Received.Inc()
	reason := check(call.Query[:call.question], reply)
	if len(reply) >= wire.HeaderLen && binary.BigEndian.Uint16(reply) != s.id {
		reason = WrongID
		s.guesses++
	}
	if reason == WrongCase && call.AnyCase {
		call.restoreCase(reply)
		reason = ""
	}
	switch {
	case reason == "" && (len(reply) >= call.room() || isCut(reply)): // the answer is cut off, or may be
		return truncated(reply[:call.question]), nil
	case reason == "":
		return reply, nil
	}
	s.exposed = true
	d.Metrics.Dropped[reason].Inc()
	switch {
	case reason == WrongCase:
		d.Metrics.Case.Inc()
		return nil, errCase
	case s.guesses >= maxGuesses:
		return nil, errGuessed
	}
	return nil, nil
}

// repeat sends a call from another port after an error that may not be its own: on a reused socket a refusal may be of the
// query before. After a reply in another case, which may be forged, the query gets its name in lower case. It returns false if the
// call is not sent again. The caller holds the mutex.
func (d *Datagrams) repeat(s *socket, call *Call, err error) bool {
	if errors.Is(err, errCase) {
		call.AnyCase, call.CaseChanged = true, true
	} else if !errors.Is(err, errGuessed) && !(s.reused && refused(err)) {
		return false
	}
	if s.ports >= maxPorts {
		return false
	}
	other, err := d.start(call, nil, s.ports+1)
	if err != nil {
		return false
	}
	d.attach(other, call)
	return true
}

// room returns the length of an answer to the query that may be cut off: one more than the OPT record allows, RFC 6891 section
// 6.2.3.
func (c *Call) room() int {
	opt := c.Query[c.question:]
	if wire.IsOPT(opt) {
		return max(maxReply, int(wire.UDPSize(opt))+1)
	}
	return maxReply
}

// truncated returns a truncated answer with the header and question of another answer, RFC 1035 section 4.1.1.
func truncated(begin []byte) []byte {
	reply := append([]byte(nil), begin...)
	reply[wire.FlagsAt] |= wire.TC
	clear(reply[wire.ANCountAt:wire.HeaderLen])
	return reply
}

// Expired implements wheel.Owner: the deadline of the call is over.
func (s *socket) Expired(now time.Time) {
	d := s.d
	d.mu.Lock()
	call := s.call
	if call == nil || call.Deadline.IsZero() || now.Before(call.Deadline) { // the socket is used for another call now
		d.mu.Unlock()
		return
	}
	d.detach(s)
	d.drop(s)
	ended := call.end(nil, os.ErrDeadlineExceeded)
	d.mu.Unlock()
	if ended {
		endOwners(call)
	}
}

// Cancel implements Carrier.
func (d *Datagrams) Cancel(call *Call) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if call.ended {
		return false
	}
	call.ended = true
	if s := call.socket; s != nil {
		d.detach(s)
		d.drop(s)
	}
	return true
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
