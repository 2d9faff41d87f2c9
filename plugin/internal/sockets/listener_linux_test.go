package sockets

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"golang.org/x/sys/unix"
)

// TestDetachListener takes one of two listeners out while a server accepts from it. Every new connection
// is the other one's, and the server sees no error until it closes its listener itself: caddy would log it.
func TestDetachListener(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			leaving, err := reuseport.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = leaving.Close() })
			port := leaving.Addr().(*net.TCPAddr).AddrPort().Port()
			ended := make(chan error, 1)
			go func() {
				for {
					conn, err := leaving.Accept()
					if err != nil {
						ended <- err
						return
					}
					_ = conn.Close()
				}
			}()
			time.Sleep(50 * time.Millisecond) // the server waits, and is not about to
			own := Own(func(a netip.AddrPort) bool { return a.Port() == port })
			if len(own) != 1 || !own[0].Listener {
				t.Fatalf("sockets %+v", own)
			}
			staying, err := reuseport.Listen("tcp", leaving.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = staying.Close() })
			if err := own[0].Detach(); err != nil {
				t.Fatal(err)
			}
			own[0].Close()
			const connections = 50 // each from another port: some would be the leaving one's
			for range connections {
				conn, err := net.Dial("tcp", staying.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
			if err := staying.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			for i := range connections {
				conn, err := staying.Accept()
				if err != nil {
					t.Fatalf("after %d connections: %v", i, err)
				}
				_ = conn.Close()
			}
			select {
			case err := <-ended:
				t.Fatalf("the server has ended: %v", err)
			default:
			}
			if err := leaving.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			select {
			case err := <-ended:
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("the server ended with %v, want %v", err, net.ErrClosed)
				}
			case <-ctx.Done():
				t.Error("the server does not end")
			}
		})
	}
}

// TestClosedListenerIsNotReplaced has descriptors that are closed: nothing may take the number of the server's.
func TestClosedListenerIsNotReplaced(t *testing.T) {
	const closed, closedToo = 900, 901 // below the usual limit of descriptors, above those of this test
	if err := (Socket{FD: closed, server: closedToo}).replace(); !errors.Is(err, unix.EBADF) {
		t.Errorf("error %v, want %v", err, unix.EBADF)
	}
	if inode(closedToo) != 0 {
		t.Error("the closed descriptor is open")
		_ = unix.Close(closedToo)
	}
}
