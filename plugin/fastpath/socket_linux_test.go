package fastpath

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestSender sends answers from the second socket of a listener: the client, which is connected, receives them, and the
// first socket receives all queries.
func TestSender(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			s := newSocketOn(t, address)
			client, err := net.DialUDP("udp", nil, s.conn.LocalAddr().(*net.UDPAddr))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			for i := range byte(20) {
				exchange(t, s, client, i)
			}
		})
	}
}

// TestSocketsShare opens the sockets of a listener on a machine with several processors: each receives a share of the queries.
func TestSocketsShare(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			all := newSocketsOn(t, address, 4)
			to := all[0].conn.LocalAddr().(*net.UDPAddr)
			const queries = 200
			for range queries {
				client, err := net.DialUDP("udp", nil, to)
				if err != nil {
					t.Fatal(err)
				}
				kit.Send(t, client, []byte{1})
				_ = client.Close()
			}
			for i, s := range all {
				if n := unread(t, s); n < queries/20 {
					t.Errorf("socket %d of %d received %d of %d datagrams", i, len(all), n, queries)
				}
			}
		})
	}
}

// unread reads the datagrams of a socket, and returns their number.
func unread(t *testing.T, s *socket) (n int) {
	t.Helper()
	kit.Must(t, s.conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	for {
		if _, _, err := s.conn.ReadFromUDPAddrPort(make([]byte, 2)); err != nil {
			return n
		}
		n++
	}
}

// exchange sends a query of one byte, and an answer with the same byte from the sender.
func exchange(t *testing.T, s *socket, client *net.UDPConn, b byte) {
	t.Helper()
	for _, c := range []*net.UDPConn{client, s.conn} {
		kit.Must(t, c.SetReadDeadline(time.Now().Add(patience)))
	}
	buf := make([]byte, 2)
	kit.Send(t, client, []byte{b})
	_, from, err := s.conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatalf("query %d: %v", b, err)
	}
	to := unix.Sockaddr(&unix.SockaddrInet4{Port: int(from.Port()), Addr: [4]byte{127, 0, 0, 1}})
	if from.Addr().Is6() && !from.Addr().Is4In6() {
		to = &unix.SockaddrInet6{Port: int(from.Port()), Addr: from.Addr().As16()}
	}
	if err := unix.Sendto(s.sender, buf[:1], 0, to); err != nil {
		t.Fatalf("answer %d: %v", b, err)
	}
	if n, err := client.Read(buf); err != nil || n != 1 || buf[0] != b {
		t.Fatalf("answer %d: %d bytes, %d, %v", b, n, buf[0], err)
	}
}

// TestAnswersDoNotWakePoll polls the socket of a reader as Go does.
func TestAnswersDoNotWakePoll(t *testing.T) {
	b := newBed(t, false)
	reply := addressReply("a.example.", 1)
	b.store(t, &store.Entry{}, reply)
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(poll) }()
	if err := withDescriptor(b.socket, func(fd int) error {
		return unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLET&0xffffffff})
	}); err != nil {
		t.Fatal(err)
	}
	events := make([]unix.EpollEvent, 1)
	if n, err := unix.EpollWait(poll, events, 0); n != 1 || err != nil {
		t.Fatalf("%d events, %v, want that the socket is writable", n, err)
	}
	b.query(t, new(dns.Msg).SetQuestion("a.example.", dns.TypeA))
	b.receive(t)
	if n, err := unix.EpollWait(poll, events, 0); n != 0 || err != nil {
		t.Errorf("%d events, %v, after an answer, want none", n, err)
	}
}

func withDescriptor(s *socket, f func(fd int) error) (err error) {
	if cerr := s.raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// TestQueryOfSender has a query that the sender received before it was detached.
func TestQueryOfSender(t *testing.T) {
	b := newBed(t, false)
	b.store(t, &store.Entry{}, addressReply("a.example.", 1))
	early := newSocket(t)
	var err error
	if b.client, err = net.DialUDP("udp", nil, early.conn.LocalAddr().(*net.UDPAddr)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.client.Close() }()
	packed, err := new(dns.Msg).SetQuestion("a.example.", dns.TypeA).Pack()
	if err == nil {
		_, err = b.client.Write(packed)
	}
	if err != nil {
		t.Fatal(err)
	}
	detached := b.socket.sender
	defer func() { b.socket.sender = detached }()
	kit.Must(t, withDescriptor(early, func(fd int) error { b.socket.sender = fd; return nil }))
	go b.run()
	b.receive(t)
	b.finish()
}

// TestFloodBehindBandwidthLimitCostsNoOtherAnswer has a client whose answers fill the send buffer, since they do not leave the machine,
// as behind a bandwidth limit: they wait for an address of the link layer. Another client gets the stored answers and the plugin
// chain's.
func TestFloodBehindBandwidthLimitCostsNoOtherAnswer(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
	netns.Run(t, "ip", "link", "set", "v1", "up")
	netns.Run(t, "ip", "link", "set", "v0", "up")
	netns.Run(t, "ip", "address", "add", "10.9.0.1/24", "dev", "v0")
	if err := os.WriteFile("/proc/sys/net/ipv4/neigh/v0/unres_qlen_bytes", []byte("10000000"), 0); err != nil { // more than the send buffers
		t.Fatal(err)
	}
	b := newBed(t, false)
	b.reader = newReader(b.listener, newSocketOn(t, "10.9.0.1:53"))
	b.store(t, &store.Entry{}, addressReply("hit.test.", 1))
	kit.Must(t, b.socket.conn.SetWriteDeadline(time.Now().Add(patience)))
	flood := b.peer(t)
	copy(unsafeIPv4(&flood.name), []byte{10, 9, 0, 2}) // no machine has it
	for range 10_000 {
		if err := b.socket.send(&flood, make([]byte, 1000)); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	b.client = b.unrelated(t, clientOf(&flood.name))
	for range 50 {
		b.query(t, question("hit.test."))
		if m := b.receive(t); m.Rcode != dns.RcodeSuccess {
			t.Fatalf("reply\n%v", m)
		}
		b.query(t, question("miss.test."))
		if m := b.receive(t); m.Rcode != dns.RcodeRefused {
			t.Fatalf("reply\n%v", m)
		}
	}
}

// unrelated returns a client with none of the spare sockets of another one.
func (b *bed) unrelated(t *testing.T, other netip.Addr) *net.UDPConn {
	t.Helper()
	a := other.Next()
	for i, j := b.socket.spares.choose(other); ; a = a.Next() {
		if k, l := b.socket.spares.choose(a); k != i && k != j && l != i && l != j {
			break
		}
	}
	netns.Run(t, "ip", "address", "add", a.String()+"/24", "dev", "v0")
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: a.AsSlice()}, b.socket.conn.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// reusePort sets SO_REUSEPORT, as CoreDNS does.
func reusePort(_, _ string, c syscall.RawConn) (err error) {
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) // #nosec G115 -- a descriptor
	}); cerr != nil {
		return cerr
	}
	return err
}

// unsafeIPv4 returns the memory of the IPv4 address in a socket address.
func unsafeIPv4(name *unix.RawSockaddrInet6) []byte {
	return (*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr[:]
}
