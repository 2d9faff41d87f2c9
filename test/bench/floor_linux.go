package main

import (
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// floorSteps is the number of parts of the connections of the floor, to which it sends one after another, as clusterdns does.
const floorSteps = 250

// floor is the least that a server of heartbeats does: it accepts connections, and writes a message to each of them in every
// interval. It reads nothing.
type floor struct {
	fd       int
	accepted int
	parts    [floorSteps][]int
}

// serveFloor serves an IPv4 address and port until the process is killed.
func serveFloor(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	var f floor
	if err := f.listen(at); err != nil {
		return err
	}
	return f.run()
}

func (f *floor) listen(at netip.AddrPort) (err error) {
	if f.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return fmt.Errorf("floor: socket: %w", err)
	}
	if err := unix.SetsockoptInt(f.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil { // connections inherit it
		return fmt.Errorf("floor: TCP_NODELAY: %w", err)
	}
	if err := unix.Bind(f.fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		return fmt.Errorf("floor: bind %s: %w", at, err)
	}
	if err := unix.Listen(f.fd, 4096); err != nil {
		return fmt.Errorf("floor: listen: %w", err)
	}
	return nil
}

// run sends to the next part in each step.
func (f *floor) run() error {
	const step = heartbeatInterval / floorSteps
	began := time.Now()
	for done := 0; ; done++ {
		if err := f.step(done); err != nil {
			return fmt.Errorf("floor: accept: %w", err)
		}
		if wait := time.Until(began.Add(time.Duration(done+1) * step)); wait > 0 {
			time.Sleep(wait)
		}
	}
}

// step accepts connections, and sends to a part.
func (f *floor) step(n int) error {
	if err := f.accept(); err != nil {
		return err
	}
	for _, fd := range f.parts[n%floorSteps] {
		send(fd)
	}
	return nil
}

// accept accepts all connections that wait.
func (f *floor) accept() error {
	for {
		fd, _, err := unix.Accept4(f.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			part := &f.parts[f.accepted%floorSteps]
			*part = append(*part, fd)
			f.accepted++
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EAGAIN:
			return nil
		default:
			return err
		}
	}
}

// floorMessage is a heartbeat with its length.
var floorMessage = [...]byte{0, 24, 0, 0, dsoOpcode << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, dsoHeartbeat >> 8, dsoHeartbeat & 0xFF, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0}

// send sends the message. The client has read the last one: else it is lost, as the fleet reports.
func send(fd int) {
	_, _, _ = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&floorMessage[0])), uintptr(len(floorMessage)), // #nosec G103
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
}

// checkFiles returns an error if a process may not have enough open files for a number of sessions: clusterdns leaves an
// eighth of them to other sockets.
func checkFiles(sessions int) error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if spare := 100; uint64(sessions+spare) > files.Max-files.Max/8 { // #nosec G115 -- positive
		return fmt.Errorf("%d sessions need a limit of %d open files, which is %d", sessions, (sessions+spare)*8/7+1, files.Max)
	}
	return nil
}
