package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// echoThrough starts a server that sends each connection's bytes back, and a gate before it.
func echoThrough(t *testing.T) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c) // until the client ends it
				_ = c.Close()
			}()
		}
	}()
	g, err := newGate(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.refuse(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// exchange sends bytes and reads as many.
func exchange(c net.Conn, n int) error {
	sent := bytes.Repeat([]byte{1}, n)
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(sent); err != nil {
		return err
	}
	got := make([]byte, n)
	_, err := io.ReadFull(c, got)
	if err == nil && !bytes.Equal(got, sent) {
		return errors.New("other bytes")
	}
	return err
}

func dialGate(t *testing.T, g *gate) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestGateCounts(t *testing.T) {
	g := echoThrough(t)
	for range 3 {
		if err := exchange(dialGate(t, g), 100_001); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.received.Load(); got != 300_003 {
		t.Errorf("%d bytes received, want 300003", got)
	}
}

// TestGateHeld: neither bytes nor the end of a connection pass while the gate holds; cut ends the connection, and a new one
// works, also one that was opened meanwhile.
func TestGateHeld(t *testing.T) {
	g := echoThrough(t)
	c := dialGate(t, g)
	if err := exchange(c, 10); err != nil {
		t.Fatal(err)
	}
	g.hold()
	for _, held := range []net.Conn{c, dialGate(t, g)} {
		if _, err := held.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if err := held.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := held.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v while held", n, err)
		}
	}
	g.cut()
	if err := exchange(c, 1); err == nil {
		t.Error("the connection was not cut")
	}
	if err := exchange(dialGate(t, g), 10); err != nil {
		t.Error(err)
	}
}

// TestGateRefuses: connections end and are refused, also after hold, and the port is the same afterwards.
func TestGateRefuses(t *testing.T) {
	for _, held := range []bool{false, true} {
		g := echoThrough(t)
		address, c := g.address, dialGate(t, g)
		if err := exchange(c, 10); err != nil {
			t.Fatal(err)
		}
		if held {
			g.hold()
		}
		if err := g.refuse(); err != nil {
			t.Fatal(err)
		}
		if err := exchange(c, 1); err == nil {
			t.Error("the connection was not cut")
		}
		if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("error %v, want a refused connection", err)
		}
		if err := g.open(); err != nil {
			t.Fatal(err)
		}
		if g.address != address {
			t.Errorf("address %s, want %s", g.address, address)
		}
		if err := exchange(dialGate(t, g), 10); err != nil {
			t.Error(err)
		}
	}
}
