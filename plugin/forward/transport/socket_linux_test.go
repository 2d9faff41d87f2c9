package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestUserTimeout(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, serving(t, echo), 10, 1)
	b.send("www.example.").answered()
	b.mu.Lock()
	raw := rawConn(b.conns[0].c)
	b.mu.Unlock()
	kit.Must(t, raw.Control(func(fd uintptr) {
		got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if want := int(unacknowledged.Milliseconds()); err != nil || got != want {
			t.Errorf("TCP_USER_TIMEOUT is %d (%v), want %d", got, err, want)
		}
	}))
}

// full returns the address of a server that accepts no connections, and whose accept queue is full.
func full(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	kit.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	kit.Must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	kit.Must(t, unix.Listen(fd, 0))
	at, err := unix.Getsockname(fd)
	kit.Must(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
	for range 8 {
		c, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("handshakes succeed although the queue should be full")
	return ""
}

func TestHandshakeTimeout(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 2)
	b.backoff, b.maxBackoff = time.Hour, time.Hour
	address := full(t)
	b.Dial = func(ctx context.Context) (net.Conn, error) {
		b.dials.Add(1)
		return Dialer("tcp", nil).DialContext(ctx, "tcp", address)
	}
	alone := newSent(t, "alone.example.")
	alone.Alone = true
	alone.sendTo(b)
	b.Cancel(alone.Call)
	all := b.sendAll(100, "n")
	for _, s := range all {
		// dialTimeout ends the handshake, not TCP_USER_TIMEOUT.
		if err := s.fails(); errors.Is(err, syscall.ETIMEDOUT) || !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v", err)
		}
	}
	if n := b.dials.Load(); n > 3 {
		t.Errorf("%d handshakes", n)
	}
	noneWaits := b.send("more.example.")
	_ = noneWaits.fails()
	kit.Eventually(t, "no handshake is left", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.conns)+len(b.retired) == 0
	})
}

// Cancelling the last query cancels the handshake, which does not count as a failure of the server.
func TestConnectIsCancelled(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 2)
	dialed := make(chan error, 1)
	address := full(t)
	b.Dial = func(ctx context.Context) (net.Conn, error) {
		c, err := Dialer("tcp", nil).DialContext(ctx, "tcp", address)
		dialed <- err
		return c, err
	}
	alone := newSent(t, "alone.example.")
	alone.Alone = true
	alone.sendTo(b)
	b.Cancel(alone.Call)
	select {
	case err := <-dialed:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	case <-time.After(soon):
		t.Fatal("the handshake is not cancelled")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures != 0 || !b.retryAt.IsZero() {
		t.Error("the cancelled handshake counts as a failure of the server")
	}
}
