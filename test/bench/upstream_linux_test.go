package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// startTestUpstream runs an upstream server, which ends with the test program.
func startTestUpstream(t *testing.T) (port int) {
	t.Helper()
	port = child.FreePort()
	go func() { _ = serveUpstream(fmt.Sprintf("127.0.0.1:%d", port), true) }() // without it, there is no answer
	if err := child.Await(t.Context(), 10*time.Second, "the upstream server", func() bool {
		_, err := askCounts(port, nameCounts)
		return err == nil
	}); err != nil {
		t.Fatal(err)
	}
	return port
}

// dialUpstream opens a connection with a deadline of ten seconds.
func dialUpstream(t *testing.T, port int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestUpstreamPipelines(t *testing.T) {
	c := dialUpstream(t, startTestUpstream(t))
	l, err := freshNames(t.TempDir(), "test", 1000)
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	want := map[uint16]net.IP{}
	for i, p := range l.packets {
		binary.BigEndian.PutUint16(p.bytes, uint16(i))
		want[uint16(i)] = p.address
		all = append(all, frame(p.bytes)...)
	}
	for part := range slices.Chunk(all, 1021) { // frames are cut anywhere
		if _, err := c.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	for conn := (&dns.Conn{Conn: c}); len(want) > 0; {
		m, err := conn.ReadMsg()
		if err != nil {
			t.Fatalf("%v, with %d answers to come", err, len(want))
		}
		if a, ok := m.Answer[0].(*dns.A); !ok || !a.A.Equal(want[m.Id]) {
			t.Fatalf("answer %s, want %s", m, want[m.Id])
		}
		delete(want, m.Id)
	}
}

func TestUpstreamCounts(t *testing.T) {
	port := startTestUpstream(t)
	var open []net.Conn
	for range 3 {
		c := &dns.Conn{Conn: dialUpstream(t, port)}
		if err := c.WriteMsg(new(dns.Msg).SetQuestion("a.example.com.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReadMsg(); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if !answers(port, "b.example.com.") { // over UDP
		t.Error("no answer over UDP")
	}
	if err := open[0].Close(); err != nil {
		t.Fatal(err)
	}
	var got upstreamCounts
	if err := child.Await(t.Context(), 10*time.Second, "the end of a connection", func() bool {
		c, err := askCounts(port, nameCounts)
		got = c
		return err == nil && c.open == 2
	}); err != nil {
		t.Fatal(err)
	}
	if want := (upstreamCounts{open: 2, maxOpen: 3, queries: 4}); got != want {
		t.Errorf("counts: %s, want %s", got, want)
	}
	if _, err := askCounts(port, nameReset); err != nil {
		t.Fatal(err)
	}
	got, err := askCounts(port, nameCounts)
	if want := (upstreamCounts{open: 2, maxOpen: 2}); err != nil || got != want {
		t.Errorf("counts after they began anew: %s, error %v; want %s", got, err, want)
	}
}

func TestUpstreamEndsConnection(t *testing.T) {
	port := startTestUpstream(t)
	for _, c := range []struct {
		name string
		sent []byte
	}{
		{"empty frame", []byte{0, 0}},
		{"no query", frame([]byte("GET / HTTP/1.1"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dialUpstream(t, port)
			if _, err := conn.Write(c.sent); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("%d bytes, error %v; want the end", n, err)
			}
		})
	}
}

// testStream is an upstream server with one connection, and the client's end of it. The test sets the clock.
func testStream(t *testing.T, sendBuffer int) (u *upstream, s *stream, other int, clock *time.Time) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	clock = new(time.Time)
	*clock = time.Unix(1, 0)
	s = &stream{fd: ends[0]}
	u = &upstream{streams: map[int]*stream{s.fd: s}, now: func() time.Time { return *clock }, counts: upstreamCounts{open: 1}}
	if u.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !s.closed {
			u.close(s)
		}
		_, _ = unix.Close(u.epoll), unix.Close(ends[1])
	})
	if err := u.watch(unix.EPOLL_CTL_ADD, s.fd, unix.EPOLLIN); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer); err != nil {
		t.Fatal(err)
	}
	return u, s, ends[1], clock
}

// received returns the data in a socket's receive buffer.
func received(t *testing.T, fd int) (all []byte) {
	t.Helper()
	buffer := make([]byte, 1<<16)
	for {
		n, err := unix.Read(fd, buffer)
		if errors.Is(err, unix.EAGAIN) || err == nil && n == 0 {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, buffer[:n]...)
	}
}

func TestUpstreamDelay(t *testing.T) {
	u, s, other, clock := testStream(t, 1<<16)
	query := frame(packed(t, "n1.example.com.", dns.TypeA, dns.ClassINET))
	for range 2 {
		if _, err := unix.Write(other, query); err != nil {
			t.Fatal(err)
		}
		u.read(s)
		*clock = clock.Add(5 * time.Millisecond)
	}
	size := len(query) + 16 // and a record, whose name is compressed
	for _, c := range []struct {
		after time.Duration // since the first query
		want  int
	}{{upstreamDelay - 1, 0}, {upstreamDelay, size}, {upstreamDelay + 5*time.Millisecond - 1, 0}, {time.Minute, size}, {time.Hour, 0}} {
		t.Run(c.after.String(), func(t *testing.T) {
			*clock = time.Unix(1, 0).Add(c.after)
			u.sendDue()
			if got := len(received(t, other)); got != c.want {
				t.Errorf("%d bytes, want %d", got, c.want)
			}
		})
	}
	if u.first != 0 || len(u.waiting) != 0 {
		t.Errorf("%d of %d still wait", len(u.waiting)-u.first, len(u.waiting))
	}
}

// TestUpstreamBlocked has a client that reads late: it receives everything, in order.
func TestUpstreamBlocked(t *testing.T) {
	u, s, other, clock := testStream(t, 4096)
	const queries = 1000
	query := frame(packed(t, "n1.example.com.", dns.TypeA, dns.ClassINET))
	for range queries {
		if _, err := unix.Write(other, query); err != nil {
			t.Fatal(err)
		}
		u.read(s)
	}
	*clock = clock.Add(upstreamDelay)
	u.sendDue()
	if !s.blocked {
		t.Fatal("the send buffer is not full: nothing is tested")
	}
	got := received(t, other)
	for u.sendDue(); s.blocked; got = append(got, received(t, other)...) {
		var events [1]unix.EpollEvent
		n, err := unix.EpollWait(u.epoll, events[:], 10000)
		if n != 1 && !errors.Is(err, unix.EINTR) {
			t.Fatalf("epoll does not report room: %v", err)
		}
		if err := u.handle(s.fd); err != nil {
			t.Fatal(err)
		}
	}
	if want := queries * (len(query) + 16); len(got) != want {
		t.Errorf("%d bytes, want %d", len(got), want)
	}
}

func TestUpstreamForgetsClosed(t *testing.T) {
	u, s, other, clock := testStream(t, 1<<16)
	if _, err := unix.Write(other, frame(packed(t, "n1.example.com.", dns.TypeA, dns.ClassINET))); err != nil {
		t.Fatal(err)
	}
	u.read(s)
	if err := unix.Shutdown(other, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	u.read(s)
	*clock = clock.Add(upstreamDelay)
	u.sendDue()
	if !s.closed || u.counts.open != 0 || len(received(t, other)) != 0 {
		t.Errorf("closed: %v, open: %d; want a connection that is gone", s.closed, u.counts.open)
	}
}
