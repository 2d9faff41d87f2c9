package main

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"
)

// TestEcho runs the echo server, which ends with the test program.
func TestEcho(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", freePort())
	go func() { _ = echo(address) }() // without it, there is no answer
	conn, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := await(t.Context(), 10*time.Second, "echo", func() bool {
		_, err := exchange(conn.(*net.UDPConn), []byte{1, 2, 3}, make([]byte, 4096))
		return err == nil // connection refused, until it listens
	}); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{2, 3, 12, 512} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			send := bytes.Repeat([]byte{0x11}, size)
			send[0] = byte(size) // of the id, by which exchange matches the answer
			got, err := exchange(conn.(*net.UDPConn), send, make([]byte, 4096))
			if err != nil {
				t.Fatal(err)
			}
			want := bytes.Clone(send)
			if size > 2 {
				want[2] |= 0x80
			}
			if !bytes.Equal(got, want) {
				t.Errorf("answer %x, want %x", got, want)
			}
		})
	}
}
