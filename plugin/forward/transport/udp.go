package transport

import (
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

// Dialer returns what makes connections from an address of this host; nil is the kernel's choice.
func Dialer(network string, source net.IP) *net.Dialer {
	d := &net.Dialer{Control: control, KeepAlive: -1} // a connection that is idle is closed soon
	switch {
	case source == nil:
	case network == "udp":
		d.LocalAddr = &net.UDPAddr{IP: source}
	default:
		d.LocalAddr = &net.TCPAddr{IP: source}
	}
	return d
}

// Datagrams carries queries over UDP. Each has a socket of its own while it is on its way, whose port
// and whose id nobody else knows, RFC 5452 section 4.
type Datagrams struct {
	// Address is the server's, host:port.
	Address string
	// Source is the own address, nil for the kernel's choice.
	Source net.IP
	// Expire is how long an idle socket is kept, MaxAge how long any; 0 is never for MaxAge. MaxIdle is how
	// many are kept; 0 is up to 64.
	Expire, MaxAge time.Duration
	MaxIdle        int
	Metrics        *Metrics

	mu       sync.Mutex
	idle     []*socket // the one that is idle longest first
	closing  bool
	sweeping bool
}

// maxIdleSockets bounds the sockets that are kept for the next burst.
const maxIdleSockets = 64

// socket is connected to the server.
type socket struct {
	c          *net.UDPConn
	made, used time.Time
	uses       int
	guessed    bool // a datagram came that is not the answer: its sender may know the port
	unread     func() (answer, failed bool)
}

// noSecondUse is for sockets of which it is not known what lies in them.
func noSecondUse() (answer, failed bool) { return false, true }

// Send implements Carrier.
func (d *Datagrams) Send(call *Call) {
	if !call.prepare() {
		d.mu.Lock()
		defer d.mu.Unlock()
		call.finish(nil, errQuery)
		return
	}
	go d.carry(call)
}

// carry sends a query and waits for the answer.
func (d *Datagrams) carry(call *Call) {
	s, reused, err := d.take(call)
	if err != nil {
		d.finish(call, nil, err)
		return
	}
	reply, err := d.exchange(s, call)
	// What is refused may be the query before.
	for ports := 1; ports < maxPorts && (reused && refused(err) || errors.Is(err, errGuessed)); ports++ {
		d.drop(s)
		reused = false
		if s, err = d.connect(call); err == nil {
			reply, err = d.exchange(s, call)
		}
	}
	switch {
	case s == nil:
	case err != nil, s.guessed: // an answer may still come, and is not to be taken for that to another query
		d.drop(s)
	default:
		d.give(s)
	}
	d.finish(call, reply, err)
}

func (d *Datagrams) finish(call *Call, reply []byte, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	call.socket = nil
	call.finish(reply, err)
}

// errGivenUp tells that nobody waits for the answer any more.
var errGivenUp = errors.New("given up")

// take returns a socket for a call, and whether it was used before.
func (d *Datagrams) take(call *Call) (s *socket, reused bool, err error) {
	for {
		d.mu.Lock()
		s, old := d.pick(time.Now())
		call.socket = s
		d.mu.Unlock()
		for _, o := range old {
			d.drop(o)
		}
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
			d.Metrics.DroppedEarly.Inc()
		}
		d.drop(s)
	}
}

// connect makes a socket for a call.
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

// pick takes an idle socket, and those that have been idle too long. The one that was idle longest comes
// first, so that ports take turns.
func (d *Datagrams) pick(now time.Time) (s *socket, old []*socket) {
	for len(d.idle) > 0 {
		s, d.idle = d.idle[0], d.idle[1:]
		if now.Sub(s.used) < d.Expire && (d.MaxAge == 0 || now.Sub(s.made) < d.MaxAge) {
			return s, old
		}
		old = append(old, s)
	}
	return nil, old
}

// give keeps a socket for another query.
func (d *Datagrams) give(s *socket) {
	most := d.MaxIdle
	if most == 0 {
		most = maxIdleSockets
	}
	s.used = time.Now()
	s.uses++
	d.mu.Lock()
	keep := !d.closing && d.Expire > 0 && s.uses < maxUses && len(d.idle) < most
	if keep {
		d.idle = append(d.idle, s)
		d.sweepLater()
	}
	d.mu.Unlock()
	if !keep {
		d.drop(s)
	}
}

// sweepLater has idle sockets closed once they are too old.
func (d *Datagrams) sweepLater() {
	if d.sweeping {
		return
	}
	d.sweeping = true
	time.AfterFunc(d.Expire, d.sweep)
}

