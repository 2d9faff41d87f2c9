package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestDetachListener detaches one of two listeners on an address while a server accepts from it. The other listener gets
// every new connection, and the server sees no error, which caddy would log, until it closes its listener.
func TestDetachListener(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			detached, err := reuseport.Listen("tcp", net.JoinHostPort(host, "0"))
			kit.Must(t, err)
			t.Cleanup(func() { _ = detached.Close() })
			port := detached.Addr().(*net.TCPAddr).AddrPort().Port()
			ended := make(chan error, 1)
			go func() {
				for {
					conn, err := detached.Accept()
					if err != nil {
						ended <- err
						return
					}
					_ = conn.Close()
				}
			}()
			time.Sleep(50 * time.Millisecond) // accept waits by then
			own := Own(func(a netip.AddrPort) bool { return a.Port() == port })
			if len(own) != 1 || !own[0].TCP {
				t.Fatalf("sockets %+v", own)
			}
			other, err := reuseport.Listen("tcp", detached.Addr().String())
			kit.Must(t, err)
			t.Cleanup(func() { _ = other.Close() })
			kit.Must(t, own[0].Detach())
			own[0].Close()
			const connections = 50 // each from another port: an attached listener would get some
			for range connections {
				conn, err := net.Dial("tcp", other.Addr().String())
				kit.Must(t, err)
				t.Cleanup(func() { _ = conn.Close() })
			}
			kit.Must(t, other.(*net.TCPListener).SetDeadline(time.Now().Add(20*time.Second)))
			for i := range connections {
				conn, err := other.Accept()
				if err != nil {
					t.Fatalf("after %d connections: %v", i, err)
				}
				_ = conn.Close()
			}
			select {
			case err := <-ended:
				t.Fatalf("the server has stopped: %v", err)
			default:
			}
			if err := detached.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			select {
			case err := <-ended:
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("the server stopped with %v, want %v", err, net.ErrClosed)
				}
			case <-ctx.Done():
				t.Error("the server does not stop")
			}
		})
	}
}

// TestClosedListenerIsNotReplaced replaces a listener that the server has closed: another file may have its number.
func TestClosedListenerIsNotReplaced(t *testing.T) {
	const closed, closedToo = 900, 901 // below the usual limit of descriptors, above the open ones
	if err := (Socket{FD: closed, server: closedToo}).replace(); !errors.Is(err, unix.EBADF) {
		t.Errorf("error %v, want %v", err, unix.EBADF)
	}
	if inode(closedToo) != 0 {
		t.Error("the closed descriptor is open")
		_ = unix.Close(closedToo)
	}
}

// TestDetach detaches one of two sockets on an address. The other one gets every datagram, also one whose source is the
// address and port of the sockets.
func TestDetach(t *testing.T) {
	for name, c := range map[string]struct {
		bind, to string
		noIPv6   bool
	}{
		"IPv4":                     {"127.0.0.1:0", "127.0.0.1", false},
		"IPv6":                     {"[::1]:0", "::1", false},
		"any address":              {":0", "127.0.0.1", false},
		"any address, over IPv6":   {":0", "::1", false},
		"any address without IPv6": {"[::]:0", "127.0.0.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			netns.Enter(t)
			if c.noIPv6 {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0o600); err != nil {
					kit.Lacking(t, "the test may not disable IPv6: "+err.Error())
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
			kit.Must(t, err)
			second := listen(t, net.JoinHostPort(host, strconv.Itoa(port)))
			if own[0].Detached() {
				t.Error("a new socket is detached")
			}
			kit.Must(t, own[0].Detach())
			if !own[0].Detached() {
				t.Error("a detached socket is not reported as detached")
			}
			const datagrams = 50 // each from another port: an attached socket would get some
			for range datagrams {
				send(t, net.JoinHostPort(c.to, strconv.Itoa(port)))
			}
			for i := range datagrams {
				kit.Must(t, second.SetReadDeadline(time.Now().Add(10*time.Second)))
				if _, err := second.Read(make([]byte, 10)); err != nil {
					t.Fatalf("after %d datagrams: %v", i, err)
				}
			}
			// The kernel's lookup by source and destination finds the connected socket.
			sendFromItself(t, netip.AddrPortFrom(netip.MustParseAddr(c.to), uint16(port))) // #nosec G115 -- a port
			send(t, net.JoinHostPort(c.to, strconv.Itoa(port)))
			if _, err := second.Read(make([]byte, 10)); err != nil { // lo delivers datagrams in order
				t.Fatal(err)
			}
			if own[0].Unread() {
				t.Error("the detached socket received a datagram")
			}
		})
	}
}

// sendFromItself sends a datagram whose forged source is its destination.
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
	kit.Must(t, err)
	defer func() { _ = unix.Close(fd) }()
	if family == unix.AF_INET6 { // IPv6 requires a checksum; the kernel calculates it
		kit.Must(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, 6))
	}
	payload := []byte("x")
	datagram := binary.BigEndian.AppendUint16(nil, to.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, to.Port())
	datagram = binary.BigEndian.AppendUint16(datagram, uint16(8+len(payload))) // #nosec G115
	datagram = append(append(datagram, 0, 0), payload...)
	kit.Must(t, unix.Bind(fd, name))
	kit.Must(t, unix.Sendto(fd, datagram, 0, name))
}

// send sends a datagram from a port of its own.
func send(t *testing.T, to string) {
	t.Helper()
	conn, err := net.Dial("udp", to)
	if err == nil {
		_, err = conn.Write([]byte("x"))
	}
	kit.Must(t, err)
	kit.Must(t, conn.Close())
}
