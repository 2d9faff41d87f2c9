package sockets

import (
	"context"
	"encoding/binary"
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
		if want := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port); s.Local != want {
			t.Errorf("socket %+v, want one of %v", s, want)
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

// TestDetach sends datagrams to two sockets on an address, of which one is detached: from fresh ports, and from the
// address and port of the sockets.
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
			if own[0].Detached() {
				t.Error("a new socket is detached")
			}
			if err := own[0].Detach(); err != nil {
				t.Fatal(err)
			}
			if !own[0].Detached() {
				t.Error("a detached socket is not known to be")
			}
			const datagrams = 50 // each from a fresh port: the kernel would give some to the first socket
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
			// A datagram from the socket's own address and port: the lookup of a connected socket finds this one.
			sendFromItself(t, netip.AddrPortFrom(netip.MustParseAddr(c.to), uint16(port))) // #nosec G115 -- a port
			send(t, net.JoinHostPort(c.to, strconv.Itoa(port)))
			if _, err := second.Read(make([]byte, 10)); err != nil { // on lo, what was sent before has arrived before
				t.Fatal(err)
			}
			if own[0].Unread() {
				t.Error("the detached socket received a datagram")
			}
		})
	}
}

// sendFromItself sends a datagram whose source is its destination, as anyone can forge it.
func sendFromItself(t *testing.T, to netip.AddrPort) {
	t.Helper()
	family := unix.AF_INET
	var name unix.Sockaddr
	if to.Addr().Is4() {
		name = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	} else {
		family, name = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if family == unix.AF_INET6 { // IPv6 requires a checksum; the kernel calculates it
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, 6); err != nil {
			t.Fatal(err)
		}
	}
	payload := []byte("x")
	datagram := binary.BigEndian.AppendUint16(nil, to.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, to.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, uint16(8+len(payload))) // #nosec G115
	datagram = append(append(datagram, 0, 0), payload...)
	if err := unix.Bind(fd, name); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, datagram, 0, name); err != nil {
		t.Fatal(err)
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