func (d *Datagrams) sweep() {
	d.mu.Lock()
	now := time.Now()
	n := 0
	for n < len(d.idle) && now.Sub(d.idle[n].used) >= d.Expire {
		n++
	}
	old := d.idle[:n:n]
	d.idle = d.idle[n:]
	if d.sweeping = len(d.idle) > 0; d.sweeping {
		time.AfterFunc(d.Expire/2, d.sweep)
	}
	d.mu.Unlock()
	for _, s := range old {
		d.drop(s)
	}
}

func (d *Datagrams) drop(s *socket) {
	_ = s.c.Close() // nothing is lost with it
	d.Metrics.Connections.Dec()
}

const (
	// usualReply is how long a buffer for datagrams is in bytes, unless a query asks for more. One that is full
	// may lack the end of an answer.
	usualReply = 4097
	// maxGuesses is how many answers of other ids a query takes before it goes by another port: who sends them
	// may know this one.
	maxGuesses = 16
	// maxPorts is how many ports a query goes by.
	maxPorts = 3
	// maxUses is how many queries go by one port, so that who finds it out does so for nothing.
	maxUses = 100
)

var errGuessed = errors.New("answers of many other ids came")

// replies are buffers for datagrams.
var replies = sync.Pool{New: func() any { b := make([]byte, usualReply); return &b }}

// replyBuffer returns a buffer for the answer to a query, whose OPT record says how long that may be, RFC
// 6891 section 6.2.3.
func replyBuffer(call *Call) *[]byte {
	opt := call.Query[call.question:]
	if len(opt) >= optLen && opt[0] == 0 && binary.BigEndian.Uint16(opt[1:]) == typeOPT {
		if size := int(binary.BigEndian.Uint16(opt[3:])); size >= usualReply {
			b := make([]byte, size+1)
			return &b
		}
	}
	buf, _ := replies.Get().(*[]byte)
	return buf
}

// exchange sends a query and takes the answer. What is no answer to it is dropped: it may be someone
// else's guess.
func (d *Datagrams) exchange(s *socket, call *Call) ([]byte, error) {
	d.Metrics.InFlight.Inc()
	defer d.Metrics.InFlight.Dec()
	defer d.disarm(call)
	query := append(make([]byte, 0, len(call.Query)), call.Query...)
	id := uint16(rand.Uint32()) // #nosec G404 G115 -- ChaCha8 with a seed of the system's
	setID(query, id)
	if err := d.arm(s, call); err != nil {
		return nil, err
	}
	if _, err := s.c.Write(query); err != nil {
		return nil, err
	}
	d.Metrics.Sent.Inc()
	d.Metrics.Depth.Observe(1)
	buf := replyBuffer(call)
	if len(*buf) == usualReply {
		defer replies.Put(buf)
	}
	for guesses := 0; guesses < maxGuesses; {
		n, err := s.c.Read(*buf)
		if err != nil {
			return nil, err
		}
		d.Metrics.Received.Inc()
		reply := (*buf)[:n]
		v := malformed
		if n >= headerLen {
			if v = check(query[:call.question], reply); binary.BigEndian.Uint16(reply) != id {
				v = wrongID
				guesses++
			}
		}
		switch {
		case v == right && n == len(*buf): // and the rest of it is lost
			return truncated(reply[:call.question]), nil
		case v == right:
			return append([]byte(nil), reply...), nil
		}
		s.guessed = true
		d.Metrics.drop(v)
	}
	return nil, errGuessed
}

// truncated returns the beginning of an answer as one that says that it is truncated, RFC 1035 section 4.1.1.
func truncated(begin []byte) []byte {
	reply := append([]byte(nil), begin...)
	reply[flagsAt] |= truncationIs
	clear(reply[ancountAt:headerLen])
	return reply
}

// arm bounds the wait for an answer. A call that was cancelled has no wait.
func (d *Datagrams) arm(s *socket, call *Call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if call.ended {
		return errGivenUp
	}
	return s.c.SetDeadline(call.Deadline)
}

// disarm takes a socket from a call before another gets it, so that it is not the other's wait that Cancel
// ends.
func (d *Datagrams) disarm(call *Call) {
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
		_ = call.socket.c.SetDeadline(time.Unix(1, 0)) // it is closed then
	}
}

// Late implements Carrier. Nothing follows for others.
func (d *Datagrams) Late(*Call) {}

// Close implements Carrier.
func (d *Datagrams) Close() {
	d.mu.Lock()
	idle := d.idle
	d.idle, d.closing = nil, true
	d.mu.Unlock()
	for _, s := range idle {
		d.drop(s)
	}
}

// refused reports whether an error says that nobody is there, rather than that nobody answers.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, os.ErrPermission)
}
