package main

import (
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// echoBatch is the maximum number of datagrams of one system call.
const echoBatch = 64

// mmsghdr is the kernel's struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	unix.Msghdr
	received uint32
}

// The number in it is 32 bits wide, and padded to a pointer's size.
var _ [unix.SizeofMsghdr + unix.SizeofPtr]byte = [unsafe.Sizeof(mmsghdr{})]byte{}

// echoer is the minimal work of a server on one socket: it receives datagrams in batches, sets the QR bit in each and
// sends them back.
type echoer struct {
	fd       int
	messages [echoBatch]mmsghdr
	vectors  [echoBatch]unix.Iovec
	from     [echoBatch]unix.RawSockaddrInet4
	buffers  [echoBatch][512]byte
}

// echo serves an IPv4 address and port until the process is killed.
func echo(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // nothing is allocated from here on
	var e echoer
	if e.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("echo: socket: %w", err)
	}
	if err := unix.Bind(e.fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		return fmt.Errorf("echo: bind %s: %w", at, err)
	}
	for {
		n, err := e.receive()
		if err != nil {
			return fmt.Errorf("echo: recvmmsg: %w", err)
		}
		if err := e.send(n); err != nil {
			return fmt.Errorf("echo: sendmmsg: %w", err)
		}
	}
}

// receive waits for datagrams and receives those in the buffer.
func (e *echoer) receive() (int, error) {
	for i := range e.messages {
		e.vectors[i] = unix.Iovec{Base: &e.buffers[i][0]}
		e.vectors[i].SetLen(len(e.buffers[i]))
		e.messages[i].Msghdr = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&e.from[i])), Namelen: unix.SizeofSockaddrInet4, Iov: &e.vectors[i]}
		e.messages[i].SetIovlen(1)
	}
	return e.call(unix.SYS_RECVMMSG, 0, echoBatch, unix.MSG_WAITFORONE)
}

// send answers the first n datagrams.
func (e *echoer) send(n int) error {
	for i := range n {
		size := int(e.messages[i].received)
		if size > 2 {
			e.buffers[i][2] |= 0x80 // QR, RFC 1035 section 4.1.1
		}
		e.vectors[i].SetLen(size)
	}
	for done := 0; done < n; {
		sent, err := e.call(unix.SYS_SENDMMSG, done, n-done, 0)
		if err != nil {
			return err
		}
		done += sent
	}
	return nil
}

// call makes a system call for n messages. The thread does nothing else, so the scheduler is not informed; the cost is a
// signal every ten milliseconds.
func (e *echoer) call(trap uintptr, first, n int, flags uintptr) (int, error) {
	for {
		r, _, errno := unix.RawSyscall6(trap, uintptr(e.fd), uintptr(unsafe.Pointer(&e.messages[first])), uintptr(n), flags, 0, 0)
		if errno == 0 {
			return int(r), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}
