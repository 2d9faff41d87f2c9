package sockets

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"golang.org/x/sys/unix"
)

// TestTakeOver takes over a listener that has a connection which its server has not accepted. The server's listener is idle
// afterwards, also for the next server that inherits it, and refuses connections.
func TestTakeOver(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	address := server.Addr().String()
	waiting, err := net.Dial("tcp", address)
	kit.Must(t, err)
	defer func() { _ = waiting.Close() }()
	if IsIdle(server.(syscall.Conn)) {
		t.Error("a new listener is idle")
	}
	taken, err := TakeOver(server.(syscall.Conn))
	kit.Must(t, err)
	defer func() { _ = taken.Close() }()
	if !IsIdle(server.(syscall.Conn)) {
		t.Error("the listener is not idle")
	}
	if _, err := TakeOver(server.(syscall.Conn)); !errors.Is(err, errIdle) {
		t.Errorf("the second time: %v, want %v", err, errIdle)
	}
	file, err := server.(*net.TCPListener).File()
	kit.Must(t, err)
	defer func() { _ = file.Close() }()
	inherited, err := net.FileListener(file)
	kit.Must(t, err)
	defer func() { _ = inherited.Close() }()
	if !IsIdle(inherited.(syscall.Conn)) {
		t.Error("the inherited listener is not idle")
	}
	checkRefused(t, inherited)
	next, err := net.Dial("tcp", address)
	kit.Must(t, err)
	defer func() { _ = next.Close() }()
	for range 2 {
		kit.Must(t, acceptOne(taken))
	}
	port := netip.MustParseAddrPort(address).Port()
	own := Own(func(a netip.AddrPort) bool { return a.Port() == port })
	if len(own) != 1 || !own[0].TCP {
		t.Fatalf("sockets %+v", own)
	}
	defer own[0].Close()
	kit.Must(t, own[0].Detach())
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("the detached listener accepts connections")
	}
}

// TestTakeOver_Blocking takes over a listener whose socket blocks, as it does while the next configuration inherits it.
func TestTakeOver_Blocking(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	defer func() { _ = server.Close() }()
	address := server.Addr().String()
	file, err := server.(*net.TCPListener).File()
	kit.Must(t, err)
	defer func() { _ = file.Close() }()
	file.Fd() // lets the socket block
	taken, err := TakeOver(server.(syscall.Conn))
	kit.Must(t, err)
	defer func() { _ = taken.Close() }()
	waiting, err := net.Dial("tcp", address)
	kit.Must(t, err)
	defer func() { _ = waiting.Close() }()
	if err := acceptOne(taken); err != nil {
		t.Error(err)
	}
}

// checkRefused checks that no process can connect to an idle listener, and that its server waits.
func checkRefused(t *testing.T, idle net.Listener) {
	t.Helper()
	if conn, err := net.Dial("unix", idle.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = conn.Close()
		}
		t.Errorf("connect to the idle listener: %v, want %v", err, syscall.ECONNREFUSED)
	}
	kit.Must(t, idle.(*net.UnixListener).SetDeadline(time.Now().Add(20*time.Millisecond)))
	if _, err := idle.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("accept: %v, want %v", err, os.ErrDeadlineExceeded)
	}
}

// acceptOne accepts and closes a connection of a listener that was taken over.
func acceptOne(listener *os.File) error {
	if err := listener.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	raw, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		conn, _, err := unix.Accept4(int(fd), unix.SOCK_CLOEXEC)
		if err == nil {
			_ = unix.Close(conn)
		}
		return err == nil
	})
}
