package rogue

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// bounded is the time limit of immediate events, on a busy machine.
const bounded = 10 * time.Second

// quiet is the time after which a reply counts as missing.
const quiet = 200 * time.Millisecond

// client is a connection or a UDP socket to a server.
type client struct {
	t    *testing.T
	conn net.Conn
	tcp  bool
	lost error // of a write; a later read does not return it again
}

func dial(t *testing.T, network string, s *Server) *client {
	t.Helper()
	conn, err := net.DialTimeout(network, s.Addr, bounded)
	if gone(err) {
		return &client{t: t, lost: err}
	}
	kit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the server may have reset it
	return &client{t: t, conn: conn, tcp: network == "tcp"}
}

// query sends queries for names, with ids from 1.
func (c *client) query(names ...string) {
	c.t.Helper()
	if c.lost != nil {
		return
	}
	for i, name := range names {
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		m.Id = uint16(i + 1)
		m.SetEdns0(1232, false)
		packet, err := m.Pack()
		kit.Must(c.t, err)
		if c.tcp {
			packet = frame(packet)
		}
		if _, err := c.conn.Write(packet); gone(err) {
			c.lost = err
		} else if err != nil {
			c.t.Fatal(err)
		}
	}
}

func gone(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// next returns the next message or the error of its read.
func (c *client) next(within time.Duration) ([]byte, error) {
	c.t.Helper()
	if c.lost != nil {
		return nil, c.lost
	}
	kit.Must(c.t, c.conn.SetReadDeadline(time.Now().Add(within)))
	if c.tcp {
		return readFrame(c.conn)
	}
	b := make([]byte, 65536)
	n, err := c.conn.Read(b)
	return b[:n], err
}

// answer returns the next reply, which must be a well-formed message.
func (c *client) answer() *dns.Msg {
	c.t.Helper()
	packet, err := c.next(bounded)
	kit.Must(c.t, err)
	m := new(dns.Msg)
	kit.Must(c.t, m.Unpack(packet))
	return m
}

// right fails the test unless a message is the right answer for a name.
func right(t *testing.T, m *dns.Msg, name string) {
	t.Helper()
	if len(m.Question) != 1 || m.Question[0].Name != name || len(m.Answer) != 1 {
		t.Fatalf("not an answer for %s:\n%v", name, m)
	}
	if a := m.Answer[0].(*dns.A).A.String(); a != Address(name).String() {
		t.Errorf("address of %s: %s, want %s", name, a, Address(name))
	}
}

func networks(t *testing.T, test func(t *testing.T, network string)) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) { test(t, network) })
	}
}

func TestWell(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		s := Start(t, Behaviour{})
		c := dial(t, network, s)
		for _, name := range []string{"a.test.", "B.teSt."} {
			c.query(name)
			right(t, c.answer(), name)
		}
		counts := s.Counts()
		if counts.Queries() != 2 || counts.Answers != 2 || counts.Names["B.teSt."] != 1 || counts.InFlight != 0 {
			t.Errorf("counts: %+v", counts)
		}
	})
	if Address("a.test.") == Address("b.test.") || Address("a.test.") != Address("A.TEST") {
		t.Error("two names have the same address, or letter case changes it")
	}
}

func TestTLS(t *testing.T) {
	cert := NewCertificate(t, "dns.test", "127.0.0.1")
	s := StartAt(t, Options{TLS: cert.Config}, Behaviour{})
	c := dns.Client{Net: "tcp-tls", Timeout: bounded, TLSConfig: &tls.Config{InsecureSkipVerify: true}}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion("a.test.", dns.TypeA), s.Addr)
	kit.Must(t, err)
	right(t, m, "a.test.")
}

// TestOrder queries a slow name before a fast one.
func TestOrder(t *testing.T) {
	const slow = 300 * time.Millisecond
	for _, inOrder := range []bool{false, true} {
		t.Run(fmt.Sprint(inOrder), func(t *testing.T) {
			s := Start(t, Behaviour{Slow: slow, InOrder: inOrder})
			c := dial(t, "tcp", s)
			names := []string{"slow.test.", "fast.test."}
			c.query(names...)
			for i := range names {
				m := c.answer()
				if first := m.Question[0].Name == names[i]; first != inOrder {
					t.Errorf("answer %d is for %s", i, m.Question[0].Name)
				}
			}
			want := 2
			if inOrder {
				want = 1
			}
			if got := s.Counts().MaxOnConnection; got != want {
				t.Errorf("max of queries in flight on the connection: %d, want %d", got, want)
			}
		})
	}
}

func TestShuffle(t *testing.T) {
	s := Start(t, Behaviour{Shuffle: 100 * time.Millisecond})
	c := dial(t, "tcp", s)
	var names []string
	for i := range 30 {
		names = append(names, fmt.Sprintf("n%d.test.", i))
	}
	c.query(names...)
	inOrder := true
	for i := range names {
		inOrder = c.answer().Question[0].Name == names[i] && inOrder
	}
	if inOrder {
		t.Error("30 answers in order, want a shuffled order")
	}
}

