package sockets

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// listen opens a socket as CoreDNS does, with SO_REUSEPORT.
func listen(t *testing.T, address string) *net.UDPConn {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) // #nosec G115 -- a descriptor
		})
		if cerr != nil {
			return cerr
		}
		return err
	}}
	conn, err := config.ListenPacket(context.Background(), "udp", address)
	kit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UDPConn)
}

// listenBoth opens a UDP socket and a TCP listener on one port, and returns the port.
func listenBoth(t *testing.T) (port uint16) {
	t.Helper()
	packets, streams := kit.ListenBoth(t, "127.0.0.1:0")
	t.Cleanup(func() { _, _ = packets.Close(), streams.Close() })
	return streams.Addr().(*net.TCPAddr).AddrPort().Port()
}

func TestOwn(t *testing.T) {
	port := listenBoth(t)
	own := Own(func(a netip.AddrPort) bool { return a.Port() == port })
	kinds := map[bool]int{}
	for _, s := range own {
		kinds[s.TCP]++
		if want := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port); s.Local != want {
			t.Errorf("socket %+v, want one bound to %v", s, want)
		}
		s.Close()
	}
	if kinds[true] != 1 || kinds[false] != 1 {
		t.Errorf("sockets %+v, want one for UDP and one for TCP", own)
	}
	if none := Own(func(netip.AddrPort) bool { return false }); len(none) != 0 {
		t.Errorf("sockets although no address was wanted: %+v", none)
	}
}
