package rogue

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// Server is a DNS server on one address, over UDP and TCP.
type Server struct {
	// Addr is the address and port of both protocols.
	Addr string

	t     testing.TB
	where netip.AddrPort
	tls   *tls.Config

	mu        sync.Mutex
	behaviour Behaviour
	changed   chan struct{} // closed when the behaviour changes
	listener  net.Listener
	hole      *hole
	udp       *net.UDPConn
	streams   map[*stream]struct{}
	// tcpReserved and udpReserved reserve the port while no socket listens.
	tcpReserved, udpReserved io.Closer

	ledger ledger
	ended  chan struct{}
	tasks  sync.WaitGroup
}

// Options are the address and TLS settings of a server. The zero value is a free port of 127.0.0.1, without TLS.
type Options struct {
	// Host is a loopback address. Clients that send from another address never occupy the server's port.
	Host string
	// TLS enables DNS over TLS (RFC 7858) on the TCP port.
	TLS *tls.Config
}

// Start starts a server, and stops it after the test.
func Start(t testing.TB, b Behaviour) *Server {
	t.Helper()
	return StartAt(t, Options{}, b)
}

// StartAt is Start with options.
func StartAt(t testing.TB, o Options, b Behaviour) *Server {
	t.Helper()
	s := &Server{t: t, tls: o.TLS, changed: make(chan struct{}), ended: make(chan struct{}), streams: map[*stream]struct{}{}}
	s.ledger.counts.Names = map[string]int{}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	kit.Must(t, s.findPort(o.Host))
	t.Cleanup(s.close)
	s.Behave(b)
	return s
}

// findPort listens on a port that is free for both protocols.
func (s *Server) findPort(host string) error {
	var err error
	for range 50 {
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
			return err
		}
		s.where = l.Addr().(*net.TCPAddr).AddrPort()
		s.Addr = s.where.String()
		var udp *net.UDPConn
		if udp, err = s.listenUDP(); err == nil {
			s.listener, s.udp = l, udp
			s.tasks.Go(func() { s.accept(l) })
			s.tasks.Go(func() { s.serveUDP(udp) })
			return nil
		}
		if cerr := l.Close(); cerr != nil {
			return cerr
		}
	}
	return fmt.Errorf("no port of %s is free for both protocols: %w", host, err)
}

// Behave changes the behaviour, from the next connection, query or answer on.
func (s *Server) Behave(b Behaviour) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behaviour = b
	close(s.changed)
	s.changed = make(chan struct{})
	if err := s.arrange(); err != nil {
		s.t.Errorf("rogue server %s: %v", s.Addr, err)
	}
}

// Behaviour returns the current behaviour.
func (s *Server) Behaviour() Behaviour {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.behaviour
}

// HangUp closes all connections. The behaviour decides whether new ones are accepted.
func (s *Server) HangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.end(s.behaviour.Reset)
	}
}

// arrange opens and closes sockets as the behaviour requires.
func (s *Server) arrange() error {
	b, u := s.behaviour, s.behaviour.overUDP()
	if !b.BlackHole && s.hole != nil {
		if err := s.hole.close(); err != nil {
			return err
		}
		s.hole = nil
	}
	if (b.Refuse || b.BlackHole) && s.listener != nil {
		if err := s.listener.Close(); err != nil {
			return err
		}
		s.listener = nil
	}
	if err := s.reserveTCP(b.Refuse); err != nil {
		return err
	}
	if b.Refuse {
		for st := range s.streams {
			st.end(b.Reset)
		}
	}
	if err := s.arrangeUDP(u.Refuse); err != nil {
		return err
	}
	return s.arrangeTCP(b)
}

func (s *Server) arrangeTCP(b Behaviour) (err error) {
	switch {
	case b.BlackHole && s.hole == nil:
		s.hole, err = digHole(s.Addr)
		return err
	case b.BlackHole || b.Refuse:
		return nil
	}
	if s.listener == nil {
		l, err := retry(func() (net.Listener, error) { return net.Listen("tcp", s.Addr) })
		if err != nil {
			return err
		}
		s.listener = l
		s.tasks.Go(func() { s.accept(l) })
	}
	if !b.Deaf {
		for st := range s.streams {
			_ = widenBuffer(st.tcp) // the connection may be closed
		}
	}
	return limitBuffers(s.listener, b.Deaf)
}