// TestEnds checks the number of answers before a connection ends, and whether it ends by a reset.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		behaviour Behaviour
		answers   int
		reset     bool
	}{
		"after each answer":       {Behaviour{CloseAfter: 1}, 1, false},
		"after each, reset":       {Behaviour{CloseAfter: 1, Reset: true, InOrder: true}, 1, true},
		"after three":             {Behaviour{CloseAfter: 3, InOrder: true}, 3, false},
		"at once":                 {Behaviour{CloseAtOnce: true}, 0, false},
		"at once, reset":          {Behaviour{CloseAtOnce: true, Reset: true}, 0, true},
		"on the first query":      {Behaviour{CloseOnQuery: 1}, 0, false},
		"on the second query":     {Behaviour{CloseOnQuery: 2, InOrder: true}, 1, false},
		"reset on the first":      {Behaviour{CloseOnQuery: 1, Reset: true}, 0, true},
		"reset by chance":         {Behaviour{ResetShare: 1}, 0, true},
		"in the middle":           {Behaviour{Cut: 1}, 0, false},
		"in the middle, by reset": {Behaviour{Cut: 1, Reset: true}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := Start(t, c.behaviour)
			client := dial(t, "tcp", s)
			client.query("a.test.", "b.test.", "c.test.", "d.test.", "e.test.")
			answers, err := 0, error(nil)
			for ; err == nil; answers++ {
				_, err = client.next(bounded)
			}
			answers--
			if reset := gone(err); reset != c.reset || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("ended with %v, want a reset: %t", err, c.reset)
			}
			if !c.reset && answers != c.answers { // a reset discards answers in flight
				t.Errorf("%d answers, want %d", answers, c.answers)
			}
			if client.conn != nil {
				kit.Must(t, client.conn.Close())
			}
			kit.Eventually(t, "no connection is open", func() bool { return s.Counts().Open == 0 })
		})
	}
}

func TestPause(t *testing.T) {
	s := Start(t, Behaviour{Pause: 50 * time.Millisecond})
	c := dial(t, "tcp", s)
	c.query("a.test.", "b.test.")
	for range 2 {
		m := c.answer()
		right(t, m, m.Question[0].Name)
	}
}

func TestWrong(t *testing.T) {
	const name = "wRong.teSt."
	checks := map[Wrong]func(m *dns.Msg) bool{
		WrongID:        func(m *dns.Msg) bool { return m.Id != 1 },
		WrongQuestion:  func(m *dns.Msg) bool { return !strings.EqualFold(m.Question[0].Name, name) },
		WrongType:      func(m *dns.Msg) bool { return m.Question[0].Qtype != dns.TypeA },
		WrongDirection: func(m *dns.Msg) bool { return !m.Response },
	}
	networks(t, func(t *testing.T, network string) {
		for kind, check := range checks {
			s := Start(t, Behaviour{Wrong: kind})
			c := dial(t, network, s)
			c.query(name)
			m := c.answer()
			if !check(m) || m.Answer[0].(*dns.A).A.String() != WrongAddress.String() {
				t.Errorf("kind %d:\n%v", kind, m)
			}
			right(t, c.answer(), name)
			c.query(".")
			if wrong, right := c.answer(), c.answer(); wrong.String() == right.String() {
				t.Errorf("kind %d, of the root:\n%v", kind, wrong)
			}
		}
	})
}

func TestGarbage(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		s := Start(t, Behaviour{Wrong: Empty | Short | Noise})
		c := dial(t, network, s)
		c.query("a.test.")
		want := []int{0, 3, 65535}
		if network == "udp" {
			want[2] = 1000
		}
		for _, length := range want {
			if packet, err := c.next(bounded); err != nil || len(packet) != length {
				t.Fatalf("%d bytes and %v, want %d", len(packet), err, length)
			}
		}
		right(t, c.answer(), "a.test.")
		s.Behave(Behaviour{Wrong: Short, OnlyWrong: true})
		c.query("b.test.")
		if packet, err := c.next(bounded); err != nil || len(packet) != 3 {
			t.Errorf("%d bytes and %v", len(packet), err)
		}
		if packet, err := c.next(quiet); err == nil {
			t.Errorf("%d more bytes, want none", len(packet))
		}
	})
}

// TestSilence checks behaviours without answers, and that the server answers after the behaviour ends.
func TestSilence(t *testing.T) {
	for name, b := range map[string]Behaviour{"drop": {Drop: 1}, "deaf": {Deaf: true}, "black hole": {BlackHole: true}} {
		t.Run(name, func(t *testing.T) {
			s := Start(t, Behaviour{})
			c := dial(t, "udp", s)
			s.Behave(b)
			c.query("a.test.")
			if _, err := c.next(quiet); err == nil {
				t.Error("answer over UDP, want none")
			}
			if b.Drop == 1 {
				tcp := dial(t, "tcp", s)
				tcp.query("a.test.")
				if _, err := tcp.next(quiet); err == nil {
					t.Error("answer over TCP, want none")
				}
			}
			s.Behave(Behaviour{})
			c.query("b.test.")
			right(t, c.answer(), "b.test.")
			tcp := dial(t, "tcp", s)
			tcp.query("c.test.")
			right(t, tcp.answer(), "c.test.")
		})
	}
}

