package main

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// TestFloor checks that each connection gets a heartbeat in each interval.
func TestFloor(t *testing.T) {
	port := child.FreePort()
	var f floor
	if err := f.listen(netip.MustParseAddrPort(addressAt(port))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(f.fd) })
	const connections, intervals = floorSteps + 2, 2 // two parts have one more
	var all []*simulated
	for range connections {
		conn, err := net.Dial("tcp", addressAt(port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		all = append(all, newSimulated(conn))
	}
	for f.accepted < connections {
		if err := f.accept(); err != nil {
			t.Fatal(err)
		}
	}
	for n := range intervals * floorSteps {
		if err := f.step(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range f.parts { // so that the clients read an end
		for _, fd := range part {
			_ = unix.Close(fd)
		}
	}
	for i, s := range all {
		beats := 0
		s.beat = func(time.Time) { beats++ }
		for {
			m, err := s.read()
			if err != nil {
				break
			}
			if err := s.handle(m, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if beats != intervals {
			t.Errorf("connection %d: %d heartbeats, want %d", i, beats, intervals)
		}
	}
}

func TestCheckFiles(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if files.Max > 1<<30 {
		t.Skip("no limit of open files")
	}
	if err := checkFiles(int(files.Max)); err == nil { // #nosec G115 -- limited
		t.Error("as many sessions as open files are possible")
	}
	if err := checkFiles(1); err != nil && files.Max > 200 {
		t.Error(err)
	}
}