// reserveTCP reserves the TCP port while connections are refused: otherwise a server of another test could receive them.
func (s *Server) reserveTCP(refuse bool) (err error) {
	if refuse && s.tcpReserved == nil {
		s.tcpReserved, err = retry(func() (io.Closer, error) { return ReservePort(s.where, false) })
	} else if !refuse && s.tcpReserved != nil {
		err, s.tcpReserved = s.tcpReserved.Close(), nil
	}
	return err
}

func (s *Server) arrangeUDP(refuse bool) (err error) {
	if refuse && s.udp != nil {
		err, s.udp = s.udp.Close(), nil
		if err != nil {
			return err
		}
		s.udpReserved, err = retry(func() (io.Closer, error) { return ReservePort(s.where, true) })
		return err
	}
	if refuse || s.udp != nil {
		return nil
	}
	if s.udpReserved != nil {
		err, s.udpReserved = s.udpReserved.Close(), nil
		if err != nil {
			return err
		}
	}
	udp, err := retry(s.listenUDP)
	if err != nil {
		return err
	}
	s.udp = udp
	s.tasks.Go(func() { s.serveUDP(udp) })
	return nil
}

func (s *Server) listenUDP() (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.where))
	if err != nil {
		return nil, err
	}
	return conn, conn.SetReadBuffer(1 << 22) // the kernel may limit it
}

// retry repeats a function until it succeeds or 5 seconds are over: another process may use the port for a moment.
func retry[T any](try func() (T, error)) (T, error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		v, err := try()
		if err == nil || time.Now().After(end) {
			return v, err
		}
	}
}

// accept serves connections until the listener is closed.
func (s *Server) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.t.Errorf("rogue server %s: %v", s.Addr, err)
			return
		}
		st := s.newStream(conn.(*net.TCPConn))
		s.mu.Lock()
		s.streams[st] = struct{}{}
		if s.listener != l {
			st.end(s.behaviour.Reset)
		}
		if !s.behaviour.Deaf { // the kernel may have accepted it while Deaf was set
			_ = widenBuffer(st.tcp) // the connection may be closed
		}
		s.mu.Unlock()
		s.tasks.Go(st.serve)
	}
}

// close stops the server.
func (s *Server) close() {
	s.mu.Lock()
	close(s.ended)
	var errs []error
	if s.listener != nil {
		errs = append(errs, s.listener.Close())
	}
	if s.hole != nil {
		errs = append(errs, s.hole.close())
	}
	if s.udp != nil {
		errs = append(errs, s.udp.Close())
	}
	for _, reserved := range []io.Closer{s.tcpReserved, s.udpReserved} {
		if reserved != nil {
			errs = append(errs, reserved.Close())
		}
	}
	for st := range s.streams {
		st.end(true)
	}
	s.mu.Unlock()
	if err := errors.Join(errs...); err != nil {
		s.t.Errorf("rogue server %s: %v", s.Addr, err)
	}
	s.tasks.Wait()
}

// pause waits for a time, and returns false if the server stops or done is closed before.
func (s *Server) pause(d time.Duration, done <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	case <-s.ended:
		return false
	}
}

// awaken waits while the behaviour does not read from connections, and returns false if the server or the connection ends
// before.
func (s *Server) awaken(done <-chan struct{}) bool {
	for {
		s.mu.Lock()
		b, changed := s.behaviour, s.changed
		s.mu.Unlock()
		if !b.Deaf && !b.BlackHole {
			return true
		}
		select {
		case <-changed:
		case <-done:
			return false
		case <-s.ended:
			return false
		}
	}
}

// hole is a port whose packets are lost.
type hole struct {
	listener net.Listener
	waiting  []net.Conn // connections that fill the accept queue
}

// digHole listens on an address with a full accept queue. The kernel then drops packets that open further connections.
func digHole(address string) (*hole, error) {
	l, err := retry(func() (net.Listener, error) { return net.Listen("tcp", address) })
	if err != nil {
		return nil, err
	}
	h := &hole{listener: l}
	if err := leaveNoQueue(l); err != nil {
		return nil, errors.Join(err, h.close())
	}
	for range 8 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		cancel()
		if err != nil {
			return h, nil
		}
		h.waiting = append(h.waiting, conn)
	}
	return nil, errors.Join(errors.New("connections are established though the accept queue should be full"), h.close())
}

func (h *hole) close() error {
	errs := []error{h.listener.Close()}
	for _, conn := range h.waiting {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}