func TestBlackHole(t *testing.T) {
	s := Start(t, Behaviour{BlackHole: true, OverUDP: Well()})
	_, err := net.DialTimeout("tcp", s.Addr, quiet)
	if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() {
		t.Errorf("connect: %v, want a timeout", err)
	}
	c := dial(t, "udp", s)
	c.query("a.test.")
	right(t, c.answer(), "a.test.")
}

func TestDeaf(t *testing.T) {
	s := Start(t, Behaviour{Deaf: true})
	c := dial(t, "tcp", s)
	kit.Must(t, c.conn.(*net.TCPConn).SetWriteBuffer(1))
	kit.Must(t, c.conn.SetWriteDeadline(time.Now().Add(quiet)))
	if n, err := c.conn.Write(make([]byte, 1<<16)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes written, error %v; want a timeout", n, err)
	}
}

func TestRefuse(t *testing.T) {
	s := Start(t, Behaviour{})
	open := dial(t, "tcp", s)
	open.query("a.test.")
	open.answer()
	s.Behave(Behaviour{Refuse: true})
	if _, err := open.next(bounded); !errors.Is(err, io.EOF) && !gone(err) {
		t.Errorf("read from the open connection: %v, want EOF or a reset", err)
	}
	if conn, err := net.Dial("tcp", s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect: %v, error %v; want refused", conn, err)
	}
	udp := dial(t, "udp", s)
	udp.query("a.test.")
	if _, err := udp.next(bounded); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("read over UDP: %v, want refused", err)
	}
	s.Behave(Behaviour{Refuse: true, OverUDP: Well()})
	udp.query("b.test.")
	right(t, udp.answer(), "b.test.")
	s.Behave(Behaviour{})
	c := dial(t, "tcp", s)
	c.query("c.test.")
	right(t, c.answer(), "c.test.")
}

func TestReplies(t *testing.T) {
	for name, c := range map[string]struct {
		behaviour Behaviour
		check     func(m *dns.Msg, network string) bool
	}{
		"rcode":    {Behaviour{Rcode: dns.RcodeNameError}, func(m *dns.Msg, _ string) bool { return m.Rcode == dns.RcodeNameError && len(m.Answer) == 0 }},
		"no data":  {Behaviour{NoData: true}, func(m *dns.Msg, _ string) bool { return m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 }},
		"bare":     {Behaviour{Rcode: dns.RcodeFormatError, Bare: true}, func(m *dns.Msg, _ string) bool { return len(m.Question) == 0 && m.Id == 1 }},
		"truncate": {Behaviour{Truncate: true}, func(m *dns.Msg, network string) bool { return m.Truncated == (network == "udp") }},
		"keepalive": {Behaviour{Keepalive: new(uint16(5))}, func(m *dns.Msg, network string) bool {
			o := m.IsEdns0().Option
			return len(o) == 0 == (network == "udp") && (network == "udp" || o[0].Option() == dns.EDNS0TCPKEEPALIVE)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			networks(t, func(t *testing.T, network string) {
				s := Start(t, c.behaviour)
				client := dial(t, network, s)
				client.query("a.test.")
				if m := client.answer(); !c.check(m, network) {
					t.Errorf("answer:\n%v", m)
				}
			})
		})
	}
}

func TestCounts(t *testing.T) {
	s := Start(t, Behaviour{Delay: quiet / 2})
	first, second := dial(t, "tcp", s), dial(t, "tcp", s)
	first.query("a.test.", "b.test.", ".")
	for range 3 {
		first.answer()
	}
	second.query("c.test.")
	second.answer()
	c := s.Counts()
	if c.TCP != 3 || c.TCPProbes != 1 || c.Connections != 2 || c.Open != 2 || c.MaxOpen != 2 || c.MaxOnConnection != 2 || c.PerConnection[0]+c.PerConnection[1] != 3 {
		t.Errorf("counts: %+v", c)
	}
	s.ResetCounts()
	second.query("d.test.")
	second.answer()
	kit.Must(t, second.conn.Close())
	kit.Eventually(t, "one connection is open", func() bool { return s.Counts().Open == 1 })
	if c := s.Counts(); c.TCP != 1 || len(c.PerConnection) != 0 || c.Connections != 0 || c.MaxOpen != 2 {
		t.Errorf("counts: %+v", c)
	}
	s.HangUp()
	kit.Eventually(t, "the first connection ends", func() bool { _, err := first.next(bounded); return err != nil })
}
