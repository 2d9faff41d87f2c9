package nodelocal

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin/pkg/reuseport"
)

// listen opens another socket on an address, as CoreDNS does.
func listen(t *testing.T, addr string) net.PacketConn {
	t.Helper()
	p, err := reuseport.ListenPacket("udp", addr)
	kit.Must(t, err)
	t.Cleanup(func() { _ = p.Close() }) // closed by some tests
	return p
}

// send sends n datagrams from different ports.
func send(t *testing.T, to net.Addr, n int) {
	t.Helper()
	for i := range n {
		c, err := net.Dial("udp", to.String())
		kit.Must(t, err)
		if _, err := fmt.Fprint(c, i); err != nil {
			t.Fatal(err)
		}
		kit.Must(t, c.Close())
	}
}

// count returns the number of datagrams until none arrives for a time.
func count(t *testing.T, p net.PacketConn) (n int) {
	t.Helper()
	for b := make([]byte, 100); ; n++ {
		kit.Must(t, p.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		if _, _, err := p.ReadFrom(b); err != nil {
			return n
		}
	}
}

// TestDrainShared excludes a socket from new datagrams: it still reads and answers earlier ones, and another socket
// receives the new ones.
func TestDrainShared(t *testing.T) {
	for _, network := range []struct{ name, addr string }{{"IPv4", "127.0.0.1"}, {"IPv6", "::1"}} {
		t.Run(network.name, func(t *testing.T) {
			addr := netip.MustParseAddr(network.addr)
			leaving := listen(t, net.JoinHostPort(network.addr, "0"))
			to := leaving.LocalAddr()
			port := to.(*net.UDPAddr).AddrPort().Port()
			send(t, to, 10)
			start := time.Now()
			drain([]netip.Addr{addr}, port, true, 500*time.Millisecond)
			if d := time.Since(start); d < 400*time.Millisecond {
				t.Errorf("waited only %s for unread datagrams", d)
			}
			staying := listen(t, to.String())
			send(t, to, 50)
			if n := count(t, leaving); n != 10 {
				t.Errorf("the leaving socket has %d datagrams, want the 10 earlier ones", n)
			}
			client, err := net.ListenPacket("udp", net.JoinHostPort(network.addr, "0"))
			kit.Must(t, err)
			if _, err := leaving.WriteTo([]byte("answer"), client.LocalAddr()); err != nil {
				t.Errorf("answering from the leaving socket: %v", err)
			}
			if n := count(t, client); n != 1 {
				t.Errorf("%d answers arrived", n)
			}
			if err := client.Close(); err != nil {
				t.Error(err)
			}
			if n := count(t, staying); n == 0 {
				t.Error("the other socket has no datagram")
			}
		})
	}
}

// TestDrainAlone changes neither the only socket nor other sockets of the process.
func TestDrainAlone(t *testing.T) {
	leaving, other := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
	port := leaving.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	drain([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, port, false, time.Minute) // nothing is unread
	drain([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, port, true, time.Minute)
	send(t, other.LocalAddr(), 5)
	if n := count(t, other); n != 5 {
		t.Errorf("another port: %d datagrams, want 5", n)
	}
}
