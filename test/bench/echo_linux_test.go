package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// echoVariable has a second process of the test serve the address in it: in the system calls of the echo server, the Go runtime
// cannot stop its goroutine.
const echoVariable = "NEARSIDE_ECHO"

func TestEcho(t *testing.T) {
	if address := os.Getenv(echoVariable); address != "" {
		t.Fatal(echo(address))
	}
	address := fmt.Sprintf("127.0.0.1:%d", child.FreePort())
	server := exec.Command(os.Args[0], "-test.run=^TestEcho$")
	server.Env = append(os.Environ(), echoVariable+"="+address)
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill() // it may have failed
		_ = server.Wait()
	}()
	conn, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := child.Await(t.Context(), 10*time.Second, "echo", func() bool {
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
