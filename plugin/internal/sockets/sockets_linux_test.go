package sockets

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/namespace"
)

// listen opens a socket as CoreDNS does: others may share its address.
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UDPConn)
}

// listenBoth opens a socket of UDP and one of TCP on a port that was free for both, and returns the port.
func listenBoth(t *testing.T) (port uint16) {
	t.Helper()
	var err error
	for range 20 {
		var tcp net.Listener
		if tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tcp.Close() })
		var udp net.PacketConn
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			t.Cleanup(func() { _ = udp.Close() })
			return tcp.Addr().(*net.TCPAddr).AddrPort().Port()
		}
	}
	t.Fatalf("no port is free for both: %v", err)
	return 0
}

func TestOwn(t *testing.T) {
	port := listenBoth(t)
	own := Own(func(a netip.AddrPort) bool { return a.Port() == port })
	kinds := map[bool]int{}
	for _, s := range own {
		kinds[s.Listener]++
		if want := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port); s.Local != want || s.Inode() == 0 {
			t.Errorf("socket %+v with inode %d, want one of %v", s, s.Inode(), want)
		}
		s.Close()
	}
	if kinds[true] != 1 || kinds[false] != 1 {
		t.Errorf("sockets %+v, want one of UDP and one of TCP", own)
	}
	if none := Own(func(netip.AddrPort) bool { return false }); len(none) != 0 {
		t.Errorf("sockets that nobody asked for: %+v", none)
	}
}

// TestDetach sends datagrams to two sockets on an address, of which one is taken out.
func TestDetach(t *testing.T) {
	for name, c := range map[string]struct {
		bind, to string
		noIPv6   bool
	}{
		"IPv4":                       {"127.0.0.1:0", "127.0.0.1", false},
		"IPv6":                       {"[::1]:0", "::1", false},
		"any address":                {":0", "127.0.0.1", false},
		"any address, asked by IPv6": {":0", "::1", false},
		"any address without IPv6":   {"[::]:0", "127.0.0.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			namespace.Enter(t)
			if c.noIPv6 {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0o600); err != nil {
					namespace.Lacking(t, "the right to disable IPv6: "+err.Error())
				}
			}
			first := listen(t, c.bind)
			port := first.LocalAddr().(*net.UDPAddr).Port
			own := Own(func(a netip.AddrPort) bool { return int(a.Port()) == port })
			if len(own) != 1 {
				t.Fatalf("sockets %+v", own)
			}
			defer own[0].Close()
			host, _, err := net.SplitHostPort(c.bind)
			if err != nil {
				t.Fatal(err)
			}
			second := listen(t, net.JoinHostPort(host, strconv.Itoa(port)))
			if err := own[0].Detach(); err != nil {
				t.Fatal(err)
			}
			const datagrams = 50 // each from another port: some would be the first's
			for range datagrams {
				send(t, net.JoinHostPort(c.to, strconv.Itoa(port)))
			}
			for i := range datagrams {
				if err := second.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := second.Read(make([]byte, 10)); err != nil {
					t.Fatalf("after %d datagrams: %v", i, err)
				}
			}
			if own[0].Unread() {
				t.Error("the socket that is taken out has got one")
			}
		})
	}
}

// send sends a datagram from a port of its own.
func send(t *testing.T, to string) {
	t.Helper()
	conn, err := net.Dial("udp", to)
	if err == nil {
		_, err = conn.Write([]byte("x"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}
